//! All pods of this kubelet's nodes: a worker for each, woken by what changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_api::{Object as _, core::Pod};
use podplane_client::{Cache, Change};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinError, JoinSet},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::{node::Node, plan::Sandbox, worker::Worker};
use crate::cri::sandboxes::chain;

/// Sandboxes of a pod changed.
#[derive(Clone, Debug)]
pub struct Notice {
    node: Arc<Node>,
    /// One of them, which says whose they are.
    sandbox: Sandbox,
    /// Whether there is any left.
    left: bool,
}

/// Notices that wait. A runtime's lister waits when it is full, which delays its next look and nothing else.
pub const NOTICES: usize = 256;

/// The workers, by UID.
#[derive(Debug)]
pub struct Pods {
    nodes: BTreeMap<String, Arc<Node>>,
    cache: Cache<Pod>,
    handles: BTreeMap<String, Handle>,
    workers: JoinSet<String>,
}

#[derive(Debug)]
struct Handle {
    node: Arc<Node>,
    pod: watch::Sender<Option<Arc<Pod>>>,
    woken: Arc<Notify>,
}

impl Pods {
    /// Workers for the pods of `cache` that are on one of `nodes`.
    pub fn new(nodes: &[Arc<Node>], cache: Cache<Pod>) -> Self {
        let by_name = nodes
            .iter()
            .map(|node| (node.name().to_owned(), node.clone()));
        Self {
            nodes: by_name.collect(),
            cache,
            handles: BTreeMap::new(),
            workers: JoinSet::new(),
        }
    }

    /// Keeps the workers until `stop`.
    ///
    /// # Errors
    ///
    /// [`JoinError`] if a worker panicked.
    pub async fn run(
        mut self,
        mut notices: mpsc::Receiver<Notice>,
        stop: CancellationToken,
    ) -> Result<(), JoinError> {
        let mut changes = self.cache.subscribe();
        loop {
            // Changes, notices and ended workers are taken only when they are returned, so losing a wait loses nothing.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                change = changes.next() => self.apply(change),
                Some(notice) = notices.recv() => self.notice(notice),
                Some(ended) = self.workers.join_next() => self.reap(&ended?),
            }
        }
    }

    fn apply(&mut self, change: Change<Pod>) {
        let (pod, is_there) = match change {
            Change::Applied { new, .. } => (new, true),
            Change::Deleted(old) => (old, false),
        };
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let Some(node) = name.and_then(|name| self.nodes.get(name)).cloned() else {
            return;
        };
        let uid = pod.uid().to_owned();
        let state = is_there.then_some(pod);
        match self.handles.get(&uid) {
            Some(handle) => {
                handle.pod.send_replace(state);
            }
            // Gone before it was seen: what it may have left is found by listing sandboxes.
            None if !is_there => {}
            None => self.start(node, uid, state),
        }
    }

    fn notice(&mut self, notice: Notice) {
        let Notice {
            node,
            sandbox,
            left,
        } = notice;
        match self.handles.get(&sandbox.uid) {
            Some(handle) => handle.woken.notify_one(),
            None if !left => {}
            None => {
                // The change that brings this pod may still be waiting; it starts the worker then.
                let is_known = self
                    .cache
                    .get(&sandbox.pod)
                    .is_some_and(|pod| pod.uid() == sandbox.uid);
                if !is_known {
                    tracing::info!(node = node.name(), pod = %sandbox.pod, uid = sandbox.uid, "sandbox without a pod");
                    self.start(node, sandbox.uid, None);
                }
            }
        }
    }

    fn reap(&mut self, uid: &str) {
        let Some(handle) = self.handles.remove(uid) else {
            return;
        };
        // It ended because there was no pod; one that came at that moment gets another worker.
        let pod = handle.pod.borrow().clone();
        if pod.is_some() {
            self.start(handle.node, uid.to_owned(), pod);
        }
    }

    fn start(&mut self, node: Arc<Node>, uid: String, pod: Option<Arc<Pod>>) {
        let (pod, observed) = watch::channel(pod);
        let woken = Arc::new(Notify::new());
        let worker = Worker::new(node.clone(), uid.clone(), observed, woken.clone());
        self.workers.spawn(worker.run());
        self.handles.insert(uid, Handle { node, pod, woken });
    }
}

/// Lists the sandboxes of a node every `interval` and tells of those that changed: nobody else says that a sandbox has died, or that one
/// has no pod.
///
/// # Errors
///
/// None; the signature is that of a task.
pub async fn watch_sandboxes(
    node: Arc<Node>,
    interval: Duration,
    notices: mpsc::Sender<Notice>,
    stop: CancellationToken,
) -> Result<(), JoinError> {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = BTreeMap::<String, Vec<Sandbox>>::new();
    // Without the pods, every sandbox would look as if it had none.
    node.pods.synced().await;
    loop {
        // Losing either wait loses nothing.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let listed = match node.runtime.list().await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::debug!(node = node.name(), error = %chain(&error), "sandboxes not listed; trying again");
                continue;
            }
        };
        let mut present = BTreeMap::<String, Vec<Sandbox>>::new();
        for sandbox in listed {
            present
                .entry(sandbox.uid.clone())
                .or_default()
                .push(sandbox);
        }
        for sandbox in changed(&known, &present) {
            let notice = Notice {
                left: present.contains_key(&sandbox.uid),
                node: node.clone(),
                sandbox,
            };
            if notices.send(notice).await.is_err() {
                return Ok(()); // The kubelet is ending.
            }
        }
        known = present;
    }
}

/// A sandbox of each pod whose sandboxes differ.
fn changed(
    known: &BTreeMap<String, Vec<Sandbox>>,
    present: &BTreeMap<String, Vec<Sandbox>>,
) -> Vec<Sandbox> {
    let uids: BTreeSet<_> = known.keys().chain(present.keys()).collect();
    let differing = uids
        .into_iter()
        .filter(|uid| known.get(*uid) != present.get(*uid));
    let of = |uid: &String| present.get(uid).or(known.get(uid));
    differing
        .filter_map(|uid| of(uid)?.first().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use podplane_api::ObjectKey;

    use super::*;

    #[test]
    fn a_pod_is_told_when_its_sandboxes_come_change_and_go() {
        let sandbox = |uid: &str, ready| Sandbox {
            id: format!("id-{uid}"),
            pod: ObjectKey::new("default", uid),
            uid: uid.into(),
            attempt: 0,
            ready,
        };
        let table = |sandboxes: &[Sandbox]| -> BTreeMap<_, _> {
            let entries = sandboxes.iter().map(|s| (s.uid.clone(), vec![s.clone()]));
            entries.collect()
        };
        let known = table(&[
            sandbox("same", true),
            sandbox("died", true),
            sandbox("gone", true),
        ]);
        let present = table(&[
            sandbox("same", true),
            sandbox("died", false),
            sandbox("new", true),
        ]);
        let told: Vec<_> = changed(&known, &present)
            .into_iter()
            .map(|s| s.uid)
            .collect();
        assert_eq!(told, ["died", "gone", "new"]);
    }
}
