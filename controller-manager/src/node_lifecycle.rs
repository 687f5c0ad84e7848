//! The node lifecycle controller: a node whose kubelet is not heard of is marked, and its pods are evicted.
//!
//! A kubelet is heard of when its Lease or the heartbeat of its Node changes; how long ago that was is counted here, from when it was seen, so neither the
//! clocks of nodes nor the time that the cluster was down make a node look dead. A Node that nobody ever reported for is not judged. Its block is not touched:
//! that stays the node's until the Node is deleted.

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
};
use podplane_client::{
    ApiError, Cache, Change, Client, DeleteParams, EventRecorder, WorkQueue, events::EventType,
};
use tokio::time::Instant;

use self::plan::{Plan, condition, plan};
use crate::{
    time,
    work::{Latch, unless_gone},
};

/// Where the leases of nodes are.
const LEASES: &str = "kube-node-lease";

/// Works on nodes by name.
#[derive(Debug)]
pub(crate) struct NodeLifecycle {
    client: Client,
    events: EventRecorder,
    evictions: EventRecorder,
    nodes: Cache<Node>,
    leases: Cache<Lease>,
    pods: Cache<Pod>,
    grace: Duration,
    period: Duration,
    heard: Mutex<BTreeMap<String, Heard>>,
    pub(crate) queue: WorkQueue<String>,
}

/// The last sign of life of a node's kubelet.
#[derive(Clone, Debug)]
struct Heard {
    sign: Sign,
    at: Instant,
}

/// What a kubelet writes again and again. A new one of the same name is another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sign {
    uid: String,
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

impl Sign {
    /// Nothing, if nobody ever reported for the node.
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

/// What is watched, and how patient the controller is.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) nodes: Cache<Node>,
    pub(crate) leases: Cache<Lease>,
    pub(crate) pods: Cache<Pod>,
    /// How long a kubelet may be silent.
    pub(crate) grace: Duration,
    /// How often a silent node is looked at.
    pub(crate) period: Duration,
}

impl NodeLifecycle {
    /// `events` speaks of nodes, `evictions` of pods.
    pub(crate) fn new(
        client: Client,
        events: EventRecorder,
        evictions: EventRecorder,
        watched: Watched,
    ) -> Self {
        let Watched {
            nodes,
            leases,
            pods,
            grace,
            period,
        } = watched;
        Self {
            client,
            events,
            evictions,
            nodes,
            leases,
            pods,
            grace,
            period,
            heard: Mutex::default(),
            queue: WorkQueue::default(),
        }
    }

    /// Takes changes in, for ever; `ready` is told when all that was there at first is known.
    pub(crate) async fn follow(&self, ready: &Latch) {
        let (mut nodes, mut leases) = (self.nodes.subscribe(), self.leases.subscribe());
        tokio::join!(
            self.nodes.synced(),
            self.leases.synced(),
            self.pods.synced()
        );
        ready.arrive();
        loop {
            // A change is taken only when it is returned, so losing a wait loses nothing.
            let name = tokio::select! {
                change = nodes.next() => name(&change),
                change = leases.next() => name(&change),
            };
            self.queue.add(name);
        }
    }

    /// Marks or unmarks a node, and evicts pods of one that is silent; returns when to look again though nothing changes.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            self.heard().remove(name);
            return Ok(None);
        };
        let lease = self.leases.get(&ObjectKey::new(LEASES, name));
        let Some(mut silent) = self.hear(&node, lease.as_deref()) else {
            return Ok(None);
        };
        if silent >= self.grace {
            // The cache may be behind, most of all when it was this process that stood still.
            let lease = self.client.namespaced::<Lease>(LEASES).get(name).await;
            let lease = match lease {
                Err(error) if !error.is_not_found() => return Err(error),
                lease => lease.ok(),
            };
            silent = self.hear(&node, lease.as_ref()).unwrap_or_default();
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
        let Plan {
            status,
            taints,
            evicted,
            again,
        } = plan(&node, own, is_silent, self.is_anybody_heard(), time::now());
        let nodes = self.client.all::<Node>();
        let mut next = (*node).clone();
        if let Some(status) = status {
            tracing::warn!(node = name, ?silent, "the node's kubelet is not heard of");
            next.status = Some(status);
            next = nodes.update_status(&next).await?;
            let message = format!("Node {name} status is now: NodeNotReady");
            self.events
                .record(&next, EventType::Normal, "NodeNotReady", "", message);
        }
        if let Some(taints) = taints {
            next.spec.get_or_insert_default().taints = taints;
            nodes.update(&next).await?;
        }
        for pod in evicted {
            let message = format!("Marking for deletion Pod {}", pod.key());
            self.evictions.record(
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
            let pods = self.client.namespaced::<Pod>(pod.namespace());
            unless_gone(pods.delete(pod.name(), &params).await)?;
        }
        let later = if is_silent {
            again.unwrap_or(self.period).min(self.period)
        } else {
            self.grace.saturating_sub(silent)
        };
        Ok(Some(later))
    }

    /// How long the node has been silent; nothing, if nobody ever reported for it.
    fn hear(&self, node: &Node, lease: Option<&Lease>) -> Option<Duration> {
        let sign = Sign::of(node, lease)?;
        let mut heard = self.heard();
        let at = Instant::now();
        let last = heard
            .entry(node.name().to_owned())
            .or_insert_with(|| Heard {
                sign: sign.clone(),
                at,
            });
        if last.sign != sign {
            *last = Heard { sign, at };
        }
        Some(at.duration_since(last.at))
    }

    /// If no node at all is heard of, it may be this process that is cut off: then nobody is evicted, as in Kubernetes.
    fn is_anybody_heard(&self) -> bool {
        self.heard()
            .values()
            .any(|heard| heard.at.elapsed() < self.grace)
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<String, Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name<K: podplane_api::Object>(change: &Change<K>) -> String {
    match change {
        Change::Applied { new: object, .. } | Change::Deleted(object) => object.name().to_owned(),
    }
}
