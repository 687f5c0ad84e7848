use std::collections::{BTreeMap, BTreeSet};

use podplane_ipam::{
    addresses::{AddressReport, NodeAddresses},
    capacity::{Basis, NodeCapacity},
    invariants::{Node, PodKey},
};
use proptest::prelude::*;

use super::*;

fn key(name: &str) -> PodKey {
    PodKey {
        namespace: "default".into(),
        name: name.into(),
    }
}

fn pod(name: &str, node: Option<&str>) -> PodState {
    PodState {
        key: key(name),
        uid: format!("uid-{name}"),
        node: node.map(str::to_owned),
        is_mirror: false,
        held: u64::from(node.is_some()),
        ips: Vec::new(),
    }
}

fn node(name: &str, capacity: Option<u64>, orphaned: u64) -> NodeState {
    NodeState {
        node: Node {
            name: name.into(),
            uid: format!("uid-{name}"),
            pod_cidrs: Vec::new(),
            ip_capacity: None,
        },
        report: AddressReport {
            capacity: match capacity {
                Some(count) => NodeCapacity::Pods {
                    count,
                    basis: Basis::Report,
                },
                None => NodeCapacity::AwaitsBlock,
            },
            orphaned: Some(orphaned),
            allocated: None,
        },
    }
}

/// A judge of a cluster with a node `n` that has addresses for two pods, and no pods.
fn two_addresses() -> HistoryJudge {
    let mut judge = HistoryJudge::default();
    let found = judge.list(10, Vec::new(), vec![node("n", Some(2), 0)]);
    assert_eq!(found, []);
    judge
}

/// The findings as text.
fn text(found: &[HistoryFinding]) -> Vec<String> {
    let line = |found: &HistoryFinding| {
        let HistoryFinding {
            code,
            revision,
            message,
            ..
        } = found;
        format!("{revision} {code}: {message}")
    };
    found.iter().map(line).collect()
}

#[test]
fn a_bind_beyond_the_capacity_of_its_node_is_found_at_its_revision() {
    let mut judge = two_addresses();
    for (revision, name) in [(11, "a"), (12, "b")] {
        assert_eq!(
            judge.apply(revision, [StateChange::Pod(pod(name, None))]),
            []
        );
        let bound = StateChange::Pod(pod(name, Some("n")));
        assert_eq!(judge.apply(revision + 10, [bound]), []);
    }
    // Created with the name of its node.
    let found = judge.apply(23, [StateChange::Pod(pod("c", Some("n")))]);
    assert_eq!(
        text(&found),
        [
            "23 bind-over-capacity: node n: 3 of 2 IPs taken: 3 pods, 0 orphaned, by the bind of default/c"
        ]
    );
    assert_eq!(found[0].objects, ["Node/n", "Pod/default/c"]);
    let addresses = AddressCount {
        capacity: 2,
        held: 3,
        orphaned: 0,
    };
    assert_eq!(found[0].addresses, Some(addresses));
    // Another change of the pod binds nothing.
    let mut changed = pod("c", Some("n"));
    changed.ips = vec!["10.0.0.4".parse().unwrap()];
    assert_eq!(judge.apply(24, [StateChange::Pod(changed)]), []);
    let binds = judge.counts().binds;
    assert_eq!((binds.with_address, binds.of_last_address), (3, 1));
}

#[test]
fn all_changes_of_a_revision_are_judged_together() {
    let mut judge = two_addresses();
    let full = ["a", "b"].map(|name| StateChange::Pod(pod(name, Some("n"))));
    assert_eq!(judge.apply(11, full), []);
    let swap = [
        StateChange::Pod(pod("c", Some("n"))),
        StateChange::PodGone(key("a")),
    ];
    assert_eq!(judge.apply(12, swap), []);
    let two = ["d", "e"].map(|name| StateChange::Pod(pod(name, Some("n"))));
    assert_eq!(
        text(&judge.apply(13, two)),
        [
            "13 bind-over-capacity: node n: 4 of 2 IPs taken: 4 pods, 0 orphaned, by the bind of default/d, default/e"
        ]
    );
}

#[test]
fn orphaned_addresses_leave_less_room() {
    let mut judge = two_addresses();
    assert_eq!(
        judge.apply(11, [StateChange::Node(node("n", Some(2), 1))]),
        []
    );
    assert_eq!(judge.apply(12, [StateChange::Pod(pod("a", Some("n")))]), []);
    assert_eq!(
        text(&judge.apply(13, [StateChange::Pod(pod("b", Some("n")))])),
        [
            "13 bind-over-capacity: node n: 3 of 2 IPs taken: 2 pods, 1 orphaned, by the bind of default/b"
        ]
    );
}

