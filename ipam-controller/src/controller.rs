//! The range allocator's loop: observe nodes and pods, plan, assign, report.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError};

use futures::{FutureExt as _, StreamExt as _, stream};
use podplane_api::{
    Object, ObjectKey,
    core::{Node, Pod},
    meta::ObjectMeta,
    pod_ips,
};
use podplane_client::{Api, ApiError, Change, Reason, WorkQueue, answered, events::EventType};
use podplane_ipam::{NodeBlocks, RangeConfig};
use podplane_proto::error::FieldViolation;
use tokio_util::sync::CancellationToken;

use crate::allocators::Parts;
use crate::gc::node_of;
use crate::plan::{Allocator, Assignment, NodeView, Plan, PodView, Remains};

/// Assignments under way at once; the reference has 30 workers.
const WORKERS: usize = 30;

/// What the controller knows about blocks, for others to read; empty until the first lists are taken in.
#[derive(Debug, Default)]
pub(crate) struct Known(OnceLock<Mutex<Allocator>>);

impl Known {
    /// The answer to a question, if there is one yet.
    pub(crate) fn read<T>(&self, question: impl FnOnce(&NodeBlocks) -> T) -> Option<T> {
        let allocator = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(question(allocator.blocks()))
    }

    /// Held only for a decision, never while waiting.
    fn decide<T>(&self, decision: impl FnOnce(&mut Allocator) -> T) -> Option<T> {
        let mut allocator = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(decision(&mut allocator))
    }
}

enum Trigger {
    Node(Change<Node>),
    Pod(Change<Pod>),
    Retry(String),
}

/// What the loop works with.
#[derive(Debug)]
pub(crate) struct RangeController {
    pub(crate) config: RangeConfig,
    pub(crate) parts: Parts,
}

