use podplane_api::{
    core::{NodeSpec, PodCondition, PodIP, PodSpec, PodStatus},
    meta::{ObjectMeta, Time},
};
use podplane_client::{ApiError, ObjectList, Reason};

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn meta(name: &str, revision: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        uid: Some(format!("uid-of-{name}")),
        resource_version: Some(revision.into()),
        ..ObjectMeta::default()
    }
}

/// A pod of node `n` in a phase, with an address.
fn pod(name: &str, revision: &str, phase: &str, ip: &str) -> Pod {
    Pod {
        metadata: meta(name, revision),
        spec: Some(PodSpec {
            node_name: Some("n".into()),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some(phase.into()),
            pod_ips: Some(vec![PodIP { ip: ip.into() }]),
            ..PodStatus::default()
        }),
    }
}

fn deleting(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time(NOW));
    pod.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    pod
}

fn node(name: &str, revision: &str, block: &str) -> Node {
    Node {
        metadata: meta(name, revision),
        spec: Some(NodeSpec {
            pod_cidr: Some(block.into()),
            pod_cidrs: Some(vec![block.into()]),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

fn list<K: Object>(revision: &str, items: Vec<K>) -> WatcherEvent<K> {
    WatcherEvent::Listed(ObjectList {
        resource_version: revision.into(),
        continue_token: None,
        items,
    })
}

fn applied<K: Object>(object: K) -> WatcherEvent<K> {
    WatcherEvent::Event(ObjectEvent::Modified(object))
}

fn deleted<K: Object>(object: K) -> WatcherEvent<K> {
    WatcherEvent::Event(ObjectEvent::Deleted(object))
}

fn history<K: Watchable>(told: impl IntoIterator<Item = WatcherEvent<K>>) -> RevisionHistory {
    let mut history = RevisionHistory::default();
    for watched in told {
        history.observe(NOW, watched);
    }
    history
}

/// The violations, with the first revision of each and the first one after it.
fn broken(history: &RevisionHistory) -> Vec<(String, String, Option<String>)> {
    let part = |breach: &ViolationSpan| {
        (
            breach.violation.to_string(),
            breach.from.revision.clone(),
            breach.to.as_ref().map(|to| to.revision.clone()),
        )
    };
    history.breaches().map(part).collect()
}

const BOTH: &str = "address 10.0.0.2 is used by live pods default/a and default/b";

#[test]
fn finds_a_duplicate_that_lasts_one_revision() {
    let history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(pod("b", "2", "Running", "10.0.0.2")),
        deleted(pod("a", "3", "Running", "10.0.0.2")),
        applied(pod("b", "4", "Running", "10.0.0.2")),
    ]);
    assert_eq!(
        broken(&history),
        [(BOTH.into(), "2".into(), Some("3".into()))]
    );
    let breach = history.breaches().next().unwrap();
    assert_eq!(breach.pods.len(), 2, "{breach}");
    assert!(
        breach
            .to_string()
            .contains("pod default/a uid-of-a Running node=n ips=10.0.0.2")
    );
    assert_eq!(history.revisions(), 3);
}

#[test]
fn ignores_states_between_writes_of_one_revision() {
    let history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(pod("b", "2", "Running", "10.0.0.2")),
        deleted(pod("a", "2", "Running", "10.0.0.2")),
    ]);
    assert_eq!(broken(&history), []);
}

#[test]
fn a_terminating_pod_with_a_finalizer_holds_its_address() {
    let history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(deleting(pod("a", "2", "Running", "10.0.0.2"))),
        applied(pod("b", "3", "Running", "10.0.0.2")),
    ]);
    assert_eq!(broken(&history), [(BOTH.into(), "3".into(), None)]);
    let breach = history.breaches().next().unwrap().to_string();
    assert!(
        breach.contains("deleting=yes finalizers=example.com/hold"),
        "{breach}"
    );
}

#[test]
fn a_finished_pod_whose_sandbox_is_gone_holds_no_address() {
    let mut finished = deleting(pod("a", "2", "Failed", "10.0.0.2"));
    let status = finished.status.as_mut().unwrap();
    status.conditions = Some(vec![PodCondition {
        type_: "PodReadyToStartContainers".into(),
        status: "False".into(),
        ..PodCondition::default()
    }]);
    let history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(finished),
        applied(pod("b", "3", "Running", "10.0.0.2")),
    ]);
    assert_eq!(broken(&history), []);
}

#[test]
fn a_third_pod_with_the_address_is_another_breach() {
    let history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(pod("b", "2", "Running", "10.0.0.2")),
        applied(pod("c", "3", "Running", "10.0.0.2")),
    ]);
    let all = "address 10.0.0.2 is used by live pods default/a, default/b and default/c";
    let expected = [
        (BOTH.into(), "2".into(), Some("3".into())),
        (all.into(), "3".into(), None),
    ];
    assert_eq!(broken(&history), expected);
}

