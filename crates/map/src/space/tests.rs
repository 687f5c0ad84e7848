use super::*;

const CLUSTER: NetworkRole = NetworkRole::Pods;

fn pod(name: &str, node: &str) -> Holder {
    Holder::Pod {
        name: name.into(),
        node: Some(node.into()),
    }
}

fn space(blocks: &[(&str, BlockState, &str)], claims: &[(&str, Holder)]) -> AddressSpace {
    let blocks = blocks.iter().map(|(cidr, state, node)| {
        let node = (!node.is_empty()).then_some(*node);
        NodeBlock::parse(cidr, *state, node).unwrap()
    });
    let claims = claims
        .iter()
        .map(|(ip, holder)| AddressClaim::new(ip.parse().unwrap(), holder.clone()).unwrap());
    AddressSpace::new(SpaceParts {
        networks: vec![Network::parse(CLUSTER, "10.0.0.0/16", "").unwrap()],
        blocks: blocks.collect(),
        claims: claims.collect(),
        ..SpaceParts::default()
    })
}

#[test]
fn states_follow_holders_and_blocks() {
    let sandbox = |name: &str, node: &str| Holder::Sandbox {
        name: name.into(),
        node: Some(node.into()),
    };
    let orphan = Holder::Orphan {
        name: "0f2c".into(),
        node: Some("a".into()),
    };
    let space = space(
        &[
            ("10.0.1.0/24", BlockState::Assigned, "a"),
            ("10.0.2.0/24", BlockState::Assigned, "b"),
            ("10.0.3.0/24", BlockState::Draining, "a"),
            ("10.0.4.0/24", BlockState::Quarantined, ""),
            ("10.0.5.0/24", BlockState::Reserved, ""),
            ("10.0.6.0/24", BlockState::Held, "gone"),
            ("10.0.7.8/31", BlockState::Assigned, "tiny"),
        ],
        &[
            ("10.0.1.5", pod("default/one", "a")),
            ("10.0.1.5", sandbox("1", "a")),
            ("10.0.1.6", pod("default/two", "a")),
            ("10.0.1.6", pod("default/three", "b")),
            ("10.0.1.7", pod("default/four", "b")),
            ("10.0.1.8", orphan.clone()),
            ("10.0.1.9", sandbox("9", "a")),
            ("10.0.1.10", pod("default/five", "a")),
            ("10.0.1.10", sandbox("10", "b")),
            ("10.0.3.5", pod("default/six", "a")),
            ("10.0.6.7", sandbox("default/seven", "gone")),
            ("::ffff:10.0.2.2", pod("default/mapped", "b")),
        ],
    );
    use AddressState::*;
    for (ip, want) in [
        ("10.0.1.5", Pod),
        ("10.0.1.6", Duplicate),
        ("10.0.1.7", Outside),
        ("10.0.1.8", Orphaned),
        ("10.0.1.9", Pod),
        ("10.0.1.10", Duplicate),
        ("10.0.3.5", Draining),
        ("10.0.6.7", Draining),
        ("10.0.2.2", Pod),
        ("10.0.1.0", Reserved),
        ("10.0.1.1", Gateway),
        ("10.0.1.255", Reserved),
        ("10.0.1.200", Free),
        ("10.0.3.200", Withheld),
        ("10.0.4.1", Withheld),
        ("10.0.5.1", Reserved),
        ("10.0.7.8", Reserved),
        ("10.0.7.9", Reserved),
        ("10.0.9.1", Unassigned),
    ] {
        let ip = ip.parse().unwrap();
        assert_eq!(space.state(CLUSTER, ip), want, "{ip}");
    }
    let all = "10.0.0.0/16".parse().unwrap();
    let counts = space.counts(CLUSTER, &all);
    assert_eq!(counts.total(), 65_536);
    assert_eq!(counts.of(Duplicate), 2);
    assert_eq!(counts.of(Gateway), 2);
    assert_eq!(counts.of(Reserved), 4 + 256 + 2);
    let faults: Vec<_> = space.faults(&all).map(|record| record.state).collect();
    assert_eq!(faults, [Duplicate, Duplicate, Outside, Orphaned]);
}

#[test]
fn pods_may_be_anywhere_where_the_network_has_an_ipam_of_its_own() {
    let claim = AddressClaim::new("10.0.9.9".parse().unwrap(), pod("default/a", "a")).unwrap();
    let parts = SpaceParts {
        claims: vec![claim],
        ..SpaceParts::default()
    };
    let at = |rule| {
        let parts = SpaceParts {
            rule,
            ..parts.clone()
        };
        AddressSpace::new(parts).state(CLUSTER, "10.0.9.9".parse().unwrap())
    };
    assert_eq!(at(PodRule::InNodeBlock), AddressState::Outside);
    assert_eq!(at(PodRule::Anywhere), AddressState::Pod);
}

#[test]
fn infers_the_networks_of_a_dump() {
    let block = |cidr| NodeBlock::parse(cidr, BlockState::Assigned, Some("a")).unwrap();
    let mut parts = SpaceParts {
        blocks: vec![
            block("10.0.1.0/24"),
            block("10.0.6.0/24"),
            block("fd00::/64"),
        ],
        ..SpaceParts::default()
    };
    parts.infer_pod_networks();
    parts.infer_pod_networks();
    let cidrs = parts
        .networks
        .iter()
        .map(|network| network.cidr().to_string());
    let cidrs: Vec<_> = cidrs.collect();
    assert_eq!(cidrs, ["10.0.0.0/21", "fd00::/64"]);
}

