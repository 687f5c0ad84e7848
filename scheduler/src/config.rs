//! The flags of the scheduler.

use std::path::PathBuf;

use clap::Args;
use podplane_api::pod_ips::{PodIpFlags, PodIpResource};
use podplane_client::{ServerFlags, leader::LeaderElection};
pub use podplane_ipam::IpPolicy;
use podplane_service_runtime::{boundary::AllowedHosts, server::Listen, serving::ServingFlags};

use crate::pod::DEFAULT_SCHEDULER_NAME;

/// The flags of the scheduler.
#[derive(Clone, Debug, Args)]
pub struct SchedulerConfig {
    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,

    /// Schedule the pods whose spec.schedulerName is this, and no others
    #[arg(
        long,
        env = "PODPLANE_SCHEDULER_NAME",
        value_name = "NAME",
        default_value = DEFAULT_SCHEDULER_NAME
    )]
    pub scheduler_name: String,

    /// Serve podplane.scheduler.v1 at this address: IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_SCHEDULER_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// Host names that requests may be addressed to.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_SCHEDULER_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// The addresses of pods.
    #[command(flatten)]
    pub pod_ips: PodIpFlags,

    /// Weigh the score that prefers nodes with a larger part of their pod addresses free, against
    /// 3 for taints, 2 for affinity and spreading and 1 for cpu and memory; 0 turns it off
    #[arg(
        long,
        env = "PODPLANE_POD_IPS_SCORE_WEIGHT",
        default_value_t = DEFAULT_POD_IPS_WEIGHT,
        value_name = "WEIGHT",
        value_parser = clap::value_parser!(u32).range(0..=100)
    )]
    pub pod_ips_score_weight: u32,

    /// Begin the first search for a node at a place that depends on this number
    ///
    /// Nothing else is arbitrary: the same seed and the same events in the same order give the same
    /// decisions.
    #[arg(
        long,
        env = "PODPLANE_SCHEDULER_SEED",
        default_value_t,
        value_name = "NUMBER"
    )]
    pub seed: u64,

    /// The election.
    #[command(flatten)]
    pub leader_election: LeaderElection,
}

/// The default weight of the score of free addresses.
pub const DEFAULT_POD_IPS_WEIGHT: u32 = 2;

/// The settings of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementPolicy {
    /// The name of the scheduler: it schedules the pods that ask for it.
    pub scheduler_name: String,
    /// The limit of a node's pods by its addresses.
    pub ips: IpPolicy,
    /// The resource that counts addresses.
    pub pod_ip_resource: PodIpResource,
    /// The weight of the score of free addresses, which only [`IpPolicy::Resource`] has.
    pub pod_ips_weight: u32,
    /// The place at which the first search begins, modulo the number of nodes.
    pub seed: u64,
}

impl From<IpPolicy> for PlacementPolicy {
    fn from(ips: IpPolicy) -> Self {
        Self {
            scheduler_name: DEFAULT_SCHEDULER_NAME.to_owned(),
            ips,
            pod_ip_resource: PodIpResource::default(),
            pod_ips_weight: DEFAULT_POD_IPS_WEIGHT,
            seed: 0,
        }
    }
}