#[test]
fn a_node_that_loses_addresses_is_a_note_and_is_noted_once() {
    let full = ["a", "b"].map(|name| StateChange::Pod(pod(name, Some("n"))));
    for (change, cause) in [
        (
            node("n", Some(1), 0),
            "2 of 1 IP taken: 2 pods, 0 orphaned, as its capacity fell from 2",
        ),
        (
            node("n", Some(2), 1),
            "3 of 2 IPs taken: 2 pods, 1 orphaned, as orphaned ones grew from 0",
        ),
    ] {
        let mut judge = two_addresses();
        assert_eq!(judge.apply(11, full.clone()), []);
        let found = judge.apply(12, [StateChange::Node(change.clone())]);
        assert_eq!(
            text(&found),
            [format!("12 node-over-capacity: node n: {cause}")]
        );
        assert_eq!(found[0].severity, Severity::Info);
        assert_eq!(judge.apply(13, [StateChange::Node(change)]), []);
        // A bind there is at fault.
        let found = judge.apply(14, [StateChange::Pod(pod("c", Some("n")))]);
        assert_eq!(found[0].code, HistoryRule::BindOverCapacity);
    }
}

#[test]
fn mirror_pods_are_exempt() {
    let mut judge = two_addresses();
    let mirror = |name: &str| {
        StateChange::Pod(PodState {
            is_mirror: true,
            ..pod(name, Some("n"))
        })
    };
    assert_eq!(judge.apply(11, ["a", "b"].map(mirror)), []);
    assert_eq!(
        text(&judge.apply(12, [mirror("c")])),
        [
            "12 node-over-capacity: node n: 3 of 2 IPs taken: 3 pods, 0 orphaned, by the mirror pods default/c"
        ]
    );
    assert_eq!(judge.counts().binds.mirror, 3);
}

#[test]
fn a_pod_is_bound_once() {
    let mut judge = two_addresses();
    judge.apply(11, [StateChange::Node(node("m", Some(2), 0))]);
    judge.apply(12, [StateChange::Pod(pod("a", Some("n")))]);
    let found = judge.apply(13, [StateChange::Pod(pod("a", Some("m")))]);
    assert_eq!(
        text(&found),
        ["13 pod-rebound: pod default/a was on node n and is on node m"]
    );
    // Another pod of that name.
    let other = PodState {
        uid: "other".into(),
        ..pod("a", Some("n"))
    };
    let again = [StateChange::PodGone(key("a"))];
    assert_eq!(judge.apply(14, again), []);
    assert_eq!(judge.apply(15, [StateChange::Pod(other)]), []);
}

#[test]
fn a_node_that_waits_for_its_block_takes_no_pod() {
    let mut judge = HistoryJudge::default();
    judge.list(10, Vec::new(), vec![node("n", None, 0)]);
    assert_eq!(
        text(&judge.apply(11, [StateChange::Pod(pod("a", Some("n")))])),
        ["11 bind-over-capacity: node n: waits for its podCIDR, by the bind of default/a"]
    );
    let found = judge.apply(12, [StateChange::Node(node("n", Some(0), 0))]);
    assert_eq!(
        text(&found),
        [
            "12 node-over-capacity: node n: 1 of 0 IPs taken: 1 pod, 0 orphaned, as it got its podCIDR"
        ]
    );
    let found = judge.apply(13, [StateChange::Pod(pod("b", Some("gone")))]);
    assert_eq!(
        text(&found),
        ["13 missing-node: node gone does not exist, at the bind of default/b"]
    );
}

#[test]
fn binds_that_were_not_seen_are_not_judged() {
    let mut judge = two_addresses();
    let pods = ["a", "b", "c"].map(|name| pod(name, Some("n"))).to_vec();
    let found = judge.list(20, pods.clone(), vec![node("n", Some(2), 0)]);
    assert_eq!(
        text(&found),
        [
            "20 node-over-capacity: node n: 3 of 2 IPs taken: 3 pods, 0 orphaned, by a revision that was not read"
        ]
    );
    assert_eq!(judge.counts().binds, BindCounts::default());
    // Everything that is not listed is gone.
    assert_eq!(judge.list(30, Vec::new(), Vec::new()), []);
    let found = judge.apply(31, [StateChange::Pod(pods[0].clone())]);
    assert_eq!(found[0].code, HistoryRule::MissingNode);
}

