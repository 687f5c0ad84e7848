//! `restart`: restarts services, with other flags if some are given.

use std::process::ExitCode;

use clap::{Arg, builder::StyledStr};
use podplane_cluster::{control, data_dir::DataDir, flags::ChangeableFlags, settings::name_of};
use podplane_progress::{PlainLines, Progress};
use podplane_proto::cluster::RestartRequest;
use tonic::Code;

use crate::{
    global::{GlobalOptions, block_on},
    output,
    pods::running,
    report::{self, UsageError},
    services::ServiceFlags,
};

/// Restart services, optionally with new flags
///
/// Returns when the restarted services are ready. Pods keep running. New flags are kept for the next
/// `up`. Services whose flags change are restarted even if they are not named. If a service rejects
/// a flag, nothing is changed. Set other flags with --extra-config, or with `podplane down` and the
/// next `podplane up`.
///
/// --node-network-backend applies to the nodes whose kubelets are named (kubelet-node-1). Without a
/// named kubelet it applies to all nodes that have no backend of their own.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane restart ipam-controller\n  podplane restart scheduler --extra-config scheduler.log=debug\n  podplane restart --cluster-cidr 10.240.0.0/12 --node-cidr-mask-size 24\n  podplane restart --release-delay 1m\n  podplane restart kubelet-node-1 --node-network-backend vxlan",
    mut_args(unset)
)]
pub(crate) struct RestartArgs {
    /// Restart these services, named as in `podplane status`: scheduler, kubelet-node-0, …;
    /// `kubelet` or `cri` means all of them, `scheduler` also its standby; without a name: those
    /// whose flags change
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,

    #[command(flatten)]
    flags: ChangeableFlags,

    #[command(flatten)]
    service_flags: ServiceFlags,
}

/// A flag of `up` that stays as it is where it is not given: neither the environment nor a default
/// has a say.
fn unset(arg: Arg) -> Arg {
    let short = arg.get_help().and_then(without_default);
    let long = arg.get_long_help().and_then(without_default);
    let mut arg = arg.env(None::<&str>).default_value(None::<&str>);
    if let Some(help) = short {
        arg = arg.help(help);
    }
    if let Some(help) = long {
        arg = arg.long_help(help);
    }
    arg
}

/// The help without its `[default: …]`; `None` if it has none.
fn without_default(help: &StyledStr) -> Option<String> {
    let help = help.to_string();
    let (before, rest) = help.split_once(" [default:")?;
    let (_, after) = rest.split_once(']')?;
    Some(format!("{before}{after}"))
}

pub(crate) fn run(args: RestartArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    running(&dir)?;
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
    } = args.flags;
    for ranges in cluster_cidr.iter().chain(&service_cluster_ip_range) {
        report::note_host_bits(ranges);
    }
    let extra_config = args.service_flags.before(extra_config);
    let request = RestartRequest {
        services: args.services,
        cluster_cidr,
        node_cidr_mask_size: node_cidr_mask_size.map(Into::into),
        node_cidr_mask_size_ipv4: node_cidr_mask_size_ipv4.map(Into::into),
        node_cidr_mask_size_ipv6: node_cidr_mask_size_ipv6.map(Into::into),
        service_cluster_ip_range,
        compat: compat.map(|compat| compat.name().to_owned()),
        cidr_allocator_type: cidr_allocator_type.map(|kind| kind.to_string()),
        node_network_backend: node_network_backend.map(|backend| backend.name().to_owned()),
        ip_policy: ip_policy.map(|policy| name_of(&policy)),
        pod_ip_resource: pod_ip_resource.map(|name| name.to_string()),
        extra_config: extra_config.iter().map(ToString::to_string).collect(),
    };
    let progress = Progress::with_lines("restarting", PlainLines::IfSlow);
    block_on(async {
        let done = control::client(&dir)?.restart(request).await;
        drop(progress);
        let done = done.map_err(|status| {
            let message = status.message().to_owned();
            match status.code() {
                Code::InvalidArgument => UsageError(message).into(),
                _ => anyhow::Error::msg(message),
            }
        })?;
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
