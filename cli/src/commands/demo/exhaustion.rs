//! `demo exhaustion`: story A, a node with fewer addresses than pods.

use std::{process::ExitCode, time::Duration};

use ipnet::Ipv4Net;
use podplane_cluster::settings::{Network, name_of};
use podplane_ipam::IpPolicy;
use podplane_scenario::{PlannedCase, Values};

use super::{super::duration, File, play};

const FILES: [File; 1] = [(
    "exhaustion.yaml",
    include_str!("../../../demos/exhaustion.yaml"),
)];

/// Show a node that runs out of pod addresses
///
/// Creates one node with few addresses, two hostNetwork pods, which need no pod address, and then
/// nine other pods. With --ip-policy off the scheduler sends all pods to the node, as Kubernetes
/// does; with pod-cidr it counts pods, including hostNetwork pods; with resource it counts
/// addresses.
///
/// Exit codes: 0 everything happened as expected with the policy; 1 not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo exhaustion --node-cidr-mask-size 30 --ip-policy off\n  podplane demo exhaustion --node-cidr-mask-size 29 --ip-policy resource\n  podplane demo exhaustion --cluster-cidr 10.77.0.0/24 --service-cidr 10.78.0.0/24"
)]
pub(super) struct Exhaustion {
    /// Assign the node a pod CIDR of this prefix length: 30 leaves 1 address for pods, 29 leaves 5
    #[arg(long, value_name = "BITS", default_value_t = 30, value_parser = clap::value_parser!(u8).range(28..=32))]
    node_cidr_mask_size: u8,

    /// Assign the node's pod CIDR from this IPv4 range
    #[arg(long, value_name = "CIDR", default_value = "10.255.0.0/19")]
    cluster_cidr: Ipv4Net,

    /// Reserve this IPv4 range for services
    #[arg(
        long,
        alias = "service-cluster-ip-range",
        value_name = "CIDR",
        default_value = "10.255.31.0/24"
    )]
    service_cidr: Ipv4Net,

    /// Limit the pods of a node by its pod addresses
    #[arg(long, value_enum, value_name = "POLICY", default_value = "resource")]
    ip_policy: IpPolicy,

    /// Set the pod network mode: kernel (network namespaces and interfaces), ledger (addresses
    /// only) or auto (kernel if permitted, else ledger)
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    network: Network,

    /// Fail if a step takes longer than this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    timeout: Duration,
}

pub(super) fn run(demo: &Exhaustion) -> anyhow::Result<ExitCode> {
    let set = Values::from([
        ("clusterCIDR".into(), demo.cluster_cidr.to_string()),
        ("serviceCIDR".into(), demo.service_cidr.to_string()),
        ("network".into(), name_of(&demo.network)),
    ]);
    let policy = name_of(&demo.ip_policy);
    let is_wanted = |case: &PlannedCase| {
        case.values["policy"] == *policy && case.values["mask"] == demo.node_cidr_mask_size
    };
    play(&FILES, &set, demo.timeout, is_wanted)
}