#[test]
fn a_shared_address_is_found_once() {
    let mut judge = HistoryJudge::default();
    judge.list(10, Vec::new(), vec![node("n", Some(9), 0)]);
    let with_ip = |name| PodState {
        ips: vec!["10.0.0.2".parse().unwrap()],
        ..pod(name, Some("n"))
    };
    assert_eq!(judge.apply(11, [StateChange::Pod(with_ip("a"))]), []);
    let found = judge.apply(12, ["b", "c"].map(|name| StateChange::Pod(with_ip(name))));
    assert_eq!(
        text(&found),
        [
            "12 duplicate-pod-ip: address 10.0.0.2 is used by live pods default/a, default/b and default/c"
        ]
    );
    assert_eq!(judge.apply(13, [StateChange::PodGone(key("b"))]), []);
}

/// A change of a small cluster, in which nodes are often full.
fn change() -> impl Strategy<Value = StateChange> {
    let pods = (
        0u8..5,
        0u8..2,
        prop::option::of(0u8..3),
        0u64..3,
        any::<bool>(),
        prop::option::of(0u8..3),
    );
    let pods = pods.prop_map(|(name, uid, on, held, is_mirror, ip)| {
        let on = on.map(|on| format!("n{on}"));
        StateChange::Pod(PodState {
            uid: format!("{name}-{uid}"),
            is_mirror: is_mirror && name == 0,
            held: if on.is_some() { held } else { 0 },
            ips: ip.map(|ip| [10, 0, 0, ip].into()).into_iter().collect(),
            ..pod(&format!("p{name}"), on.as_deref())
        })
    });
    let place = prop::option::of((0u8..4, 28u8..31));
    let nodes = (0u8..3, prop::option::of(0u64..4), 0u64..3, 0u64..5, place);
    let nodes = nodes.prop_map(|(name, capacity, orphaned, allocated, place)| {
        let mut node = node(&format!("n{name}"), capacity, orphaned);
        node.report.allocated = Some(allocated);
        let block = place.map(|(place, bits)| format!("10.1.0.{}/{bits}", place * 4).parse());
        node.node.pod_cidrs = block.into_iter().map(Result::unwrap).collect();
        StateChange::Node(node)
    });
    prop_oneof![
        4 => pods,
        2 => (0u8..5).prop_map(|name| StateChange::PodGone(key(&format!("p{name}")))),
        2 => nodes,
        1 => (0u8..3).prop_map(|name| StateChange::NodeGone(format!("n{name}"))),
    ]
}

/// The whole state at a revision.
#[derive(Clone, Debug, Default)]
struct WholeState {
    pods: BTreeMap<PodKey, PodState>,
    nodes: BTreeMap<String, NodeState>,
}

impl WholeState {
    fn after(&self, changes: &[StateChange]) -> Self {
        let mut state = self.clone();
        for change in changes.iter().cloned() {
            match change {
                StateChange::Pod(pod) => drop(state.pods.insert(pod.key.clone(), pod)),
                StateChange::PodGone(key) => drop(state.pods.remove(&key)),
                StateChange::Node(node) => {
                    drop(state.nodes.insert(node.node.name.clone(), node));
                }
                StateChange::NodeGone(name) => drop(state.nodes.remove(&name)),
            }
        }
        state
    }

    fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a PodState> {
        let pods = self.pods.values();
        pods.filter(move |pod| pod.node.as_deref() == Some(node))
    }

    fn addresses(&self, node: &str) -> Option<NodeAddresses> {
        let held = self.pods_on(node).map(|pod| pod.held).sum();
        let state = self.nodes.get(node)?;
        Some(NodeAddresses::of(&state.report, held))
    }

    /// The node of the pod, if it exists with this UID.
    fn node_of(&self, pod: &PodState) -> Option<&str> {
        let same = self.pods.get(&pod.key).filter(|same| same.uid == pod.uid);
        same?.node.as_deref()
    }

    /// The pods that share each address.
    fn sharing(&self) -> BTreeMap<IpAddr, BTreeSet<PodKey>> {
        let mut all = BTreeMap::<_, BTreeSet<_>>::new();
        for pod in self.pods.values().filter(|pod| pod.held > 0) {
            for ip in &pod.ips {
                all.entry(*ip).or_default().insert(pod.key.clone());
            }
        }
        all.retain(|_, pods| pods.len() > 1);
        all
    }

    /// The pairs of nodes with blocks that share addresses, with these blocks.
    fn overlaps(&self) -> BTreeSet<(String, String, String)> {
        let blocks = |node: &NodeState| node.node.pod_cidrs.clone();
        let mut found = BTreeSet::new();
        for (a, one) in &self.nodes {
            for (b, other) in self.nodes.range(a.clone()..).skip(1) {
                for (x, y) in blocks(one)
                    .iter()
                    .flat_map(|x| blocks(other).into_iter().map(move |y| (*x, y)))
                {
                    if x.contains(&y) || y.contains(&x) {
                        let (x, y) = (x.trunc(), y.trunc());
                        found.insert((
                            format!("Node/{a}"),
                            format!("Node/{b}"),
                            format!("{x} {y}"),
                        ));
                    }
                }
            }
        }
        found
    }
}

