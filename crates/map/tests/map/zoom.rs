//! Zooming in and out, and the layout of IPv6 by what is in use.

use ipnet::IpNet;
use podplane_map::{
    AddressSpace, AddressState, GridLimit, Layout, Network, NetworkRole, StateCounts, View,
    ViewError,
};
use proptest::prelude::*;

use crate::{
    model::{facts, limit, prefix},
    samples::{block, duplicates, ipv6, large, network, pod, space},
};

fn view(space: &AddressSpace, network: &Network, prefix: &str) -> View {
    let limit = GridLimit::new(16, 16).unwrap();
    View::new(space, network, prefix.parse().unwrap(), limit).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn zooming_keeps_counts(
        facts in facts(), prefix in prefix(), limit in limit(), x in 0u16..40, y in 0u16..40,
    ) {
        let space = facts.space();
        let view = View::new(&space, &facts.network(), prefix, limit).unwrap();
        let (x, y) = (x % view.width(), y % view.height());
        let cell = view.at(x, y).unwrap();
        let closer = view.zoom_in(x, y, 32).unwrap();
        prop_assert_eq!(closer, cell.prefix);
        let closer = View::new(&space, &facts.network(), closer, limit).unwrap();
        prop_assert_eq!(closer.counts(), &cell.counts);
        let quarter = view.zoom_in(x, y, 2).unwrap();
        prop_assert!(quarter.contains(&cell.prefix) && prefix.contains(&quarter));
        prop_assert!(quarter.prefix_len() <= prefix.prefix_len() + 2);
        // Back out again, to the network at most.
        let wider = view.zoom_out(3);
        prop_assert!(wider.contains(&prefix) && facts.network().cidr().contains(&wider));
    }

    /// Everything in use is in exactly one cell, however few there are.
    #[test]
    fn the_layout_by_use_hides_nothing_in_use(
        pods in prop::collection::btree_set(any::<u64>(), 0..40),
        near in prop::collection::btree_set(0u64..64, 0..40),
        nodes in prop::collection::btree_map(0u16..300, 56u8..=64, 0..12),
        length in 48u8..=72,
        columns in 1u16..12,
        rows in 1u16..12,
    ) {
        let mut parts = podplane_map::SpaceParts::default();
        for (node, length) in &nodes {
            let cidr: IpNet = format!("fd00:0:0:{node:x}::/{length}").parse().unwrap();
            let cidr = cidr.trunc().to_string();
            parts.blocks.push(block(&cidr, podplane_map::BlockState::Assigned, "a"));
        }
        let spread = pods.iter().map(|n| n.rotate_left(17));
        for n in spread.chain(near.iter().copied()) {
            let ip = std::net::Ipv6Addr::from_bits((0xfd00u128 << 112) | u128::from(n));
            parts.claims.push(pod(&ip.to_string(), "default/a", "a"));
        }
        let space = space(parts);
        let network = network(NetworkRole::Pods, "fd00::/48");
        let prefix: IpNet = format!("fd00::/{length}").parse().unwrap();
        let limit = GridLimit::new(columns, rows).unwrap();
        let view = View::new(&space, &network, prefix, limit).unwrap();
        prop_assert_eq!(view.layout(), Layout::Used);
        prop_assert!(view.width() <= columns && view.height() <= rows);
        prop_assert_eq!(view.hidden().in_use(), 0);
        let mut sum = *view.hidden();
        for cell in view.cells() {
            prop_assert_eq!(view.at(cell.x, cell.y), Some(cell));
            prop_assert!(prefix.contains(&cell.prefix));
            sum.add(&cell.counts);
        }
        prop_assert_eq!(&sum, view.counts());
        for pair in view.cells().windows(2) {
            prop_assert!(pair[0].prefix.broadcast() < pair[1].prefix.network());
        }
        for record in space.records(&prefix) {
            prop_assert!(view.cell_of(record.ip).is_some(), "{}", record.ip);
        }
    }
}

