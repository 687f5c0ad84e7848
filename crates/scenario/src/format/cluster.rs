//! The cluster of a scenario.

use std::{collections::BTreeMap, path::PathBuf};

use podplane_cluster::settings::Settings;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_untagged::UntaggedEnumVisitor;

use super::{
    AllocatorType, Block, Compat, IpPolicy, Network, NetworkBackend, Period, Ranges, Scalar,
    Several, scalar::plain,
};

/// The cluster of a scenario. Its defaults are those of `podplane up`, except for the network
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cluster {
    /// The number of nodes (node-0, node-1, …), or a list of them. Default: 3
    pub nodes: Option<Nodes>,
    /// The network of pods: ledger has addresses alone; kernel has real interfaces, and needs root;
    /// auto is kernel if that is possible. Default: ledger
    pub network: Option<Network>,
    /// The way in which nodes with real interfaces reach each other's pods. Default: host-gw
    pub node_network_backend: Option<NetworkBackend>,
    /// The range from which nodes' blocks are cut; one for each address family, separated by a
    /// comma. Default: 10.244.0.0/16
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
    /// The range of services, which no node's block may overlap. Default: 10.96.0.0/16
    #[serde(rename = "serviceClusterIPRange")]
    pub service_cluster_ip_range: Option<Ranges>,
    /// The way in which the addresses of a node limit its pods. Default: resource
    pub ip_policy: Option<IpPolicy>,
    /// Assign blocks to nodes as another system does, including its faults. Default: none
    pub compat: Option<Compat>,
    /// The allocator of nodes' blocks. Default: RangeAllocator
    #[serde(rename = "cidrAllocatorType")]
    pub cidr_allocator_type: Option<AllocatorType>,
    /// The address of the cloud, for CloudAllocator
    pub cloud_endpoint: Option<String>,
    /// The time that a block is kept back after its last use. Default: 0s
    pub release_delay: Option<Period>,
    /// The CNI configuration of nodes. Default: containerd
    pub cni_template: Option<CniTemplate>,
    /// The directory of CNI plugins, relative to the scenario's file; of several directories the
    /// first that has a plugin. Plugins that are in none of them are podplane's own
    pub cni_bin_dir: Option<Several<PathBuf>>,
    /// The CRI servers of nodes, if they are not podplane's: unix:PATH, in which {node} stands for
    /// a node's name
    pub cri_endpoint: Option<String>,
    /// The number of nodes in ledger mode that share their processes. Default: 1 if a step is about
    /// the processes of one node, else 2500
    pub nodes_per_process: Option<u32>,
    /// Wait before the first step until all nodes are Ready; a node without a block never is.
    /// Default: true
    pub wait_for_nodes: Option<bool>,
    /// More flags of services, by service and flag: {controller-manager:
    /// {node-monitor-grace-period: 10s}}
    #[serde(default)]
    pub extra_config: BTreeMap<String, BTreeMap<String, Scalar>>,
    /// The seed of all random choices in the run; `--seed` takes precedence. Default: a new one
    /// each time, which is printed
    pub seed: Option<u64>,
}

/// The largest number of nodes in a cluster or a step; no machine has room for so many.
pub const MOST_NODES: u32 = 100_000;

/// The number of nodes, or a list of them.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Nodes {
    /// This number of nodes, called node-0, node-1, …
    Number(#[schemars(range(max = MOST_NODES))] u32),
    /// These nodes.
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
    /// The network of its pods. Default: as those of the cluster
    pub network: Option<Network>,
    /// The way in which it reaches the pods of other nodes. Default: as those of the cluster
    pub node_network_backend: Option<NetworkBackend>,
    /// Its labels, set before it is given a block
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The block that it already has when it joins
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<Block>,
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
    /// The key of the scenario that sets it.
    pub key: &'static str,
    /// The name of the flag, with the dashes.
    pub name: &'static str,
    /// The value of the flag.
    pub value: String,
}

impl Cluster {
    /// The network mode of pods: ledger, unless the scenario says otherwise.
    pub fn network(&self) -> Network {
        self.network.unwrap_or(Network::Ledger)
    }

    /// The number of nodes that start with the cluster.
    fn number(&self) -> u32 {
        match &self.nodes {
            None => Settings::default().nodes,
            Some(Nodes::Number(number)) => *number,
            // They join later, because each may have labels of its own.
            Some(Nodes::Named(_)) => 0,
        }
    }

    /// Returns the flags of `podplane up` for it, except those for directories and for services.
    pub fn flags(&self) -> Vec<Flag> {
        let Self {
            nodes: _,
            network: _,
            node_network_backend,
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
            ("network", "--network", Some(word(self.network()))),
            (
                "nodeNetworkBackend",
                "--node-network-backend",
                node_network_backend.map(word),
            ),
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

/// Returns the name of an enum's value, which the scenario and the flag share.
pub(crate) fn word(value: impl Serialize) -> String {
    plain(&serde_json::to_value(value).unwrap_or_default())
}
