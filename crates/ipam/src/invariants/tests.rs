use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(name: &str, blocks: &[&str], ip_capacity: Option<u64>) -> Node {
    let pod_cidrs = blocks.iter().map(|block| block.parse().unwrap()).collect();
    Node {
        name: name.into(),
        uid: format!("{name}-uid"),
        pod_cidrs,
        ip_capacity,
    }
}

fn pod(name: &str, node: &str, ips: &[&str]) -> Pod {
    Pod {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("{name}-uid"),
        node: Some(node.into()),
        host_network: false,
        released: false,
        deleting: false,
        ips: ips.iter().map(|address| ip(address)).collect(),
    }
}

fn file(node: &str, address: &str, owner: &str) -> Allocation {
    Allocation {
        node: node.into(),
        ip: ip(address),
        owner: owner.into(),
    }
}

/// Two nodes, dual stack, with a pod on each, without violations.
fn healthy() -> World {
    World {
        nodes: vec![
            node("a", &["10.0.0.0/24", "fd00::/64"], Some(1)),
            node("b", &["10.0.1.0/24", "fd00:0:0:1::/64"], Some(1)),
        ],
        pods: vec![
            pod("web-0", "a", &["10.0.0.2", "fd00::2"]),
            pod("web-1", "b", &["10.0.1.2", "fd00:0:0:1::2"]),
        ],
        draining: Vec::new(),
        allocations: vec![file("a", "10.0.0.2", "s0"), file("b", "10.0.1.2", "s1")],
        sandboxes: [("a", "s0"), ("b", "s1")]
            .map(|(node, id)| Sandbox {
                node: node.into(),
                id: id.into(),
            })
            .into(),
        acknowledged: vec![
            Write {
                object: "Pod/default/web-0".into(),
                left: ObjectState::Present,
            },
            Write {
                object: "Pod/default/old".into(),
                left: ObjectState::Absent,
            },
        ],
        stored: ["Pod/default/web-0".into()].into(),
    }
}

fn violations(world: &World) -> Vec<String> {
    check(world).iter().map(ToString::to_string).collect()
}

fn broken(change: impl FnOnce(&mut World)) -> Vec<String> {
    let mut world = healthy();
    change(&mut world);
    violations(&world)
}

#[test]
fn a_healthy_world_has_no_violation() {
    assert_eq!(violations(&healthy()), [""; 0]);
    assert_eq!(check(&World::default()), []);
}

#[test]
fn reports_an_address_on_two_live_pods() {
    let twice = |world: &mut World| {
        world.nodes[0].ip_capacity = Some(9);
        world.pods.push(pod("web-2", "a", &["10.0.0.2"]));
    };
    let text = "address 10.0.0.2 is used by live pods default/web-0 and default/web-2";
    assert_eq!(broken(twice), [text]);
    let deleting = |world: &mut World| {
        twice(world);
        world.pods[2].deleting = true;
    };
    assert_eq!(
        broken(deleting),
        [text],
        "a pod that is being deleted is live"
    );
    for exempt in [
        |pod: &mut Pod| pod.host_network = true,
        |pod: &mut Pod| pod.released = true,
    ] {
        let exempted = |world: &mut World| {
            twice(world);
            exempt(&mut world.pods[2]);
        };
        assert_eq!(broken(exempted), [""; 0]);
    }
}

#[test]
fn reports_an_address_outside_of_the_nodes_blocks() {
    let moved = |world: &mut World| world.pods[0].ips[0] = ip("10.0.7.7");
    assert_eq!(
        broken(moved),
        [
            "pod default/web-0 has address 10.0.7.7, which is not in 10.0.0.0/24 and fd00::/64 of its node a"
        ]
    );
    let drains = |world: &mut World| {
        moved(world);
        world.draining.push(DrainingBlock {
            node: "a".into(),
            block: "10.0.7.0/24".parse().unwrap(),
        });
    };
    assert_eq!(broken(drains), [""; 0]);
    let bare = |world: &mut World| world.nodes[1].pod_cidrs.clear();
    assert_eq!(broken(bare).len(), 2);
    assert!(broken(bare)[0].contains("has address 10.0.1.2, but its node b has no block"));
}

#[test]
fn reports_overlapping_blocks() {
    let wide = |world: &mut World| world.nodes.push(node("c", &["10.0.0.0/23"], None));
    assert_eq!(
        broken(wide),
        [
            "block 10.0.0.0/24 of node a overlaps block 10.0.0.0/23 of node c",
            "block 10.0.1.0/24 of node b overlaps block 10.0.0.0/23 of node c",
        ]
    );
    let old_of = |holder: &str| {
        let holder = holder.to_owned();
        move |world: &mut World| {
            world.draining.push(DrainingBlock {
                node: holder,
                block: "10.0.0.0/24".parse().unwrap(),
            })
        }
    };
    assert_eq!(
        broken(old_of("gone")).len(),
        1,
        "a draining block may not be given to another node"
    );
    assert_eq!(
        broken(old_of("a")),
        [""; 0],
        "a node may have its own old block again"
    );
}

