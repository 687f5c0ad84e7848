//! The cluster of a scenario.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_untagged::UntaggedEnumVisitor;

use super::{Block, Period, Ranges, Scalar, Several, scalar::plain};

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
    pub cluster_cidr: Option<Ranges>,
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
    pub service_cluster_ip_range: Option<Ranges>,
    /// How the addresses of a node limit its pods. Default: resource
    pub ip_policy: Option<IpPolicy>,
    /// Give nodes their blocks as another system does, its faults included. Default: none
    pub compat: Option<Compat>,
    /// Who decides about nodes' blocks. Default: RangeAllocator
    #[serde(rename = "cidrAllocatorType")]
    pub cidr_allocator_type: Option<CidrAllocatorType>,
    /// Where the cloud is, for CloudAllocator
    pub cloud_endpoint: Option<String>,
    /// How long a block that nothing uses any more is kept back. Default: 0s
    pub release_delay: Option<Period>,
    /// The CNI configuration of nodes. Default: containerd
    pub cni_template: Option<CniTemplate>,
    /// Where CNI plugins are, seen from the scenario's file; of several directories the first that has a plugin. Those that are in none are podplane's own
    pub cni_bin_dir: Option<Several<PathBuf>>,
    /// The CRI servers of nodes, where they are not podplane's: unix:PATH, in which {node} stands for a node's name
    pub cri_endpoint: Option<String>,
    /// How many nodes of ledger mode share their processes. Default: 1 if a step is about the processes of one node, else 500
    pub nodes_per_process: Option<u32>,
    /// Whether the first step waits until all nodes are Ready; a node without a block never is. Default: true
    pub wait_for_nodes: Option<bool>,
    /// More flags of services, by service and flag: {controller-manager: {node-monitor-grace-period: 10s}}
    #[serde(default)]
    pub extra_config: BTreeMap<String, BTreeMap<String, Scalar>>,
    /// What is random in the run is the same for the same seed. Default: a new one each time, which is printed; `--seed` is stronger
    pub seed: Option<u64>,
}

/// What a cluster, or a step, may have; nobody's machine has room for so many.
pub const MOST_NODES: u32 = 100_000;

/// How many nodes, or which.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Nodes {
    /// So many, called node-0, node-1, …
    Number(#[schemars(range(max = MOST_NODES))] u32),
    /// These.
    Named(Vec<NodeSpec>),
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting(
                "a number of nodes, or a list of nodes such as {name: edge-1, labels: {zone: a}}",
            )
            .u32(|number| match number {
                0..=MOST_NODES => Ok(Self::Number(number)),
                _ => Err(serde_untagged::de::Error::custom(format_args!(
                    "want {MOST_NODES} nodes at most"
                ))),
            })
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
    pub pod_cidr: Option<Block>,
}

/// Whether pods get devices.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
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

/// How the addresses of a node limit its pods.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpPolicy {
    /// An address is a resource that the scheduler counts
    Resource,
    /// A node takes no more pods than its block has addresses
    PodCidr,
    /// Not at all, as in Kubernetes
    Off,
}

/// A system that gives nodes their blocks.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum Compat {
    /// podplane
    #[serde(rename = "none")]
    None,
    /// Kubernetes, the newest that there is here
    #[serde(rename = "upstream")]
    Upstream,
    /// Kubernetes up to 1.30
    #[serde(rename = "upstream-1.30")]
    Upstream130,
    /// Kubernetes from 1.31.0 to 1.31.3
    #[serde(rename = "upstream-1.31")]
    Upstream131,
    /// Kubernetes from 1.31.4 on
    #[serde(rename = "upstream-1.32")]
    Upstream132,
    /// cloud-provider-gcp
    #[serde(rename = "gcp")]
    Gcp,
}

/// Who decides about nodes' blocks.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub enum CidrAllocatorType {
    /// Blocks of one size are cut from the cluster CIDR
    RangeAllocator,
    /// ClusterCIDR objects say which nodes get which blocks
    #[serde(rename = "MultiCIDRRangeAllocator")]
    MultiCidrRangeAllocator,
    /// The cloud has them
    CloudAllocator,
}

/// A CNI configuration.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CniTemplate {
    /// As in containerd's documentation
    Containerd,
    /// As kubenet had it
    Kubenet,
}

/// A flag of `podplane up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The key that says it.
    pub key: &'static str,
    /// Its name, with the dashes.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

impl Cluster {
    /// How many nodes it begins with.
    fn number(&self) -> u32 {
        match &self.nodes {
            None => 3,
            Some(Nodes::Number(number)) => *number,
            // They join one by one, because each has labels of its own.
            Some(Nodes::Named(_)) => 0,
        }
    }

    /// What it says in the flags of `podplane up`, but for directories and what is for services.
    pub fn flags(&self) -> Vec<Flag> {
        let Self {
            nodes: _,
            network,
            cluster_cidr,
            node_cidr_mask_size,
            node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6,
            service_cluster_ip_range,
            ip_policy,
            compat,
            cidr_allocator_type,
            cloud_endpoint,
            release_delay,
            cni_template,
            cni_bin_dir: _,
            cri_endpoint,
            nodes_per_process,
            wait_for_nodes: _,
            extra_config: _,
            seed: _,
        } = self;
        let number = |number: &Option<u8>| number.map(|number| number.to_string());
        let flags = [
            ("nodes", "--nodes", Some(self.number().to_string())),
            ("network", "--network", Some(word(network))),
            (
                "clusterCIDR",
                "--cluster-cidr",
                cluster_cidr.as_ref().map(Ranges::to_string),
            ),
            (
                "nodeCIDRMaskSize",
                "--node-cidr-mask-size",
                number(node_cidr_mask_size),
            ),
            (
                "nodeCIDRMaskSizeIPv4",
                "--node-cidr-mask-size-ipv4",
                number(node_cidr_mask_size_ipv4),
            ),
            (
                "nodeCIDRMaskSizeIPv6",
                "--node-cidr-mask-size-ipv6",
                number(node_cidr_mask_size_ipv6),
            ),
            (
                "serviceClusterIPRange",
                "--service-cluster-ip-range",
                service_cluster_ip_range.as_ref().map(Ranges::to_string),
            ),
            ("ipPolicy", "--ip-policy", ip_policy.map(word)),
            ("compat", "--compat", compat.map(word)),
            (
                "cidrAllocatorType",
                "--cidr-allocator-type",
                cidr_allocator_type.map(word),
            ),
            ("cloudEndpoint", "--cloud-endpoint", cloud_endpoint.clone()),
            (
                "releaseDelay",
                "--release-delay",
                release_delay.map(|period| period.to_string()),
            ),
            ("cniTemplate", "--cni-template", cni_template.map(word)),
            ("criEndpoint", "--cri-endpoint", cri_endpoint.clone()),
            (
                "nodesPerProcess",
                "--nodes-per-process",
                nodes_per_process.map(|number| number.to_string()),
            ),
        ];
        let given = flags.into_iter().filter_map(|(key, name, value)| {
            Some(Flag {
                key,
                name,
                value: value?,
            })
        });
        given.collect()
    }
}

/// A value of an enum as the scenario and the flag have it.
pub(crate) fn word(value: impl Serialize) -> String {
    plain(&serde_json::to_value(value).unwrap_or_default())
}
