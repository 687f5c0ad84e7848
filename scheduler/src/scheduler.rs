//! The scheduler without its surroundings: news and time go in, decisions come out.
//!
//! One owner feeds it and acts on what it decides. It does no I/O and has no clock, so that a test can replay any
//! history.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podplane_api::{
    Object,
    core::{Node, Pod},
};

use crate::{
    cache::{Cache, CacheSize, Freed, Placing},
    config::IpPolicy,
    event::Event,
    filters::Filters,
    fit_error::FitError,
    names::{NodeName, PodUid},
    plan::{Choice, Decision, plan},
    pod::PodInfo,
    queue::{Pending, Queue, Waiting},
};

#[cfg(test)]
mod tests;

/// Queue, cache and filters, and where the next search begins.
#[derive(Debug)]
pub struct Scheduler {
    queue: Queue,
    cache: Cache,
    filters: Filters,
    start: usize,
    /// How the nodes of pods were chosen, for as long as these are known.
    decisions: BTreeMap<PodUid, Decided>,
}

/// A decision in favour of a node.
#[derive(Clone, Debug)]
pub struct Decided {
    /// When.
    pub at: Duration,
    /// Which try it was.
    pub attempt: u32,
    /// What was decided.
    pub choice: Choice,
}

/// One try at one pod.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The pod, as the decision saw it.
    pub pod: Arc<PodInfo>,
    /// Where it is to go, its share of that node being reserved already; or the sentence that says why it cannot.
    pub outcome: Result<NodeName, String>,
    /// How often it was tried, this time included.
    pub attempts: u32,
    /// When it was first heard of.
    pub arrived: Duration,
    /// Since when it has waited for this try.
    pub since: Duration,
}

/// What is known of a pod.
#[derive(Clone, Debug)]
pub enum Explanation {
    /// Nothing.
    Unknown,
    /// It waits.
    Waiting {
        /// In which way, and why.
        waiting: Waiting,
        /// Which nodes refuse it at this moment.
        verdicts: FitError,
    },
    /// It has a node, which was chosen here if that is known.
    Placed(NodeName, Placing, Option<Decided>),
}

impl Scheduler {
    /// One that has heard of nothing yet.
    pub fn new(policy: IpPolicy) -> Self {
        Self {
            queue: Queue::default(),
            cache: Cache::default(),
            filters: Filters::new(policy),
            start: 0,
            decisions: BTreeMap::new(),
        }
    }

    /// A pod is there, new or changed.
    pub fn apply_pod(&mut self, pod: Arc<Pod>, now: Duration) {
        let pod = Arc::new(PodInfo::new(pod));
        if pod.is_released() {
            self.queue.remove(&pod.uid);
            self.decisions.remove(&pod.uid);
            let freed = self.cache.remove_pod(&pod.uid);
            // Only what we saw happen counts: of a pod that had failed before we came, the node may have reported since.
            if let Some(freed) = &freed
                && pod.was_out_of_pod_ips()
            {
                self.cache.refuse_for_ips(&freed.node);
            }
            self.notify_freed(freed, now);
        } else if let Some(node) = pod.node_name() {
            self.queue.remove(&pod.uid);
            let freed = self.cache.confirm(pod, &node);
            self.notify_freed(freed, now);
        } else if pod.is_schedulable() {
            // Of a pod in flight this is news from before we decided. It changes nothing now, but should the binding fail, the
            // next try must know the latest.
            self.queue.upsert(pod, now);
        } else {
            self.queue.remove(&pod.uid);
        }
    }

    /// A pod is gone.
    pub fn delete_pod(&mut self, pod: &Pod, now: Duration) {
        let uid = PodUid::from(pod.uid());
        self.queue.remove(&uid);
        self.decisions.remove(&uid);
        let freed = self.cache.remove_pod(&uid);
        self.notify_freed(freed, now);
    }

    /// A node is there, new or changed.
    pub fn apply_node(&mut self, node: Arc<Node>, now: Duration) {
        let name = NodeName::from(node.name());
        let changes = self.cache.apply_node(node);
        if let Some(node) = self.cache.node(&name).cloned()
            && !changes.is_empty()
        {
            self.notify(&Event::NodeChanged { node, changes }, now);
        }
    }