#[test]
fn reports_a_node_with_more_pods_than_addresses() {
    let crowded = |world: &mut World| world.pods.push(pod("pending", "a", &[]));
    assert_eq!(
        broken(crowded),
        ["node a has 2 live pods that need an address, and addresses for 1"]
    );
    let unlimited = |world: &mut World| {
        crowded(world);
        world.nodes[0].ip_capacity = None;
    };
    assert_eq!(broken(unlimited), [""; 0]);
    let host = |world: &mut World| {
        crowded(world);
        world.pods[2].host_network = true;
    };
    assert_eq!(broken(host), [""; 0]);
}

#[test]
fn reports_an_allocation_without_a_sandbox() {
    let leaked = |world: &mut World| world.allocations.push(file("b", "10.0.1.9", "s0"));
    assert_eq!(
        broken(leaked),
        ["address 10.0.1.9 on node b is allocated to s0, which does not exist"]
    );
}

#[test]
fn reports_a_lost_acknowledged_write() {
    assert_eq!(
        broken(|world| world.stored = ["Pod/default/old".into()].into()),
        [
            "Pod/default/web-0 was written and acknowledged, and is not in the store",
            "Pod/default/old was deleted and acknowledged, and is in the store again",
        ]
    );
}

fn any_block() -> impl Strategy<Value = IpNet> {
    (0u32..16, 28u8..=32).prop_map(|(last, length)| {
        IpNet::new(
            std::net::Ipv4Addr::from_bits(0x0a00_0000 + last).into(),
            length,
        )
        .unwrap()
    })
}

proptest! {
    /// Compared with all pairs: a block is reported exactly if it shares an address with a block of
    /// another node that is as wide or wider.
    #[test]
    fn reported_overlaps_agree_with_a_check_of_all_pairs(blocks in prop::collection::vec((0u8..4, any_block(), any::<bool>()), 0..12)) {
        let mut world = World::default();
        for (holder, block, drains) in &blocks {
            let name = format!("node{holder}");
            if *drains {
                world.draining.push(DrainingBlock { node: name, block: *block });
            } else {
                world.nodes.push(Node { uid: name.clone(), name, pod_cidrs: vec![*block], ip_capacity: None });
            }
        }
        let bad_pair = blocks.iter().enumerate().any(|(at, (a, x, old))| {
            blocks[at + 1..].iter().any(|(b, y, older)| {
                a != b && !(*old && *older) && x.hosts_overlap(y)
            })
        });
        let found = check(&world);
        prop_assert_eq!(!found.is_empty(), bad_pair, "{:?}", found);
        for violation in found {
            let Violation::OverlappingBlocks { wide, narrow } = violation else {
                return Err(TestCaseError::fail("only overlaps are possible here"));
            };
            prop_assert!(wide.1.contains(&narrow.1) && wide.0 != narrow.0);
        }
    }

    /// The report does not depend on the order of the lists.
    #[test]
    fn the_order_of_lists_does_not_matter(seed in prop::collection::vec((0u8..3, 0u8..6, any::<bool>()), 0..10).prop_shuffle()) {
        let mut world = World { nodes: vec![node("n0", &["10.0.0.0/30"], Some(2)), node("n1", &["10.0.0.2/31"], Some(1))], ..World::default() };
        for (at, (holder, last, released)) in seed.iter().enumerate() {
            let mut extra = pod(&format!("p{at}"), &format!("n{holder}"), &[&format!("10.0.0.{last}")]);
            extra.released = *released;
            world.pods.push(extra);
        }
        let forward = check(&world);
        world.pods.reverse();
        world.nodes.reverse();
        prop_assert_eq!(check(&world), forward);
    }
}

/// The oracle: two blocks share an address, found by listing addresses.
trait HostsOverlap {
    fn hosts_overlap(&self, other: &Self) -> bool;
}

impl HostsOverlap for IpNet {
    fn hosts_overlap(&self, other: &Self) -> bool {
        let within = |net: &IpNet, last: u32| {
            net.contains(&IpAddr::from(std::net::Ipv4Addr::from_bits(
                0x0a00_0000 + last,
            )))
        };
        (0..32).any(|last| within(self, last) && within(other, last))
    }
}
