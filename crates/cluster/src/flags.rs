//! The flags of `up`, and the settings that they make with those of before.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::PathBuf,
};

use anyhow::Context as _;
use podplane_api::{node::NetworkBackend, pod_ips::PodIpResource};
use podplane_ipam::{AllocatorType, Compat, IpPolicy, cidrs_of_flag, mask_size_of_flag};
use podplane_service_runtime::{server::Listen, trace::TraceConfig};

use crate::{
    extra::ExtraFlag,
    settings::{Network, Settings},
};

/// The maximum number of nodes; more need more processes and addresses than `up` is made for.
const MAX_NODES: i64 = 10_000;

/// The flags that shape a cluster. One that is not given is as it was when the cluster ran last, or
/// has its default.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct UpFlags {
    /// Run N nodes [default: 3]
    #[arg(long, env = "PODPLANE_NODES", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_NODES))]
    pub nodes: Option<u32>,

    #[command(flatten)]
    pub changeable: ChangeableFlags,

    /// Set the pod network mode: kernel (network namespaces and interfaces), ledger (addresses
    /// only) or auto (kernel if permitted, else ledger) [default: auto]
    ///
    /// kernel needs root, or a user that may create user namespaces; ledger needs no privileges.
    #[arg(
        help_heading = "Pod network options",
        long,
        env = "PODPLANE_NETWORK",
        value_enum,
        value_name = "MODE"
    )]
    pub network: Option<Network>,

    /// Find the CNI plugins in these directories, separated by colons; the first that has a plugin
    /// wins [default: the directory of the podplane program]
    #[arg(
        help_heading = "Pod network options",
        hide_short_help = true,
        long,
        env = "PODPLANE_CNI_BIN_DIR",
        value_name = "DIR[:DIR…]"
    )]
    pub cni_bin_dir: Option<OsString>,

    /// Use this CRI runtime for each node instead of podplane's CRI server, such as unix:PATH;
    /// {node} is replaced by the node's name
    ///
    /// `up` then starts no CRI server, and --network must not be kernel.
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        env = "PODPLANE_CRI_ENDPOINT",
        value_name = "ENDPOINT"
    )]
    pub cri_endpoint: Option<String>,

    /// Run up to N ledger-mode nodes in one kubelet and one CRI process [default: 2500]
    ///
    /// Each kernel-mode node has processes of its own.
    #[arg(help_heading = "Process options", hide_short_help = true, long, env = "PODPLANE_NODES_PER_PROCESS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES))]
    pub nodes_per_process: Option<u32>,

    /// Run two of ipam-controller, controller-manager and scheduler each: one leads, the other
    /// stands by; --standby=false runs one again [default: false]
    ///
    /// The standby is up to date, and takes over when the leader has not renewed its Lease for 15s.
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        env = "PODPLANE_STANDBY",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub standby: Option<bool>,

    /// Serve the API at this address: IP:PORT (port 0: any free port) or unix:PATH [default:
    /// 127.0.0.1:0]
    ///
    /// `podplane status apiserver` prints the address.
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        env = "PODPLANE_LISTEN",
        value_name = "ADDR"
    )]
    pub listen: Option<Listen>,

    #[command(flatten)]
    pub trace: TraceConfig,
}

