//! Leader election by a Lease, as in client-go's `leaderelection`: one of several candidates works.
//!
//! The clocks of candidates are not compared. A candidate takes the leader for gone when the Lease
//! has not changed for the duration that it names, by the candidate's own clock. That alone does
//! not keep a stopped leader from writing when it goes on, so each leader also gets a [`Fence`],
//! and podplane's API server checks its writes against it. Kubernetes has no fences: there, a leader
//! checks before each write that its own term lasts, which leaves the time between the check and
//! the write.

mod flags;
mod term;

use std::{future::Future, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::{Lease, LeaseSpec},
    meta::{MicroTime, ObjectMeta},
};
use podplane_host::{
    clock::{self, Instant, sleep, timeout},
    random,
};
use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
};
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio_util::sync::CancellationToken;

pub use self::flags::LeaderElection;
pub(crate) use self::term::LeaseTerm;
use crate::{Api, Client, Permission};

/// As in client-go: candidates wait between one and this many further retry periods, so that they
/// do not all try at once.
const JITTER_FACTOR: f64 = 1.2;

/// The reason why an election could not begin or a leadership ended.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The flags contradict each other; the texts are client-go's.
    #[error("leader election: {0}")]
    Config(&'static str),
    /// The name is not valid for a Lease.
    #[error(
        "leader election: invalid --leader-elect-resource-{flag} {value:?}: must be an object name"
    )]
    Name {
        /// The end of the flag's name.
        flag: &'static str,
        /// The flag's value.
        value: String,
    },
    /// Another process holds the Lease, or it is gone.
    #[error("lost the lease {lease}: {why}")]
    Taken {
        /// The Lease's namespace and name.
        lease: ObjectKey,
        /// The difference that was found.
        why: String,
    },
    /// The Lease could not be renewed in time.
    #[error("lost the lease {lease}: it could not be renewed for {deadline:?}")]
    Deadline {
        /// The Lease's namespace and name.
        lease: ObjectKey,
        /// The renew deadline.
        deadline: Duration,
    },
}

/// The API server refused a write because another process leads: nothing may be written any more.
#[derive(Debug, thiserror::Error)]
#[error("another process leads")]
pub struct LeadershipLost(#[source] pub ApiError);

/// The client and the fence of a leader.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The leader's client; every write is under the fence.
    pub client: Client,
    /// The fence; `None` without an election.
    pub fence: Option<Fence>,
}

/// A candidate.
#[derive(Debug)]
pub struct Candidate {
    client: Client,
    /// `None` without an election: every process leads.
    election: Option<Election>,
    /// Cancelled once it is known which process leads.
    decided: CancellationToken,
}

#[derive(Debug)]
struct Election {
    leases: Api<Lease>,
    lease: ObjectKey,
    identity: String,
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    /// By the name of the Lease: 1 while this process leads.
    status: Family<[(&'static str, String); 1], Gauge>,
}

/// A Lease that this process holds, as last written or read.
#[derive(Debug)]
struct HeldLease {
    lease: Lease,
    /// The time just before the last write of the Lease was sent.
    renewed: Instant,
}

/// The Lease of another process, and the time since which it has not changed.
#[derive(Debug)]
struct ObservedLease {
    resource_version: String,
    since: Instant,
}

/// The duration multiplied by `factor`, or the longest duration if that overflows.
fn times(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl Candidate {
    /// Registers `leader_election_master_status`, as client-go names it: 1 while this process
    /// leads, 0 while it stands by. Without an election there is no such metric.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(election) = &self.election {
            registry.register(
                "leader_election_master_status",
                "1 while this process leads by the Lease of that name, 0 while it stands by",
                election.status.clone(),
            );
        }
    }

    /// The permissions that the election needs: those on its Lease. Nobody may be allowed to create
    /// an object by its name.
    #[must_use]
    pub fn permissions(&self) -> Vec<Permission> {
        let Some(Election { lease, .. }) = &self.election else {
            return Vec::new();
        };
        let leases = |verbs| {
            Permission::on("coordination.k8s.io", "leases", verbs)
                .in_namespace(lease.namespace.clone())
        };
        vec![
            leases(&["get", "update"]).named(lease.name.clone()),
            leases(&["create"]),
        ]
    }

    /// Completes once the first try is over: this process leads, or another one does. A candidate
    /// that does not know that may soon begin to lead, and has not begun to observe.
    pub fn decided(&self) -> impl Future<Output = ()> + Send + 'static {
        self.decided.clone().cancelled_owned()
    }

