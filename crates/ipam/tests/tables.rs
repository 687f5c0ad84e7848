//! Capacity formulas against tables that were computed elsewhere.

use ipnet::IpNet;
use podplane_ipam::{capacity::max_nodes, pool::kubenet_allowed_pods};
use serde::Deserialize;

#[derive(Deserialize)]
struct Tables {
    kubenet_allowed_pods: Vec<AllowedPods>,
    max_nodes: Vec<MaxNodes>,
}

#[derive(Deserialize)]
struct AllowedPods {
    mask: u8,
    allowed: u64,
    ipv4: bool,
    want: u64,
}

#[derive(Deserialize)]
struct MaxNodes {
    cluster_mask: u8,
    node_mask: u8,
    want: u64,
}

fn tables() -> Tables {
    serde_json::from_str(include_str!("data/scheduler_tables.json")).expect("the tables are valid")
}

#[test]
fn kubenet_allowed_pods_match_the_reference() {
    for AllowedPods {
        mask,
        allowed,
        ipv4,
        want,
    } in tables().kubenet_allowed_pods
    {
        let network = if ipv4 { "10.0.0.0" } else { "fd00::" };
        let block: IpNet = format!("{network}/{mask}").parse().unwrap();
        assert_eq!(
            kubenet_allowed_pods(Some(block), allowed),
            want,
            "{block} with {allowed}"
        );
    }
    assert_eq!(kubenet_allowed_pods(None, 110), 110);
}

#[test]
fn max_nodes_match_the_reference() {
    for MaxNodes {
        cluster_mask,
        node_mask,
        want,
    } in tables().max_nodes
    {
        assert_eq!(
            max_nodes(cluster_mask, node_mask),
            Some(want),
            "/{cluster_mask} in /{node_mask}"
        );
    }
}
