//! The range allocator's shell: it observes nodes and pods, queues the nodes that need work, and
//! workers make the calls.
//!
//! All decisions are made by [`Allocator`], under a lock that is never held across an await. Only
//! one worker at a time has a node's name, so a slow or lost answer delays its own node and no
//! other.

mod calls;
mod report;
mod sets;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use futures::future::{join_all, try_join_all};
use podplane_api::{
    Object, ObjectKey,
    core::{Node, Pod},
    jiff::Timestamp,
    pod_ips,
};
use podplane_client::{
    ApiError, CacheChange, NodeBlocks, WorkQueue, answered, leader::LeadershipLost,
};
use podplane_host::clock::{self, Instant};
use podplane_ipam::RangeConfig;
use podplane_proto::ipam as wire;
use podplane_service_runtime::tasks::TaskError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    allocators::AllocatorContext,
    gc::node_of,
    plan::{Allocator, BlockRecord, NodeView, PlanOutcome, PodView, RecordStatus, ReleasePhase},
};

/// Nodes reconciled at once; the reference has 30 workers.
const WORKERS: usize = 30;
/// The interval at which block records are read, even if nothing happens.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The interval at which they are read while a node waits for a block that is held for a deleted
/// node's sandboxes: the end of a hold is reported to the server, not to this controller.
const HELD_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The interval at which waiting nodes are reported again: events expire after a while, and their
/// count shows for how long a node has waited.
const REMIND_INTERVAL: Duration = Duration::from_secs(600);
/// The time between two tries to read the block records at the start.
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// Refused calls within this time share one read of the records.
const COALESCE_DELAY: Duration = Duration::from_millis(50);

/// The allocator's state, shared with readers such as the gRPC service; empty until the first lists
/// have been observed.
#[derive(Debug, Default)]
pub(crate) struct AllocatorHandle(OnceLock<Mutex<Allocator>>);

impl AllocatorHandle {
    /// Runs `question` on the allocator, if there is one yet.
    pub(crate) fn read<T>(&self, question: impl FnOnce(&Allocator) -> T) -> Option<T> {
        let allocator = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(question(&allocator))
    }

    /// The handle of an allocator that has observed its first lists.
    #[cfg(test)]
    pub(crate) fn of(allocator: Allocator) -> Self {
        Self(OnceLock::from(Mutex::new(allocator)))
    }
}

/// The allocator's options, beside its ranges.
#[derive(Clone, Debug)]
pub(crate) struct ControllerOptions {
    pub(crate) release_delay: Duration,
    /// Nodes that one call gives blocks to, at most.
    pub(crate) batch: usize,
    /// Makes calls and reports events. If false, blocks are only recorded, for others to ask about.
    pub(crate) writes: bool,
}

impl ControllerOptions {
    /// The options for an allocator that only observes, beside an imitated one.
    pub(crate) fn observing() -> Self {
        Self {
            release_delay: Duration::ZERO,
            batch: 1,
            writes: false,
        }
    }
}

/// The range allocator with its dependencies, before the first lists are known.
#[derive(Debug)]
pub(crate) struct RangeController {
    pub(crate) config: RangeConfig,
    pub(crate) ranges: RangeSource,
    pub(crate) options: ControllerOptions,
    pub(crate) parts: AllocatorContext,
}

/// The source of the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeSource {
    /// The flags.
    Flags,
    /// ClusterCIDR objects; the ranges of the flags become one.
    Objects,
}

/// The running controller, once the first lists are known.
#[derive(Debug)]
struct SyncedController {
    options: ControllerOptions,
    parts: AllocatorContext,
    queue: std::sync::Arc<WorkQueue<String>>,
    /// The names of ClusterCIDRs to reconcile.
    sets: WorkQueue<String>,
    /// Signals that the records should be read.
    stale: Notify,
}

impl RangeController {
    /// A controller that assigns nothing and records the blocks that nodes have.
    pub(crate) fn knowing(options: ControllerOptions, parts: AllocatorContext) -> Self {
        Self {
            config: RangeConfig::none(),
            ranges: RangeSource::Flags,
            options,
            parts,
        }
    }

