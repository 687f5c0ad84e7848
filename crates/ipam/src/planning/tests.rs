use proptest::prelude::*;

use super::*;
use crate::net::overlap;

fn question(line: &str) -> Question {
    let mut question = Question::default();
    for word in line.split_whitespace() {
        let (flag, value) = word.split_once('=').unwrap();
        let number = || value.parse().unwrap();
        match flag {
            "cluster" => question.flags.cluster_cidr = value.into(),
            "mask" => question.flags.node_cidr_mask_size = Some(value.parse().unwrap()),
            "mask4" => question.flags.node_cidr_mask_size_ipv4 = Some(value.parse().unwrap()),
            "mask6" => question.flags.node_cidr_mask_size_ipv6 = Some(value.parse().unwrap()),
            "service" => question.flags.service_cluster_ip_range = value.into(),
            "nodenet" => question.node_networks.push(value.parse().unwrap()),
            "nodes" => question.nodes = Some(number()),
            "pods" => question.max_pods = Some(number()),
            "growth" => question.growth = Some(value.parse().unwrap()),
            "horizon" => question.horizon = Some(value.parse().unwrap()),
            _ => panic!("{flag}"),
        }
    }
    question
}

fn plan(line: &str) -> Plan {
    question(line).answer().unwrap()
}

#[test]
fn counts_nodes_pods_and_addresses() {
    // The flags, nodes, pods of a node, addresses of the first range's block.
    for (line, nodes, pods, addresses) in [
        ("cluster=10.244.0.0/16 mask=24", 256, 253, 256),
        ("cluster=10.244.0.0/16", 256, 253, 256),
        ("cluster=10.244.0.0/12 mask=16", 16, 65_533, 65_536),
        ("cluster=10.244.0.0/12 mask=24", 4096, 253, 256),
        (
            "cluster=10.255.0.0/19 mask=30 service=10.255.31.0/24",
            1984,
            1,
            4,
        ),
        (
            "cluster=10.255.0.0/19 mask=29 service=10.255.31.0/24",
            992,
            5,
            8,
        ),
        ("cluster=10.0.0.0/24 mask=31", 128, 0, 2),
        ("cluster=10.0.0.0/24 mask=32", 256, 0, 1),
        ("cluster=10.0.0.0/24 mask=24", 1, 253, 256),
        ("cluster=10.0.0.0/8 mask=32", 1 << 24, 0, 1),
        ("cluster=10.0.0.0/16 service=10.0.0.0/16", 0, 253, 256),
        ("cluster=fd00::/48", 1 << 16, (1 << 64) - 2, 1 << 64),
        ("cluster=fd00::/112 mask=126", 1 << 14, 2, 4),
        ("cluster=fd00::/112 mask=127", 1 << 15, 0, 2),
        (
            "cluster=10.244.0.0/16,fd00::/48 mask4=25 mask6=60",
            512,
            125,
            128,
        ),
        ("cluster=fd00::/48,10.244.0.0/16", 256, 253, 1 << 64),
    ] {
        let plan = plan(line);
        assert_eq!(plan.max_nodes, nodes, "{line}");
        assert_eq!(plan.pods_per_node, pods, "{line}");
        assert_eq!(plan.ranges[0].addresses_per_node, addresses, "{line}");
    }
}

