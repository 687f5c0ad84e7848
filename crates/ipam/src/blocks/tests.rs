mod sets;

use proptest::prelude::*;

use super::*;
use crate::cluster::RangeFlags;
use crate::net::overlap;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn node(number: u8) -> Owner {
    Owner::new(&format!("uid-{number}"), &format!("node{number}"))
}

fn cluster(cidr: &str, v4: u8, v6: Option<u8>, service: &str) -> NodeBlocks {
    let dual = cidr.contains(',');
    let flags = RangeFlags {
        cluster_cidr: cidr.to_owned(),
        node_cidr_mask_size: (!dual).then_some(v4),
        node_cidr_mask_size_ipv4: dual.then_some(v4),
        node_cidr_mask_size_ipv6: v6,
        service_cluster_ip_range: service.to_owned(),
    };
    NodeBlocks::new(&flags.validate().unwrap())
}

#[test]
fn a_block_in_use_is_refused_to_another_and_its_holder_named() {
    let mut blocks = cluster("10.0.0.0/22", 24, None, "10.0.3.0/25");
    blocks.occupy(&node(1), net("10.0.1.0/24")).unwrap();
    for (wanted, text) in [
        (
            "10.0.1.0/24",
            "cidr 10.0.1.0/24 overlaps 10.0.1.0/24 of node node1",
        ),
        (
            "10.0.1.128/25",
            "cidr 10.0.1.128/25 overlaps 10.0.1.0/24 of node node1",
        ),
        (
            "10.0.0.0/16",
            "cidr 10.0.0.0/16 overlaps 10.0.1.0/24 of node node1",
        ),
        (
            "10.0.3.0/24",
            "cidr 10.0.3.0/24 overlaps 10.0.3.0/25 of the service range",
        ),
    ] {
        assert_eq!(
            blocks
                .occupy(&node(2), net(wanted))
                .unwrap_err()
                .to_string(),
            text
        );
    }
    assert!(blocks.blocks_of("uid-2").is_empty());
    assert_eq!(
        blocks.occupy(&node(1), net("10.0.1.7/24")),
        Ok(Adoption::Assigned),
        "its own block again"
    );
    assert_eq!(blocks.usage().next().unwrap().used, 2);
}

#[test]
fn blocks_that_do_not_fit_are_kept_as_foreign_with_a_reason() {
    let mut blocks = cluster("10.0.0.0/22", 24, None, "");
    assert_eq!(
        blocks.adopt(&node(1), net("10.0.0.0/24")),
        Adoption::Assigned
    );
    for (number, theirs, text) in [
        (
            2,
            "10.0.0.0/24",
            "cidr 10.0.0.0/24 overlaps 10.0.0.0/24 of node node1",
        ),
        (
            3,
            "172.16.0.0/24",
            "cidr 172.16.0.0/24 is out the range of cluster cidr 10.0.0.0/22",
        ),
        (
            4,
            "fd00::/64",
            "cidr fd00::/64 is out the range of cluster cidr 10.0.0.0/22",
        ),
        (
            5,
            "10.0.1.0/25",
            "cidr 10.0.1.0/25 is a /25, the configured node mask is /24",
        ),
    ] {
        let Adoption::Foreign(misfit) = blocks.adopt(&node(number), net(theirs)) else {
            panic!("{theirs} does not fit");
        };
        assert_eq!(misfit.to_string(), text);
    }
    assert_eq!(
        blocks.allocate(&node(6)).unwrap(),
        [net("10.0.2.0/24")],
        "the half of 10.0.1.0/24 is in use"
    );
    let holders: Vec<String> = blocks
        .holders("10.0.0.9".parse().unwrap())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        holders,
        ["10.0.0.0/24 of node node1", "10.0.0.0/24 of node node2"]
    );
}

#[test]
fn a_duplicate_block_is_free_only_after_its_last_holder_is_released() {
    let mut blocks = cluster("10.0.0.0/24", 24, None, "");
    blocks.adopt(&node(1), net("10.0.0.0/24"));
    blocks.adopt(&node(2), net("10.0.0.0/24"));
    assert_eq!(blocks.release("uid-1"), [net("10.0.0.0/24")]);
    assert!(matches!(
        blocks.allocate(&node(3)),
        Err(AllocateError::Exhausted { index: 0, .. })
    ));
    assert_eq!(
        blocks.adopt(&node(2), net("10.0.0.0/24")),
        Adoption::Assigned,
        "nothing is in its way now"
    );
    blocks.release("uid-2");
    assert_eq!(blocks.allocate(&node(3)).unwrap(), [net("10.0.0.0/24")]);
}

