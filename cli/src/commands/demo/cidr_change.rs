//! `demo cidr-change`: story B, in which the cluster CIDR of a live cluster changes twice; with the
//! fault and its repair, and again without the fault.

mod blocks;
mod fault;
mod objects;
mod ranges;
mod remedy;
mod stage;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use ipnet::Ipv4Net;
use podplane_cluster::settings::Network;
use podplane_service_runtime::shutdown;

use self::{ranges::DemoRanges, stage::DemoCluster};
use super::super::duration;
use crate::{global::block_on, output, report::UsageError};

/// The number of nodes, and of their blocks at first.
const NODES: usize = 300;
const BLOCKS: usize = 256;
/// The number of wide blocks besides the one that contains the old blocks.
const WIDE: usize = 15;
/// The number of nodes without a block of either size, except the one that is off meanwhile.
const WAITING: usize = NODES - 1 - BLOCKS - WIDE;
/// The number of nodes in the end.
const ALL_NODES: usize = 500;

/// Show how a change of the cluster CIDR of a live cluster causes duplicate pod CIDRs, how to
/// repair them, and how podplane prevents them
///
/// First, 300 nodes have an IPAM that ignores pod CIDRs, so nobody notices that 10.244.0.0/16 has
/// only 256 blocks of /24. Then a network that uses pod CIDRs replaces it, and 44 nodes have none.
/// The range is extended to 10.244.0.0/12, by mistake with blocks of /16, then of /24, and nodes
/// are replaced. With Kubernetes' own allocator (--compat upstream) nodes are assigned the pod
/// CIDRs of others, and the demo repairs them. At last, the same with podplane's allocator.
///
/// Prints each step as a command, and checks every claim. Exit codes: 0 all claims hold; 1 one does
/// not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo cidr-change\n  podplane demo cidr-change --part remedy\n  podplane demo cidr-change --cluster-cidr 10.60.0.0/16 --pool-cidr 172.20.0.0/16"
)]
pub(super) struct CidrChange {
    /// Run only this part
    #[arg(long, value_enum, value_name = "PART", default_value = "all")]
    part: DemoPart,

    /// Start with this cluster CIDR, a /16; it is extended to the /12 around it
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    cluster_cidr: Ipv4Net,

    /// Use this range, a /17 or larger, for the first network, whose IPAM ignores pod CIDRs
    #[arg(long, value_name = "CIDR", default_value = "192.168.0.0/16")]
    pool_cidr: Ipv4Net,

    /// Set the pod network mode of three nodes: kernel (network namespaces and interfaces), ledger
    /// (addresses only) or auto (kernel if permitted, else ledger)
    ///
    /// All other nodes are in ledger mode, and so is the second part.
    #[arg(long, value_enum, value_name = "MODE", default_value = "kernel")]
    network: Network,

    /// Fail if a step takes longer than this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DemoPart {
    /// Both parts
    All,
    /// Kubernetes' allocator, and the repair
    Fault,
    /// podplane's allocator
    Remedy,
}

pub(super) fn run(demo: &CidrChange) -> anyhow::Result<ExitCode> {
    let (mut failed, started) = (0, Instant::now());
    let ranges = DemoRanges::new(demo.cluster_cidr, demo.pool_cidr).map_err(UsageError)?;
    block_on(async {
        if demo.part != DemoPart::Remedy {
            output::line("\n=== With Kubernetes' own allocator (--compat upstream) ===")?;
            let mut stage = DemoCluster::open("upstream", ranges, demo.network, demo.timeout)?;
            failed += played(&mut stage, async |stage| fault::play(stage).await).await?;
        }
        if demo.part != DemoPart::Fault {
            output::line("\n=== The same with podplane's allocator ===")?;
            let mut stage = DemoCluster::open("none", ranges, Network::Ledger, demo.timeout)?;
            failed += played(&mut stage, async |stage| remedy::play(stage).await).await?;
        }
        Ok(())
    })?;
    Ok(if failed == 0 {
        let seconds = started.elapsed().as_secs();
        output::line(format_args!("\nall claims hold, after {seconds} s"))?;
        ExitCode::SUCCESS
    } else {
        output::line(format_args!("\n{failed} claims do not hold"))?;
        ExitCode::FAILURE
    })
}

/// Plays a history, and takes the cluster down in any case. Returns the number of failed claims.
async fn played(
    stage: &mut DemoCluster,
    play: impl AsyncFnOnce(&mut DemoCluster) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let done = tokio::select! {
        done = play(stage) => done,
        signal = shutdown::requested() => Err(anyhow::anyhow!("interrupted by {}", signal?)),
    };
    stage.close().await?;
    done.map(|()| stage.failed())
}