    /// Waits until this process leads, then runs `work` for as long as it leads.
    ///
    /// When the work is done, the Lease is released; the work should end soon after `stop` is
    /// cancelled. Returns the result of the work, or `None` if `stop` was cancelled before the work
    /// began.
    ///
    /// # Errors
    ///
    /// [`LeaderError::Taken`] and [`LeaderError::Deadline`] if the process lost the leadership. The
    /// work was dropped then; the caller should exit or start over.
    pub async fn lead<T, Work: Future<Output = T>>(
        &self,
        stop: &CancellationToken,
        work: impl FnOnce(Leadership) -> Work,
    ) -> Result<Option<T>, LeaderError> {
        let Some(election) = &self.election else {
            let leading = Leadership {
                client: self.client.clone(),
                fence: None,
            };
            self.decided.cancel();
            return Ok(Some(work(leading).await));
        };
        let acquired = election.acquire(&self.decided);
        let Some((mut held, fence)) = stop.run_until_cancelled(acquired).await else {
            return Ok(None);
        };
        self.decided.cancel();
        tracing::info!(lease = %election.lease, identity = election.identity, %fence, "successfully acquired lease");
        let _leading = LeadingStatus::new(election);
        let client = self.client.fenced(&fence);
        let term = LeaseTerm::until(held.renewed + election.renew_deadline);
        // Renewed under its own fence: a fence that is lost while the Lease remains, as after a
        // restore of the store, ends the leadership too.
        let leases = client.namespaced(&election.lease.namespace);
        let work = work(Leadership {
            client: client.during(&term),
            fence: Some(fence),
        });
        let done = tokio::select! {
            done = work => done,
            lost = election.hold(&mut held, &leases, &term) => {
                tracing::error!(lease = %election.lease, identity = election.identity, error = %lost, "lost the lease");
                return Err(lost);
            }
        };
        election.release(held).await;
        Ok(Some(done))
    }
}

/// Keeps the metric at 1 until it is dropped.
struct LeadingStatus<'a>(&'a Election);

impl<'a> LeadingStatus<'a> {
    fn new(election: &'a Election) -> Self {
        election.set_status(1);
        Self(election)
    }
}

impl Drop for LeadingStatus<'_> {
    fn drop(&mut self) {
        self.0.set_status(0);
    }
}

impl Election {
    fn set_status(&self, status: i64) {
        let labels = [("name", self.lease.name.clone())];
        self.status.get_or_create(&labels).set(status);
    }

    /// `decided` is cancelled when another process is found to lead.
    async fn acquire(&self, decided: &CancellationToken) -> (HeldLease, Fence) {
        tracing::info!(lease = %self.lease, identity = self.identity, "attempting to acquire leader lease...");
        let mut observed = None;
        loop {
            match self.in_time(self.try_acquire(&mut observed)).await {
                Ok(Some(held)) => match self.fence(&held.lease) {
                    Ok(fence) => return (held, fence),
                    Err(error) => tracing::error!(%error, "the lease has no fence"),
                },
                Ok(None) => decided.cancel(),
                Err(error) if error.is_conflict() || error.is_already_exists() => {
                    tracing::debug!(lease = %self.lease, %error, "another candidate was faster");
                }
                Err(error) => {
                    tracing::warn!(lease = %self.lease, %error, "error retrieving or writing the lease");
                }
            }
            let jitter = 1.0 + random::value::<f64>() * JITTER_FACTOR;
            sleep(times(self.retry_period, jitter)).await;
        }
    }

