//! The cluster of a scenario.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_untagged::UntaggedEnumVisitor;

use super::Several;

/// The cluster that a scenario is run on. What is not given is as `podplane up` has it, but for the network
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cluster {
    /// How many nodes (node-0, node-1, …), or which. Default: 3
    pub nodes: Option<Nodes>,
    /// Whether pods get real interfaces. kernel needs root; auto takes it if it can. Default: ledger, addresses alone
    #[serde(default)]
    pub network: Network,
    /// The range that nodes' blocks are cut from; one for each address family, separated by a comma. Default: 10.244.0.0/16
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    /// Prefix length of a node's block, for a cluster of one address family. Default: 24, IPv6: 64
    #[serde(rename = "nodeCIDRMaskSize")]
    pub node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 block. Default: 24
    #[serde(rename = "nodeCIDRMaskSizeIPv4")]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 block. Default: 64
    #[serde(rename = "nodeCIDRMaskSizeIPv6")]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// The range of services, which no node's block may touch. Default: 10.96.0.0/16
    #[serde(rename = "serviceClusterIPRange")]
    pub service_cluster_ip_range: Option<String>,
    /// How the addresses of a node limit its pods: resource, pod-cidr or off. Default: resource
    pub ip_policy: Option<String>,
    /// Give nodes their blocks as another system does: upstream, upstream-1.30, upstream-1.31, upstream-1.32 or gcp. Default: none
    pub compat: Option<String>,
    /// Who decides about nodes' blocks: RangeAllocator, MultiCIDRRangeAllocator or CloudAllocator. Default: RangeAllocator
    #[serde(rename = "cidrAllocatorType")]
    pub cidr_allocator_type: Option<String>,
    /// Where the cloud is, for CloudAllocator
    pub cloud_endpoint: Option<String>,
    /// How long a block that nothing uses any more is kept back. Default: 0s
    pub release_delay: Option<String>,
    /// The CNI configuration of nodes. Default: containerd
    pub cni_template: Option<String>,
    /// Where CNI plugins are, seen from the scenario's file; of several directories the first that has a plugin. Those that are in none are podplane's own
    pub cni_bin_dir: Option<Several<PathBuf>>,
    /// The CRI servers of nodes, where they are not podplane's: unix:PATH, in which {node} stands for a node's name
    pub cri_endpoint: Option<String>,
    /// How many nodes of ledger mode share their processes. Default: 1 if a step is about the processes of one node, else 500
    pub nodes_per_process: Option<u32>,
    /// Whether the first step waits until all nodes are Ready; a node without a block never is. Default: true
    pub wait_for_nodes: Option<bool>,
    /// More flags of services, by service and flag: {scheduler: {pod-initial-backoff-seconds: 1}}
    #[serde(default)]
    pub extra_config: BTreeMap<String, BTreeMap<String, Value>>,
    /// What is random in the run is the same for the same seed. Default: a new one each time, which is printed; `--seed` is stronger
    pub seed: Option<u64>,
}

/// How many nodes, or which.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Nodes {
    /// So many, called node-0, node-1, …
    Number(u32),
    /// These.
    Named(Vec<NodeSpec>),
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting(
                "a number of nodes, or a list of nodes such as {name: edge-1, labels: {zone: a}}",
            )
            .u32(|number| Ok(Self::Number(number)))
            .seq(|nodes| nodes.deserialize().map(Self::Named))
            .deserialize(from)
    }
}

/// A node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeSpec {
    /// Its name
    pub name: String,
    /// Whether its pods get real interfaces. Default: as those of the cluster
    pub network: Option<Network>,
    /// Its labels, which are there before it is given a block
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The block that it already has when it joins
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
}

/// Whether pods get devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Addresses alone, without any privileges
    #[default]
    Ledger,
    /// Real namespaces, interfaces and routes
    Kernel,
    /// kernel if that is possible here, else ledger
    Auto,
}

impl Network {
    /// As the flag has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Kernel => "kernel",
            Self::Auto => "auto",
        }
    }
}
