//! Addresses of pods.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::invariants::PodKey;

use super::{JoinedList, node as node_object, pod as pod_object};
use crate::{
    dump::{Dump, DumpedNode},
    finding::{Code, Finding, Severity},
    network::BlockPlace,
};

const DELETE_POD: &str =
    "delete the pod, so that its owner makes another, which gets an address of the node's block";

pub(super) fn duplicate(ip: IpAddr, pods: &[PodKey]) -> Finding {
    Finding {
        prefixes: vec![ip.into()],
        code: Code::DuplicatePodIp,
        severity: Severity::Error,
        objects: pods.iter().map(pod_object).collect(),
        message: format!(
            "address {ip} is assigned to {} pods: {}",
            pods.len(),
            JoinedList(pods)
        ),
        repair: "delete all of them but one; if their nodes have the same block, repair that first"
            .into(),
    }
}

/// A pod whose address is in no block of its node, if the network gives nodes blocks.
pub(super) fn outside(
    dump: &Dump,
    pod: &PodKey,
    ip: IpAddr,
    node: &str,
    blocks: &[IpNet],
) -> Option<Finding> {
    let has_blocks = |ipam| matches!(ipam, BlockPlace::PodCidr | BlockPlace::NodeBlocks(_));
    if !has_blocks(dump.network.ipam_of(node)) || dump.nodes.is_empty() {
        return None;
    }
    let known = dump.node_named(node);
    // During a migration a pod keeps its address of the former network.
    let has_pod_cidrs = dump.network.ipams().any(|ipam| ipam == BlockPlace::PodCidr);
    let is_elsewhere = |node: &DumpedNode| {
        let claims = match has_pod_cidrs {
            true => node.pod_cidr_claims(),
            false => Vec::new(),
        };
        node.is_virtual || (node.pod_ranges.iter().chain(&claims)).any(|range| range.contains(&ip))
    };
    if known.is_some_and(is_elsewhere) {
        return None;
    }
    let is_known = known.is_some();
    let message = match blocks {
        _ if node.is_empty() => format!("pod {pod} has address {ip}, and is on no node"),
        _ if !is_known => format!("pod {pod} has address {ip}, and its node {node} does not exist"),
        [] => format!("pod {pod} has address {ip}, and its node {node} has no block"),
        blocks => format!(
            "pod {pod} has address {ip}, which is not in {} of its node {node}",
            JoinedList(blocks)
        ),
    };
    let mut objects = vec![pod_object(pod)];
    // A missing node is not listed as an object.
    objects.extend(is_known.then(|| node_object(node)));
    objects.sort_unstable();
    Some(Finding {
        prefixes: vec![ip.into()],
        code: Code::PodOutsideBlock,
        severity: Severity::Error,
        objects,
        message,
        repair: match blocks {
            [] if is_known => {
                "give the node a block, then delete the pod, so that its owner makes another".into()
            }
            _ => DELETE_POD.into(),
        },
    })
}

/// Pods that have the address of a machine and are not on its network.
pub(super) fn with_addresses_of_nodes(dump: &Dump) -> Vec<Finding> {
    let nodes = dump.nodes.iter().filter(|node| !node.is_virtual);
    let addresses: BTreeMap<IpAddr, &str> = nodes
        .flat_map(|node| node.addresses.iter().map(|ip| (*ip, node.name.as_str())))
        .collect();
    let pods = dump.world.pods.iter().filter(|pod| pod.uses_pod_network());
    let each = pods.flat_map(|pod| pod.ips.iter().map(move |ip| (pod, ip)));
    let shared = each.filter_map(|(pod, ip)| {
        let node = addresses.get(ip)?;
        let pod = pod.key();
        Some(Finding {
            prefixes: vec![(*ip).into()],
            code: Code::DuplicatePodIp,
            severity: Severity::Error,
            objects: vec![node_object(node), pod_object(&pod)],
            message: format!("address {ip} of pod {pod} is also the address of node {node}"),
            repair: "delete the pod, and take the addresses of nodes out of what pods are given"
                .into(),
        })
    });
    shared.collect()
}

/// Texts in place of addresses that are invalid.
pub(super) fn odd(dump: &Dump) -> impl Iterator<Item = Finding> {
    dump.odd.iter().map(|odd| Finding {
        prefixes: Vec::new(),
        code: Code::PodOutsideBlock,
        severity: Severity::Error,
        objects: vec![pod_object(&odd.pod)],
        message: format!("pod {} has the invalid address {:?}", odd.pod, odd.text),
        repair: DELETE_POD.into(),
    })
}