    /// Runs until `stop`.
    ///
    /// # Errors
    ///
    /// Another controller leads.
    pub(crate) async fn run(self, stop: CancellationToken) -> Result<(), TaskError> {
        // Calls cut off here are in doubt; the next process begins with lists that show what they
        // did.
        match stop.run_until_cancelled(Box::pin(self.work())).await {
            None => Ok(()),
            Some(Err(lost)) => Err(lost.into()),
            Some(Ok(never)) => match never {},
        }
    }

    /// Leads until the leadership is lost, in these phases, each of which needs the one before:
    ///
    /// 1. waits for the first lists of nodes and pods, before which any block may be in use;
    /// 2. with ClusterCIDRs, creates the default one and observes all of them;
    /// 3. observes the listed nodes, pods and block records, and publishes the allocator;
    /// 4. serves, in tasks beside each other: observes changes, works off the queue, polls the
    ///    records, and maintains the ClusterCIDRs. The first error of a worker ends it.
    async fn work(self) -> Result<Infallible, LeadershipLost> {
        let Self {
            config,
            ranges,
            options,
            parts,
        } = self;
        tokio::join!(parts.nodes.synced(), parts.pods.synced());
        let (mut nodes, mut pods) = (parts.nodes.subscribe(), parts.pods.subscribe());
        let mut sets = parts.cluster_cidrs.subscribe();
        let shell = SyncedController {
            options,
            queue: parts.metrics.queue(),
            sets: WorkQueue::default(),
            parts,
            stale: Notify::new(),
        };
        let release_delay = shell.options.release_delay;
        let mut allocator = match ranges {
            RangeSource::Flags => Allocator::new(&config, release_delay),
            RangeSource::Objects => {
                Allocator::for_cluster_cidrs(&config.service_ranges, release_delay)
            }
        };
        let mut first_sets = BTreeMap::new();
        if ranges == RangeSource::Objects {
            let made = shell.make_default(&config).await?;
            // A node's blocks can be attributed only to sets that are known.
            shell.parts.cluster_cidrs.synced().await;
            first_sets = batch(None, || sets.try_next(), sets::observed);
            // The watch may not have delivered it yet.
            let made = made.map(|made| (made.name().to_owned(), Some(sets::view(&made))));
            first_sets.extend(made);
        }
        let made = allocator.observe_sets(first_sets);
        let records = shell.records_with_retry().await;
        let mut first = allocator.observe(
            batch(None, || nodes.try_next(), observed),
            batch(None, || pods.try_next(), observed_pod),
        );
        first.attribute(&records);
        let taken = allocator.apply_records(records);
        // A process that leads again starts over, with what it has listed now.
        match shell.parts.known.0.get() {
            None => drop(shell.parts.known.0.set(Mutex::new(allocator))),
            Some(known) => *known.lock().unwrap_or_else(PoisonError::into_inner) = allocator,
        }
        // Blocks of the first lists are counted, as the reference does.
        shell.decide(|_| ());
        shell.sample();
        shell.report(made);
        shell.report(first);
        shell.report(taken);
        let observing = async {
            loop {
                // A change is consumed only when it is returned, so cancelling a wait loses
                // nothing.
                let (node, pod) = tokio::select! {
                    change = nodes.next() => (Some(change), None),
                    change = pods.next() => (None, Some(change)),
                    change = sets.next() => {
                        let sets = batch(Some(change), || sets.try_next(), sets::observed);
                        shell.learn(|allocator| allocator.observe_sets(sets));
                        continue;
                    }
                };
                let nodes = batch(node, || nodes.try_next(), observed);
                // Pods are observed before a block can become free.
                let pods = batch(pod, || pods.try_next(), observed_pod);
                shell.learn(|allocator| allocator.observe(nodes, pods));
                // At the start, changes arrive faster than they are observed; yield, so that
                // workers run too.
                tokio::task::yield_now().await;
            }
        };
        let working = try_join_all((0..WORKERS).map(|_| shell.serve()));
        tokio::select! {
            never = observing => never,
            never = shell.poll_records() => never,
            never = shell.keep_sets() => never,
            ended = working => match ended {
                Ok(_) => std::future::pending().await,
                Err(lost) => Err(lost),
            },
        }
    }
}

