use proptest::prelude::*;

use super::*;
use crate::invariants::{World, check};

fn pod(name: &str, ips: &[&str]) -> Pod {
    Pod {
        namespace: "default".into(),
        name: name.into(),
        uid: String::new(),
        node: Some("a".into()),
        host_network: false,
        released: false,
        deleting: false,
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn node(name: &str, blocks: &[&str]) -> Node {
    Node {
        name: name.into(),
        uid: String::new(),
        pod_cidrs: blocks.iter().map(|block| block.parse().unwrap()).collect(),
        ip_capacity: None,
    }
}

fn broken(tracker: &Tracker) -> Vec<String> {
    tracker
        .violations()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn follows_an_address_from_pod_to_pod() {
    let mut tracker = Tracker::default();
    tracker.set_pod(&pod("a", &["10.0.0.2", "fd00::2"]));
    tracker.set_pod(&pod("b", &["10.0.0.3"]));
    assert_eq!(broken(&tracker), [""; 0]);
    tracker.set_pod(&pod("b", &["10.0.0.2"]));
    let both = "address 10.0.0.2 is used by live pods default/a and default/b";
    assert_eq!(broken(&tracker), [both]);
    tracker.set_pod(&pod("c", &["10.0.0.2"]));
    let all = "address 10.0.0.2 is used by live pods default/a, default/b and default/c";
    assert_eq!(broken(&tracker), [all]);
    tracker.remove_pod(&pod("c", &[]).key());
    assert_eq!(broken(&tracker), [both]);
    tracker.set_pod(&pod("a", &["fd00::2"]));
    assert_eq!(broken(&tracker), [""; 0]);
    tracker.remove_pod(&pod("a", &[]).key());
    tracker.remove_pod(&pod("b", &[]).key());
    assert!(
        tracker.holders.is_empty(),
        "nothing is kept of what is gone"
    );
}

#[test]
fn pods_that_are_being_deleted_hold_their_addresses() {
    let mut tracker = Tracker::default();
    let deleting = Pod {
        deleting: true,
        ..pod("a", &["10.0.0.2"])
    };
    tracker.set_pod(&deleting);
    tracker.set_pod(&pod("b", &["10.0.0.2"]));
    assert_eq!(tracker.violations().len(), 1);
    let on_its_node = Pod {
        host_network: true,
        ..deleting
    };
    tracker.set_pod(&on_its_node);
    assert_eq!(broken(&tracker), [""; 0]);
}

#[test]
fn finds_wider_equal_and_narrower_blocks_of_other_nodes() {
    let mut tracker = Tracker::default();
    tracker.set_node(&node("a", &["10.0.1.0/24"]));
    tracker.set_node(&node("b", &["10.0.2.0/24"]));
    assert_eq!(broken(&tracker), [""; 0]);
    for (block, wide, narrow) in [
        ("10.0.0.0/16", ("c", "10.0.0.0/16"), ("a", "10.0.1.0/24")),
        ("10.0.1.0/24", ("a", "10.0.1.0/24"), ("c", "10.0.1.0/24")),
        ("10.0.1.64/26", ("a", "10.0.1.0/24"), ("c", "10.0.1.64/26")),
    ] {
        tracker.set_node(&node("c", &[block]));
        let expected = format!(
            "block {} of node {} overlaps block {} of node {}",
            narrow.1, narrow.0, wide.1, wide.0
        );
        assert!(
            broken(&tracker).contains(&expected),
            "{block}: {:?}",
            broken(&tracker)
        );
    }
    tracker.remove_node("a");
    assert_eq!(broken(&tracker), [""; 0]);
    tracker.remove_node("b");
    tracker.remove_node("c");
    assert!(tracker.owners.is_empty(), "nothing is kept of what is gone");
}

/// A change of a small cluster, in which collisions are common.
#[derive(Clone, Debug)]
enum ClusterChange {
    Pod(u8, Vec<u8>),
    NoPod(u8),
    Node(u8, Vec<(u8, u8)>),
    NoNode(u8),
}

fn change() -> impl Strategy<Value = ClusterChange> {
    let ips = prop::collection::vec(0u8..4, 0..3);
    let blocks = prop::collection::vec((0u8..16, 26u8..31), 0..3);
    prop_oneof![
        (0u8..5, ips).prop_map(|(pod, ips)| ClusterChange::Pod(pod, ips)),
        (0u8..5).prop_map(ClusterChange::NoPod),
        (0u8..4, blocks).prop_map(|(node, blocks)| ClusterChange::Node(node, blocks)),
        (0u8..4).prop_map(ClusterChange::NoNode),
    ]
}

fn duplicates<'a>(violations: impl IntoIterator<Item = &'a Violation>) -> BTreeSet<&'a Violation> {
    let violations = violations.into_iter();
    let is_duplicate =
        |violation: &&Violation| matches!(violation, Violation::DuplicateAddress { .. });
    violations.filter(is_duplicate).collect()
}

proptest! {
    #[test]
    fn agrees_with_the_check_of_the_whole_after_each_change(changes in prop::collection::vec(change(), 1..60)) {
        let (mut tracker, mut pods, mut nodes) = (Tracker::default(), BTreeMap::new(), BTreeMap::new());
        for change in changes {
            match change {
                ClusterChange::Pod(number, ips) => {
                    let ips: Vec<_> = ips.iter().map(|ip| format!("10.0.0.{ip}")).collect();
                    let ips: Vec<_> = ips.iter().map(String::as_str).collect();
                    let pod = pod(&number.to_string(), &ips);
                    tracker.set_pod(&pod);
                    pods.insert(number, pod);
                }
                ClusterChange::NoPod(number) => {
                    tracker.remove_pod(&pod(&number.to_string(), &[]).key());
                    pods.remove(&number);
                }
                ClusterChange::Node(number, blocks) => {
                    let blocks: Vec<_> = blocks.iter().map(|(place, length)| format!("10.1.0.{}/{length}", place * 16)).collect();
                    let blocks: Vec<_> = blocks.iter().map(String::as_str).collect();
                    let node = node(&number.to_string(), &blocks);
                    tracker.set_node(&node);
                    nodes.insert(number, node);
                }
                ClusterChange::NoNode(number) => {
                    tracker.remove_node(&number.to_string());
                    nodes.remove(&number);
                }
            }
            let world = World {
                pods: pods.values().cloned().collect(),
                nodes: nodes.values().cloned().collect(),
                ..World::default()
            };
            let mut whole = check(&world);
            whole.retain(|violation| matches!(violation, Violation::DuplicateAddress { .. } | Violation::OverlappingBlocks { .. }));
            prop_assert_eq!(duplicates(tracker.violations()), duplicates(&whole));
            prop_assert_eq!(tracker.violations().is_empty(), whole.is_empty(), "{:?} and {:?}", tracker.violations(), whole);
        }
    }
}