#[test]
fn blocks_that_overlap_for_one_revision_are_found() {
    let history = history([
        list("1", vec![node("a", "1", "10.0.0.0/24")]),
        applied(node("b", "2", "10.0.0.128/25")),
        deleted(node("a", "3", "10.0.0.0/24")),
    ]);
    let text = "block 10.0.0.128/25 of node b overlaps block 10.0.0.0/24 of node a";
    assert_eq!(
        broken(&history),
        [(text.into(), "2".into(), Some("3".into()))]
    );
}

#[test]
fn an_expired_watch_is_listed_again_and_counts_as_a_gap() {
    let mut history = history([list("1", vec![pod("a", "1", "Running", "10.0.0.2")])]);
    let expired = ApiError::new(Reason::Expired, "too old");
    let lines = history.observe::<Pod>(NOW, WatcherEvent::Interrupted(Some(expired)));
    assert_eq!(lines, ["watch of pods interrupted: too old"]);
    assert!(history.gaps().is_empty(), "nothing was missed yet");
    // a was deleted, and b has its address.
    let lines = history.observe(NOW, list("9", vec![pod("b", "8", "Running", "10.0.0.2")]));
    let told = "1 pods listed at revision 9: the revisions before have expired and were not seen";
    assert_eq!(lines, [told]);
    assert_eq!(history.gaps().len(), 1);
    assert_eq!(broken(&history), []);
    history.observe(NOW, applied(pod("c", "10", "Running", "10.0.0.2")));
    assert_eq!(broken(&history).len(), 1);
}

/// A list of these pods at that revision.
fn listed(revision: &str, pods: &[(&str, &str)]) -> ListedRevisions {
    let pods = pods.iter();
    let items = pods.map(|(name, at)| pod(name, at, "Running", "10.0.0.2"));
    let list = ObjectList {
        resource_version: revision.into(),
        continue_token: None,
        items: items.collect(),
    };
    ListedRevisions(vec![ListedKind::new::<Pod>(&list).unwrap()])
}

#[test]
fn a_history_reaches_a_list_once_it_has_all_its_revisions() {
    let pod = |name: &str, revision: &str| pod(name, revision, "Running", "10.0.0.2");
    let mut history = history([list("5", vec![pod("a", "3"), pod("b", "4")])]);
    let both = [("a", "3"), ("b", "4")];
    assert!(history.has_reached(&listed("5", &both)));
    // The revision of the list is that of another kind.
    assert!(history.has_reached(&listed("9", &both)));
    let changed = listed("9", &[("a", "7"), ("b", "4")]);
    assert!(!history.has_reached(&changed));
    // b is deleted.
    let alone = listed("9", &[("a", "7")]);
    history.observe(NOW, applied(pod("a", "7")));
    assert!(history.has_reached(&changed));
    assert!(!history.has_reached(&alone));
    history.observe(NOW, deleted(pod("b", "8")));
    assert!(history.has_reached(&alone));
    // c is ahead of the list.
    history.observe(NOW, applied(pod("c", "10")));
    assert!(history.has_reached(&alone));
    assert!(!history.has_reached(&listed("11", &[("a", "7")])));
    let bookmark = WatcherEvent::<Pod>::Event(ObjectEvent::Bookmark("11".into()));
    history.observe(NOW, bookmark);
    assert!(history.has_reached(&listed("11", &[("a", "7")])));
    assert!(!RevisionHistory::default().has_reached(&alone));
}

#[test]
fn numbers_breaches_in_the_order_of_their_beginning() {
    let mut history = history([
        list("1", vec![pod("a", "1", "Running", "10.0.0.2")]),
        applied(pod("b", "2", "Running", "10.0.0.2")),
    ]);
    assert_eq!(history.begun(), 1);
    history.observe(NOW, applied(pod("c", "3", "Running", "10.0.0.2")));
    assert_eq!(history.begun(), 2);
    let ordinals: Vec<_> = history.breaches().map(|breach| breach.ordinal).collect();
    assert_eq!(ordinals, [0, 1]);
}

#[test]
fn reports_an_invalid_address() {
    let history = history([list("1", vec![pod("a", "1", "Running", "nonsense")])]);
    assert_eq!(history.problems().len(), 1);
}

#[test]
fn reports_a_pod_that_is_bound_twice_or_reappears() {
    let on = |name: &str, revision: &str, node: &str| {
        let mut pod = pod(name, revision, "Running", "10.0.0.2");
        pod.spec.as_mut().unwrap().node_name = Some(node.into());
        pod
    };
    let history = history([
        list("1", vec![on("a", "1", "")]),
        applied(on("a", "2", "n")),
        applied(on("a", "3", "m")),
        deleted(on("a", "4", "m")),
        applied(on("a", "5", "n")),
    ]);
    let problems: Vec<_> = history
        .problems()
        .iter()
        .map(|(_, text)| text.as_str())
        .collect();
    let pod = "pod default/a uid-of-a Running node";
    let expected = [
        format!("bound to n before: {pod}=m ips=10.0.0.2"),
        format!("deleted and there again: {pod}=n ips=10.0.0.2"),
    ];
    assert_eq!(problems, expected);
    assert!(history.has_seen("uid-of-a") && history.ran() == 1);
}
