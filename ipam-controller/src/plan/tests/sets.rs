//! ClusterCIDRs.

use podplane_api::{core, selector::NodeSelector};
use podplane_ipam::BlockSet;
use serde_json::json;

use super::*;

fn for_cluster_cidrs() -> TestAllocator {
    TestAllocator {
        allocator: Allocator::for_cluster_cidrs(&["10.0.0.0/24".parse().unwrap()], Duration::ZERO),
        now: at(0),
    }
}

fn labelled(uid: &str, zone: &str, pod_cidrs: &[&str]) -> NodeView {
    NodeView {
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        ..view(uid, pod_cidrs)
    }
}

/// A set for the nodes of `zone`, or without one for all.
fn set(uid: &str, zone: Option<&str>, cidr: &str, host_bits: u8) -> SetView {
    let selector = zone.map(|zone| {
        let zone = json!({"key": "zone", "operator": "In", "values": [zone]});
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [zone]}]});
        let selector: core::NodeSelector = serde_json::from_value(terms).unwrap();
        NodeSelector::from(&selector)
    });
    let ranges = BlockSet::ranges(host_bits, Some(cidr.parse().unwrap()), None);
    SetView {
        uid: uid.to_owned(),
        created: 0,
        selector,
        ranges: ranges.map_err(|error| error.to_string()),
        guarded: true,
        deleting: false,
    }
}

impl TestAllocator {
    fn sets(&mut self, name: &str, view: Option<SetView>) -> SettledPlan {
        let changes = BTreeMap::from([(name.to_owned(), view)]);
        let outcome = self.allocator.observe_sets(changes);
        self.settle(outcome)
    }
}

#[test]
fn reconciles_nodes_when_a_matching_set_appears() {
    let mut sut = for_cluster_cidrs();
    let plan = sut.nodes(one("a", Some(labelled("1", "x", &[]))));
    let errors: Vec<String> = plan
        .starved
        .iter()
        .map(|one| one.error.to_string())
        .collect();
    assert_eq!(
        errors,
        ["no cidrSets with matching labels found for node a"]
    );
    let plan = sut.nodes(one("b", Some(labelled("2", "y", &["10.1.0.0/24"]))));
    assert_eq!(plan.foreign.len(), 1);

    let plan = sut.sets("y", Some(set("s1", Some("y"), "10.1.0.0/16", 8)));
    assert_eq!(assigned(&plan), []);
    assert_eq!(plan.resolved, ["b"]);
    let plan = sut.sets("x", Some(set("s2", Some("x"), "10.0.0.0/16", 4)));
    assert_eq!(
        assigned(&plan),
        [blocks_of("a", &["10.0.1.0/28"])],
        "the service range is kept"
    );
}

#[test]
fn reconciles_a_waiting_node_when_its_labels_change() {
    let mut sut = for_cluster_cidrs();
    sut.sets("x", Some(set("s1", Some("x"), "10.0.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(labelled("1", "y", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));
    let plan = sut.nodes(one("a", Some(labelled("1", "z", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));
    let plan = sut.nodes(one("a", Some(labelled("1", "x", &[]))));
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.1.0/24"])]);
}

#[test]
fn set_without_its_finalizer_assigns_nothing() {
    let mut sut = for_cluster_cidrs();
    let bare = SetView {
        guarded: false,
        ..set("s1", None, "10.1.0.0/16", 8)
    };
    let plan = sut.sets("all", Some(bare.clone()));
    assert_eq!(plan.sets, ["all"], "it is to be given one");
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    assert_eq!(plan.starved.len(), 1);
    let guarded = SetView {
        guarded: true,
        ..bare
    };
    let plan = sut.sets("all", Some(guarded));
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.1.0.0/24"])]);
}

#[test]
fn removes_a_terminating_set_after_its_last_node() {
    let mut sut = for_cluster_cidrs();
    sut.sets("all", Some(set("s1", None, "10.1.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    sut.assignment_confirmed(&plan.assign[0]);

    let deleting = SetView {
        deleting: true,
        ..set("s1", None, "10.1.0.0/16", 8)
    };
    sut.sets("all", Some(deleting.clone()));
    assert!(!sut.terminate("all"));
    let plan = sut.nodes(one("b", Some(view("2", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));

    // A process that finds the set terminating behaves the same.
    let mut other = for_cluster_cidrs();
    other.sets("all", Some(deleting));
    let found = view("1", &["10.1.0.0/24"]);
    assert_eq!(other.nodes(one("a", Some(found))).foreign, []);
    assert!(!other.terminate("all"));

    let plan = sut.nodes(one("a", None));
    assert_eq!(plan.sets[0], "all");
    assert!(sut.terminate("all"));
    sut.sets("all", None);
    let plan = sut.sets("all", Some(set("s2", None, "10.1.0.0/16", 8)));
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.1.0.0/24"])]);
}

#[test]
fn blocks_of_a_removed_set_are_foreign() {
    let mut sut = for_cluster_cidrs();
    sut.sets("all", Some(set("s1", None, "10.1.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    sut.assignment_confirmed(&plan.assign[0]);
    let plan = sut.sets("all", None);
    assert_eq!(plan.foreign.len(), 1);
    let plan = sut.sets("all", Some(set("s2", None, "10.1.0.0/16", 8)));
    assert_eq!(plan.resolved, ["a"]);
    let plan = sut.nodes(one("b", Some(view("2", &[]))));
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.1.1.0/24"])]);
}

#[test]
fn reports_a_set_that_cannot_be_divided_into_blocks() {
    let mut sut = for_cluster_cidrs();
    let mut wide = set("s1", None, "10.1.0.0/16", 8);
    wide.ranges = Err("why".to_owned());
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, ["why"]);
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, [""; 0]);
    wide.ranges = Err("other".to_owned());
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, ["other"]);
    sut.sets("wide", None);
    assert_eq!(sut.sets("wide", Some(wide)).unusable, ["other"]);
}
