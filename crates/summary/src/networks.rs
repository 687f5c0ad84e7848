//! The networks of a cluster: those that objects and flags state, and those that follow from the
//! blocks and the addresses of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_ipam::Family;
use podplane_map::{Network, NetworkRole, NodeBlock, SpaceParts};

/// The shortest prefix around the addresses of nodes or Services that is taken for their network. A
/// shorter one says nothing: they are in several networks.
const SHORTEST_V4: u8 = 12;
const SHORTEST_V6: u8 = 32;

/// Adds the networks of pods that nobody states: one for each family, around its blocks.
///
/// `blocks` are those of nodes, without reserved ones, which would widen it.
pub(crate) fn infer_pods(networks: &mut Vec<Network>, blocks: &[NodeBlock]) {
    let mut parts = SpaceParts {
        networks: std::mem::take(networks),
        blocks: blocks.to_vec(),
        ..SpaceParts::default()
    };
    parts.infer_pod_networks();
    *networks = parts.networks;
}

/// The addresses of nodes, each with its node. Nodes on one machine, as in simulations, share that
/// machine's address: it is nobody's.
pub fn node_addresses<N: Eq>(
    addresses: impl IntoIterator<Item = (N, IpAddr)>,
) -> BTreeMap<IpAddr, N> {
    let (mut owners, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (node, ip) in addresses {
        if owners.get(&ip).is_some_and(|owner| *owner != node) {
            shared.insert(ip);
        }
        owners.insert(ip, node);
    }
    owners.retain(|ip, _| !ip.is_loopback() && !shared.contains(ip));
    owners
}

/// Adds the network around the nodes' addresses for each family, where it is narrow enough and
/// apart from all other networks.
pub fn infer_nodes(networks: &mut Vec<Network>, addresses: impl Iterator<Item = IpAddr>) {
    let name = "inferred from the nodes' addresses";
    infer(networks, NetworkRole::Nodes, name, addresses);
}

/// Adds the network around the addresses of Services for each family, as [`infer_nodes`] does,
/// where nobody states a service range.
pub fn infer_services(networks: &mut Vec<Network>, addresses: impl Iterator<Item = IpAddr>) {
    let is_stated = |one: &Network| one.role() == NetworkRole::Services;
    if !networks.iter().any(is_stated) {
        let name = "inferred from the Services' addresses";
        infer(networks, NetworkRole::Services, name, addresses);
    }
}

fn infer(
    networks: &mut Vec<Network>,
    role: NetworkRole,
    name: &str,
    addresses: impl Iterator<Item = IpAddr>,
) {
    let addresses: Vec<IpAddr> = addresses.collect();
    for (family, shortest) in [(Family::V4, SHORTEST_V4), (Family::V6, SHORTEST_V6)] {
        let of_family = addresses
            .iter()
            .filter(|address| Family::of_address(**address) == family);
        let Some(around) = around(of_family) else {
            continue;
        };
        let is_apart = !networks.iter().any(|network| {
            let other = network.cidr();
            other.contains(&around) || around.contains(&other)
        });
        if is_apart && around.prefix_len() >= shortest {
            networks.extend(Network::new(role, around, name));
        }
    }
}

/// The smallest prefix around the addresses.
fn around<'a>(mut addresses: impl Iterator<Item = &'a IpAddr>) -> Option<IpNet> {
    let mut around = IpNet::from(*addresses.next()?);
    for address in addresses {
        while !around.contains(address) {
            around = around.supernet()?;
        }
    }
    Some(around.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(stated: &[&str], addresses: &[&str]) -> Vec<String> {
        let stated = stated.iter();
        let mut networks: Vec<_> = stated
            .map(|cidr| Network::parse(NetworkRole::Pods, cidr, "").unwrap())
            .collect();
        let known = networks.len();
        infer_nodes(
            &mut networks,
            addresses.iter().map(|text| text.parse().unwrap()),
        );
        let found = networks[known..].iter();
        found.map(|network| network.cidr().to_string()).collect()
    }

    #[test]
    fn the_nodes_network_is_around_their_addresses_and_apart_from_others() {
        let nodes = ["192.168.1.10", "192.168.1.40", "fd00::1", "fd00::9"];
        assert_eq!(inferred(&[], &nodes), ["192.168.1.0/26", "fd00::/124"]);
        assert_eq!(inferred(&["192.168.0.0/16"], &nodes), ["fd00::/124"]);
        assert_eq!(inferred(&[], &["10.0.0.1", "192.168.0.1"]), [""; 0]);
        assert_eq!(inferred(&[], &[]), [""; 0]);
    }

    #[test]
    fn a_service_range_is_inferred_where_none_is_stated() {
        let addresses = ["10.96.0.1", "10.96.3.7"].map(|text| text.parse().unwrap());
        let mut networks = Vec::new();
        infer_services(&mut networks, addresses.into_iter());
        let found: Vec<_> = networks.iter().map(|one| one.cidr().to_string()).collect();
        assert_eq!(found, ["10.96.0.0/22"]);
        let stated = Network::parse(NetworkRole::Services, "10.0.0.0/16", "").unwrap();
        let mut networks = vec![stated];
        infer_services(&mut networks, addresses.into_iter());
        assert_eq!(networks.len(), 1);
    }
}
