use super::*;

#[test]
fn errors_name_the_field_and_its_value() {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    let block = |cidr, state, node| NodeBlock::parse(cidr, state, node).unwrap_err();
    for (error, want) in [
        (
            Network::parse(NetworkRole::Services, "10.96.0.0", "").unwrap_err(),
            "invalid service range `10.96.0.0`: not a CIDR such as 10.244.0.0/16",
        ),
        (
            Network::parse(NetworkRole::Pods, "10.244.0.1/16", "").unwrap_err(),
            "invalid cluster CIDR `10.244.0.1/16`: it has host bits; did you mean 10.244.0.0/16?",
        ),
        (
            block("10.0.0.0/24", BlockState::Assigned, None),
            "missing node of block 10.0.0.0/24: a block that is assigned has a node",
        ),
        (
            block("10.0.0.0/24", BlockState::Reserved, Some("a")),
            "invalid node `a` of block 10.0.0.0/24: a block that is reserved has no node",
        ),
        (
            block("10.0.0.0/24", BlockState::Held, Some("")),
            "missing node of block 10.0.0.0/24: it must not be empty",
        ),
        (
            NodeBlock::new(net("10.0.0.0/24"), BlockState::Assigned, Some("a"))
                .unwrap()
                .with_layout(BlockLayout::Range {
                    gateway: Some("10.0.1.1".parse().unwrap()),
                    first: "10.0.0.1".parse().unwrap(),
                    last: "10.0.0.9".parse().unwrap(),
                })
                .unwrap_err(),
            "invalid gateway `10.0.1.1` of block 10.0.0.0/24: it is not in the block",
        ),
        (
            NodeBlock::new(net("10.0.0.0/24"), BlockState::Assigned, Some("a"))
                .unwrap()
                .with_layout(BlockLayout::Range {
                    gateway: None,
                    first: "10.0.0.9".parse().unwrap(),
                    last: "10.0.0.1".parse().unwrap(),
                })
                .unwrap_err(),
            "invalid last address `10.0.0.1` of block 10.0.0.0/24: it is before the first, 10.0.0.9",
        ),
        (
            AddressClaim::new(
                "10.0.0.5".parse().unwrap(),
                Holder::Service { name: "".into() },
            )
            .unwrap_err(),
            "missing service of address 10.0.0.5: it must not be empty",
        ),
    ] {
        assert_eq!(error.to_string(), want);
    }
}

#[test]
fn takes_the_blocks_of_an_allocator() {
    let owner = podplane_ipam::Owner::new("uid", "node-a");
    for (claim, state, node) in [
        (Claim::Reserved, BlockState::Reserved, None),
        (
            Claim::Assigned(owner.clone()),
            BlockState::Assigned,
            Some("node-a"),
        ),
        (
            Claim::Foreign(owner.clone()),
            BlockState::Foreign,
            Some("node-a"),
        ),
        (Claim::Draining(None), BlockState::Draining, None),
    ] {
        let block = podplane_ipam::Block {
            net: "10.0.0.0/24".parse().unwrap(),
            claim,
        };
        let block = NodeBlock::try_from(&block).unwrap();
        assert_eq!((block.state(), block.node()), (state, node));
    }
}

#[test]
fn host_local_keeps_the_ends_and_the_gateway() {
    for (cidr, gateway, last) in [
        ("10.0.1.0/24", Some("10.0.1.1"), Some("10.0.1.254")),
        ("10.0.1.4/30", Some("10.0.1.5"), Some("10.0.1.6")),
        ("10.0.1.4/31", None, None),
        (
            "fd00::/64",
            Some("fd00::1"),
            Some("fd00::ffff:ffff:ffff:ffff"),
        ),
    ] {
        let block = NodeBlock::parse(cidr, BlockState::Assigned, Some("a")).unwrap();
        let text = |ip: IpAddr| ip.to_string();
        assert_eq!(block.gateway().map(text).as_deref(), gateway, "{cidr}");
        let ends = block.ends().map(|(_, last)| text(last));
        assert_eq!(ends.as_deref(), last, "{cidr}");
        let range = AddressRange::of_block(block.cidr());
        let capacity = range.map_or(0, |range| range.capacity());
        assert_eq!(block.capacity(), capacity, "{cidr}");
    }
}
