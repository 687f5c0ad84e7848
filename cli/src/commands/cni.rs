//! `cni`: runs plugins without a cluster, like `cnitool`, and verifies any IPAM plugin.

mod network;
mod verify;

use std::process::ExitCode;

use podplane_service_runtime::logging::{self, LogConfig};

/// Run CNI plugins by hand, without a cluster
///
/// add, check, del, gc and status do what cnitool does, with its environment (NETCONFPATH,
/// CNI_PATH, CNI_ARGS, CAP_ARGS, CNI_IFNAME), its container ids and its cache, so that either can
/// delete what the other added.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane cni add mynet /run/netns/test\n  podplane cni del mynet /run/netns/test --bin-dir ./target/debug --conf-dir ./net.d"
)]
pub(crate) struct CniArgs {
    #[command(subcommand)]
    command: CniCommand,

    #[command(flatten)]
    log: LogConfig,
}

#[derive(Debug, clap::Subcommand)]
enum CniCommand {
    /// Attach NETNS to the network NET, and print the result
    ///
    /// If a plugin fails, the partial attachment is deleted (DEL).
    #[command(
        after_help = "Examples:\n  CNI_PATH=/usr/lib/cni NETCONFPATH=./net.d podplane cni add mynet /run/netns/test"
    )]
    Add(network::AttachmentArgs),
    /// Check that the attachment of NETNS to the network NET is intact
    #[command(after_help = "Examples:\n  podplane cni check mynet /run/netns/test")]
    Check(network::AttachmentArgs),
    /// Detach NETNS from the network NET; succeeds if the attachment does not exist
    #[command(after_help = "Examples:\n  podplane cni del mynet /run/netns/test")]
    Del(network::AttachmentArgs),
    /// Delete all cached attachments of the network NET that no --keep names, and let plugins free
    /// stale resources
    ///
    /// WARNING: without --keep all cached attachments of NET are deleted.
    #[command(
        after_help = "Examples:\n  podplane cni gc mynet --keep web-0/eth0 --keep web-1/eth0"
    )]
    Gc(network::GcArgs),
    /// Check that the plugins of the network NET are ready for an ADD
    #[command(after_help = "Examples:\n  podplane cni status mynet")]
    Status(network::StatusArgs),
    Verify(verify::VerifyArgs),
}

pub(crate) fn run(args: CniArgs) -> anyhow::Result<ExitCode> {
    logging::init(&args.log)?;
    match args.command {
        CniCommand::Add(args) => network::add(&args)?,
        CniCommand::Check(args) => network::check(&args)?,
        CniCommand::Del(args) => network::del(&args)?,
        CniCommand::Gc(args) => network::gc(&args)?,
        CniCommand::Status(args) => network::status(&args)?,
        CniCommand::Verify(args) => return verify::run(args),
    }
    Ok(ExitCode::SUCCESS)
}
