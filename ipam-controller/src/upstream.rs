//! `--compat`: the reference's range allocator of one generation, with its faults, against our API
//! server.
//!
//! Decisions are in [`podplane_ipam::upstream`]; here are the informer's handlers, the channel or
//! the work queue, and the workers. Nothing of our own allocator is used.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use podplane_api::{Object as _, ObjectKey, core::Node, pod_ips};
use podplane_client::{
    Api, Cache, CacheChange, ChangeSource, Changes, EventRecorder, WorkQueue, answered,
    events::EventType,
    queue::{Backoff, RetryRate},
};
use podplane_host::clock;
use podplane_ipam::{
    Generation, Notice, RangeConfig,
    upstream::{
        AllocatorError, BeforePatch, CidrSet, Deletion, EventOutcome, FlagError, NextAction,
        NodeView, RangeAllocator, Reservation, SyncOutcome,
    },
};
use podplane_service_runtime::tasks::TaskError;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{IpamControllerConfig, allocators::AllocatorContext, metrics::AllocatorMetrics};

/// The time within which the reference must list nodes, or it gives up.
const LIST_DEADLINE: Duration = Duration::from_secs(600);

/// client-go's DefaultControllerRateLimiter.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(5),
    max: Duration::from_secs(1000),
    overall: Some(RetryRate {
        every: Duration::from_millis(100),
        burst: 100,
    }),
};

/// The reasons why the controller does not start. Texts are the reference's.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("failed to list all nodes in 10m0s, cannot proceed without updating CIDR map")]
    List,
}

/// The reference's controller, with its flags validated.
#[derive(Debug)]
pub(crate) struct UpstreamController {
    generation: Generation,
    config: RangeConfig,
}

impl UpstreamController {
    /// Validates the flags as the generation does.
    pub(crate) fn new(
        generation: Generation,
        config: &IpamControllerConfig,
    ) -> Result<Self, FlagError> {
        let config = generation.validate(&config.range_flags())?;
        Ok(Self { generation, config })
    }

    /// Surprises in the flags, which the reference does not report.
    pub(crate) fn notices(&self) -> &[Notice] {
        &self.config.notices
    }

    /// Runs until `stop`, or until the reference's process would end.
    pub(crate) async fn run(
        self,
        parts: AllocatorContext,
        stop: CancellationToken,
    ) -> Result<(), TaskError> {
        let AllocatorContext {
            client,
            nodes,
            events,
            metrics,
            ..
        } = parts;
        let listed = clock::timeout(LIST_DEADLINE, nodes.synced());
        match stop.run_until_cancelled(listed).await {
            None => return Ok(()),
            Some(Err(_)) => return Err(StartError::List.into()),
            Some(Ok(())) => {}
        }
        // Subscribes before the list, so that no deletion after it is missed: its blocks would stay
        // used.
        let changes = nodes.subscribe();
        let ranges = self.config.ranges.iter();
        let sets: Result<Vec<_>, _> = ranges
            .map(|range| CidrSet::new(range.cidr(), range.node_mask()))
            .collect();
        let views: Vec<_> = nodes.list().iter().map(|node| view(node)).collect();
        let services = &self.config.service_ranges;
        let allocator = RangeAllocator::new(self.generation, sets?, services, &views)?;
        tracing::info!(generation = ?self.generation, nodes = views.len(), "allocating as the reference");
        let shell = SyncedUpstream {
            generation: self.generation,
            allocator: Mutex::new(allocator),
            nodes,
            // The reference's leaders coordinate by their Lease alone, so writes are not fenced.
            api: client.unfenced().all(),
            events,
            metrics,
        };
        shell.decide(|_| ());
        stop.run_until_cancelled(shell.run(changes))
            .await
            .unwrap_or(Ok(()))
    }
}

/// The state that handlers and workers share.
#[derive(Debug)]
struct SyncedUpstream {
    generation: Generation,
    allocator: Mutex<RangeAllocator>,
    nodes: Cache<Node>,
    api: Api<Node>,
    events: EventRecorder,
    metrics: AllocatorMetrics,
}

impl SyncedUpstream {
    async fn run(&self, changes: Changes<Node>) -> Result<(), TaskError> {
        let workers = 0..RangeAllocator::WORKERS;
        let (send, receive) = mpsc::channel(RangeAllocator::CHANNEL);
        let receive = tokio::sync::Mutex::new(receive);
        let queue = WorkQueue::new(BACKOFF);
        let handlers = self.handle(changes, &send, &queue);
        let channel = join_all(workers.clone().map(|_| self.drain(&receive, &send)));
        let names = join_all(workers.map(|_| self.take(&queue)));
        // Of these, only the handlers end.
        tokio::select! {
            ended = handlers => ended,
            _ = channel => Ok(()),
            _ = names => Ok(()),
        }
    }

    /// Runs the informer's handlers, one event after the other. Every node of the first list comes
    /// again as an addition.
    async fn handle(
        &self,
        mut changes: Changes<Node>,
        channel: &mpsc::Sender<Reservation>,
        queue: &WorkQueue<String>,
    ) -> Result<(), TaskError> {
        loop {
            let (change, source) = changes.next_with_source().await;
            let (node, EventOutcome { then, error }) = self.decide(|allocator| match change {
                CacheChange::Applied { old: None, new } => {
                    let handled = allocator.added(&view(&new));
                    (new, handled)
                }
                CacheChange::Applied { old: Some(_), new } => {
                    let handled = allocator.updated(&view(&new));
                    (new, handled)
                }
                CacheChange::Deleted(old) => {
                    let deletion = match source {
                        ChangeSource::Watch => Deletion::Watched,
                        ChangeSource::List => Deletion::Tombstone,
                    };
                    let handled = allocator.deleted(&view(&old), deletion);
                    (old, handled)
                }
            });
            if let Some(error) = error {
                if error.is_fatal() {
                    return Err(error.into());
                }
                tracing::error!(node = node.name(), %error, "Error while processing Node Add/Delete");
                self.report(&node, &error);
            }
            match then {
                NextAction::Nothing => {}
                // Blocks while the channel is full, and with it every later event.
                NextAction::Send(reservation) => {
                    self.passed_over(&reservation);
                    channel.send(reservation).await?;
                }
                NextAction::Enqueue => queue.add(node.name().to_owned()),
            }
        }
    }