impl SyncedController {
    /// Runs a decision under the lock, which is never held across an await.
    fn decide<T>(&self, decision: impl FnOnce(&mut Allocator) -> T) -> T {
        let known = self.parts.known.0.get();
        let known = known.expect("the allocator is set before the shell runs");
        let mut allocator = known.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.metrics.count(&mut allocator, decision)
    }

    /// Samples for `/metrics`, after the records were read.
    fn sample(&self) {
        self.parts
            .known
            .read(|allocator| self.parts.metrics.sample(allocator));
    }

    /// Observes something, reports the outcome and queues the nodes that it concerns.
    fn learn(&self, decision: impl FnOnce(&mut Allocator) -> PlanOutcome) {
        let outcome = self.decide(decision);
        self.report(outcome);
    }

    async fn records(&self) -> Result<Vec<BlockRecord>, ApiError> {
        let blocks = self.parts.client.blocks();
        if self.options.writes && !blocks.are_atomic() {
            let nodes = self.parts.nodes.list();
            let held = nodes.iter().map(|node| NodeBlocks {
                node_name: node.name().to_owned(),
                node_uid: node.uid().to_owned(),
                pod_cidrs: pod_ips::pod_cidrs(node).to_vec(),
            });
            blocks.adopt(&held.collect::<Vec<_>>()).await?;
        }
        let listed = answered(blocks.list()).await?;
        Ok(listed.blocks.iter().filter_map(record).collect())
    }

    async fn records_with_retry(&self) -> Vec<BlockRecord> {
        loop {
            match self.records().await {
                Ok(records) => return records,
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?RELIST_INTERVAL, "failed to list node blocks; trying again");
                }
            }
            clock::sleep(RELIST_INTERVAL).await;
        }
    }

    /// Reads the records at intervals, and soon after a refused call.
    async fn poll_records(&self) -> Result<Infallible, LeadershipLost> {
        let mut reminded = Instant::now();
        loop {
            let wait = match self.decide(|allocator| allocator.is_starved_by_holds()) {
                true => HELD_POLL_INTERVAL,
                false => POLL_INTERVAL,
            };
            // Cancelling either wait loses nothing: the records are read after both.
            tokio::select! {
                () = clock::sleep(wait) => {}
                () = self.stale.notified() => clock::sleep(COALESCE_DELAY).await,
            }
            match self.records().await {
                Ok(records) => self.learn(|allocator| allocator.apply_records(records)),
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?wait, "failed to list node blocks; trying again");
                }
            }
            self.sample();
            if reminded.elapsed() >= REMIND_INTERVAL {
                reminded = Instant::now();
                self.remind();
            }
        }
    }

    /// Runs one worker.
    async fn serve(&self) -> Result<Infallible, LeadershipLost> {
        loop {
            let name = self.queue.get().await;
            let mut names = vec![name];
            if self.options.batch > 1 && self.queue.failures(&names[0]) == 0 {
                names.extend(self.queue.take_fresh(self.options.batch - 1));
            }
            let ended = self.reconcile(&names).await;
            names.iter().for_each(|name| self.queue.done(name));
            ended?;
        }
    }

    async fn reconcile(&self, names: &[String]) -> Result<(), LeadershipLost> {
        if let [name] = names
            && self.queue.failures(name) > 0
            && !self.reread(name).await
        {
            return Ok(());
        }
        let now = clock::timestamp();
        let mut assignments = Vec::new();
        let mut updates = Vec::new();
        let mut conditions = Vec::new();
        for name in names {
            let (work, outcome) = self.decide(|allocator| allocator.work(name, now));
            self.report(outcome);
            if let Some(starved) = &work.starved {
                self.starved(starved);
            }
            if let Some(again) = work.again {
                let wait = Duration::try_from(again.duration_since(now)).unwrap_or_default();
                self.queue.add_after(name.clone(), wait);
            }
            if work.assign.is_none() && work.updates.is_empty() && work.condition.is_none() {
                self.queue.forget(name);
            }
            assignments.extend(work.assign);
            updates.extend(work.updates);
            conditions.extend(work.condition.map(|condition| (name.clone(), condition)));
        }
        self.assign(assignments).await?;
        self.update(updates).await?;
        let conditions = conditions
            .into_iter()
            .map(|(name, (uid, verdict))| self.set_condition(name, uid, verdict));
        join_all(conditions).await.into_iter().collect()
    }

    /// Reads a node whose last call failed. Returns whether it can be reconciled.
    async fn reread(&self, name: &str) -> bool {
        match answered(self.parts.client.all::<Node>().get(name)).await {
            Ok(found) => {
                let taken = self.decide(|allocator| allocator.reread(name, view(&found)));
                match taken {
                    Some(outcome) => {
                        self.report(outcome);
                        return true;
                    }
                    // The watch will report that this is another node.
                    None => {
                        tracing::debug!(node = name, "node was recreated; waiting for the watch")
                    }
                }
            }
            // The watch will report the deletion. The blocks that it left may be what needs work.
            Err(error) if error.is_not_found() => return true,
            Err(error) => tracing::debug!(node = name, %error, "failed to read node; trying again"),
        }
        self.queue.add_rate_limited(name.to_owned());
        false
    }
}