    /// Takes the Lease if it is free or has this process's identity: then its holder was a
    /// predecessor.
    async fn try_acquire(
        &self,
        observed: &mut Option<ObservedLease>,
    ) -> Result<Option<HeldLease>, ApiError> {
        let lease = match self.leases.get(&self.lease.name).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let renewed = Instant::now();
                let lease = self.leases.create(&self.taken_over(None)).await?;
                return Ok(Some(HeldLease { lease, renewed }));
            }
            Err(error) => return Err(error),
        };
        let version = lease.resource_version();
        let seen = observed
            .take()
            .filter(|seen| seen.resource_version == version);
        let seen = observed.insert(seen.unwrap_or_else(|| ObservedLease {
            resource_version: version.to_owned(),
            since: Instant::now(),
        }));
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            let seconds = spec.lease_duration_seconds.unwrap_or_default();
            let valid = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            if seen.since.elapsed() < valid {
                tracing::debug!(lease = %self.lease, holder, "lock is held and has not yet expired");
                return Ok(None);
            }
        }
        let renewed = Instant::now();
        let lease = self.leases.update(&self.taken_over(Some(lease))).await?;
        Ok(Some(HeldLease { lease, renewed }))
    }

    /// The Lease with this process as its new holder.
    fn taken_over(&self, old: Option<Lease>) -> Lease {
        let mut lease = old.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.lease.name.clone()),
                namespace: Some(self.lease.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let old = lease.spec.take();
        let spec = old.clone().unwrap_or_default();
        let changed = spec.holder_identity.as_deref() != Some(&self.identity);
        let transitions = spec.lease_transitions.unwrap_or_default();
        let now = MicroTime(clock::timestamp());
        let seconds = i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions.saturating_add((old.is_some() && changed).into())),
            ..spec
        });
        lease
    }

    fn fence(&self, lease: &Lease) -> Result<Fence, ApiError> {
        let version = lease.resource_version();
        let epoch = version.parse().map_err(|_| {
            let why = format!(
                "invalid revision {version:?} of {}: must be a number",
                self.lease
            );
            ApiError::new(Reason::InternalError, why)
        })?;
        Ok(Fence {
            namespace: self.lease.namespace.clone(),
            name: self.lease.name.clone(),
            epoch,
        })
    }

    /// Renews the Lease until that fails; returns the reason.
    async fn hold(
        &self,
        held: &mut HeldLease,
        leases: &Api<Lease>,
        term: &LeaseTerm,
    ) -> LeaderError {
        loop {
            sleep(self.retry_period).await;
            let left = self.renew_deadline.saturating_sub(held.renewed.elapsed());
            let renew =
                |spec: &mut LeaseSpec| spec.renew_time = Some(MicroTime(clock::timestamp()));
            let attempt = self.in_time(self.write(held, leases, renew));
            match timeout(left, attempt).await {
                Ok(Ok(None)) => term.extend(held.renewed + self.renew_deadline),
                Ok(Ok(Some(lost))) => return lost,
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.lease, %error, "failed to renew the lease");
                }
                Err(_) => {}
            }
            if held.renewed.elapsed() >= self.renew_deadline {
                return LeaderError::Deadline {
                    lease: self.lease.clone(),
                    deadline: self.renew_deadline,
                };
            }
        }
    }

    /// Changes the Lease if this process still holds it. An earlier write without an answer may
    /// have changed it too.
    async fn write(
        &self,
        held: &mut HeldLease,
        leases: &Api<Lease>,
        change: impl Fn(&mut LeaseSpec),
    ) -> Result<Option<LeaderError>, ApiError> {
        let changed = |mut lease: Lease| {
            change(lease.spec.get_or_insert_default());
            lease
        };
        let sent = Instant::now();
        let refused = match leases.update(&changed(held.lease.clone())).await {
            Ok(lease) => {
                *held = HeldLease {
                    lease,
                    renewed: sent,
                };
                return Ok(None);
            }
            Err(error)
                if error.is_conflict()
                    || error.is_not_found()
                    || error.reason == Reason::FenceLost =>
            {
                error
            }
            Err(error) => return Err(error),
        };
        let lost = |why: String| {
            Ok(Some(LeaderError::Taken {
                lease: self.lease.clone(),
                why,
            }))
        };
        let found = match self.leases.get(&self.lease.name).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return lost("it was deleted".to_owned()),
            Err(error) => return Err(error),
        };
        let term = |lease: &Lease| {
            let spec = lease.spec.as_ref();
            spec.map(|spec| (spec.holder_identity.clone(), spec.acquire_time.clone()))
        };
        if found.uid() != held.lease.uid() || term(&found) != term(&held.lease) {
            let holder = found.spec.and_then(|spec| spec.holder_identity);
            return lost(match holder.filter(|holder| !holder.is_empty()) {
                Some(holder) => format!("{holder} holds it"),
                None => "it was released".to_owned(),
            });
        }
        held.lease = found;
        Err(refused)
    }

    /// Releases the Lease, so that others can lead at once.
    async fn release(&self, mut held: HeldLease) {
        let release = |spec: &mut LeaseSpec| {
            let now = MicroTime(clock::timestamp());
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.acquire_time = Some(now.clone());
            spec.renew_time = Some(now);
        };
        for _ in 0..2 {
            match timeout(
                self.retry_period,
                self.write(&mut held, &self.leases, release),
            )
            .await
            {
                Ok(Ok(None)) => tracing::info!(lease = %self.lease, "released the lease"),
                Ok(Ok(Some(lost))) => {
                    tracing::info!(lease = %self.lease, error = %lost, "the lease was lost before its release");
                }
                // An earlier write of this process renewed it.
                Ok(Err(error)) if error.is_conflict() => continue,
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.lease, %error, "failed to release the lease");
                }
                Err(_) => {
                    tracing::warn!(lease = %self.lease, "failed to release the lease in time");
                }
            }
            return;
        }
    }

    /// Limits an attempt to half of the renew deadline.
    async fn in_time<T>(
        &self,
        attempt: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let limit = self.renew_deadline / 2;
        match timeout(limit, attempt).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::new(
                Reason::ServiceUnavailable,
                format!("no answer within {limit:?}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplication_saturates_at_the_longest_duration() {
        let two = Duration::from_secs(2);
        assert_eq!(times(two, JITTER_FACTOR), Duration::from_millis(2400));
        assert_eq!(times(Duration::MAX, JITTER_FACTOR), Duration::MAX);
    }
}