/// The flags of a cluster that can change while it runs: `up` takes them, and `restart`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChangeableFlags {
    /// Assign the nodes' pod CIDRs from this range; for dual stack one IPv4 and one IPv6 range
    /// [default: 10.244.0.0/16]
    #[arg(
        help_heading = "Address options",
        long,
        env = "PODPLANE_CLUSTER_CIDR",
        value_name = "CIDR[,CIDR]",
        value_parser = cidrs_of_flag
    )]
    pub cluster_cidr: Option<String>,

    /// Assign pod CIDRs of this prefix length in a single-stack cluster [default: 24 for IPv4, 64
    /// for IPv6]
    #[arg(
        help_heading = "Address options",
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE",
        value_name = "BITS",
        value_parser = mask_size_of_flag,
        allow_negative_numbers = true
    )]
    pub node_cidr_mask_size: Option<u8>,

    /// Assign IPv4 pod CIDRs of this prefix length [default: 24]
    #[arg(
        help_heading = "Address options",
        hide_short_help = true,
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV4",
        value_name = "BITS",
        value_parser = mask_size_of_flag,
        allow_negative_numbers = true
    )]
    pub node_cidr_mask_size_ipv4: Option<u8>,

    /// Assign IPv6 pod CIDRs of this prefix length [default: 64]
    #[arg(
        help_heading = "Address options",
        hide_short_help = true,
        long,
        env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV6",
        value_name = "BITS",
        value_parser = mask_size_of_flag,
        allow_negative_numbers = true
    )]
    pub node_cidr_mask_size_ipv6: Option<u8>,

    /// Reserve this range for services: no node is assigned a pod CIDR that overlaps it; for dual
    /// stack one IPv4 and one IPv6 range [default: 10.96.0.0/16]
    #[arg(
        help_heading = "Address options",
        long,
        env = "PODPLANE_SERVICE_CLUSTER_IP_RANGE",
        value_name = "CIDR[,CIDR]",
        value_parser = cidrs_of_flag
    )]
    pub service_cluster_ip_range: Option<String>,

    /// Reproduce the node IPAM of another system, including its faults: none, upstream,
    /// upstream-1.30, upstream-1.31, upstream-1.32 or gcp [default: none]
    ///
    /// none is podplane's own behaviour; upstream is the newest Kubernetes; upstream-1.30 is
    /// Kubernetes up to 1.30, upstream-1.31 from 1.31.0 to 1.31.3, upstream-1.32 from 1.31.4 on;
    /// gcp is the fork in cloud-provider-gcp. With all but none, the API server accepts pod CIDRs
    /// that overlap each other or the service range.
    #[arg(
        help_heading = "Address options",
        hide_short_help = true,
        long,
        env = "PODPLANE_COMPAT",
        value_name = "SYSTEM"
    )]
    pub compat: Option<Compat>,

    /// Assign pod CIDRs by RangeAllocator (from --cluster-cidr), MultiCIDRRangeAllocator (from
    /// ClusterCIDR objects) or CloudAllocator (the cloud assigns them) [default: RangeAllocator]
    #[arg(
        help_heading = "Address options",
        hide_short_help = true,
        long,
        env = "PODPLANE_CIDR_ALLOCATOR_TYPE",
        value_name = "TYPE"
    )]
    pub cidr_allocator_type: Option<AllocatorType>,

    /// Connect the pods of different nodes in kernel mode by host-gw (routes; the nodes share a
    /// link) or vxlan (tunnels) [default: host-gw]
    ///
    /// A node reaches only the pods of nodes that have the same backend.
    #[arg(
        help_heading = "Pod network options",
        hide_short_help = true,
        long,
        env = "PODPLANE_NODE_NETWORK_BACKEND",
        value_enum,
        value_name = "BACKEND"
    )]
    pub node_network_backend: Option<NetworkBackend>,

    /// Limit the pods of a node by its pod addresses [default: resource]
    #[arg(
        help_heading = "Address options",
        long,
        env = "PODPLANE_IP_POLICY",
        value_enum,
        value_name = "POLICY"
    )]
    pub ip_policy: Option<IpPolicy>,

    /// Report and count pod addresses as this extended resource of nodes [default:
    /// podplane.io/pod-ips]
    #[arg(
        help_heading = "Address options",
        long,
        env = "PODPLANE_POD_IP_RESOURCE",
        value_name = "NAME"
    )]
    pub pod_ip_resource: Option<PodIpResource>,

    /// Set a flag of a service, such as scheduler.log=debug; SERVICE.FLAG- removes it again; may be
    /// repeated
    ///
    /// Services: apiserver, ipam-controller, controller-manager, scheduler, kubelet, cri. `podplane
    /// SERVICE --help` lists their flags.
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        value_name = "SERVICE.FLAG=VALUE"
    )]
    pub extra_config: Vec<ExtraFlag>,
}