/// The findings of a revision as the definitions say, from the two whole states.
fn expected(before: &WholeState, after: &WholeState) -> BTreeSet<(HistoryRule, BTreeSet<String>)> {
    let mut found = BTreeSet::new();
    let mut find = |rule, objects: Vec<String>| found.insert((rule, objects.into_iter().collect()));
    let name = |key: &PodKey| format!("Pod/{key}");
    for number in 0..3 {
        let node = format!("n{number}");
        let new: Vec<_> = after
            .pods_on(&node)
            .filter(|pod| pod.held > 0 && before.node_of(pod) != Some(&node))
            .collect();
        let bound = |is_mirror| {
            let of = new.iter().filter(|pod| pod.is_mirror == is_mirror);
            let mut objects = vec![format!("Node/{node}")];
            objects.extend(of.map(|pod| name(&pod.key)));
            objects
        };
        let is_over = |addresses: &NodeAddresses| {
            addresses.held + addresses.orphaned > addresses.capacity.count()
        };
        let counts = |addresses: &NodeAddresses| addresses.capacity != NodeCapacity::AwaitsBlock;
        let binds = bound(false).len() > 1;
        match after.addresses(&node) {
            None if binds => drop(find(HistoryRule::MissingNode, bound(false))),
            Some(now) if is_over(&now) && binds => {
                find(HistoryRule::BindOverCapacity, bound(false));
            }
            Some(now) if is_over(&now) && counts(&now) => {
                let was_over = before.addresses(&node);
                if !was_over.is_some_and(|was| is_over(&was) && counts(&was)) {
                    find(HistoryRule::NodeOverCapacity, bound(true));
                }
            }
            _ => {}
        }
    }
    for pod in after.pods.values() {
        if let (Some(from), Some(to)) = (before.node_of(pod), &pod.node)
            && from != to
        {
            let objects = vec![name(&pod.key), format!("Node/{from}"), format!("Node/{to}")];
            find(HistoryRule::PodRebound, objects);
        }
    }
    let shared = before.sharing();
    for (ip, pods) in after.sharing() {
        if shared.get(&ip).is_none_or(|known| !pods.is_subset(known)) {
            find(HistoryRule::DuplicatePodIp, pods.iter().map(name).collect());
        }
    }
    for pair in after.overlaps().difference(&before.overlaps()) {
        find(
            HistoryRule::OverlappingPodCidr,
            vec![pair.0.clone(), pair.1.clone()],
        );
    }
    found
}

/// The object of a change.
fn object(change: &StateChange) -> String {
    match change {
        StateChange::Pod(PodState { key, .. }) | StateChange::PodGone(key) => key.to_string(),
        StateChange::Node(NodeState { node, .. }) => node.name.clone(),
        StateChange::NodeGone(name) => name.clone(),
    }
}

proptest! {
    #[test]
    fn agrees_with_a_comparison_of_the_whole_states_of_each_two_revisions(
        history in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..60),
        skipped in 0usize..60,
    ) {
        let (mut judge, mut state) = (HistoryJudge::default(), WholeState::default());
        for (number, mut changes) in history.into_iter().enumerate() {
            // A commit changes an object once.
            let mut seen = BTreeSet::new();
            changes.retain(|change| seen.insert(object(change)));
            let next = state.after(&changes);
            let revision = number as u64;
            let found = if number == skipped {
                let (pods, nodes) = (next.pods.values(), next.nodes.values());
                let found = judge.list(revision, pods.cloned().collect(), nodes.cloned().collect());
                let blames = |found: &HistoryFinding| matches!(found.code, HistoryRule::BindOverCapacity | HistoryRule::MissingNode);
                prop_assert!(!found.iter().any(blames), "{:?}", found);
                state = next;
                continue;
            } else {
                judge.apply(revision, changes.clone())
            };
            prop_assert!(found.iter().all(|found| found.revision == revision));
            let count = found.len();
            let found: BTreeSet<_> = found.into_iter().map(|found| (found.code, found.objects.into_iter().collect())).collect();
            let expected = expected(&state, &next);
            prop_assert_eq!(&found, &expected, "{:?}\nfrom {:?}", changes, state);
            prop_assert!(count >= expected.len());
            state = next;
        }
    }
}
