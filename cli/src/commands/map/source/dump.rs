//! The facts of dumps: nodes, pods, Services, and the records of the cluster's network.

use std::path::{Path, PathBuf};

use podplane_api::printable;
use podplane_audit::{ControllerFlags, Dump, DumpCollector, DumpScope};
use podplane_map::{
    AddressClaim, BlockLayout, BlockState, Holder, Network, NetworkRole, NodeBlock, PodRule,
    SpaceError, SpaceParts,
};
use podplane_progress::{PlainLines, Progress};
use podplane_summary::{infer_nodes, infer_services, node_addresses};

use super::StatedRanges;
use crate::{commands::audit::source::from_file, report::UnusableInput};

/// Reads dumps, which are one cluster's.
pub(super) fn of_files(files: &[PathBuf], ranges: &StatedRanges) -> anyhow::Result<SpaceParts> {
    let mut collector = DumpCollector::new(DumpScope::Fields);
    read_files(files, &mut collector).map_err(UnusableInput)?;
    let dump = finish(collector, ranges);
    if !dump.lists_pods() {
        anstream::eprintln!("note: {NO_PODS}");
    }
    let mut parts = with_stated(&dump, ranges)?;
    complete(&mut parts);
    Ok(parts)
}

/// The remark on a dump without pods, whose blocks would look unused.
const NO_PODS: &str = "there are no pods in the input, so it is not known which addresses are in \
                       use: pass what `kubectl get nodes,pods,services -A -o json` prints";

fn read_files(files: &[PathBuf], collector: &mut DumpCollector) -> anyhow::Result<()> {
    let progress = Progress::with_lines("reading", PlainLines::IfSlow);
    let mut each = files.iter().map(PathBuf::as_path);
    each.try_for_each(|file: &Path| from_file(file, collector, &progress))
}

/// The facts of a dump, without inferred networks.
pub(super) fn of_collector(
    collector: DumpCollector,
    ranges: &StatedRanges,
) -> anyhow::Result<SpaceParts> {
    with_stated(&finish(collector, ranges), ranges)
}

fn finish(collector: DumpCollector, ranges: &StatedRanges) -> Dump {
    let stated: Vec<_> = ranges.pods.iter().map(ToString::to_string).collect();
    let dump = collector.finish(&ControllerFlags {
        cluster_cidr: (!stated.is_empty()).then(|| stated.join(",")),
        ..ControllerFlags::default()
    });
    for note in dump.notes() {
        anstream::eprintln!("note: {}", printable::line(note));
    }
    dump
}

/// The facts of a dump, with the networks of the flags.
fn with_stated(dump: &Dump, ranges: &StatedRanges) -> anyhow::Result<SpaceParts> {
    let mut parts = of_dump(dump)?;
    ranges.add_to(&mut parts)?;
    Ok(parts)
}

/// Adds the networks that nobody states.
pub(crate) fn complete(parts: &mut SpaceParts) {
    parts.infer_pod_networks();
    let (claims, networks) = (&parts.claims, &mut parts.networks);
    let services = claims.iter().filter_map(|claim| match claim.holder() {
        Holder::Service { .. } => Some(claim.ip()),
        _ => None,
    });
    infer_services(networks, services);
    let nodes = claims.iter().filter_map(|claim| match claim.holder() {
        Holder::Node { .. } => Some(claim.ip()),
        _ => None,
    });
    infer_nodes(networks, nodes);
}