impl UpFlags {
    /// Returns the settings of these flags, with those of `base` for flags that are not given.
    pub fn over(&self, base: &Settings) -> anyhow::Result<Settings> {
        let Self {
            nodes,
            changeable,
            network,
            cni_bin_dir,
            cri_endpoint,
            nodes_per_process,
            standby,
            listen,
            trace:
                TraceConfig {
                    otlp_endpoint,
                    trace_sampling_ratio,
                },
        } = self;
        let ChangeableFlags {
            cluster_cidr,
            node_cidr_mask_size,
            node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6,
            service_cluster_ip_range,
            compat,
            cidr_allocator_type,
            node_network_backend,
            ip_policy,
            pod_ip_resource,
            extra_config,
        } = changeable;
        // The mask of one family and the common one exclude each other, so a given one displaces a
        // kept one of the other kind.
        let any = node_cidr_mask_size.is_some();
        let each = node_cidr_mask_size_ipv4.is_some() || node_cidr_mask_size_ipv6.is_some();
        let kept = |mask: Option<u8>, displaced: bool| mask.filter(|_| !displaced);
        let cni_bin_dir = match cni_bin_dir {
            Some(dirs) => Some(absolute(dirs)?),
            None => base.cni_bin_dir.clone(),
        };
        Ok(Settings {
            nodes: nodes.unwrap_or(base.nodes),
            cluster_cidr: cluster_cidr.as_ref().unwrap_or(&base.cluster_cidr).clone(),
            node_cidr_mask_size: node_cidr_mask_size.or(kept(base.node_cidr_mask_size, each)),
            node_cidr_mask_size_ipv4: node_cidr_mask_size_ipv4
                .or(kept(base.node_cidr_mask_size_ipv4, any)),
            node_cidr_mask_size_ipv6: node_cidr_mask_size_ipv6
                .or(kept(base.node_cidr_mask_size_ipv6, any)),
            service_cluster_ip_range: service_cluster_ip_range
                .as_ref()
                .unwrap_or(&base.service_cluster_ip_range)
                .clone(),
            compat: compat.unwrap_or(base.compat),
            cidr_allocator_type: cidr_allocator_type.unwrap_or(base.cidr_allocator_type),
            network: network.unwrap_or(base.network),
            node_network_backend: node_network_backend.unwrap_or(base.node_network_backend),
            ip_policy: ip_policy.unwrap_or(base.ip_policy),
            pod_ip_resource: pod_ip_resource
                .as_ref()
                .unwrap_or(&base.pod_ip_resource)
                .clone(),
            cni_bin_dir,
            cri_endpoint: cri_endpoint.clone().or_else(|| base.cri_endpoint.clone()),
            nodes_per_process: nodes_per_process.unwrap_or(base.nodes_per_process),
            standby: standby.unwrap_or(base.standby),
            extra_config: base.extra_config.with(extra_config),
            listen: listen
                .as_ref()
                .map_or_else(|| base.listen.clone(), ToString::to_string),
            otlp_endpoint: otlp_endpoint.clone().or_else(|| base.otlp_endpoint.clone()),
            trace_sampling_ratio: trace_sampling_ratio.unwrap_or(base.trace_sampling_ratio),
        })
    }
}

/// The same directories as absolute paths.
fn absolute(dirs: &OsStr) -> anyhow::Result<PathBuf> {
    let each: io::Result<Vec<_>> = env::split_paths(dirs).map(std::path::absolute).collect();
    let each = each.context("failed to find the current directory")?;
    Ok(env::join_paths(each)?.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The flags of a command line.
    pub(crate) fn flags(line: &str) -> UpFlags {
        #[derive(clap::Parser)]
        struct UpLine {
            #[command(flatten)]
            flags: UpFlags,
        }
        let words = std::iter::once("up").chain(line.split_whitespace());
        let parsed = <UpLine as clap::Parser>::try_parse_from(words);
        parsed.unwrap().flags
    }

    #[test]
    fn a_given_mask_replaces_masks_of_the_other_kind() {
        let base = flags("--node-cidr-mask-size 26")
            .over(&Settings::default())
            .unwrap();
        let dual = "--cluster-cidr 10.0.0.0/16,fd00::/56 --node-cidr-mask-size-ipv4 25";
        let dual = flags(dual).over(&base).unwrap();
        let masks: Vec<_> = dual
            .ranges()
            .unwrap()
            .ranges
            .iter()
            .map(|range| range.node_mask())
            .collect();
        assert_eq!(masks, [25, 64]);
    }
}