#[test]
fn warnings_have_the_documented_texts() {
    for (line, want) in [
        (
            "cluster=10.244.0.0/12",
            &["10.244.0.0/12 has host bits set; the range is 10.240.0.0/12"][..],
        ),
        ("cluster=10.244.0.0/16 nodes=100 pods=110", &[]),
        ("cluster=10.244.0.0/16,fd00::/48", &[]),
        (
            "cluster=10.255.0.0/19 mask=30 service=10.255.31.0/24 pods=1",
            &[
                "service range 10.255.31.0/24 overlaps cluster CIDR 10.255.0.0/19: 64 of its 2048 blocks are given to no node",
            ],
        ),
        (
            "cluster=10.0.0.0/16 service=10.0.0.0/12",
            &[
                "service range 10.0.0.0/12 overlaps all of cluster CIDR 10.0.0.0/16, so that no node can have a block: change --cluster-cidr",
            ],
        ),
        (
            "cluster=10.244.0.0/16 nodenet=10.244.7.1/23 service=10.96.0.0/16",
            &[
                "10.244.7.1/23 has host bits set; the range is 10.244.6.0/23",
                "node network 10.244.6.0/23 overlaps cluster CIDR 10.244.0.0/16: the controller does not know of it and gives its addresses to pods too, with 2 blocks",
            ],
        ),
        (
            "cluster=10.244.0.0/16 nodenet=10.96.3.0/24 service=10.96.0.0/16",
            &[
                "node network 10.96.3.0/24 overlaps service range 10.96.0.0/16: nodes with those addresses cannot be reached from pods",
            ],
        ),
        (
            "cluster=10.240.0.0/12 mask=16",
            &[
                "blocks of /16 waste addresses: a node runs 110 pods at most, for which /25 is enough, and the range has room for 8192 of those instead of 16",
            ],
        ),
        (
            "cluster=10.240.0.0/12 mask=28",
            &[
                "a block of /28 has addresses for 13 pods of the 110 that a kubelet takes by default: lower its --max-pods, or schedule by addresses",
            ],
        ),
        (
            "cluster=10.240.0.0/12 mask=31",
            &[
                "no pod can have an address",
                "a block of /31 has no address for a pod: bridge and host-local need a network and a gateway beside it, and a broadcast address",
            ],
        ),
        (
            "cluster=10.244.0.0/16 nodes=300",
            &["300 nodes need a block each, and there are 256: 44 nodes would have no podCIDR"],
        ),
        (
            "cluster=10.244.0.0/16 nodes=205",
            &["205 of 256 blocks will be in use: replacing nodes, and growing, need free ones"],
        ),
        (
            "cluster=10.244.0.0/16 nodes=200 growth=20%/year horizon=2",
            &["in 2 years there are 288 nodes at 20%/year, and blocks for 256"],
        ),
        (
            "cluster=10.244.0.0/16 pods=300",
            &["300 pods of a node need an address each, and there are 253"],
        ),
        (
            "cluster=10.244.0.0/24",
            &["one block is the whole of cluster CIDR 10.244.0.0/24: there can be one node"],
        ),
        (
            "cluster=8.8.0.0/16",
            &[
                "cluster CIDR 8.8.0.0/16 is not private: what has those addresses on the Internet cannot be reached from nodes and pods",
            ],
        ),
        (
            "cluster=127.0.0.0/16",
            &["cluster CIDR 127.0.0.0/16 has loopback addresses, which pods cannot use"],
        ),
        ("cluster=100.64.0.0/16", &[]),
    ] {
        assert_eq!(plan(line).warnings, want, "{line}");
    }
}

#[test]
fn refuses_invalid_flags_with_the_texts_of_the_controller() {
    for (line, want) in [
        (
            "cluster=nonsense",
            "invalid CIDR[0]: <nil> (invalid CIDR address: nonsense)",
        ),
        (
            "cluster=10.244.0.0/16 mask=12",
            "Controller: Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size configured for CIDR family",
        ),
        (
            "cluster=fd00::/40 mask=64",
            "New CIDR set failed; the node CIDR size is too big",
        ),
    ] {
        assert_eq!(
            question(line).answer().unwrap_err().to_string(),
            want,
            "{line}"
        );
    }
}

#[test]
fn recommends_another_range_where_services_take_all() {
    let covered = plan("cluster=10.244.0.0/16 service=10.0.0.0/8");
    let recommended = &covered.recommended[0];
    assert_eq!(recommended.cidr, Some("172.16.0.0/16".parse().unwrap()));
    assert_eq!(recommended.max_nodes, 512);
}

