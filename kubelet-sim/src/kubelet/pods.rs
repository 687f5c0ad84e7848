//! The pods of this kubelet's nodes: a worker for each, sandboxes_changed by changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_api::{Object as _, core::Pod};
use podplane_client::{Cache, CacheChange};
use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinError, JoinSet},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::{node::NodeContext, plan::Sandbox, worker::Worker};

/// A notice for the worker of a pod.
#[derive(Clone, Debug)]
pub enum PodNotice {
    /// Its sandboxes changed.
    Sandboxes(SandboxNotice),
    /// The containers of the pod of this UID changed.
    Containers(String),
}

/// A notice that the sandboxes of a pod changed.
#[derive(Clone, Debug)]
pub struct SandboxNotice {
    node: Arc<NodeContext>,
    /// One of them, which names the pod.
    sandbox: Sandbox,
    /// True if the pod has any sandbox left.
    has_sandboxes: bool,
    /// True if the pod had no sandbox in the list before, and has this one now, which is ready.
    is_first: bool,
}

/// The capacity of the queue of notices. When it is full, a runtime's lister waits, which delays
/// its next list and nothing else.
pub const NOTICES: usize = 256;

/// The workers, by UID.
#[derive(Debug)]
pub struct PodWorkers {
    nodes: BTreeMap<String, Arc<NodeContext>>,
    cache: Cache<Pod>,
    handles: BTreeMap<String, WorkerHandle>,
    workers: JoinSet<String>,
}

#[derive(Debug)]
struct WorkerHandle {
    node: Arc<NodeContext>,
    pod: watch::Sender<Option<Arc<Pod>>>,
    /// Wakes the worker.
    sandboxes_changed: Arc<Notify>,
}

impl PodWorkers {
    /// The pods of `cache` that are on one of `nodes`, without workers yet.
    pub fn new(nodes: &[Arc<NodeContext>], cache: Cache<Pod>) -> Self {
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

    /// Starts, wakes and reaps workers until `stop`.
    ///
    /// # Errors
    ///
    /// [`JoinError`] if a worker panicked.
    pub async fn run(
        mut self,
        mut notices: mpsc::Receiver<PodNotice>,
        stop: CancellationToken,
    ) -> Result<(), JoinError> {
        let mut changes = self.cache.subscribe();
        loop {
            // Changes, notices and ended workers are taken only when they are returned, so losing a
            // wait loses nothing.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                change = changes.next() => self.apply(change),
                Some(notice) = notices.recv() => match notice {
                    PodNotice::Sandboxes(notice) => self.forward(notice),
                    PodNotice::Containers(uid) => {
                        if let Some(handle) = self.handles.get(&uid) {
                            handle.sandboxes_changed.notify_one();
                        }
                    }
                },
                Some(ended) = self.workers.join_next() => self.reap(&ended?),
            }
        }
    }

    /// Passes a changed pod to its worker, and starts a worker for a new pod.
    fn apply(&mut self, change: CacheChange<Pod>) {
        let (pod, is_there) = match change {
            CacheChange::Applied { new, .. } => (new, true),
            CacheChange::Deleted(old) => (old, false),
        };
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let Some(node) = name.and_then(|name| self.nodes.get(name)).cloned() else {
            return;
        };
        if !is_there {
            // Addresses of its sandbox are orphaned from now on.
            node.addresses_changed.notify_one();
        }
        let uid = pod.uid().to_owned();
        let state = is_there.then_some(pod);
        match self.handles.get(&uid) {
            Some(handle) => {
                handle.pod.send_replace(state);
            }
            // Deleted before it was seen. If it has a sandbox, the next list finds it.
            None if !is_there => {}
            None => self.start_worker(node, uid, state),
        }
    }

    /// Wakes the worker of the notice's pod. A sandbox whose pod is gone gets a worker that removes
    /// it.
    fn forward(&mut self, notice: SandboxNotice) {
        let SandboxNotice {
            node,
            sandbox,
            has_sandboxes,
            is_first,
        } = notice;
        match self.handles.get(&sandbox.uid) {
            // The worker has created it, or listed it in its first sync.
            Some(_) if is_first => {}
            Some(handle) => handle.sandboxes_changed.notify_one(),
            None if !has_sandboxes => {}
            None => {
                // If the cache has the pod, its change is still queued, and will start the worker.
                let is_known = self
                    .cache
                    .get(&sandbox.pod)
                    .is_some_and(|pod| pod.uid() == sandbox.uid);
                if !is_known {
                    tracing::info!(node = node.name(), pod = %sandbox.pod, uid = sandbox.uid, "removing a sandbox whose pod is gone");
                    self.start_worker(node, sandbox.uid, None);
                }
            }
        }
    }

    /// Drops the handle of a worker that has ended.
    fn reap(&mut self, uid: &str) {
        let Some(handle) = self.handles.remove(uid) else {
            return;
        };
        // It ended because there was no pod. If the pod appeared in the meantime, it gets a new
        // worker.
        let pod = handle.pod.borrow().clone();
        if pod.is_some() {
            self.start_worker(handle.node, uid.to_owned(), pod);
        }
    }

    fn start_worker(&mut self, node: Arc<NodeContext>, uid: String, pod: Option<Arc<Pod>>) {
        let (pod, receiver) = watch::channel(pod);
        let sandboxes_changed = Arc::new(Notify::new());
        let worker = Worker::new(
            node.clone(),
            uid.clone(),
            receiver,
            sandboxes_changed.clone(),
        );
        task::spawn(&mut self.workers, worker.run());
        self.handles.insert(
            uid,
            WorkerHandle {
                node,
                pod,
                sandboxes_changed,
            },
        );
    }
}

/// Lists the sandboxes of a node every `interval` and sends notices of those that changed. Nothing
/// else shows that a sandbox has died, or that one has no pod.
///
/// # Errors
///
/// It does not fail; the signature is that of a task.
pub async fn watch_sandboxes(
    node: Arc<NodeContext>,
    interval: Duration,
    notices: mpsc::Sender<PodNotice>,
    stop: CancellationToken,
) -> Result<(), JoinError> {
    let mut ticks = clock::interval(interval);
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
                tracing::debug!(node = node.name(), error = %one_line(&error), "failed to list sandboxes; trying again");
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
            let notice = SandboxNotice {
                has_sandboxes: present.contains_key(&sandbox.uid),
                is_first: is_first(&known, &present, &sandbox),
                node: node.clone(),
                sandbox,
            };
            if notices.send(PodNotice::Sandboxes(notice)).await.is_err() {
                return Ok(()); // The kubelet is ending.
            }
        }
        known = present;
    }
}

/// Returns true if a pod that had no sandbox has this one, and it is ready.
fn is_first(
    known: &BTreeMap<String, Vec<Sandbox>>,
    present: &BTreeMap<String, Vec<Sandbox>>,
    sandbox: &Sandbox,
) -> bool {
    let now = present.get(&sandbox.uid).map_or(0, Vec::len);
    !known.contains_key(&sandbox.uid) && now == 1 && sandbox.ready
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
    fn wakes_pods_whose_sandboxes_changed() {
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
        let told = changed(&known, &present);
        let uids: Vec<_> = told.iter().map(|s| s.uid.as_str()).collect();
        assert_eq!(uids, ["died", "gone", "new"]);
        let first = told.iter().filter(|s| is_first(&known, &present, s));
        let first: Vec<_> = first.map(|s| s.uid.as_str()).collect();
        assert_eq!(first, ["new"], "which its worker has made");
    }
}
