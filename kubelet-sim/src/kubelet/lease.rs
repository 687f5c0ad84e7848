//! The lease by which others see that a kubelet lives.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::{Lease, LeaseSpec},
    core::Node as NodeObject,
    jiff::Timestamp,
    meta::{MicroTime, ObjectMeta, OwnerReference},
};
use podplane_client::ApiError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::node::Node;

/// Where leases of nodes are.
const NAMESPACE: &str = "kube-node-lease";
/// How long a node counts as alive after a renewal. Kubernetes' default.
const DURATION_SECONDS: i32 = 40;

/// Renews the lease of `node` every `interval` while its Node is there.
///
/// # Errors
///
/// None; the signature is that of a task.
pub async fn renew(
    node: Arc<Node>,
    interval: Duration,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut held = None;
    let mut network = node.network.subscribe();
    let mut is_there = true;
    node.nodes.synced().await;
    loop {
        // Losing any of these waits loses nothing.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
            // The first thing that becomes of a Node that is there.
            _ = network.changed(), if !is_there => {}
        }
        let object = node.nodes.get(&ObjectKey::new("", node.name()));
        is_there = object.is_some();
        let Some(object) = object else {
            // Not registered yet, or deleted: soon again, without a lease for what is not there.
            ticks.reset_after(interval.min(Duration::from_secs(1)));
            continue;
        };
        match renew_once(&node, &object, held.take()).await {
            Ok(lease) => held = Some(lease),
            Err(error) => {
                tracing::warn!(node = node.name(), %error, "lease not renewed; trying again");
                ticks.reset_after(interval.min(Duration::from_secs(1)));
            }
        }
    }
}

/// Renews the lease last written; reads or makes it if there is none, or if another wrote it since.
async fn renew_once(
    node: &Node,
    object: &NodeObject,
    held: Option<Lease>,
) -> Result<Lease, ApiError> {
    let leases = node.client.namespaced::<Lease>(NAMESPACE);
    if let Some(lease) = held {
        match leases.update(&renewed(lease, object)).await {
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            answer => return answer,
        }
    }
    match leases.get(node.name()).await {
        Ok(lease) => leases.update(&renewed(lease, object)).await,
        Err(error) if error.is_not_found() => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(node.name().into()),
                    namespace: Some(NAMESPACE.into()),
                    ..ObjectMeta::default()
                },
                spec: None,
            };
            leases.create(&renewed(lease, object)).await
        }
        Err(error) => Err(error),
    }
}

/// The lease as of now, held by the Node and gone with it.
fn renewed(mut lease: Lease, node: &NodeObject) -> Lease {
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name().into(),
        uid: node.uid().into(),
        ..OwnerReference::default()
    }]);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(node.name().into()),
        lease_duration_seconds: Some(DURATION_SECONDS),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..lease.spec.unwrap_or_default()
    });
    lease
}