impl RangeController {
    /// Runs until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // Before all nodes and pods are known, any block may be in use.
        let synced = async { tokio::join!(self.parts.nodes.synced(), self.parts.pods.synced()) };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let (mut nodes, mut pods) = (self.parts.nodes.subscribe(), self.parts.pods.subscribe());
        let mut allocator = Allocator::new(&self.config);
        let first = allocator.plan(
            batch(None, || nodes.try_next(), observed),
            batch(None, || pods.try_next(), observed_pod),
        );
        if self.parts.known.0.set(Mutex::new(allocator)).is_err() {
            tracing::error!("blocks were known before the first list");
            return;
        }
        let retries = WorkQueue::default();
        let mut plan = Some(first);
        while let Some(next) = plan {
            // Calls cut off by the end are in doubt; the next process begins with a list of what they did.
            if stop
                .run_until_cancelled(self.carry_out(next, &retries))
                .await
                .is_none()
            {
                return;
            }
            // A change or a name is taken only when it is returned, so losing a wait loses nothing.
            let trigger = tokio::select! {
                () = stop.cancelled() => return,
                change = nodes.next() => Trigger::Node(change),
                change = pods.next() => Trigger::Pod(change),
                node = retries.get() => Trigger::Retry(node),
            };
            plan = match trigger {
                Trigger::Node(change) => {
                    let nodes = batch(Some(change), || nodes.try_next(), observed);
                    // What is known of pods counts before a block is free.
                    let pods = batch(None, || pods.try_next(), observed_pod);
                    self.parts
                        .known
                        .decide(|allocator| allocator.plan(nodes, pods))
                }
                Trigger::Pod(change) => {
                    let pods = batch(Some(change), || pods.try_next(), observed_pod);
                    self.parts
                        .known
                        .decide(|allocator| allocator.plan(BTreeMap::new(), pods))
                }
                Trigger::Retry(node) => stop
                    .run_until_cancelled(self.plan_again(node, &retries))
                    .await
                    .flatten(),
            };
        }
    }

    /// Reads `node`, and every other that is due for it, from the server, and plans from that.
    async fn plan_again(&self, node: String, retries: &WorkQueue<String>) -> Option<Plan> {
        let more = std::iter::from_fn(|| retries.get().now_or_never());
        let due: Vec<String> = std::iter::once(node).chain(more).collect();
        let reads = stream::iter(due).map(|node| async {
            let read = answered(self.api().get(&node)).await;
            retries.done(&node);
            match read {
                Ok(found) => Some((node, view(&found))),
                // The watch will tell that it is gone, and what is in its place.
                Err(error) if error.is_not_found() => {
                    retries.forget(&node);
                    None
                }
                Err(error) => {
                    tracing::debug!(node, %error, "node not read; trying again");
                    retries.add_rate_limited(node);
                    None
                }
            }
        });
        let live: BTreeMap<String, NodeView> = reads
            .buffer_unordered(WORKERS)
            .filter_map(std::future::ready)
            .collect()
            .await;
        self.parts.known.decide(|allocator| allocator.retry(live))
    }

    async fn carry_out(&self, plan: Plan, retries: &WorkQueue<String>) {
        self.report(&plan);
        plan.draining
            .iter()
            .chain(&plan.released)
            .for_each(|remains| retries.forget(&remains.node));
        let calls = stream::iter(plan.assign).map(|assignment| self.assign(assignment, retries));
        calls.buffer_unordered(WORKERS).collect::<()>().await;
    }

    async fn assign(&self, assignment: Assignment, retries: &WorkQueue<String>) {
        let Assignment {
            node,
            uid,
            resource_version,
            pod_cidrs,
        } = &assignment;
        let cidrs: Vec<String> = pod_cidrs.iter().map(ToString::to_string).collect();
        match answered(
            self.api()
                .assign_pod_cidrs(node, uid, resource_version, &cidrs),
        )
        .await
        {
            Ok(_) => {
                tracing::info!(
                    node,
                    uid,
                    pod_cidrs = cidrs.join(","),
                    "assigned node block"
                );
                self.parts
                    .known
                    .decide(|allocator| allocator.confirm(&assignment));
                retries.forget(node);
            }
            // Its blocks are free again when the watch tells the same.
            Err(error) if error.is_not_found() => {
                tracing::debug!(node, uid, "node gone before it had a block")
            }
            Err(error) if refuses_blocks(&error) => {
                tracing::warn!(node, uid, pod_cidrs = cidrs.join(","), %error, "node block refused; trying another");
                self.parts
                    .known
                    .decide(|allocator| allocator.refused(&assignment));
                retries.add_rate_limited(node.clone());
            }
            Err(error) => {
                // A node changes often in its first moments, so a conflict is nothing unusual.
                if error.is_conflict() {
                    tracing::debug!(node, uid, %error, "node changed; trying again");
                } else {
                    tracing::warn!(node, uid, %error, "node block not assigned; trying again");
                }
                retries.add_rate_limited(node.clone());
            }
        }
    }

    fn report(&self, plan: &Plan) {
        let told = |remains: &Remains, what: &str| {
            let cidrs: Vec<String> = remains.pod_cidrs.iter().map(ToString::to_string).collect();
            tracing::info!(
                node = remains.node,
                uid = remains.uid,
                pod_cidrs = cidrs.join(","),
                "{what}"
            );
        };
        for remains in &plan.draining {
            told(remains, "node block in use by pods of a node that is gone");
        }
        for remains in &plan.released {
            told(remains, "released node block");
        }
        for starved in &plan.starved {
            tracing::warn!(node = starved.node, uid = starved.uid, error = %starved.error, "no block for node");
            // The reference's words.
            let message = format!("Node {} status is now: CIDRNotAvailable", starved.node);
            self.event(&starved.node, &starved.uid, "CIDRNotAvailable", message);
        }
        for foreign in &plan.foreign {
            tracing::warn!(node = foreign.node, uid = foreign.uid, problem = %foreign.problem, "node block kept as foreign");
            let message = format!(
                "{}; the block is kept, and nothing else is given there",
                foreign.problem
            );
            self.event(&foreign.node, &foreign.uid, "ForeignPodCIDR", message);
        }
    }

    fn api(&self) -> Api<Node> {
        self.parts.client.all()
    }

    fn event(&self, node: &str, uid: &str, reason: &'static str, message: String) {
        let metadata = ObjectMeta {
            name: Some(node.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let about = Node {
            metadata,
            ..Node::default()
        };
        self.parts
            .events
            .record(&about, EventType::Warning, reason, "", message);
    }
}

/// Whether it is the blocks that the server does not take, and not something else of the node.
fn refuses_blocks(error: &ApiError) -> bool {
    let of_blocks = |violation: &FieldViolation| violation.field.starts_with("spec.podCIDRs");
    error.reason == Reason::Invalid && error.fields.iter().any(of_blocks)
}

/// What has changed by now, the last word on each object.
fn batch<K: Object, Key: Ord, View>(
    first: Option<Change<K>>,
    next: impl FnMut() -> Option<Change<K>>,
    observed: impl FnMut(Change<K>) -> (Key, View),
) -> BTreeMap<Key, View> {
    first
        .into_iter()
        .chain(std::iter::from_fn(next))
        .map(observed)
        .collect()
}

fn observed_pod(change: Change<Pod>) -> (ObjectKey, Option<PodView>) {
    match change {
        Change::Applied { old: _, new } => (new.key(), live(&new)),
        Change::Deleted(old) => (old.key(), None),
    }
}

/// The pod as a user of addresses, if it is one: bound, not finished, and not on the network of its host.
fn live(pod: &Pod) -> Option<PodView> {
    let node = node_of(pod)?;
    if pod_ips::is_host_network(pod) || pod_ips::is_terminal(pod) {
        return None;
    }
    let status = pod.status.as_ref();
    let listed = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()));
    let single = status.and_then(|status| status.pod_ip.as_deref());
    let addresses: BTreeSet<IpAddr> = listed
        .chain(single)
        .filter_map(|ip| ip.parse().ok())
        .collect();
    Some(PodView {
        node: node.to_owned(),
        addresses: addresses.into_iter().collect(),
    })
}

fn observed(change: Change<Node>) -> (String, Option<NodeView>) {
    match change {
        Change::Applied { old: _, new } => (new.name().to_owned(), Some(view(&new))),
        Change::Deleted(old) => (old.name().to_owned(), None),
    }
}

fn view(node: &Node) -> NodeView {
    let spec = node.spec.as_ref();
    // The list is the truth; an object that has only the older field has one block.
    let listed = spec
        .and_then(|spec| spec.pod_cidrs.clone())
        .filter(|cidrs| !cidrs.is_empty());
    let single = || {
        spec.and_then(|spec| spec.pod_cidr.clone())
            .filter(|cidr| !cidr.is_empty())
    };
    NodeView {
        uid: node.uid().to_owned(),
        resource_version: node.resource_version().to_owned(),
        pod_cidrs: listed
            .or_else(|| single().map(|cidr| vec![cidr]))
            .unwrap_or_default(),
        deleting: node.is_deleting(),
    }
}