/// The facts of a dump, without the networks that only flags state.
///
/// # Errors
///
/// If a node or an owner has no name.
pub(crate) fn of_dump(dump: &Dump) -> Result<SpaceParts, SpaceError> {
    let mut parts = SpaceParts::of_world(dump.world())?;
    if !dump.has_node_blocks() {
        parts.rule = PodRule::Anywhere;
    }
    let nodes = dump.nodes().iter();
    let addresses = nodes.flat_map(|node| node.addresses.iter().map(|ip| (&*node.name, *ip)));
    for (ip, name) in node_addresses(addresses) {
        let name = name.into();
        parts
            .claims
            .push(AddressClaim::new(ip, Holder::Node { name })?);
    }
    for node in dump.nodes() {
        parts
            .unlocated_orphans
            .push((node.name.clone(), node.orphaned));
    }
    for service in dump.services() {
        for ip in &service.addresses {
            let name = service.name.as_str().into();
            parts
                .claims
                .push(AddressClaim::new(*ip, Holder::Service { name })?);
        }
    }
    for range in dump.service_ranges() {
        let network = Network::new(NetworkRole::Services, range.cidr, &range.name)?;
        parts.networks.push(network);
    }
    for range in dump.ranges_of_network() {
        let network = Network::new(NetworkRole::Pods, range.cidr.trunc(), range.name)?;
        parts.networks.push(network);
    }
    for shared in dump.shared_blocks() {
        let state = match shared.node {
            Some(_) => BlockState::Assigned,
            None => BlockState::Unowned,
        };
        let block = NodeBlock::new(shared.cidr.trunc(), state, shared.node)?;
        parts.blocks.push(block.with_layout(BlockLayout::Whole)?);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use podplane_map::{AddressSpace, AddressState};
    use serde_json::json;

    use super::*;

    fn space(objects: &[serde_json::Value]) -> AddressSpace {
        let mut collector = DumpCollector::new(DumpScope::Fields);
        objects.iter().for_each(|object| collector.add(object));
        let mut parts = of_collector(collector, &StatedRanges::default()).unwrap();
        complete(&mut parts);
        AddressSpace::new(parts)
    }

    #[test]
    fn a_dump_has_blocks_pods_and_the_addresses_of_nodes() {
        let node = |name: &str, block: &str, ip: &str| {
            json!({"kind": "Node", "metadata": {"name": name},
                "spec": {"podCIDR": block, "podCIDRs": [block]},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}]}})
        };
        let pod = |name: &str, node: &str, ip: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": node}, "status": {"phase": "Running", "podIPs": [{"ip": ip}]}})
        };
        let space = space(&[
            node("a", "10.244.1.0/24", "192.168.1.10"),
            node("b", "10.244.2.0/24", "192.168.1.11"),
            pod("one", "a", "10.244.1.2"),
            pod("two", "b", "10.244.1.2"),
            pod("three", "b", "10.244.2.2"),
        ]);
        let networks = space.networks().iter();
        let networks: Vec<_> = networks.map(|one| one.cidr().to_string()).collect();
        assert_eq!(networks, ["10.244.0.0/22", "192.168.1.10/31"]);
        for (role, ip, want) in [
            (NetworkRole::Pods, "10.244.1.2", AddressState::Duplicate),
            (NetworkRole::Pods, "10.244.2.2", AddressState::Pod),
            (NetworkRole::Pods, "10.244.2.3", AddressState::Free),
            (NetworkRole::Nodes, "192.168.1.10", AddressState::Node),
        ] {
            assert_eq!(space.state(role, ip.parse().unwrap()), want, "{ip}");
        }
    }

    #[test]
    fn an_address_that_several_nodes_have_is_nobodys() {
        let node = |name: &str, ip: &str| {
            json!({"kind": "Node", "metadata": {"name": name},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}]}})
        };
        let space = space(&[
            node("a", "192.168.1.10"),
            node("b", "192.168.1.10"),
            node("c", "192.168.1.12"),
        ]);
        assert!(space.record("192.168.1.10".parse().unwrap()).is_none());
        let own = space.record("192.168.1.12".parse().unwrap()).unwrap();
        assert_eq!(own.state, AddressState::Node);
    }

    #[test]
    fn a_range_that_a_flag_states_is_that_of_its_object() {
        let range = json!({"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16"]}});
        let mut collector = DumpCollector::new(DumpScope::Fields);
        collector.add(&range);
        let mut parts = of_collector(collector, &StatedRanges::default()).unwrap();
        let stated = Network::parse(NetworkRole::Services, "10.96.0.0/16", "").unwrap();
        parts.networks.push(stated);
        let space = AddressSpace::new(parts);
        let names: Vec<_> = space.networks().iter().map(Network::name).collect();
        assert_eq!(names, ["kubernetes"]);
        assert!(space.overlaps().is_empty(), "{:?}", space.overlaps());
    }

    #[test]
    fn a_dump_has_the_addresses_of_services() {
        let service = |name: &str, spec: serde_json::Value| json!({"kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec});
        let range = json!({"kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}});
        let space = space(&[
            range,
            service(
                "web",
                json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:96::7"]}),
            ),
            service("old", json!({"clusterIP": "10.96.0.8"})),
            service(
                "headless",
                json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            ),
        ]);
        let networks = space.networks().iter();
        let networks: Vec<_> = networks.map(|one| one.cidr().to_string()).collect();
        assert_eq!(networks, ["10.96.0.0/16", "fd00:96::/112"]);
        for (ip, holder) in [
            ("10.96.0.7", "service shop/web"),
            ("fd00:96::7", "service shop/web"),
            ("10.96.0.8", "service shop/old"),
        ] {
            let record = space.record(ip.parse().unwrap()).unwrap();
            assert_eq!(record.state, AddressState::Service, "{ip}");
            assert_eq!(record.claims[0].holder().to_string(), holder);
        }
        let all = "10.96.0.0/16".parse().unwrap();
        let held = space.records(&all).filter(|one| !one.claims.is_empty());
        assert_eq!(held.count(), 2);
    }

    #[test]
    fn pods_of_calico_may_have_addresses_of_other_nodes_blocks() {
        let node = |name: &str| json!({"kind": "Node", "metadata": {"name": name}});
        let pod = |name: &str, node: &str, ip: &str| {
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default"},
                "spec": {"nodeName": node}, "status": {"phase": "Running", "podIPs": [{"ip": ip}]}})
        };
        let block = |cidr: &str, node: &str| {
            json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
                "metadata": {"name": cidr.replace(['.', '/'], "-")},
                "spec": {"cidr": cidr, "affinity": format!("host:{node}"), "allocations": [], "attributes": []}})
        };
        let pool = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
            "metadata": {"name": "default-pool"}, "spec": {"cidr": "10.0.0.0/16", "blockSize": 26}});
        let space = space(&[
            node("a"),
            node("b"),
            block("10.0.1.0/26", "a"),
            block("10.0.2.0/26", "b"),
            pool,
            pod("one", "a", "10.0.1.2"),
            pod("borrows", "b", "10.0.1.0"),
        ]);
        let names: Vec<_> = space.networks().iter().map(Network::name).collect();
        assert_eq!(names, ["default-pool"]);
        assert_eq!(space.blocks().len(), 2);
        let state = |ip: &str| space.state(NetworkRole::Pods, ip.parse().unwrap());
        assert_eq!(state("10.0.1.0"), AddressState::Pod);
        assert_eq!(state("10.0.2.0"), AddressState::Free);
    }
}
