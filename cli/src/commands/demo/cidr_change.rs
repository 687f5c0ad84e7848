//! `demo cidr-change`: story B, the cluster CIDR of a live cluster changed twice, from the fault to its repair, and the same without the fault.

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
use podplane_telemetry::shutdown;

use self::{ranges::DemoRanges, stage::Stage};
use super::super::duration;
use crate::{cluster::settings::Network, global::block_on, output, report::UsageError};

/// How many nodes there are, and how many blocks for them at first.
const NODES: usize = 300;
const BLOCKS: usize = 256;
/// How many wide blocks there are beside the one in which the old blocks are.
const WIDE: usize = 15;
/// How many nodes have neither one nor the other, but for the one that is away meanwhile.
const WAITING: usize = NODES - 1 - BLOCKS - WIDE;
/// How many nodes there are in the end.
const ALL_NODES: usize = 500;

/// The cluster CIDR of a live cluster, changed twice: duplicate podCIDRs, and how they are repaired or never come about
///
/// 300 nodes have an IPAM that does not use podCIDR, so nobody notices that 10.244.0.0/16 has 256 blocks of /24. With a network that does,
/// 44 nodes have none; the range becomes 10.244.0.0/12, first with /16 and then with /24, nodes are replaced, and with Kubernetes' own
/// allocator (--compat upstream) nodes come to have the blocks of others. Then the same with podplane's. Every step is a command that it
/// prints, every claim is checked: exits with 1 if one does not hold.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo cidr-change\n  podplane demo cidr-change --part remedy\n  podplane demo cidr-change --cluster-cidr 10.60.0.0/16 --pool-cidr 172.20.0.0/16"
)]
pub(super) struct CidrChange {
    /// Which of the two histories
    #[arg(long, value_enum, value_name = "PART", default_value = "all")]
    part: Part,

    /// The cluster CIDR at first, a /16; it becomes the /12 around it
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    cluster_cidr: Ipv4Net,

    /// The range of the IPAM that does not use podCIDR, a /17 or larger
    #[arg(long, value_name = "CIDR", default_value = "192.168.0.0/16")]
    pool_cidr: Ipv4Net,

    /// Whether the pods of three nodes get real interfaces; those of the others have addresses alone
    #[arg(long, value_enum, value_name = "MODE", default_value = "kernel")]
    network: Network,

    /// How long each step may take, as in 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Both
    All,
    /// With Kubernetes' allocator, and the repair
    Fault,
    /// With podplane's
    Remedy,
}

pub(super) fn run(demo: &CidrChange) -> anyhow::Result<ExitCode> {
    let (mut failed, started) = (0, Instant::now());
    let ranges = DemoRanges::new(demo.cluster_cidr, demo.pool_cidr).map_err(UsageError)?;
    block_on(async {
        if demo.part != Part::Remedy {
            output::line("\n=== With Kubernetes' own allocator (--compat upstream) ===")?;
            let mut stage = Stage::open("upstream", ranges, demo.network, demo.timeout)?;
            failed += played(&mut stage, async |stage| fault::play(stage).await).await?;
        }
        if demo.part != Part::Fault {
            output::line("\n=== The same with podplane's allocator ===")?;
            let mut stage = Stage::open("none", ranges, Network::Ledger, demo.timeout)?;
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

/// Plays, and takes the cluster down in any case. How many claims did not hold.
async fn played(
    stage: &mut Stage,
    play: impl AsyncFnOnce(&mut Stage) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let done = tokio::select! {
        done = play(stage) => done,
        signal = shutdown::requested() => Err(anyhow::anyhow!("interrupted by {}", signal?)),
    };
    stage.close().await?;
    done.map(|()| stage.failed())
}
