//! The range allocator's shell: changes of nodes and pods are taken in and name nodes to look at; workers look at them and make the calls.
//!
//! What is decided is decided by [`Allocator`], under a lock that is never held while something is waited for. A node's name is with one worker at a time, so a slow
//! or lost answer holds back its own node and no other.

mod calls;
mod report;
mod sets;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use podplane_api::{
    Object, ObjectKey,
    core::{Node, Pod},
    jiff::Timestamp,
    pod_ips,
};
use podplane_client::{ApiError, Change, WorkQueue, answered};
use podplane_ipam::RangeConfig;
use podplane_proto::ipam as wire;
use podplane_telemetry::tasks::TaskError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::allocators::Parts;
use crate::gc::node_of;
use crate::plan::{Allocator, NodeView, Outcome, Phase, PodView, Record, Standing};

/// Nodes that are served at once; the reference has 30 workers.
const WORKERS: usize = 30;
/// How often the records are read, whatever happens.
const LOOK: Duration = Duration::from_secs(30);
/// How often they are read while a node waits for a block that an instance of a gone one holds: who
/// ends that tells the server.
const PRESSED_LOOK: Duration = Duration::from_secs(2);
/// How often it is told that a node waits: events are forgotten after a while, and their count says for how long.
const REMIND: Duration = Duration::from_secs(600);
/// Refused calls that come together share one reading.
const GATHER: Duration = Duration::from_millis(50);

/// What the controller knows about blocks, for others to read; empty until the first lists are taken in.
#[derive(Debug, Default)]
pub(crate) struct Known(OnceLock<Mutex<Allocator>>);

impl Known {
    /// The answer to a question, if there is one yet.
    pub(crate) fn read<T>(&self, question: impl FnOnce(&Allocator) -> T) -> Option<T> {
        let allocator = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(question(&allocator))
    }
}

/// How the allocator works, beside its ranges.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) release_delay: Duration,
    /// Nodes that one call gives blocks to, at most.
    pub(crate) batch: usize,
    /// Whether anything is written and told, or only known for others to ask.
    pub(crate) writes: bool,
}

impl Options {
    /// Beside an allocator whose faults are to be seen, and nothing else.
    pub(crate) fn observing() -> Self {
        Self {
            release_delay: Duration::ZERO,
            batch: 1,
            writes: false,
        }
    }
}

/// Who leads now is somebody else: nothing may be written any more.
#[derive(Debug, thiserror::Error)]
#[error("another controller leads")]
struct Lost(#[source] ApiError);

/// What the shell works with.
#[derive(Debug)]
pub(crate) struct RangeController {
    pub(crate) config: RangeConfig,
    pub(crate) ranges: Ranges,
    pub(crate) options: Options,
    pub(crate) parts: Parts,
}

/// Where ranges are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// The flags.
    Flags,
    /// ClusterCIDR objects; what the flags name becomes one.
    Objects,
}

/// The shell, once all that must be known is known.
#[derive(Debug)]
struct Shell {
    options: Options,
    parts: Parts,
    queue: std::sync::Arc<WorkQueue<String>>,
    /// Names of ClusterCIDRs to look at.
    sets: WorkQueue<String>,
    /// The records should be read.
    stale: Notify,
}

impl RangeController {
    /// Gives nothing, and knows which node has what.
    pub(crate) fn knowing(options: Options, parts: Parts) -> Self {
        Self {
            config: RangeConfig::none(),
            ranges: Ranges::Flags,
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
        // Calls cut off by the end are in doubt; the next process begins with lists of what they did.
        match stop.run_until_cancelled(Box::pin(self.work())).await {
            None => Ok(()),
            Some(Err(lost)) => Err(lost.into()),
            Some(Ok(never)) => match never {},
        }
    }

    async fn work(self) -> Result<Infallible, Lost> {
        let Self {
            config,
            ranges,
            options,
            parts,
        } = self;
        // Before all nodes and pods are known, any block may be in use.
        tokio::join!(parts.nodes.synced(), parts.pods.synced());
        let (mut nodes, mut pods) = (parts.nodes.subscribe(), parts.pods.subscribe());
        let mut sets = parts.cluster_cidrs.subscribe();
        let shell = Shell {
            options,
            queue: parts.metrics.queue(),
            sets: WorkQueue::default(),
            parts,
            stale: Notify::new(),
        };
        let release_delay = shell.options.release_delay;
        let mut allocator = match ranges {
            Ranges::Flags => Allocator::new(&config, release_delay),
            Ranges::Objects => Allocator::without_sets(&config.service_ranges, release_delay),
        };
        let mut first_sets = BTreeMap::new();
        if ranges == Ranges::Objects {
            let made = shell.make_default(&config).await?;
            // Blocks that nodes have are of sets that are known.
            shell.parts.cluster_cidrs.synced().await;
            first_sets = batch(None, || sets.try_next(), sets::observed);
            // The watch may not have told of it yet.
            let made = made.map(|made| (made.name().to_owned(), Some(sets::view(&made))));
            first_sets.extend(made);
        }
        let made = allocator.observe_sets(first_sets);
        let records = shell.records_at_last().await;
        let first = allocator.observe(
            batch(None, || nodes.try_next(), observed),
            batch(None, || pods.try_next(), observed_pod),
        );
        let taken = allocator.take_in(records);
        // A process that leads again begins anew, with what it has found now.
        match shell.parts.known.0.get() {
            None => drop(shell.parts.known.0.set(Mutex::new(allocator))),
            Some(known) => *known.lock().unwrap_or_else(PoisonError::into_inner) = allocator,
        }
        // What is there already is counted, as the reference does.
        shell.decide(|_| ());
        shell.parts.metrics.sample();
        shell.tell(made);
        shell.tell(first);
        shell.tell(taken);
        let observing = async {
            loop {
                // A change is taken only when it is returned, so losing a wait loses nothing.
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
                // What is known of pods counts before a block is free.
                let pods = batch(pod, || pods.try_next(), observed_pod);
                shell.learn(|allocator| allocator.observe(nodes, pods));
                // Changes come faster than they are taken in at the start; workers have their turn too.
                tokio::task::yield_now().await;
            }
        };
        let working = try_join_all((0..WORKERS).map(|_| shell.serve()));
        tokio::select! {
            never = observing => never,
            never = shell.keep_reading() => never,
            never = shell.keep_sets() => never,
            ended = working => match ended {
                Ok(_) => std::future::pending().await,
                Err(lost) => Err(lost),
            },
        }
    }
}

impl Shell {
    /// Held only for a decision, never while waiting.
    fn decide<T>(&self, decision: impl FnOnce(&mut Allocator) -> T) -> T {
        let known = self.parts.known.0.get();
        let known = known.expect("it is filled before the shell works");
        let mut allocator = known.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts.metrics.count(&mut allocator, decision)
    }