#[test]
fn a_pod_of_an_unknown_node_may_be_in_any_block() {
    let unknown = Holder::Pod {
        name: "default/one".into(),
        node: None,
    };
    let space = space(
        &[("10.0.1.0/24", BlockState::Assigned, "a")],
        &[("10.0.1.0", unknown.clone()), ("10.0.2.9", unknown)],
    );
    let state = |ip: &str| space.state(CLUSTER, ip.parse().unwrap());
    assert_eq!(state("10.0.1.0"), AddressState::Pod);
    assert_eq!(state("10.0.2.9"), AddressState::Outside);
}

#[test]
fn a_claim_on_the_gateway_of_a_layout_wins() {
    let block = [("10.0.1.0/24", BlockState::Assigned, "a")];
    let space = space(&block, &[("10.0.1.1", pod("default/one", "a"))]);
    let ip = "10.0.1.1".parse().unwrap();
    assert_eq!(space.state(CLUSTER, ip), AddressState::Pod);
    assert_eq!(space.records(&"10.0.1.0/24".parse().unwrap()).count(), 1);
}

#[test]
fn an_address_that_one_of_several_blocks_gives_is_free_once() {
    let space = space(
        &[
            ("10.0.0.0/21", BlockState::Assigned, "wide"),
            ("10.0.0.0/24", BlockState::Assigned, "first"),
            ("10.0.3.0/24", BlockState::Assigned, "other"),
            ("10.0.3.0/24", BlockState::Assigned, "twin"),
            ("10.0.8.0/24", BlockState::Assigned, "apart"),
        ],
        &[
            ("10.0.3.2", pod("default/one", "other")),
            ("10.0.5.2", pod("default/two", "wide")),
        ],
    );
    let state = |ip: &str| space.state(CLUSTER, ip.parse().unwrap());
    for (ip, want) in [
        ("10.0.0.0", AddressState::Reserved),
        ("10.0.0.1", AddressState::Gateway),
        // The ends and the gateway of `other` are within what `wide` gives.
        ("10.0.3.0", AddressState::Free),
        ("10.0.3.1", AddressState::Free),
        ("10.0.3.255", AddressState::Free),
        ("10.0.7.255", AddressState::Reserved),
        ("10.0.8.1", AddressState::Gateway),
    ] {
        assert_eq!(state(ip), want, "{ip}");
    }
    let counts = space.counts(CLUSTER, &"10.0.0.0/20".parse().unwrap());
    assert_eq!(
        counts.usable() - counts.of(AddressState::Unassigned),
        2045 + 253
    );
    let blocks = space.blocks().iter();
    let blocks: Vec<_> = blocks
        .map(|block| {
            (
                block.node().unwrap(),
                block.capacity(),
                space.free_in(block),
            )
        })
        .collect();
    assert_eq!(
        blocks,
        [
            ("wide", 2045, 2043),
            ("first", 253, 253),
            ("other", 253, 252),
            ("twin", 253, 252),
            ("apart", 253, 253),
        ]
    );
}

#[test]
fn the_ends_of_a_service_range_are_never_given() {
    for (cidr, first, usable) in [
        ("10.96.0.0/16", Some("10.96.0.1"), 65_534),
        ("10.96.0.0/28", Some("10.96.0.1"), 14),
        ("10.96.0.0/31", None, 0),
        ("fd00:96::/112", Some("fd00:96::1"), 65_535),
    ] {
        let network = Network::parse(NetworkRole::Services, cidr, "").unwrap();
        let kubernetes = |ip: &str| {
            let name = "default/kubernetes".into();
            AddressClaim::new(ip.parse().unwrap(), Holder::Service { name }).unwrap()
        };
        let claims = first.map(kubernetes).into_iter().collect();
        let in_use = u128::from(usable > 0);
        let cidr = network.cidr();
        let space = AddressSpace::new(SpaceParts {
            networks: vec![network],
            claims,
            ..SpaceParts::default()
        });
        let counts = space.counts(NetworkRole::Services, &cidr);
        assert_eq!(
            (
                counts.in_use(),
                counts.usable(),
                counts.of(AddressState::Free)
            ),
            (in_use, usable, usable - in_use),
            "{cidr}: {counts:?}"
        );
    }
}

#[test]
fn finds_the_narrowest_block_around_a_prefix() {
    let space = space(
        &[
            ("10.0.0.0/20", BlockState::Assigned, "wide"),
            ("10.0.1.0/24", BlockState::Assigned, "a"),
            ("10.0.2.0/24", BlockState::Assigned, "b"),
            ("10.0.2.0/24", BlockState::Assigned, "c"),
        ],
        &[],
    );
    for (prefix, node) in [
        ("10.0.1.7/32", Some("a")),
        ("10.0.2.0/25", Some("c")),
        ("10.0.3.0/24", Some("wide")),
        ("10.0.0.0/21", Some("wide")),
        ("10.0.16.0/24", None),
        ("10.0.0.0/16", None),
        ("9.0.0.0/24", None),
    ] {
        let found = space.block_around(&prefix.parse().unwrap());
        let found = found.and_then(|index| space.blocks()[index].node());
        assert_eq!(found, node, "{prefix}");
    }
}
