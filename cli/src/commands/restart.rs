//! `restart`: services once more, with other flags if wanted.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_ipam::Compat;
use podplane_proto::cluster::RestartRequest;

use crate::{
    cluster::{control, data_dir::DataDir, extra::ExtraFlag, pods::not_running},
    global::{Global, block_on},
    output,
};

/// Start services again, with other flags if some are given
///
/// Pods go on meanwhile, as when a controller manager's manifest is edited. The flags are kept, as those of `up` are; a service whose flags change is
/// started again without being named. Flags that a service refuses change nothing. What has no flag here changes with --extra-config, or with `podplane
/// down` and the next `podplane up`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane restart ipam-controller\n  podplane restart scheduler --extra-config scheduler.log=debug\n  podplane restart --cluster-cidr 10.240.0.0/12 --node-cidr-mask-size 24"
)]
pub(crate) struct Args {
    /// Which, as `podplane status` names them: scheduler, kubelet-node-0, …; kubelet and cri are all of their kind. None: those whose flags change
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,

    /// The range that nodes' blocks are cut from; one for each address family, separated by a comma
    #[arg(long, value_name = "CIDR")]
    cluster_cidr: Option<String>,

    /// Prefix length of a node's block, for a cluster of one address family
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size: Option<u8>,

    /// Prefix length of a node's IPv4 block
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv4: Option<u8>,

    /// Prefix length of a node's IPv6 block
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv6: Option<u8>,

    /// The range of services, which no node's block may touch; one for each address family
    #[arg(long, value_name = "CIDR")]
    service_cluster_ip_range: Option<String>,

    /// Do as another system does
    #[arg(long, value_name = "SYSTEM")]
    compat: Option<Compat>,

    /// A flag of a service that `up` has none for, as in scheduler.log=debug; may be repeated. SERVICE.FLAG- gives it no more
    #[arg(long, value_name = "SERVICE.FLAG=VALUE")]
    extra_config: Vec<ExtraFlag>,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    dir.running()?.with_context(|| not_running(&dir))?;
    let request = RestartRequest {
        services: args.services,
        cluster_cidr: args.cluster_cidr,
        node_cidr_mask_size: args.node_cidr_mask_size.map(Into::into),
        node_cidr_mask_size_ipv4: args.node_cidr_mask_size_ipv4.map(Into::into),
        node_cidr_mask_size_ipv6: args.node_cidr_mask_size_ipv6.map(Into::into),
        service_cluster_ip_range: args.service_cluster_ip_range,
        compat: args.compat.map(|compat| compat.name().to_owned()),
        extra_config: args.extra_config.iter().map(ToString::to_string).collect(),
    };
    block_on(async {
        let done = control::client(&dir)?.restart(request).await;
        let done = done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        let restarted = done.into_inner().services;
        if restarted.is_empty() {
            output::line("nothing to restart: these flags are in force")?;
        }
        restarted
            .iter()
            .try_for_each(|service| output::line(format_args!("{service} restarted")))?;
        Ok(ExitCode::SUCCESS)
    })
}