#[test]
fn zooms_from_a_network_to_one_address() {
    let space = space(duplicates());
    let cluster = &space.networks()[0];
    let mut prefix = cluster.cidr();
    let target = "10.244.1.5".parse().unwrap();
    let limit = GridLimit::new(4, 4).unwrap();
    let mut steps = Vec::new();
    while prefix.prefix_len() < 32 {
        let view = View::new(&space, cluster, prefix, limit).unwrap();
        let cell = view.cell_of(target).unwrap();
        assert_eq!(
            cell.dominant,
            AddressState::Duplicate,
            "visible in {prefix}"
        );
        prefix = view.zoom_in(cell.x, cell.y, 4).unwrap();
        steps.push(prefix.to_string());
    }
    assert_eq!(steps, ["10.244.1.0/24", "10.244.1.0/28", "10.244.1.5/32"]);
    let view = View::new(&space, cluster, prefix, limit).unwrap();
    assert_eq!((view.width(), view.height(), view.cells().len()), (1, 1, 1));
    assert_eq!(view.zoom_out(8).to_string(), "10.244.1.0/24");
    assert_eq!(view.zoom_out(40), cluster.cidr());
}

#[test]
fn refuses_a_prefix_outside_of_its_network() {
    let space = space(duplicates());
    let limit = GridLimit::new(4, 4).unwrap();
    let error = |prefix: &str| {
        let prefix = prefix.parse().unwrap();
        View::new(&space, &space.networks()[0], prefix, limit).unwrap_err()
    };
    assert_eq!(
        error("10.245.0.0/24").to_string(),
        "invalid prefix `10.245.0.0/24`: it is not in the cluster CIDR 10.244.0.0/20"
    );
    assert_eq!(
        error("10.244.1.9/24").to_string(),
        "invalid prefix `10.244.1.9/24`: it has host bits; did you mean 10.244.1.0/24?"
    );
    assert!(matches!(
        error("10.0.0.0/8"),
        ViewError::OutsideNetwork { .. }
    ));
    let error = GridLimit::new(0, 9).unwrap_err().to_string();
    assert_eq!(error, "invalid grid `0x9`: want 1 to 1024 columns and rows");
}

#[test]
fn ipv6_shows_blocks_then_addresses() {
    let space = space(ipv6());
    let cluster = &space.networks()[0];
    let of = |view: &View| -> Vec<String> {
        let cells = view.cells().iter();
        cells.map(|cell| cell.prefix.to_string()).collect()
    };
    let all = view(&space, cluster, "fd00:10:244::/48");
    assert_eq!(
        of(&all),
        [
            "fd00:10:244:1::/64",
            "fd00:10:244:7::/64",
            "fd00:10:244:9::/64",
            "fd00:10:244:ff00::/64"
        ]
    );
    assert_eq!(all.outlines().len(), 3);
    assert_eq!(all.cells()[2].dominant, AddressState::Outside);
    let node = view(&space, cluster, "fd00:10:244:7::/64");
    assert_eq!(node.cells().len(), 39, "38 pods and a gateway");
    assert_eq!(node.cells()[0].dominant, AddressState::Gateway);
    assert_eq!(node.counts().of(AddressState::Pod), 38);
    assert_eq!(node.counts().total(), 1 << 64);
    let services = view(&space, &space.networks()[1], "fd00:10:96::/112");
    assert_eq!(services.layout(), Layout::Curve);
}

#[test]
fn all_of_ipv6_and_all_of_ipv4_have_a_view() {
    let space = space(ipv6());
    let network = network(NetworkRole::Pods, "::/0");
    let all = view(&space, &network, "::/0");
    assert_eq!(all.counts().of(AddressState::Pod), 39);
    let unassigned = view(&space, &network, "::/1");
    assert_eq!(unassigned.cells().len(), 1, "nothing is used of it");
    let v4 = crate::samples::network(NetworkRole::Nodes, "0.0.0.0/0");
    let v4 = view(&space, &v4, "0.0.0.0/0");
    let sum = v4
        .cells()
        .iter()
        .fold(StateCounts::default(), |mut sum, cell| {
            sum.add(&cell.counts);
            sum
        });
    assert_eq!(sum.of(AddressState::Free), 1 << 32);
}

#[test]
fn a_large_network_is_complete() {
    let space = space(large());
    let cluster = &space.networks()[0];
    let limit = GridLimit::new(64, 64).unwrap();
    let view = View::new(&space, cluster, cluster.cidr(), limit).unwrap();
    assert_eq!(view.cells().len(), 4096);
    assert_eq!(view.counts().total(), 1 << 24);
    assert_eq!(view.counts().of(AddressState::Pod), 150_000);
    assert_eq!(view.counts().of(AddressState::Gateway), 5_000);
    let blocks: usize = view.cells().iter().map(|cell| cell.blocks_inside).sum();
    assert_eq!(blocks, 5_000);
}
