//! The node lifecycle controller: taints a node whose kubelet is silent, and evicts its pods.
//!
//! A heartbeat is a change of the kubelet's Lease or of its Node's heartbeat time. Its age is
//! counted from when this process saw it, so neither the clocks of nodes nor the time that the
//! cluster was down make a node look dead. A Node that no kubelet ever reported for is not judged.
//! The node's block is not touched: it stays the node's until the Node is deleted.

mod plan;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::Lease,
    core::{Node, Pod},
    meta::{MicroTime, Time},
    node::leaving,
};
use podplane_client::{
    ApiError, Cache, CacheChange, Client, DeleteParams, EventRecorder, WorkQueue, events::EventType,
};
use podplane_host::clock::Instant;

use self::plan::{LifecyclePlan, condition, plan};
use crate::{
    time,
    work::{Latch, unless_gone},
};

/// The namespace of node leases.
const LEASES: &str = "kube-node-lease";

/// The node lifecycle controller. It reconciles nodes by name, with the [`NodeWriter`] of a leader;
/// a standby notes heartbeats too, so that it need not wait for another grace period.
#[derive(Debug)]
pub(crate) struct NodeLifecycle {
    nodes: Cache<Node>,
    leases: Cache<Lease>,
    pods: Cache<Pod>,
    grace: Duration,
    period: Duration,
    heartbeats: Mutex<BTreeMap<String, LastHeartbeat>>,
    pub(crate) queue: WorkQueue<String>,
}

/// The means of the leader to write.
#[derive(Debug)]
pub(crate) struct NodeWriter {
    pub(crate) client: Client,
    /// Records about nodes.
    pub(crate) events: EventRecorder,
    /// Records about pods.
    pub(crate) evictions: EventRecorder,
}

/// The last heartbeat of a node's kubelet, and when it was seen.
#[derive(Clone, Debug)]
struct LastHeartbeat {
    sign: Heartbeat,
    at: Instant,
}

/// The fields that a kubelet renews at intervals, with the UID: a recreated Node is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Heartbeat {
    uid: String,
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

impl Heartbeat {
    /// Returns `None` if no kubelet ever reported for the node.
    fn of(node: &Node, lease: Option<&Lease>) -> Option<Self> {
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
        let heartbeat =
            condition(node, "Ready").and_then(|ready| ready.last_heartbeat_time.clone());
        (renewed.is_some() || heartbeat.is_some()).then(|| Self {
            uid: node.uid().to_owned(),
            renewed,
            heartbeat,
        })
    }
}

/// The caches that the controller reads, and its timing.
#[derive(Debug)]
pub(crate) struct LifecycleInputs {
    pub(crate) nodes: Cache<Node>,
    pub(crate) leases: Cache<Lease>,
    pub(crate) pods: Cache<Pod>,
    /// The longest silence of a kubelet before it counts as unreachable.
    pub(crate) grace: Duration,
    /// The interval at which a silent node is checked.
    pub(crate) period: Duration,
}