    /// A node is gone. That helps nobody.
    pub fn delete_node(&mut self, node: &Node) {
        self.cache.remove_node(&node.name().into());
    }

    /// Does what time alone makes due.
    pub fn tick(&mut self, now: Duration) {
        self.queue.tick(now);
    }

    /// Takes the next pod and decides. `None` if no pod is ready.
    pub fn attempt(&mut self, now: Duration) -> Option<Attempt> {
        let pod = self.queue.pop(now)?;
        let waiting = self.queue.get(&pod.uid);
        let (attempts, arrived) = waiting.map_or((1, now), Waiting::history);
        let since = waiting.map_or(now, Waiting::since);
        let snapshot = self.cache.snapshot();
        let Decision { node, next_start } = plan(&snapshot, &pod, &self.filters, self.start);
        drop(snapshot); // Or the assumption below would copy what it changes.
        self.start = next_start;
        let outcome = match node {
            Ok(choice) => {
                let node = choice.node.clone();
                self.cache.assume(pod.clone(), &node);
                let decided = Decided {
                    at: now,
                    attempt: attempts,
                    choice,
                };
                self.decisions.insert(pod.uid.clone(), decided);
                Ok(node)
            }
            Err(failure) => {
                let message = failure.to_string();
                let rejected_by = failure.rejected_by();
                self.queue
                    .reject(&pod.uid, rejected_by, message.clone(), now);
                Err(message)
            }
        };
        Some(Attempt {
            pod,
            outcome,
            attempts,
            arrived,
            since,
        })
    }

    /// The pod was not bound and will not be by this attempt: its share is free again, and it is tried again later.
    ///
    /// That it was bound needs no telling: it stays in flight until the watch says so.
    pub fn bind_failed(&mut self, uid: &PodUid, message: String, now: Duration) {
        let freed = self.cache.forget(uid);
        // Unless it was bound after all, by whomever.
        if self.cache.placing(uid).is_none() {
            self.decisions.remove(uid);
        }
        self.queue.fail(uid, message, now);
        self.notify_freed(freed, now);
    }

    /// Whether [`Scheduler::attempt`] would find a pod.
    pub fn is_ready(&self, now: Duration) -> bool {
        self.queue.is_ready(now)
    }

    /// When [`Scheduler::tick`] will have something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.queue.next_deadline()
    }

    /// How many pods wait, and in which way.
    pub fn pending(&self) -> Pending {
        self.queue.pending()
    }

    /// How many nodes, pods and assumed pods are known.
    pub fn cache_size(&self) -> CacheSize {
        self.cache.size()
    }

    /// When a pod that waits is tried again if nothing happens.
    pub fn next_try(&self, uid: &PodUid) -> Option<Duration> {
        self.queue.next_try(uid)
    }

    /// Why the pod of that UID is where it is. Refusals are those of this moment, not of the last try.
    pub fn explain(&self, uid: &PodUid) -> Explanation {
        if let Some((node, placing)) = self.cache.placing(uid) {
            let decided = self.decisions.get(uid).cloned();
            return Explanation::Placed(node.clone(), placing, decided);
        }
        let Some(waiting) = self.queue.get(uid) else {
            return Explanation::Unknown;
        };
        let snapshot = self.cache.snapshot();
        let nodes = snapshot.nodes();
        let refusals = nodes.iter().filter_map(|node| {
            let refusal = self.filters.check(&waiting.pod, node).err()?;
            Some((node.name.clone(), refusal))
        });
        Explanation::Waiting {
            waiting: waiting.clone(),
            verdicts: FitError {
                nodes: nodes.len(),
                refusals: refusals.collect(),
            },
        }
    }

    fn notify_freed(&mut self, freed: Option<Freed>, now: Duration) {
        if let Some(Freed { pod, node }) = freed
            && let Some(node) = self.cache.node(&node).cloned()
        {
            self.notify(&Event::PodFreed { pod, node }, now);
        }
    }

    fn notify(&mut self, event: &Event, now: Duration) {
        let filters = &self.filters;
        self.queue.wake(now, |pod, rejected_by| {
            filters.helped_by(pod, rejected_by, event)
        });
    }
}
