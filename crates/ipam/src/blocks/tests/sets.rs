//! Sets that are added and removed.

use proptest::prelude::*;

use super::{net, node};
use crate::blocks::*;
use crate::net::overlap;

fn set(name: &str, selector: Option<&str>, host_bits: u8, cidrs: &[&str]) -> BlockSet {
    let of = |family| {
        cidrs
            .iter()
            .map(|cidr| net(cidr))
            .find(|net| Family::of(net) == family)
    };
    BlockSet {
        name: name.to_owned(),
        created: 0,
        selector: selector.map(str::to_owned),
        ranges: BlockSet::ranges(host_bits, of(Family::V4), of(Family::V6)).unwrap(),
    }
}

fn with(sets: impl IntoIterator<Item = BlockSet>) -> NodeBlocks {
    let mut blocks = NodeBlocks::without_sets(&[net("10.0.3.0/24"), net("fd00::300/120")]);
    for set in sets {
        assert_eq!(blocks.add_set(set), Ok(true));
    }
    blocks
}

fn given(blocks: &mut NodeBlocks, number: u8) -> Vec<String> {
    let nets = blocks.allocate_from(&node(number), |_| Some(1)).unwrap();
    nets.iter().map(ToString::to_string).collect()
}

#[test]
fn service_ranges_are_kept_from_sets_added_later() {
    let mut blocks = with([]);
    blocks
        .add_set(set("a", None, 8, &["10.0.2.0/23", "fd00::200/119"]))
        .unwrap();
    assert_eq!(given(&mut blocks, 1), ["10.0.2.0/24", "fd00::200/120"]);
    let error = blocks.allocate(&node(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to get a clusterCIDR for node node2, no available CIDRs"
    );
    assert_eq!(
        error,
        AllocateError::NoneLeft {
            owner: node(2),
            full: vec![net("10.0.2.0/23")]
        }
    );
    assert_eq!(
        blocks
            .usage_of("a")
            .map(|usage| usage.reserved)
            .collect::<Vec<_>>(),
        [1, 1]
    );
}

#[test]
fn existing_blocks_are_kept_from_sets_added_later() {
    let mut blocks = with([]);
    assert!(matches!(
        blocks.adopt(&node(1), net("10.0.0.0/24")),
        Adoption::Foreign(Misfit::OutOfRange { cluster: None, .. })
    ));
    blocks.add_set(set("a", None, 8, &["10.0.0.0/22"])).unwrap();
    assert_eq!(blocks.held_of("a"), []);
    assert_eq!(given(&mut blocks, 2), ["10.0.1.0/24"]);
    // Adopted again, it is a block of the set.
    assert_eq!(
        blocks.adopt(&node(1), net("10.0.0.0/24")),
        Adoption::Assigned
    );
    assert_eq!(blocks.sets_of("uid-1"), ["a"]);
}

#[test]
fn a_terminating_set_gives_nothing_and_adopts() {
    for selector in [None, Some("x")] {
        let mut blocks = with([set("a", selector, 8, &["10.0.0.0/22"])]);
        assert_eq!(given(&mut blocks, 1), ["10.0.0.0/24"]);
        assert!(blocks.terminate_set("a"));
        let error = blocks.allocate_from(&node(2), |_| Some(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no cidrSets with matching labels found for node node2"
        );
        assert_eq!(
            blocks.adopt(&node(3), net("10.0.1.0/24")),
            Adoption::Assigned
        );
        assert_eq!(blocks.held_of("a").len(), 2);
        blocks.drain("uid-1");
        blocks.release("uid-3");
        assert_eq!(blocks.held_of("a"), [], "a draining block is of no node");
        assert_eq!(blocks.remove_set("a"), []);
        assert_eq!(blocks.holders("10.0.0.7".parse().unwrap()).len(), 1);
        assert!(!blocks.terminate_set("a"));
    }
}

#[test]
fn blocks_of_a_removed_set_are_kept_as_foreign() {
    let mut blocks = with([set("a", None, 8, &["10.0.0.0/22"])]);
    given(&mut blocks, 1);
    let left = blocks.remove_set("a");
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].to_string(), "10.0.0.0/24 of node node1");
    assert_eq!(blocks.sets_of("uid-1"), [""; 0]);
    // The free rest of it can be allocated from a set with other blocks; the node belongs to no
    // set.
    blocks.add_set(set("a", None, 7, &["10.0.0.0/23"])).unwrap();
    assert_eq!(given(&mut blocks, 2), ["10.0.1.0/25"]);
    assert!(matches!(
        blocks.adopt(&node(1), net("10.0.0.0/24")),
        Adoption::Foreign(Misfit::WrongSize { node_mask: 25, .. })
    ));
}