impl NodeLifecycle {
    /// A controller whose queue is closed.
    pub(crate) fn new(watched: LifecycleInputs) -> Self {
        let LifecycleInputs {
            nodes,
            leases,
            pods,
            grace,
            period,
        } = watched;
        Self {
            nodes,
            leases,
            pods,
            grace,
            period,
            heartbeats: Mutex::default(),
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all present nodes.
    pub(crate) fn open(&self) {
        self.queue.open();
        for node in self.nodes.list() {
            self.queue.add(node.name().to_owned());
        }
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(&self, ready: &Latch) {
        let (mut nodes, mut leases) = (self.nodes.subscribe(), self.leases.subscribe());
        tokio::join!(
            self.nodes.synced(),
            self.leases.synced(),
            self.pods.synced()
        );
        ready.arrive();
        loop {
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            let name = tokio::select! {
                change = nodes.next() => name(&change),
                change = leases.next() => name(&change),
            };
            self.note(&name);
            self.queue.add(name);
        }
    }

    /// Notes the present heartbeat of a node.
    fn note(&self, name: &str) {
        if let Some(node) = self.nodes.get(&ObjectKey::new("", name)) {
            let lease = self.leases.get(&ObjectKey::new(LEASES, name));
            self.silence(&node, lease.as_deref());
        } else {
            self.last_heartbeats().remove(name);
        }
    }

    /// Taints or untaints a node, and evicts pods of a silent one; returns the delay until the next
    /// reconciliation, if one is due without a change.
    pub(crate) async fn reconcile(
        &self,
        writer: &NodeWriter,
        name: &str,
    ) -> Result<Option<Duration>, ApiError> {
        let NodeWriter {
            client,
            events,
            evictions,
        } = writer;
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            self.last_heartbeats().remove(name);
            return Ok(None);
        };
        if leaving(&node).is_some() {
            return delete_left(client, &node).await.map(|()| None);
        }
        let lease = self.leases.get(&ObjectKey::new(LEASES, name));
        let Some(mut silent) = self.silence(&node, lease.as_deref()) else {
            return Ok(None);
        };
        if silent >= self.grace {
            // The cache may be behind, most of all if this process was suspended.
            let lease = client.namespaced::<Lease>(LEASES).get(name).await;
            let lease = match lease {
                Err(error) if !error.is_not_found() => return Err(error),
                lease => lease.ok(),
            };
            silent = self.silence(&node, lease.as_ref()).unwrap_or_default();
        }
        let is_silent = silent >= self.grace;
        let pods = if is_silent {
            self.pods.list()
        } else {
            Vec::new()
        };
        let own = pods.iter().filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name)
        });
        let LifecyclePlan {
            status,
            taints,
            evicted,
            again,
        } = plan(
            &node,
            own,
            is_silent,
            self.is_any_node_heard_of(),
            time::now(),
        );
        let nodes = client.all::<Node>();
        let mut next = (*node).clone();
        if let Some(status) = status {
            tracing::warn!(node = name, ?silent, "node's kubelet is silent");
            next.status = Some(status);
            next = nodes.update_status(&next).await?;
            let message = format!("Node {name} status is now: NodeNotReady");
            events.record(&next, EventType::Normal, "NodeNotReady", "", message);
        }
        if let Some(taints) = taints {
            next.spec.get_or_insert_default().taints = taints;
            nodes.update(&next).await?;
        }
        for pod in evicted {
            let message = format!("Marking for deletion Pod {}", pod.key());
            evictions.record(
                &*pod,
                EventType::Normal,
                "TaintManagerEviction",
                "",
                message,
            );
            let params = DeleteParams {
                uid: Some(pod.uid().to_owned()),
                ..DeleteParams::default()
            };
            let pods = client.namespaced::<Pod>(pod.namespace());
            unless_gone(pods.delete(pod.name(), &params).await)?;
        }
        let later = if is_silent {
            again.unwrap_or(self.period).min(self.period)
        } else {
            self.grace.saturating_sub(silent)
        };
        Ok(Some(later))
    }

    /// The time for which the node has been silent; `None` if no kubelet ever reported for it.
    fn silence(&self, node: &Node, lease: Option<&Lease>) -> Option<Duration> {
        let sign = Heartbeat::of(node, lease)?;
        let mut heartbeats = self.last_heartbeats();
        let at = Instant::now();
        let last = heartbeats
            .entry(node.name().to_owned())
            .or_insert_with(|| LastHeartbeat {
                sign: sign.clone(),
                at,
            });
        if last.sign != sign {
            *last = LastHeartbeat { sign, at };
        }
        Some(at.duration_since(last.at))
    }

    /// Returns whether any node was heard of recently. If none was, this process may be cut off:
    /// then no pod is evicted, as in Kubernetes.
    fn is_any_node_heard_of(&self) -> bool {
        self.last_heartbeats()
            .values()
            .any(|heartbeat| heartbeat.at.elapsed() < self.grace)
    }

    fn last_heartbeats(&self) -> MutexGuard<'_, BTreeMap<String, LastHeartbeat>> {
        self.heartbeats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Deletes a node that has left the cluster by its own word, unless it has come back since the
/// cache knows it: the kubelet of its next instance removes the annotation.
async fn delete_left(client: &Client, node: &Node) -> Result<(), ApiError> {
    let params = DeleteParams {
        uid: Some(node.uid().to_owned()),
        resource_version: Some(node.resource_version().to_owned()),
        ..DeleteParams::default()
    };
    unless_gone(client.all::<Node>().delete(node.name(), &params).await)?;
    tracing::info!(
        node = node.name(),
        uid = node.uid(),
        "deleted a node that left"
    );
    Ok(())
}

fn name<K: podplane_api::Object>(change: &CacheChange<K>) -> String {
    match change {
        CacheChange::Applied { new: object, .. } | CacheChange::Deleted(object) => {
            object.name().to_owned()
        }
    }
}
