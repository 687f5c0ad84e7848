//! ClusterCIDRs.

use podplane_api::{core, selector::NodeSelector};
use podplane_ipam::BlockSet;
use serde_json::json;

use super::*;

fn without_sets() -> Sut {
    Sut {
        allocator: Allocator::without_sets(&["10.0.0.0/24".parse().unwrap()], Duration::ZERO),
        now: at(0),
    }
}

fn labelled(uid: &str, zone: &str, pod_cidrs: &[&str]) -> NodeView {
    NodeView {
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        ..view(uid, pod_cidrs)
    }
}

/// For the nodes of the zone, or for all.
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

impl Sut {
    fn sets(&mut self, name: &str, view: Option<SetView>) -> Plan {
        let changes = BTreeMap::from([(name.to_owned(), view)]);
        let outcome = self.allocator.observe_sets(changes);
        self.settle(outcome)
    }
}

#[test]
fn nodes_are_looked_at_again_when_a_set_for_them_comes() {
    let mut sut = without_sets();
    let plan = sut.nodes(one("a", Some(labelled("1", "x", &[]))));
    let told: Vec<String> = plan
        .starved
        .iter()
        .map(|one| one.error.to_string())
        .collect();
    assert_eq!(told, ["no cidrSets with matching labels found for node a"]);
    let plan = sut.nodes(one("b", Some(labelled("2", "y", &["10.1.0.0/24"]))));
    assert_eq!(plan.foreign.len(), 1);

    let plan = sut.sets("y", Some(set("s1", Some("y"), "10.1.0.0/16", 8)));
    assert_eq!(assigned(&plan), []);
    assert_eq!(plan.fits, ["b"]);
    let plan = sut.sets("x", Some(set("s2", Some("x"), "10.0.0.0/16", 4)));
    assert_eq!(
        assigned(&plan),
        [blocks_of("a", &["10.0.1.0/28"])],
        "the service range is kept"
    );
}

#[test]
fn a_waiting_node_is_looked_at_again_when_its_labels_change() {
    let mut sut = without_sets();
    sut.sets("x", Some(set("s1", Some("x"), "10.0.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(labelled("1", "y", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));
    let plan = sut.nodes(one("a", Some(labelled("1", "z", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));
    let plan = sut.nodes(one("a", Some(labelled("1", "x", &[]))));
    assert_eq!(assigned(&plan), [blocks_of("a", &["10.0.1.0/24"])]);
}

#[test]
fn a_set_without_its_finalizer_gives_nothing() {
    let mut sut = without_sets();
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
fn a_terminating_set_goes_when_the_last_of_its_nodes_has_gone() {
    let mut sut = without_sets();
    sut.sets("all", Some(set("s1", None, "10.1.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    sut.confirm(&plan.assign[0]);

    let deleting = SetView {
        deleting: true,
        ..set("s1", None, "10.1.0.0/16", 8)
    };
    sut.sets("all", Some(deleting.clone()));
    assert!(!sut.terminate("all"));
    let plan = sut.nodes(one("b", Some(view("2", &[]))));
    assert_eq!((assigned(&plan), plan.starved.len()), (vec![], 1));

    // So it is for a process that finds it terminating.
    let mut other = without_sets();
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
fn blocks_of_a_set_that_was_forced_out_are_foreign() {
    let mut sut = without_sets();
    sut.sets("all", Some(set("s1", None, "10.1.0.0/16", 8)));
    let plan = sut.nodes(one("a", Some(view("1", &[]))));
    sut.confirm(&plan.assign[0]);
    let plan = sut.sets("all", None);
    assert_eq!(plan.foreign.len(), 1);
    let plan = sut.sets("all", Some(set("s2", None, "10.1.0.0/16", 8)));
    assert_eq!(plan.fits, ["a"]);
    let plan = sut.nodes(one("b", Some(view("2", &[]))));
    assert_eq!(assigned(&plan), [blocks_of("b", &["10.1.1.0/24"])]);
}

#[test]
fn a_set_that_cannot_be_cut_is_told_of() {
    let mut sut = without_sets();
    let mut wide = set("s1", None, "10.1.0.0/16", 8);
    wide.ranges = Err("why".to_owned());
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, ["why"]);
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, [""; 0]);
    wide.ranges = Err("other".to_owned());
    assert_eq!(sut.sets("wide", Some(wide.clone())).unusable, ["other"]);
    sut.sets("wide", None);
    assert_eq!(sut.sets("wide", Some(wide)).unusable, ["other"]);
}