#[test]
fn the_scarcest_resource_is_the_first_limit() {
    for (line, want) in [
        ("cluster=10.244.0.0/16", Limit::MaxPods),
        ("cluster=10.244.0.0/16 nodes=100", Limit::MaxPods),
        ("cluster=10.244.0.0/16 nodes=300", Limit::NodeBlocks),
        (
            "cluster=10.244.0.0/16 service=10.0.0.0/8 nodes=3",
            Limit::ServiceRanges,
        ),
        (
            "cluster=10.244.0.0/16 nodes=100 growth=1%/year",
            Limit::NodeBlocks,
        ),
        ("cluster=10.244.0.0/16 mask=26", Limit::PodAddresses),
        ("cluster=10.244.0.0/16 pods=254", Limit::PodAddresses),
        (
            "cluster=10.244.0.0/16,fd00::/112 mask6=124",
            Limit::PodAddresses,
        ),
    ] {
        assert_eq!(plan(line).first_limit, want, "{line}");
    }
    let growing = plan("cluster=10.244.0.0/16 nodes=128 growth=100%/year");
    assert!((growing.exhausted_after.unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(
        plan("cluster=10.244.0.0/16 nodes=300 growth=+1/day").exhausted_after,
        Some(0.0)
    );
}

#[test]
fn recommends_the_smallest_range_that_fits() {
    for (line, want) in [
        ("cluster=10.244.0.0/16 nodes=300", Some("10.244.0.0/16 /25")),
        (
            "cluster=10.244.0.0/16 nodes=300 pods=250",
            Some("10.244.0.0/15 /24"),
        ),
        (
            "cluster=10.244.0.0/16 nodes=500 pods=250",
            Some("10.244.0.0/15 /24"),
        ),
        (
            "cluster=10.0.0.0/24 nodes=5000 pods=29",
            Some("10.0.0.0/14 /27"),
        ),
        // Without a number of nodes, the range is kept.
        ("cluster=10.244.0.0/16 mask=20", Some("10.244.0.0/16 /25")),
        // Story A's range suffices, its service range included; one more node, and the
        // recommendation moves next to it.
        (
            "cluster=10.255.0.0/19 mask=30 service=10.255.31.0/24 nodes=1984 pods=1",
            Some("10.255.0.0/19 /30"),
        ),
        (
            "cluster=10.255.0.0/19 mask=30 service=10.255.31.0/24 nodes=1985 pods=1",
            Some("10.255.32.0/19 /30"),
        ),
        (
            "cluster=10.0.0.0/16 nodenet=10.0.0.0/12 nodes=256 pods=200",
            Some("10.16.0.0/16 /24"),
        ),
        (
            "cluster=10.244.0.0/16 nodes=100 growth=100%/year horizon=3",
            Some("10.244.0.0/15 /25"),
        ),
        ("cluster=10.0.0.0/8 nodes=4000000000", None),
        ("cluster=10.0.0.0/8 pods=5000000000", None),
        ("cluster=fd00::/48 nodes=1000", Some("fd00::/54 /64")),
        ("cluster=fd00::/48 nodes=70000", None),
    ] {
        let recommended = &plan(line).recommended[0];
        let got = recommended
            .cidr
            .map(|cidr| format!("{cidr} /{}", recommended.node_mask.unwrap()));
        assert_eq!(got.as_deref(), want, "{line}");
    }
}

#[test]
fn alternatives_fit_exactly_if_the_plan_fits() {
    for (line, fits) in [
        ("cluster=10.244.0.0/16 pods=0", false),
        ("cluster=10.244.0.0/16 pods=1", true),
        ("cluster=10.244.0.0/16,fd00::/48 nodes=300", false),
        ("cluster=10.244.0.0/16,fd00::/48 nodes=256", true),
        (
            "cluster=10.244.0.0/16,fd00::/64 mask4=24 mask6=66 nodes=5",
            false,
        ),
    ] {
        let plan = plan(line);
        assert_eq!(plan.misfits.is_empty(), fits, "{line}: {:?}", plan.misfits);
        for range in &plan.ranges {
            let mut rows = range.alternatives.iter();
            let own = rows.find(|row| row.node_mask == range.range.node_mask());
            assert_eq!(own.map(|row| row.fits), Some(fits), "{line}: {range:?}");
        }
    }
}

#[test]
fn counts_one_in_the_singular() {
    let misfits = |line| plan(line).misfits.join("; ");
    assert_eq!(
        misfits("cluster=10.0.0.0/24 mask=24 nodes=2"),
        "2 nodes need a block each, and there is 1: 1 node would have no podCIDR"
    );
    assert_eq!(
        misfits("cluster=10.0.0.0/24 mask=30 pods=2"),
        "2 pods of a node need an address each, and there is 1"
    );
}

#[test]
fn alternatives_are_the_same_range_in_other_blocks() {
    let plan = plan("cluster=10.244.0.0/16 nodes=300 pods=100");
    let alternatives = &plan.ranges[0].alternatives;
    let masks: Vec<_> = alternatives.iter().map(|other| other.node_mask).collect();
    assert_eq!(masks, (16..=30).collect::<Vec<_>>());
    let fitting: Vec<_> = alternatives.iter().filter(|other| other.fits).collect();
    let [only] = fitting[..] else {
        panic!("{fitting:?}")
    };
    assert_eq!(
        *only,
        Alternative {
            node_mask: 25,
            max_nodes: 512,
            pods_per_node: 125,
            addresses_wasted: 512 * 28,
            fits: true
        }
    );
}

/// Random flags, valid or not, small enough to count blocks.
fn questions() -> impl Strategy<Value = Question> {
    let v4 = (any::<u32>(), 8u8..=30, 0u8..=12).prop_map(|(bits, length, more)| {
        let address = std::net::Ipv4Addr::from(bits);
        (format!("{address}/{length}"), (length + more).min(32))
    });
    let service = (any::<u32>(), 4u8..=30).prop_map(|(bits, length)| {
        format!("{}/{length}", std::net::Ipv4Addr::from(bits & 0x0fff_ffff))
    });
    let networks = proptest::collection::vec(
        (any::<u32>(), 8u8..=28).prop_map(|(bits, length)| {
            IpNet::new(std::net::Ipv4Addr::from(bits).into(), length).unwrap()
        }),
        0..3,
    );
    (
        v4,
        service,
        networks,
        proptest::option::of(0u64..5000),
        proptest::option::of(0u64..2000),
    )
        .prop_map(
            |((cluster, mask), service, node_networks, nodes, max_pods)| Question {
                flags: RangeFlags {
                    cluster_cidr: cluster,
                    node_cidr_mask_size: Some(mask),
                    service_cluster_ip_range: service,
                    ..RangeFlags::default()
                },
                node_networks,
                nodes,
                max_pods,
                ..Question::default()
            },
        )
}

proptest! {
    #[test]
    fn counts_blocks_outside_of_service_ranges(question in questions()) {
        let plan = question.answer().unwrap();
        let range = &plan.ranges[0].range;
        let service = plan.config.service_ranges[0];
        let free = (0..range.blocks())
            .filter(|index| !overlap(&range.block(*index).unwrap(), &service))
            .count() as u64;
        prop_assert_eq!(plan.max_nodes, free);
    }

    #[test]
    fn the_recommended_range_fits_and_is_the_smallest(question in questions()) {
        let plan = question.answer().unwrap();
        let recommended = &plan.recommended[0];
        let (Some(mask), Some(cidr)) = (recommended.node_mask, recommended.cidr) else {
            return Ok(());
        };
        prop_assert!(recommended.pods_per_node >= u128::from(plan.max_pods));
        prop_assert!(mask == 30 || pods(cidr, mask + 1) < u128::from(plan.max_pods));
        let Some(nodes) = question.nodes else { return Ok(()) };
        prop_assert!(recommended.max_nodes >= nodes);
        let again = Question {
            flags: RangeFlags {
                cluster_cidr: cidr.to_string(),
                node_cidr_mask_size: Some(mask),
                ..question.flags.clone()
            },
            ..question.clone()
        };
        let again = again.answer().unwrap();
        prop_assert_eq!(again.max_nodes, recommended.max_nodes);
        // No range helps nodes that are to have no pods.
        let hopeless = question.max_pods == Some(0);
        let left = hopeless.then(|| "no pod can run: nodes are to have 0 pods each".to_owned());
        prop_assert_eq!(again.misfits, Vec::from_iter(left));
        prop_assert!(!question.node_networks.iter().any(|net| overlap(net, &cidr)));
    }

    #[test]
    fn the_plan_fits_exactly_if_there_are_no_misfits(question in questions()) {
        let plan = question.answer().unwrap();
        let fits = plan.max_nodes >= question.nodes.unwrap_or(0).max(1)
            && question.max_pods != Some(0)
            && plan.pods_per_node >= u128::from(question.max_pods.unwrap_or(1));
        prop_assert_eq!(plan.misfits.is_empty(), fits);
        let own = plan.ranges[0].alternatives.iter().find(|other| other.node_mask == plan.ranges[0].range.node_mask());
        prop_assert_eq!(own.unwrap().max_nodes, plan.max_nodes);
        prop_assert_eq!(own.unwrap().fits, fits);
    }

    #[test]
    fn recommending_another_mask_warns_about_a_live_cluster(question in questions()) {
        let plan = question.answer().unwrap();
        let mask = plan.recommended[0].node_mask;
        let differs = mask.is_some_and(|mask| mask != plan.ranges[0].range.node_mask());
        prop_assert_eq!(plan.live_cluster.is_some(), differs);
    }

    #[test]
    fn growth_reaches_the_limit_at_the_predicted_time(nodes in 1u64..1000, more in 1u64..1000, share in 1u32..300) {
        for growth in [format!("{share}%/year"), format!("+{share}/month")] {
            let growth: Growth = growth.parse().unwrap();
            let limit = nodes + more;
            let when = growth.reaches(nodes, limit);
            prop_assert!(growth.after(nodes, when) >= limit - 1);
            prop_assert!(growth.after(nodes, when * 1.01 + 1.0) >= limit);
            prop_assert!(growth.after(nodes, when * 0.9) <= limit);
        }
    }
}
