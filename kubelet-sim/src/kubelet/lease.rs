//! The node's lease, by which others see that a kubelet lives, and which instance of its node it
//! is.
//!
//! `holderIdentity` is the node's name, as Kubernetes has it; the annotation [`INSTANCE`] says
//! which instance renews it. Another instance is refused while the lease is fresh, and takes a
//! stale one over; each write is guarded by the revision that was read, so of two that start at
//! once one wins.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::{Lease, LeaseSpec},
    core::Node as NodeObject,
    jiff::{SignedDuration, Timestamp},
    meta::{MicroTime, ObjectMeta, OwnerReference},
};
use podplane_client::{ApiError, Reason};
use podplane_host::clock::{self, Instant};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::node::NodeContext;

/// The annotation of a node's Lease that says which instance of the node renews it.
pub const INSTANCE: &str = "podplane.io/instance";
/// The namespace of nodes' leases.
pub const NAMESPACE: &str = podplane_api::node::LEASE_NAMESPACE;
/// The seconds for which a node counts as alive after a renewal: Kubernetes' default.
const DURATION_SECONDS: i32 = 40;

/// The reason why this instance does not have the lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another instance of the node has it.
    #[error(transparent)]
    Taken(#[from] LeaseConflict),
    /// The API server refused, or cannot be reached.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Another instance of the node has its lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another kubelet runs node {node}: instance {instance}{since}, last heard of {ago} s ago; this one is instance {own}. Stop the other one and wait until it has been silent for {DURATION_SECONDS} s, {wait} s from now at the earliest, or give this one another node name"
)]
pub struct LeaseConflict {
    node: String,
    own: String,
    instance: String,
    /// ` since TIME`, if that is known.
    since: String,
    ago: i64,
    wait: i64,
}

impl LeaseConflict {
    /// The time until the lease is stale, if it is not renewed.
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.wait.unsigned_abs())
    }
}

/// Renews the lease of `node` every `interval` while its Node is there, once the node has taken it.
/// If another instance takes it over, the node stops making sandboxes.
///
/// # Errors
///
/// [`LeaseConflict`] if another instance has taken over, and the node is the only one of this
/// process.
pub async fn renew(
    node: Arc<NodeContext>,
    interval: Duration,
    stop: CancellationToken,
) -> Result<(), LeaseConflict> {
    let mut network = node.network.subscribe();
    let mut is_there = true;
    node.nodes.synced().await;
    // Losing the wait loses nothing.
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = node.wait_for_lease() => {}
    }
    // The lease was renewed just now, when it was taken.
    let mut ticks = clock::interval_at(Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Losing any of these waits loses nothing.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = node.wait_for_lease() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
            // The network is the first thing to change when the Node appears.
            _ = network.changed(), if !is_there => {}
        }
        let object = node.nodes.get(&ObjectKey::new("", node.name()));
        is_there = object.is_some();
        let Some(object) = object else {
            // Not registered yet, or deleted: try again soon, and renew no lease for a missing
            // Node.
            ticks.reset_after(interval.min(Duration::from_secs(1)));
            continue;
        };
        let held = node.lease.lock().await.take();
        match renew_once(&node, &object, held).await {
            Ok(lease) => *node.lease.lock().await = Some(lease),
            Err(LeaseError::Taken(taken)) => {
                tracing::error!(node = node.name(), error = %taken, "lost the node's lease; creating no more sandboxes");
                node.lose_lease();
                if node.is_alone {
                    return Err(taken);
                }
            }
            Err(LeaseError::Api(error)) => {
                let wait = interval.min(Duration::from_secs(1));
                tracing::warn!(node = node.name(), %error, retry_in = ?wait, "failed to renew the node's lease; trying again");
                ticks.reset_after(wait);
            }
        }
    }
}

