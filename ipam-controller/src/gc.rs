//! Deletes pods whose node does not exist: no kubelet will ever report their end.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use podplane_api::{
    Object, ObjectKey,
    core::{Node, Pod},
};
use podplane_client::{Cache, CacheChange, Client, DeleteParams, answered};
use podplane_host::clock::{self, Instant};
use tokio_util::sync::CancellationToken;

use crate::orphans::Orphans;

/// Deletions in flight at once.
const WORKERS: usize = 30;

/// The pod garbage collector, with its dependencies.
#[derive(Debug)]
pub(crate) struct PodCollector {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) quarantine: Duration,
}

impl PodCollector {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let synced = async { tokio::join!(self.nodes.synced(), self.pods.synced()) };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        // Nodes are observed first, so that at the start only pods without a node are suspected.
        let mut nodes = self.nodes.subscribe();
        let mut orphans = Orphans::new(self.quarantine);
        while let Some(change) = nodes.try_next() {
            node_changed(&mut orphans, change);
        }
        let mut pods = self.pods.subscribe();
        loop {
            let due = sleep_until(orphans.next_due());
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            tokio::select! {
                () = stop.cancelled() => return,
                change = nodes.next() => node_changed(&mut orphans, change),
                change = pods.next() => pod_changed(&mut orphans, change),
                () = due => {}
            }
            for node in orphans.due(Instant::now()) {
                if stop
                    .run_until_cancelled(self.collect(&node, orphans.pods_of(&node)))
                    .await
                    .is_none()
                {
                    return;
                }
                orphans.asked(&node, Instant::now());
            }
        }
    }

    /// Deletes the pods if the server does not know the node. They were known before the server was
    /// asked, so a pod bound to a node created after that is not among them.
    async fn collect(&self, node: &str, pods: Vec<(ObjectKey, String)>) {
        match answered(self.client.all::<Node>().get(node)).await {
            Ok(_) => tracing::debug!(node, "node exists; keeping its pods"),
            Err(error) if error.is_not_found() => {
                tracing::info!(
                    node,
                    pods = pods.len(),
                    "deleting pods of a node that does not exist"
                );
                let calls = stream::iter(pods).map(|(key, uid)| self.delete(key, uid));
                calls.buffer_unordered(WORKERS).collect::<()>().await;
            }
            Err(error) => {
                tracing::warn!(node, %error, "failed to read node; keeping its pods for now")
            }
        }
    }

    async fn delete(&self, key: ObjectKey, uid: String) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            uid: Some(uid),
            ..DeleteParams::default()
        };
        match answered(
            self.client
                .namespaced::<Pod>(&key.namespace)
                .delete(&key.name, &params),
        )
        .await
        {
            Ok(_) => {}
            // The pod is gone, or is another one of that name: either way the orphan does not exist
            // any more.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::warn!(pod = %key, %error, "failed to delete orphaned pod; trying again")
            }
        }
    }
}

fn node_changed(orphans: &mut Orphans, change: CacheChange<Node>) {
    match change {
        CacheChange::Applied { old: _, new } => orphans.node_present(new.name()),
        CacheChange::Deleted(old) => orphans.node_gone(old.name(), Instant::now()),
    }
}

fn pod_changed(orphans: &mut Orphans, change: CacheChange<Pod>) {
    match change {
        CacheChange::Applied { old: _, new } => {
            if let Some(node) = node_of(&new) {
                orphans.pod_bound(new.key(), new.uid(), node, Instant::now());
            }
        }
        CacheChange::Deleted(old) => {
            if let Some(node) = node_of(&old) {
                orphans.pod_gone(&old.key(), node);
            }
        }
    }
}

/// The node that the pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|node| !node.is_empty())
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => clock::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