/// Collects the changes available now, the last one of each object.
fn batch<K: Object, Key: Ord, View>(
    first: Option<CacheChange<K>>,
    next: impl FnMut() -> Option<CacheChange<K>>,
    observed: impl FnMut(CacheChange<K>) -> (Key, View),
) -> BTreeMap<Key, View> {
    first
        .into_iter()
        .chain(std::iter::from_fn(next))
        .map(observed)
        .collect()
}

fn observed_pod(change: CacheChange<Pod>) -> (ObjectKey, Option<PodView>) {
    match change {
        CacheChange::Applied { old: _, new } => (new.key(), live(&new)),
        CacheChange::Deleted(old) => (old.key(), None),
    }
}

/// The pod as a user of addresses, unless it is finished, unbound or on its host's network.
fn live(pod: &Pod) -> Option<PodView> {
    let node = node_of(pod).filter(|_| pod_ips::holds_address(pod))?;
    let status = pod.status.as_ref();
    let listed = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()));
    let single = status.and_then(|status| status.pod_ip.as_deref());
    let addresses: std::collections::BTreeSet<std::net::IpAddr> = listed
        .chain(single)
        .filter_map(|ip| ip.parse().ok())
        .collect();
    Some(PodView {
        node: node.to_owned(),
        addresses: addresses.into_iter().collect(),
    })
}

fn observed(change: CacheChange<Node>) -> (String, Option<NodeView>) {
    match change {
        CacheChange::Applied { old: _, new } => (new.name().to_owned(), Some(view(&new))),
        CacheChange::Deleted(old) => (old.name().to_owned(), None),
    }
}

fn view(node: &Node) -> NodeView {
    NodeView {
        uid: node.uid().to_owned(),
        resource_version: node.resource_version().to_owned(),
        pod_cidrs: pod_ips::pod_cidrs(node).to_vec(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        deleting: node.is_deleting(),
        condition: crate::condition::of(node),
    }
}

/// The record of a node's block, as stored; `None` for a service range.
fn record(block: &wire::Block) -> Option<BlockRecord> {
    let until = || block.until.parse::<Timestamp>().ok();
    let status = match block.state() {
        wire::BlockState::Assigned => RecordStatus::Assigned,
        wire::BlockState::Foreign => RecordStatus::Foreign,
        wire::BlockState::Draining => RecordStatus::Deleted(match block.hold {
            Some(_) => ReleasePhase::Held(until()),
            None => ReleasePhase::Draining,
        }),
        wire::BlockState::Quarantined => {
            RecordStatus::Deleted(ReleasePhase::Quarantined(until().unwrap_or(Timestamp::MIN)))
        }
        wire::BlockState::Reserved | wire::BlockState::Unspecified => return None,
    };
    Some(BlockRecord {
        net: podplane_ipam::parse_cidr(&block.cidr).ok()?,
        node: block.node_name.clone(),
        uid: block.node_uid.clone(),
        status,
    })
}