#[test]
fn a_set_that_is_full_in_one_family_is_passed_over_untouched() {
    let mut blocks = with([
        set("a", Some("a"), 8, &["10.0.0.0/22", "fd00::/120"]),
        set("b", Some("b"), 4, &["10.1.0.0/24", "fd01::/120"]),
    ]);
    assert_eq!(given(&mut blocks, 1), ["10.0.0.0/24", "fd00::/120"]);
    let before: Vec<Usage> = blocks.usage_of("a").collect();
    assert_eq!(given(&mut blocks, 2), ["10.1.0.0/28", "fd01::/124"]);
    assert_eq!(blocks.usage_of("a").collect::<Vec<_>>(), before);
    assert_eq!(blocks.sets_of("uid-2"), ["b"]);
}

#[test]
fn sets_for_all_nodes_serve_last_and_oldest_first() {
    let everyone = |name: &str, created, cidr: &str| BlockSet {
        created,
        ..set(name, None, 8, &[cidr])
    };
    let mut blocks = with([
        everyone("c", 2, "10.1.0.0/24"),
        everyone("b", 1, "10.2.0.0/24"),
        everyone("a", 2, "10.4.0.0/24"),
        set("x", Some("x"), 8, &["10.5.0.0/24"]),
    ]);
    let order: Vec<String> = (1..=4)
        .flat_map(|number| given(&mut blocks, number))
        .collect();
    assert_eq!(
        order,
        ["10.5.0.0/24", "10.2.0.0/24", "10.4.0.0/24", "10.1.0.0/24"]
    );
    assert_eq!(blocks.add_set(everyone("a", 3, "10.6.0.0/24")), Ok(false));
}

#[test]
fn blocks_of_a_node_belong_to_the_set_that_fits_all_of_them() {
    let mut blocks = with([
        set("v4", None, 8, &["10.0.0.0/22"]),
        set("dual", None, 8, &["10.0.0.0/16", "fd00::/112"]),
        set("wide", Some("wide"), 9, &["10.0.0.0/16"]),
    ]);
    let both = [net("10.0.0.0/24"), net("fd00::/120")];
    assert_eq!(
        blocks.adopt_from(&node(1), &both, |_| None),
        [Adoption::Assigned, Adoption::Assigned]
    );
    assert_eq!(blocks.sets_of("uid-1"), ["dual"]);
    blocks.adopt(&node(2), net("10.0.1.0/24"));
    assert_eq!(
        blocks.sets_of("uid-2"),
        ["dual"],
        "of the same age, the lower name"
    );
    blocks.adopt_from(&node(4), &[net("10.0.4.0/23")], |_| None);
    assert_eq!(
        blocks.sets_of("uid-4"),
        ["wide"],
        "its labels may have been others"
    );
}

/// Sets of several sizes, over and beside each other, preferred differently by a few nodes.
fn pool_of_sets() -> Vec<BlockSet> {
    vec![
        set("a", None, 2, &["10.0.0.0/27"]),
        set("b", Some("s"), 3, &["10.0.0.0/28", "fd00::/124"]),
        set("c", Some("s"), 2, &["10.0.0.16/28", "fd00::/125"]),
        set("d", Some("r"), 1, &["fd00::/126"]),
        set("e", Some("r"), 0, &["10.0.0.24/30"]),
        BlockSet {
            created: 1,
            ..set("f", None, 1, &["10.0.0.0/26", "fd00::/124"])
        },
    ]
}

/// The number of requirements that a node meets.
fn met(number: u8, name: &str) -> Option<usize> {
    match (number % 4, name) {
        (0, "b") | (1, "c" | "e") => Some(2),
        (0 | 2, "c") | (2, "d" | "b") => Some(1),
        _ => None,
    }
}

#[derive(Clone, Debug)]
enum SetOp {
    Add(usize),
    Terminate(usize),
    Remove(usize),
    Allocate(u8),
    Adopt(u8, IpNet),
    Release(u8),
}

fn op() -> impl Strategy<Value = SetOp> {
    let number = 0u8..12;
    prop_oneof![
        3 => (0usize..6).prop_map(SetOp::Add),
        1 => (0usize..6).prop_map(SetOp::Terminate),
        1 => (0usize..6).prop_map(SetOp::Remove),
        6 => number.clone().prop_map(SetOp::Allocate),
        2 => (number.clone(), super::any_net()).prop_map(|(n, net)| SetOp::Adopt(n, net)),
        3 => number.prop_map(SetOp::Release),
    ]
}

/// The claims, and a second implementation of the order of sets.
#[derive(Default)]
struct SetModel {
    sets: Vec<(BlockSet, bool)>,
    held: Vec<(u8, IpNet)>,
}

impl SetModel {
    fn free(&self, range: &ClusterRange) -> Vec<IpNet> {
        let reserved = [net("10.0.0.28/31"), net("fd00::7/128")];
        let blocks = (0..range.blocks()).filter_map(|index| range.block(index));
        blocks
            .filter(|block| !reserved.iter().any(|other| overlap(block, other)))
            .filter(|block| !self.held.iter().any(|(_, other)| overlap(block, other)))
            .collect()
    }