#[test]
fn one_full_family_leaves_the_other_untouched() {
    let mut blocks = cluster("10.0.0.0/22,fd00::/63", 24, Some(64), "");
    for number in 0..2 {
        blocks.allocate(&node(number)).unwrap();
    }
    let before: Vec<Usage> = blocks.usage().collect();
    let error = blocks.allocate(&node(2)).unwrap_err();
    assert_eq!(
        error,
        AllocateError::Exhausted {
            index: 1,
            cluster: net("fd00::/63")
        }
    );
    assert_eq!(
        error.to_string(),
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    );
    assert_eq!(blocks.usage().collect::<Vec<_>>(), before);
    assert!(blocks.blocks_of("uid-2").is_empty());
}

#[test]
fn a_node_is_not_given_blocks_twice() {
    let mut blocks = cluster("10.0.0.0/22", 24, None, "");
    blocks.allocate(&node(1)).unwrap();
    assert_eq!(
        blocks.allocate(&node(1)).unwrap_err().to_string(),
        "node node1 already holds 10.0.0.0/24"
    );
}

#[test]
fn a_service_block_stays_reserved_after_release_of_a_node_in_it() {
    let mut blocks = cluster("10.0.0.0/23", 24, None, "10.0.0.0/25");
    assert!(matches!(
        blocks.adopt(&node(1), net("10.0.0.0/24")),
        Adoption::Foreign(Misfit::Overlaps(_))
    ));
    blocks.release("uid-1");
    assert_eq!(blocks.allocate(&node(2)).unwrap(), [net("10.0.1.0/24")]);
    assert!(blocks.allocate(&node(3)).is_err());
}

/// Story B: the mask of a live cluster is changed twice. The reference ends with dozens of
/// duplicates.
#[test]
fn changing_the_mask_twice_gives_no_duplicate() {
    let mut nodes: Vec<(Owner, IpNet)> = Vec::new();
    for (number, (cidr, mask)) in [
        ("10.244.0.0/16", 24),
        ("10.244.0.0/12", 16),
        ("10.244.0.0/12", 24),
    ]
    .iter()
    .enumerate()
    {
        let mut blocks = cluster(cidr, *mask, None, "");
        for (owner, block) in &nodes {
            assert!(!matches!(
                blocks.adopt(owner, *block),
                Adoption::Foreign(Misfit::Overlaps(_))
            ));
        }
        // Nodes are replaced, alternately a wide and an old one; each time nodes join until the
        // range is full.
        for replaced in 0..=20 {
            if replaced > 0 {
                let wide = nodes.iter().position(|(_, block)| block.prefix_len() == 16);
                let victim = wide.filter(|_| replaced % 2 == 1).unwrap_or(replaced * 7);
                let (gone, _) = nodes.remove(victim);
                blocks.release(gone.uid());
            }
            for joining in 0..300 {
                let owner = Owner::new(&format!("{number}-{replaced}-{joining}"), "joining");
                let Ok(given) = blocks.allocate(&owner) else {
                    break;
                };
                nodes.push((owner, given[0]));
            }
        }
        let mut sorted: Vec<IpNet> = nodes.iter().map(|(_, block)| *block).collect();
        sorted.sort_unstable();
        assert!(
            sorted.windows(2).all(|pair| !overlap(&pair[0], &pair[1])),
            "after {cidr} with /{mask}"
        );
    }
    assert!(nodes.len() > 300);
}

#[test]
fn four_million_blocks_cost_nothing_until_they_are_used() {
    let mut blocks = cluster("10.0.0.0/8", 30, None, "10.0.0.0/9");
    assert_eq!(blocks.allocate(&node(1)).unwrap(), [net("10.128.0.0/30")]);
    blocks.adopt(&node(2), net("10.128.0.0/10"));
    blocks.adopt(&node(3), net("10.192.0.0/10"));
    assert!(blocks.allocate(&node(4)).is_err());
    blocks.release("uid-3");
    assert_eq!(blocks.usage().next().unwrap().free, 1 << 20);
    assert_eq!(blocks.allocate(&node(4)).unwrap(), [net("10.192.0.0/30")]);
}

#[derive(Clone, Debug)]
enum BlockOp {
    Allocate(u8),
    Adopt(u8, IpNet),
    Occupy(u8, IpNet),
    Release(u8),
    Restart,
}

/// Prefixes in and around the small pools, of every size.
fn any_net() -> impl Strategy<Value = IpNet> {
    let v4 =
        (0u8..64, 26u8..=32).prop_map(|(last, length)| net(&format!("10.0.0.{last}/{length}")));
    let v6 =
        (0u8..16, 124u8..=128).prop_map(|(last, length)| net(&format!("fd00::{last:x}/{length}")));
    prop_oneof![v4, v6]
}

