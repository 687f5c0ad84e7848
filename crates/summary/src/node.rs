//! A node, as far as its blocks and addresses matter.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_api::{
    core::Node,
    pod_ips::{POD_RANGES, PodIpResource, pod_cidrs},
};
use podplane_ipam::{Family, addresses::AddressReport, parse_cidr};

/// The facts of a Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub(crate) is_ready: bool,
    pub(crate) is_unschedulable: bool,
    /// The addresses as its kubelet reports them.
    pub(crate) report: AddressReport,
    /// Its blocks.
    pub(crate) pod_cidrs: Vec<IpNet>,
    /// The ranges of its network, if that does not use the blocks.
    pub(crate) ranges: Vec<IpNet>,
    /// Its own addresses inside the cluster.
    pub(crate) addresses: Vec<IpAddr>,
}

impl NodeFacts {
    pub(crate) fn of(node: &Node, resource: &PodIpResource) -> Self {
        let status = node.status.as_ref();
        let conditions = status.iter().flat_map(|it| it.conditions.iter().flatten());
        let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
        let spec = node.spec.as_ref();
        let annotations = node.metadata.annotations.as_ref();
        let ranges = annotations.and_then(|all| all.get(POD_RANGES));
        let addresses = status.iter().flat_map(|it| it.addresses.iter().flatten());
        let internal = addresses.filter(|address| address.type_ == "InternalIP");
        Self {
            is_ready: ready.any(|condition| condition.status == "True"),
            is_unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            report: resource.report(node),
            pod_cidrs: prefixes(pod_cidrs(node).iter().map(String::as_str)),
            ranges: prefixes(ranges.iter().flat_map(|ranges| ranges.split(','))),
            addresses: internal
                .filter_map(|address| address.address.parse().ok())
                .collect(),
        }
    }
}

/// The number of addresses of a node that are in use: those of its blocks, of which `in_use` tells
/// the number; with blocks of both families, the larger one. Where pods have addresses elsewhere,
/// as in networks with an IPAM of their own, the number of these pods, `addressed`.
pub fn addresses_used(
    blocks: impl Iterator<Item = IpNet> + Clone,
    in_use: impl Fn(&IpNet) -> u128,
    addressed: u64,
) -> u64 {
    let of_family = |family: Family| {
        let blocks = blocks.clone();
        let blocks = blocks.filter(|block| Family::of(block) == family);
        blocks
            .map(|block| in_use(&block))
            .fold(0, u128::saturating_add)
    };
    match of_family(Family::V4).max(of_family(Family::V6)) {
        0 => addressed,
        in_blocks => u64::try_from(in_blocks).unwrap_or(u64::MAX),
    }
}

/// The prefixes without host bits. What is not a prefix is left out.
fn prefixes<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<IpNet> {
    let parsed = texts.filter_map(|text| parse_cidr(text.trim()).ok());
    parsed.map(|net| net.trunc()).collect()
}
