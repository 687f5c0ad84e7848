//! `demo cidr-change`: story B, in which the cluster CIDR of a live cluster changes twice; with the
//! fault and its repair, and again without the fault.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use ipnet::Ipv4Net;
use podplane_cluster::settings::{Network, name_of};
use podplane_progress::{PlainLines, Progress};
use podplane_scenario::{PlannedCase, Values};
use podplane_test_cluster::Cluster;

use super::{super::duration, File, play};
use crate::{global::block_on, report::UsageError};

macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../demos/cidr-change/", $name)))),*]
    };
}

const FILES: [File; 9] = files![
    "cidr-change.yaml" "agents" "blocks" "duplicates" "meet" "pools" "register" "repair" "witness"
];

/// The length of the cluster CIDR, and of the one that it becomes.
const CLUSTER: u8 = 16;
const LARGER: u8 = 12;
/// The length of the smallest pool: it has a block of 64 addresses for each of 300 nodes.
const LONGEST_POOL: u8 = 17;

/// Show how a change of the cluster CIDR of a live cluster causes duplicate pod CIDRs, how to
/// repair them, and how podplane prevents them
///
/// First, 300 nodes have an IPAM that ignores pod CIDRs, so nobody notices that 10.244.0.0/16 has
/// only 256 blocks of /24. Then a network that uses pod CIDRs replaces it, and 44 nodes have none.
/// The range is extended to 10.244.0.0/12, by mistake with blocks of /16, then of /24, and nodes
/// are replaced. With Kubernetes' own allocator (--compat upstream) nodes are assigned the pod
/// CIDRs of others, and the demo repairs them. At last, the same with podplane's allocator.
///
/// Prints each step as a command, and checks every claim. Requires sh and awk, for its scripts.
/// Exit codes: 0 all claims hold; 1 one does not.
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
    let mut set = ranges(demo.cluster_cidr, demo.pool_cidr).map_err(UsageError)?;
    let network = match demo.network {
        Network::Auto if demo.part != DemoPart::Remedy => block_on(possible_network())?,
        named => name_of(&named),
    };
    set.insert("network".into(), network);
    let is_wanted = |case: &PlannedCase| match demo.part {
        DemoPart::All => true,
        DemoPart::Fault => case.values["part"] == "fault",
        DemoPart::Remedy => case.values["part"] == "remedy",
    };
    play(&FILES, &set, demo.timeout, is_wanted)
}

/// Returns the network mode that a cluster has here: kernel if permitted, else ledger.
async fn possible_network() -> anyhow::Result<String> {
    let _progress = Progress::with_lines("trying kernel mode", PlainLines::IfSlow);
    let program = std::env::current_exe().context("failed to find the program's own file")?;
    let builder = Cluster::builder().nodes(0).network(Network::Auto);
    let cluster = builder.program(program).start().await?;
    let network = cluster.status().await?.network;
    cluster.stop().await?;
    Ok(network)
}

/// Returns the parameters for the ranges of the flags.
///
/// # Errors
///
/// A sentence on the flag whose range has the wrong length, or on ranges that overlap.
fn ranges(cluster: Ipv4Net, pool: Ipv4Net) -> Result<Values, String> {
    let (cluster, pool) = (cluster.trunc(), pool.trunc());
    if cluster.prefix_len() != CLUSTER {
        return Err(format!(
            "invalid --cluster-cidr {cluster}: must be a /{CLUSTER}, which becomes a /{LARGER} in the demo"
        ));
    }
    if pool.prefix_len() > LONGEST_POOL {
        return Err(format!(
            "invalid --pool-cidr {pool}: must be a /{LONGEST_POOL} or larger, for 64 addresses on each of 300 nodes"
        ));
    }
    let larger = Ipv4Net::new_assert(cluster.addr(), LARGER).trunc();
    if larger.contains(&pool) || pool.contains(&larger) {
        return Err(format!(
            "invalid --pool-cidr {pool}: overlaps {larger}, which the cluster CIDR becomes"
        ));
    }
    let [first, second, ..] = cluster.addr().octets();
    Ok(Values::from([
        ("prefix".into(), format!("{first}.{second}")),
        ("pool".into(), pool.to_string()),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_ranges_that_the_demo_cannot_play_with() {
        let ranges =
            |cluster: &str, pool: &str| ranges(cluster.parse().unwrap(), pool.parse().unwrap());
        assert_eq!(
            ranges("10.60.0.0/16", "172.20.128.7/17").unwrap(),
            Values::from([
                ("prefix".into(), "10.60".into()),
                ("pool".into(), "172.20.128.0/17".into())
            ])
        );
        for (cluster, pool, want) in [
            ("10.60.0.0/15", "192.168.0.0/16", "--cluster-cidr"),
            ("10.60.0.0/16", "192.168.0.0/18", "--pool-cidr"),
            ("10.60.0.0/16", "10.48.0.0/16", "overlaps 10.48.0.0/12"),
        ] {
            let error = ranges(cluster, pool).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