    /// The free blocks of the set that must serve the node.
    fn choice(&self, number: u8) -> Result<Vec<Vec<IpNet>>, bool> {
        let mut suited: Vec<_> = self
            .sets
            .iter()
            .filter(|(set, terminating)| {
                !terminating && (set.selector.is_none() || met(number, &set.name).is_some())
            })
            .map(|(set, _)| {
                let blocks = set.ranges.iter().map(ClusterRange::blocks).min();
                let bits = set.ranges[0].family().bits() - set.ranges[0].node_mask();
                let cidr = set.ranges[0].cidr().to_string();
                let requirements = met(number, &set.name).unwrap_or(0);
                let selected = (
                    usize::MAX - requirements,
                    blocks,
                    bits,
                    set.selector.clone(),
                    cidr,
                );
                match set.selector {
                    Some(_) => ((0, 0, Some(selected)), set),
                    None => ((1, set.created, None), set),
                }
            })
            .collect();
        suited.sort_by_key(|(rank, set)| (rank.clone(), set.name.clone()));
        let frees = suited
            .iter()
            .map(|(_, set)| set.ranges.iter().map(|range| self.free(range)).collect());
        let mut frees =
            frees.filter(|frees: &Vec<Vec<IpNet>>| frees.iter().all(|free| !free.is_empty()));
        frees.next().ok_or(suited.is_empty())
    }
}

proptest! {
    #[test]
    fn the_preferred_set_serves_all_families_and_nothing_overlaps(ops in prop::collection::vec(op(), 0..80)) {
        let sets = pool_of_sets();
        let mut sut = NodeBlocks::without_sets(&[net("10.0.0.28/31"), net("fd00::7/128")]);
        let mut model = SetModel::default();
        for op in ops {
            match op {
                SetOp::Add(index) => {
                    let set = &sets[index];
                    let there = model.sets.iter().any(|(other, _)| other.name == set.name);
                    prop_assert_eq!(sut.add_set(set.clone()), Ok(!there));
                    if !there {
                        model.sets.push((set.clone(), false));
                    }
                }
                SetOp::Terminate(index) => {
                    let one = model.sets.iter_mut().find(|(set, _)| set.name == sets[index].name);
                    prop_assert_eq!(sut.terminate_set(&sets[index].name), one.is_some());
                    if let Some((_, terminating)) = one {
                        *terminating = true;
                    }
                }
                SetOp::Remove(index) => {
                    let name = &sets[index].name;
                    let held = sut.held_of(name);
                    prop_assert_eq!(sut.remove_set(name), held);
                    model.sets.retain(|(set, _)| set.name != *name);
                }
                SetOp::Allocate(number) => {
                    let choice = model.choice(number);
                    let holds = model.held.iter().any(|(other, _)| *other == number);
                    match sut.allocate_from(&node(number), |name| met(number, name)) {
                        Ok(given) => {
                            prop_assert!(!holds);
                            let frees = choice.expect("there is a free block");
                            prop_assert_eq!(given.len(), frees.len(), "all families");
                            for (block, free) in given.into_iter().zip(frees) {
                                prop_assert!(free.contains(&block), "{} was free in the preferred set", block);
                                model.held.push((number, block));
                            }
                        }
                        Err(AllocateError::AlreadyHolds { .. }) => prop_assert!(holds),
                        Err(AllocateError::NoMatch { .. }) => prop_assert_eq!(choice, Err(true)),
                        Err(AllocateError::NoneLeft { .. }) => prop_assert_eq!(choice, Err(false)),
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                SetOp::Adopt(number, block) => {
                    sut.adopt_from(&node(number), &[block], |name| met(number, name));
                    let entry = (number, block.trunc());
                    if !model.held.contains(&entry) {
                        model.held.push(entry);
                    }
                }
                SetOp::Release(number) => {
                    sut.release(node(number).uid());
                    model.held.retain(|(other, _)| *other != number);
                }
            }
            for (set, _) in &model.sets {
                for (usage, range) in sut.usage_of(&set.name).zip(&set.ranges) {
                    prop_assert_eq!(usage.free, model.free(range).len() as u64, "{}", range);
                }
            }
            let assigned: Vec<Block> = sut.iter().filter(|block| matches!(block.claim, Claim::Assigned(_))).collect();
            for (at, a) in assigned.iter().enumerate() {
                for b in &assigned[at + 1..] {
                    prop_assert!(a.claim.owner() == b.claim.owner() || !overlap(&a.net, &b.net), "{} and {}", a, b);
                }
            }
            let mut held: Vec<IpNet> = sut.iter().filter_map(|block| block.claim.owner().map(|_| block.net)).collect();
            let mut want: Vec<IpNet> = model.held.iter().map(|(_, net)| *net).collect();
            held.sort();
            want.sort();
            prop_assert_eq!(held, want);
        }
    }
}