    /// A worker of the channel. A failed reservation is queued again unchanged, even if its node is
    /// gone: then for ever.
    async fn drain(
        &self,
        receive: &tokio::sync::Mutex<mpsc::Receiver<Reservation>>,
        channel: &mpsc::Sender<Reservation>,
    ) {
        loop {
            let next = receive.lock().await.recv().await;
            let Some(reservation) = next else { return };
            let written = self.write(&reservation).await;
            self.decide(|allocator| allocator.finished(&reservation.node));
            if !written && channel.send(reservation).await.is_err() {
                return;
            }
        }
    }

    /// A worker of the work queue.
    async fn take(&self, queue: &WorkQueue<String>) {
        loop {
            let name = queue.get().await;
            let synced = self.sync(&name).await;
            queue.done(&name);
            if synced {
                queue.forget(&name);
            } else {
                queue.add_rate_limited(name);
            }
        }
    }

    async fn sync(&self, name: &str) -> bool {
        let node = self.nodes.get(&ObjectKey::new("", name));
        let seen = node.as_deref().map(view);
        let work = self.decide(|allocator| allocator.sync(seen.as_ref()));
        match (work, node) {
            (Ok(SyncOutcome::Assign(reservation)), _) => {
                self.passed_over(&reservation);
                self.write(&reservation).await
            }
            (Ok(SyncOutcome::Done), _) => true,
            (Err(error), node) => {
                tracing::error!(%error, "error syncing '{name}', requeuing");
                if let Some(node) = node {
                    self.report(&node, &error);
                }
                false
            }
        }
    }

    /// Writes a reservation into its node, unless the node has other blocks by now.
    async fn write(&self, reservation: &Reservation) -> bool {
        let name = reservation.node.as_str();
        let node = self.nodes.get(&ObjectKey::new("", name));
        let seen = node.as_deref().map(view);
        let before = self.decide(|allocator| allocator.before_patch(reservation, seen.as_ref()));
        match (before, node) {
            (Ok(BeforePatch::Done), _) => true,
            (Ok(BeforePatch::Patch), Some(node)) => self.patch(reservation, &node).await,
            (before, _) => {
                // Logged at debug level only: the first generation loops here for ever, without a
                // pause.
                tracing::debug!(
                    node = name,
                    ?before,
                    "Failed while getting node for updating Node.Spec.PodCIDRs"
                );
                // Without this, a loop that never waits would starve all other tasks.
                tokio::task::yield_now().await;
                false
            }
        }
    }

    async fn patch(&self, reservation: &Reservation, node: &Node) -> bool {
        let name = reservation.node.as_str();
        let cidrs: Vec<_> = reservation.cidrs.iter().map(ToString::to_string).collect();
        for _ in 0..RangeAllocator::PATCH_TRIES {
            // Addressed by name alone and at any revision, like the reference's patch.
            let written = self.api.assign_pod_cidrs(name, "", "", &cidrs);
            match answered(written).await {
                Ok(_) => {
                    tracing::info!(node = name, pod_cidrs = %reservation, "Set node PodCIDR");
                    return true;
                }
                Err(error) => {
                    tracing::warn!(node = name, pod_cidrs = %reservation, %error, "failed to patch node CIDR");
                }
            }
        }
        tracing::error!(node = name, pod_cidrs = %reservation, "CIDR assignment for node failed. Releasing allocated CIDR");
        self.event(node, RangeAllocator::PATCH_FAILED);
        self.decide(|allocator| allocator.patch_failed(reservation));
        false
    }

    fn report(&self, node: &Node, error: &AllocatorError) {
        if let Some(reason) = error.event() {
            self.event(node, reason);
        }
    }

    fn event(&self, node: &Node, reason: &'static str) {
        let kind = match self.generation {
            Generation::G1 | Generation::Gcp => EventType::Normal,
            Generation::G2 | Generation::G3 => EventType::Warning,
        };
        let message = format!("Node {} status is now: {reason}", node.name());
        self.events.record(node, kind, reason, "", message);
    }

    /// Makes a decision and counts its changes.
    fn decide<T>(&self, decision: impl FnOnce(&mut RangeAllocator) -> T) -> T {
        let mut allocator = self.allocator();
        let decided = decision(&mut allocator);
        self.metrics.bits(allocator.sets());
        decided
    }

    fn passed_over(&self, reservation: &Reservation) {
        let allocator = self.allocator();
        self.metrics.passed_over(allocator.sets(), reservation);
    }

    /// Locks the allocator; the guard is never held across an await.
    fn allocator(&self) -> MutexGuard<'_, RangeAllocator> {
        self.allocator
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn view(node: &Node) -> NodeView {
    let pod_cidrs = pod_ips::pod_cidrs(node).to_vec();
    NodeView {
        name: node.name().to_owned(),
        pod_cidr: pod_cidrs.first().cloned().unwrap_or_default(),
        pod_cidrs,
        deleting: node.is_deleting(),
    }
}
