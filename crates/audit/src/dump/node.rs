//! A node as the audit takes it.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::{AddressRange, parse_cidr, pool::pod_capacity};
use serde::Deserialize as _;
use serde_json::{Map, Value};

use super::{Dump, DumpScope, no_object};
use crate::{
    item::{LenientValue, RawObject},
    network::{BlockPlace, Marker},
};

/// A Node as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DumpedNode {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp`; may be empty.
    pub created: String,
    /// `spec.podCIDR`; empty if there is none.
    pub pod_cidr: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
    /// The number of addresses that its kubelet or a client has set as a resource of it.
    pub pod_ips: Option<u64>,
    /// The number of addresses that its kubelet reports as orphaned.
    pub orphaned: u64,
    /// The name of the resource of addresses that its kubelet reports; empty for the default.
    pub(crate) pod_ip_resource: String,
    /// The number of its addresses, if a node agent says that the status has fewer.
    pub(crate) pod_ips_total: Option<u64>,
    /// The amounts of its extended resources.
    pub(crate) extended: BTreeMap<String, u64>,
    /// The object without its status, with [`DumpScope::Nodes`].
    pub object: Option<Map<String, Value>>,
    /// A node without a machine of the cluster, as with virtual-kubelet and Fargate: its
    /// pods' addresses are the provider's.
    pub is_virtual: bool,
    /// A node of GKE.
    pub is_gke: bool,
    /// `status.addresses` that are IP addresses of the cluster's side.
    pub addresses: Vec<IpAddr>,
    /// The ranges that a podplane node reports where its IPAM plugin does not use its podCIDRs.
    pub pod_ranges: Vec<IpNet>,
    /// The node's blocks where the network does not keep them in the Node object.
    pub(crate) recorded: Option<Vec<String>>,
    /// The node's network.
    pub(crate) ipam: BlockPlace,
}

impl DumpedNode {
    /// The node's blocks as they are written: those that the network has recorded elsewhere,
    /// else `spec.podCIDRs`, else `spec.podCIDR`.
    pub(crate) fn texts(&self) -> Vec<&str> {
        if let Some(recorded) = &self.recorded {
            return recorded.iter().map(String::as_str).collect();
        }
        let listed = self.pod_cidrs.iter().map(String::as_str);
        let listed: Vec<&str> = listed.filter(|text| !text.is_empty()).collect();
        if listed.is_empty() && !self.pod_cidr.is_empty() {
            return vec![&self.pod_cidr];
        }
        listed
    }

    /// Its blocks without host bits; invalid ones are left out.
    pub(crate) fn blocks(&self) -> Vec<IpNet> {
        blocks(self.texts())
    }

    /// Every block that a component may take for the node's, even if `spec.podCIDR` differs from
    /// the list.
    pub(crate) fn claims(&self) -> Vec<IpNet> {
        match &self.recorded {
            Some(recorded) => sorted(blocks(recorded.iter().map(String::as_str))),
            None => self.pod_cidr_claims(),
        }
    }

    /// The blocks in the Node object, whether or not the network uses them.
    pub(crate) fn pod_cidr_claims(&self) -> Vec<IpNet> {
        let listed = self.pod_cidrs.iter().map(String::as_str);
        sorted(blocks(listed.chain([self.pod_cidr.as_str()])))
    }

    /// The number of pods that its addresses serve: as reported, or as host-local counts its
    /// blocks.
    pub(super) fn capacity(&self) -> Option<u128> {
        self.pod_ips.map(u128::from).or_else(|| {
            let blocks = self.blocks();
            let ranges = blocks.iter().copied().map(AddressRange::of_block);
            let ranges: Option<Vec<_>> = ranges.collect();
            (!blocks.is_empty()).then(|| ranges.map_or(0, |ranges| pod_capacity(&ranges)))
        })
    }
}

pub(super) fn sorted(mut nets: Vec<IpNet>) -> Vec<IpNet> {
    nets.sort_unstable();
    nets.dedup();
    nets
}

pub(super) fn blocks<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    let parsed = texts.into_iter().filter_map(|text| parse_cidr(text).ok());
    parsed.map(|net| net.trunc()).collect()
}

/// A Node that was read once, for a dump that is put together again and again.
#[derive(Clone, Debug)]
pub struct NodeItem {
    pub(super) node: DumpedNode,
    pub(super) markers: Vec<Marker>,
}

impl NodeItem {
    /// Reads a Node as a server returned it.
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let item = LenientValue::<RawObject<'_>>::deserialize(object);
        let LenientValue(item) = item.unwrap_or_default();
        Self {
            node: Dump::new(DumpScope::Fields).node(&item, no_object),
            markers: Marker::of_node(&item).collect(),
        }
    }
}