    /// Takes something in, tells of it and has the nodes looked at that it concerns.
    fn learn(&self, decision: impl FnOnce(&mut Allocator) -> Outcome) {
        let outcome = self.decide(decision);
        self.tell(outcome);
    }

    async fn records(&self) -> Result<Vec<Record>, ApiError> {
        let listed = answered(self.parts.client.blocks().list()).await?;
        Ok(listed.blocks.iter().filter_map(record).collect())
    }

    async fn records_at_last(&self) -> Vec<Record> {
        loop {
            match self.records().await {
                Ok(records) => return records,
                Err(error) => tracing::warn!(%error, "node blocks not listed; trying again"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Reads the records now and then, and soon after a call was refused.
    async fn keep_reading(&self) -> Result<Infallible, Lost> {
        let mut reminded = Instant::now();
        loop {
            let wait = match self.decide(|allocator| allocator.is_pressed()) {
                true => PRESSED_LOOK,
                false => LOOK,
            };
            // Losing either wait loses nothing: the records are read after both.
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stale.notified() => tokio::time::sleep(GATHER).await,
            }
            match self.records().await {
                Ok(records) => self.learn(|allocator| allocator.take_in(records)),
                Err(error) => tracing::warn!(%error, "node blocks not listed; trying again"),
            }
            self.parts.metrics.sample();
            if reminded.elapsed() >= REMIND {
                reminded = Instant::now();
                self.remind();
            }
        }
    }

    /// One worker.
    async fn serve(&self) -> Result<Infallible, Lost> {
        loop {
            let name = self.queue.get().await;
            let mut names = vec![name];
            if self.options.batch > 1 && self.queue.failures(&names[0]) == 0 {
                names.extend(self.queue.take_fresh(self.options.batch - 1));
            }
            let ended = self.look_at(&names).await;
            names.iter().for_each(|name| self.queue.done(name));
            ended?;
        }
    }

    async fn look_at(&self, names: &[String]) -> Result<(), Lost> {
        if let [name] = names
            && self.queue.failures(name) > 0
            && !self.reread(name).await
        {
            return Ok(());
        }
        let now = Timestamp::now();
        let mut assignments = Vec::new();
        let mut updates = Vec::new();
        let mut conditions = Vec::new();
        for name in names {
            let (work, outcome) = self.decide(|allocator| allocator.work(name, now));
            self.tell(outcome);
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

    /// Reads a node whose last call did not come through. Returns whether it can be looked at.
    async fn reread(&self, name: &str) -> bool {
        match answered(self.parts.client.all::<Node>().get(name)).await {
            Ok(found) => {
                let taken = self.decide(|allocator| allocator.reread(name, view(&found)));
                match taken {
                    Some(outcome) => {
                        self.tell(outcome);
                        return true;
                    }
                    // The watch will tell that this is another.
                    None => tracing::debug!(node = name, "node made again; waiting for the watch"),
                }
            }
            // The watch will tell that it is gone. What it has left may be what is to be looked at.
            Err(error) if error.is_not_found() => return true,
            Err(error) => tracing::debug!(node = name, %error, "node not read; trying again"),
        }
        self.queue.add_rate_limited(name.to_owned());
        false
    }
}

/// What changed by now, the last word on each object.
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

/// The pod as a user of addresses, if it is one.
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

fn observed(change: Change<Node>) -> (String, Option<NodeView>) {
    match change {
        Change::Applied { old: _, new } => (new.name().to_owned(), Some(view(&new))),
        Change::Deleted(old) => (old.name().to_owned(), None),
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

/// The record of a node's block, as the store has it; nothing for a service range.
fn record(block: &wire::Block) -> Option<Record> {
    let until = || block.until.parse::<Timestamp>().ok();
    let standing = match block.state() {
        wire::BlockState::Assigned => Standing::Assigned,
        wire::BlockState::Foreign => Standing::Foreign,
        wire::BlockState::Draining => Standing::Gone(match block.hold {
            Some(_) => Phase::Held(until()),
            None => Phase::Draining,
        }),
        wire::BlockState::Quarantined => {
            Standing::Gone(Phase::Quarantined(until().unwrap_or(Timestamp::MIN)))
        }
        wire::BlockState::Reserved | wire::BlockState::Unspecified => return None,
    };
    Some(Record {
        net: podplane_ipam::parse_cidr(&block.cidr).ok()?,
        node: block.node_name.clone(),
        uid: block.node_uid.clone(),
        standing,
    })
}
