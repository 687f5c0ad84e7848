//! Addresses of pods.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_ipam::audit::PodKey;

use super::{Listed, node as node_object, pod as pod_object};
use crate::{
    dump::Dump,
    finding::{Code, Finding, Severity},
};

const DELETE_POD: &str =
    "delete the pod, so that its owner makes another, which gets an address of the node's block";

pub(super) fn duplicate(ip: IpAddr, pods: &[PodKey]) -> Finding {
    Finding {
        code: Code::DuplicatePodIp,
        severity: Severity::Error,
        objects: pods.iter().map(pod_object).collect(),
        message: format!(
            "address {ip} is that of {} live pods: {}",
            pods.len(),
            Listed(pods)
        ),
        repair: "delete all of them but one; if their nodes have the same block, repair that first"
            .into(),
    }
}

pub(super) fn outside(
    dump: &Dump,
    pod: &PodKey,
    ip: &str,
    node: &str,
    blocks: &[IpNet],
) -> Finding {
    let is_known = dump
        .nodes
        .binary_search_by(|known| known.name.as_str().cmp(node))
        .is_ok();
    let message = match blocks {
        _ if node.is_empty() => format!("pod {pod} has address {ip}, and is on no node"),
        _ if !is_known => format!("pod {pod} has address {ip}, and its node {node} does not exist"),
        [] => format!("pod {pod} has address {ip}, and its node {node} has no block"),
        blocks => format!(
            "pod {pod} has address {ip}, which is not in {} of its node {node}",
            Listed(blocks)
        ),
    };
    let mut objects = vec![pod_object(pod)];
    // What does not exist is no object.
    objects.extend(is_known.then(|| node_object(node)));
    objects.sort_unstable();
    Finding {
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
    }
}

/// What stands for an address and is none.
pub(super) fn odd(dump: &Dump) -> impl Iterator<Item = Finding> {
    dump.odd.iter().map(|odd| Finding {
        code: Code::PodOutsideBlock,
        severity: Severity::Error,
        objects: vec![pod_object(&odd.pod)],
        message: format!(
            "pod {} has {:?} as address, which is none",
            odd.pod, odd.text
        ),
        repair: DELETE_POD.into(),
    })
}