/// The node's lease, if it exists and no other instance has it now.
///
/// # Errors
///
/// [`LeaseError`].
pub async fn check(node: &NodeContext) -> Result<Option<Lease>, LeaseError> {
    let leases = node.client.namespaced::<Lease>(NAMESPACE);
    match leases.get(node.name()).await {
        Ok(found) => {
            judge(&found, node.name(), node.instance.id(), clock::timestamp())?;
            Ok(Some(found))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Renews the lease that was last written. Reads or creates it if there is none, or if another
/// client has written it since.
async fn renew_once(
    node: &NodeContext,
    object: &NodeObject,
    held: Option<Lease>,
) -> Result<Lease, LeaseError> {
    let leases = node.client.namespaced::<Lease>(NAMESPACE);
    let own = node.instance.id();
    if let Some(lease) = held {
        match leases.update(&renewed(lease, object, own)).await {
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            answer => return Ok(answer?),
        }
    }
    let found = check(node).await?;
    take(node, object, found).await
}

/// Takes the lease that [`check`] has `found`: makes it, renews it if it is this instance's, or
/// takes a stale one over from another instance. Checks again if it was written since.
///
/// # Errors
///
/// [`LeaseError`].
pub async fn take(
    node: &NodeContext,
    object: &NodeObject,
    mut found: Option<Lease>,
) -> Result<Lease, LeaseError> {
    let leases = node.client.namespaced::<Lease>(NAMESPACE);
    let own = node.instance.id();
    loop {
        let written = match found {
            Some(found) => leases.update(&renewed(found, object, own)).await,
            None => leases.create(&renewed(new_lease(node), object, own)).await,
        };
        match written {
            // Another client was faster, perhaps another instance: check again.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) if error.reason == Reason::AlreadyExists => {}
            written => return Ok(written?),
        }
        found = check(node).await?;
    }
}

fn new_lease(node: &NodeContext) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(node.name().into()),
            namespace: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        spec: None,
    }
}

/// Returns no error if this instance may write the lease: it has the lease, nobody claims it, or
/// its holder has been silent for too long.
fn judge(lease: &Lease, node: &str, own: &str, now: Timestamp) -> Result<(), LeaseConflict> {
    let annotations = lease.metadata.annotations.as_ref();
    let spec = lease.spec.as_ref();
    let (Some(instance), Some(renewed)) = (
        annotations.and_then(|all| all.get(INSTANCE)),
        spec.and_then(|spec| spec.renew_time.as_ref()),
    ) else {
        return Ok(());
    };
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let lasts = SignedDuration::from_secs(seconds.unwrap_or(DURATION_SECONDS).into());
    let wait = lasts.saturating_sub(now.duration_since(renewed.0));
    if instance == own || wait <= SignedDuration::ZERO {
        return Ok(());
    }
    let since = spec.and_then(|spec| spec.acquire_time.as_ref());
    Err(LeaseConflict {
        node: node.to_owned(),
        own: own.to_owned(),
        instance: instance.clone(),
        since: since.map_or_else(String::new, |since| format!(" since {}", since.0)),
        ago: now.duration_since(renewed.0).as_secs().max(0),
        wait: wait.as_secs().saturating_add(1),
    })
}

/// The lease renewed as of now, owned by the Node and deleted with it.
fn renewed(mut lease: Lease, node: &NodeObject, own: &str) -> Lease {
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name().into(),
        uid: node.uid().into(),
        ..OwnerReference::default()
    }]);
    let now = MicroTime(clock::timestamp());
    let annotations = lease.metadata.annotations.get_or_insert_default();
    let before = annotations.insert(INSTANCE.into(), own.into());
    let spec = lease.spec.unwrap_or_default();
    let is_same = before.is_some_and(|before| before == own);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(node.name().into()),
        lease_duration_seconds: Some(DURATION_SECONDS),
        acquire_time: spec
            .acquire_time
            .filter(|_| is_same)
            .or_else(|| Some(now.clone())),
        renew_time: Some(now),
        ..spec
    });
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(instance: Option<&str>, renewed: Option<i64>) -> Lease {
        let mut lease = Lease::default();
        if let Some(instance) = instance {
            let annotations = [(INSTANCE.to_owned(), instance.to_owned())];
            lease.metadata.annotations = Some(annotations.into());
        }
        let time = |seconds| MicroTime(Timestamp::from_second(seconds).unwrap());
        lease.spec = Some(LeaseSpec {
            lease_duration_seconds: Some(40),
            acquire_time: Some(time(10)),
            renew_time: renewed.map(time),
            ..LeaseSpec::default()
        });
        lease
    }

    #[test]
    fn another_instance_is_refused_while_the_lease_is_fresh() {
        let now = Timestamp::from_second(100).unwrap();
        let judge = |lease| judge(&lease, "n", "own", now);
        for (name, lease) in [
            ("its own", lease(Some("own"), Some(99))),
            ("nobody's", lease(None, Some(99))),
            ("never renewed", lease(Some("other"), None)),
            ("stale", lease(Some("other"), Some(60))),
        ] {
            assert_eq!(judge(lease), Ok(()), "{name}");
        }
        let taken = judge(lease(Some("other"), Some(70))).unwrap_err();
        assert_eq!(taken.wait(), Duration::from_secs(11));
        let text = taken.to_string();
        let who = "instance other since 1970-01-01T00:00:10Z, last heard of 30 s ago";
        assert!(text.contains(who), "{text}");
        // A clock that is ahead of ours.
        assert!(judge(lease(Some("other"), Some(200))).is_err());
    }

    #[test]
    fn renewals_keep_the_time_of_the_takeover() {
        let node = NodeObject::default();
        let taken = renewed(lease(Some("other"), Some(1)), &node, "own");
        let since = |lease: &Lease| lease.spec.as_ref().unwrap().acquire_time.clone();
        assert_ne!(since(&taken), since(&lease(None, None)));
        assert_eq!(since(&renewed(taken.clone(), &node, "own")), since(&taken));
        let annotations = taken.metadata.annotations.unwrap();
        assert_eq!(annotations[INSTANCE], "own");
    }
}
