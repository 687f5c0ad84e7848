//! The flags of an election.

use std::time::Duration;

use clap::{ArgAction, Args};
use podplane_api::ObjectKey;
use podplane_host::{fs, random};
use prometheus_client::metrics::family::Family;
use tokio_util::sync::CancellationToken;

use super::{Candidate, Election, JITTER_FACTOR, LeaderError, times};
use crate::Client;

/// The flags of an election, as Kubernetes' controllers have them.
#[derive(Args, Clone, Debug)]
pub struct LeaderElection {
    /// Use leader election: only the leader works, other replicas stand by
    #[arg(
        value_name = "BOOL",
        long,
        env = "PODPLANE_LEADER_ELECT",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,
    /// Take over from a leader that has not renewed its Lease for this long, such as 15s
    #[arg(
        long,
        env = "PODPLANE_LEADER_ELECT_LEASE_DURATION",
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "15s"
    )]
    pub leader_elect_lease_duration: Duration,
    /// Give up leading after failing to renew the Lease for this long, such as 10s; less than the
    /// lease duration
    #[arg(
        long,
        env = "PODPLANE_LEADER_ELECT_RENEW_DEADLINE",
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "10s"
    )]
    pub leader_elect_renew_deadline: Duration,
    /// Retry to acquire or renew the Lease at this interval, such as 2s
    #[arg(
        long,
        env = "PODPLANE_LEADER_ELECT_RETRY_PERIOD",
        value_name = "DURATION",
        value_parser = humantime::parse_duration,
        default_value = "2s"
    )]
    pub leader_elect_retry_period: Duration,
    /// Use the Lease with this name [default: that of the component]
    #[arg(long, env = "PODPLANE_LEADER_ELECT_RESOURCE_NAME", value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Use the Lease in this namespace.
    #[arg(
        long,
        env = "PODPLANE_LEADER_ELECT_RESOURCE_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "kube-system"
    )]
    pub leader_elect_resource_namespace: String,
    /// Set the identity in the Lease, unique among the replicas [default: the host's name and a
    /// UUID]
    ///
    /// A process that restarts with the same identity leads at once, without waiting until the
    /// Lease expires.
    #[arg(long, env = "PODPLANE_LEADER_ELECT_IDENTITY", value_name = "IDENTITY")]
    pub leader_elect_identity: Option<String>,
}

impl LeaderElection {
    /// Returns a candidate with these flags. The Lease is named after `component` unless a flag
    /// names it.
    ///
    /// # Errors
    ///
    /// [`LeaderError::Config`] and [`LeaderError::Name`].
    pub fn candidate(&self, client: Client, component: &str) -> Result<Candidate, LeaderError> {
        let Self {
            leader_elect,
            leader_elect_lease_duration: lease_duration,
            leader_elect_renew_deadline: renew_deadline,
            leader_elect_retry_period: retry_period,
            leader_elect_resource_name: name,
            leader_elect_resource_namespace: namespace,
            leader_elect_identity: identity,
        } = self.clone();
        if !leader_elect {
            return Ok(Candidate {
                client,
                election: None,
                decided: CancellationToken::new(),
            });
        }
        let refuse = |why| Err(LeaderError::Config(why));
        if lease_duration <= renew_deadline {
            return refuse("leaseDuration must be greater than renewDeadline");
        }
        if renew_deadline <= times(retry_period, JITTER_FACTOR) {
            return refuse("renewDeadline must be greater than retryPeriod*JitterFactor");
        }
        if lease_duration < Duration::from_secs(1) {
            return refuse("leaseDuration must be at least one second");
        }
        if retry_period.is_zero() {
            return refuse("retryPeriod must be greater than zero");
        }
        let identity = identity.unwrap_or_else(unique_identity);
        if identity.is_empty() {
            return refuse("Lock identity is empty");
        }
        let name = name.unwrap_or_else(|| component.to_owned());
        for (flag, value) in [("name", &name), ("namespace", &namespace)] {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
            if value.is_empty() || !value.bytes().all(fits) {
                let value = value.clone();
                return Err(LeaderError::Name { flag, value });
            }
        }
        let election = Election {
            leases: client.namespaced(namespace.as_str()),
            lease: ObjectKey::new(namespace, name),
            identity,
            lease_duration,
            renew_deadline,
            retry_period,
            status: Family::default(),
        };
        election.set_status(0);
        Ok(Candidate {
            client,
            election: Some(election),
            decided: CancellationToken::new(),
        })
    }
}

/// A host name and a UUID, as client-go's users make an identity.
fn unique_identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim_end(), random::uuid())
}