fn op() -> impl Strategy<Value = BlockOp> {
    let number = 0u8..10;
    prop_oneof![
        4 => number.clone().prop_map(BlockOp::Allocate),
        2 => (number.clone(), any_net()).prop_map(|(n, net)| BlockOp::Adopt(n, net)),
        2 => (number.clone(), any_net()).prop_map(|(n, net)| BlockOp::Occupy(n, net)),
        3 => number.prop_map(BlockOp::Release),
        1 => Just(BlockOp::Restart),
    ]
}

/// All claims: a model too simple to be wrong.
type ClaimList = Vec<(String, IpNet)>;

fn small() -> NodeBlocks {
    cluster("10.0.0.0/27,fd00::/125", 30, Some(127), "10.0.0.28/31")
}

fn free_in_model(model: &ClaimList, range: &ClusterRange) -> Vec<IpNet> {
    let service = net("10.0.0.28/31");
    let held = |block: &IpNet| {
        overlap(block, &service) || model.iter().any(|(_, other)| overlap(block, other))
    };
    (0..range.blocks())
        .filter_map(|index| range.block(index))
        .filter(|block| !held(block))
        .collect()
}

fn in_the_way(model: &ClaimList, owner: &Owner, wanted: &IpNet) -> bool {
    overlap(wanted, &net("10.0.0.28/31"))
        || model
            .iter()
            .any(|(uid, other)| uid != owner.uid() && overlap(wanted, other))
}

fn record(model: &mut ClaimList, owner: &Owner, block: IpNet) {
    let entry = (owner.uid().to_owned(), block.trunc());
    if !model.contains(&entry) {
        model.push(entry);
    }
}

proptest! {
    #[test]
    fn behaves_like_a_list_of_claims(ops in prop::collection::vec(op(), 0..60)) {
        let mut sut = small();
        let mut model = ClaimList::new();
        for op in ops {
            match op {
                BlockOp::Allocate(number) => {
                    let owner = node(number);
                    let free: Vec<Vec<IpNet>> = sut.usage().map(|usage| free_in_model(&model, &usage.range)).collect();
                    let holds = model.iter().any(|(uid, _)| uid == owner.uid());
                    match sut.allocate(&owner) {
                        Ok(given) => {
                            prop_assert!(!holds);
                            prop_assert_eq!(given.len(), 2, "all families");
                            for (block, free) in given.into_iter().zip(free) {
                                prop_assert!(free.contains(&block), "{} was free", block);
                                record(&mut model, &owner, block);
                            }
                        }
                        Err(AllocateError::AlreadyHolds { .. }) => prop_assert!(holds),
                        Err(AllocateError::Exhausted { index, .. }) => prop_assert!(free[index].is_empty()),
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                BlockOp::Adopt(number, block) => {
                    let overlaps = in_the_way(&model, &node(number), &block);
                    let adoption = sut.adopt(&node(number), block);
                    if !overlaps {
                        prop_assert!(!matches!(adoption, Adoption::Foreign(Misfit::Overlaps(_))));
                    }
                    record(&mut model, &node(number), block);
                }
                BlockOp::Occupy(number, block) => {
                    let overlaps = in_the_way(&model, &node(number), &block);
                    prop_assert_eq!(sut.occupy(&node(number), block).is_err(), overlaps);
                    if !overlaps {
                        record(&mut model, &node(number), block);
                    }
                }
                BlockOp::Release(number) => {
                    let owner = node(number);
                    let mut want: Vec<IpNet> = model.iter().filter(|(uid, _)| uid == owner.uid()).map(|(_, block)| *block).collect();
                    let mut released = sut.release(owner.uid());
                    released.sort();
                    want.sort();
                    prop_assert_eq!(released, want);
                    model.retain(|(uid, _)| uid != owner.uid());
                }
                BlockOp::Restart => {
                    sut = small();
                    for (uid, block) in &model {
                        sut.adopt(&Owner::new(uid, uid), *block);
                    }
                }
            }
            for usage in sut.usage() {
                prop_assert_eq!(usage.free, free_in_model(&model, &usage.range).len() as u64);
                prop_assert_eq!(usage.used + usage.free, usage.blocks);
            }
            let mut held: ClaimList = sut.iter().filter_map(|b| Some((b.claim.owner()?.uid().to_owned(), b.net))).collect();
            let mut want = model.clone();
            held.sort();
            want.sort();
            prop_assert_eq!(held, want);
            let assigned: Vec<Block> = sut.iter().filter(|block| matches!(block.claim, Claim::Assigned(_))).collect();
            for (at, a) in assigned.iter().enumerate() {
                for b in &assigned[at + 1..] {
                    prop_assert!(a.claim.owner() == b.claim.owner() || !overlap(&a.net, &b.net), "{} and {}", a, b);
                }
            }
        }
    }
}
