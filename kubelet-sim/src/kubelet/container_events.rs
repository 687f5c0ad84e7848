//! The changes of containers: the runtime's events, or else frequent lists.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use podplane_api::Object as _;
use podplane_error_chain::one_line;
use podplane_host::{clock, fs, task};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{
    containers::volumes::PodDir, node::NodeContext, pods::PodNotice, runtime::ListedContainer,
};

/// The time between two lists of containers: that of Kubernetes' kubelet.
const LIST_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two lists while the runtime sends events: a list finds those that were lost.
const RARE_LIST_INTERVAL: Duration = Duration::from_secs(30);

/// The containers of each pod, by UID.
type ContainersByPod = BTreeMap<String, Vec<ListedContainer>>;

/// Sends a notice for each pod of the node whose containers changed, until `stop`.
///
/// # Errors
///
/// It does not fail; the signature is that of a task.
pub(super) async fn watch(
    node: Arc<NodeContext>,
    notices: mpsc::Sender<PodNotice>,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    stop.run_until_cancelled(remove_orphaned_files(&node)).await;
    let watcher = ContainerWatcher {
        node,
        notices,
        known: ContainersByPod::new(),
    };
    stop.run_until_cancelled(watcher.run()).await;
    Ok(())
}

struct ContainerWatcher {
    node: Arc<NodeContext>,
    notices: mpsc::Sender<PodNotice>,
    known: ContainersByPod,
}

impl ContainerWatcher {
    /// Returns if nobody receives the notices any more.
    async fn run(mut self) {
        let mut has_events = true;
        loop {
            if has_events {
                match self.follow().await {
                    Ok(()) => {}
                    Err(error) if error.code() == Code::Unimplemented => has_events = false,
                    Err(error) => {
                        tracing::debug!(node = self.node.name(), error = %one_line(&error), "lost the events of containers; listing them");
                    }
                }
            }
            if self.notices.is_closed() || !self.list().await {
                return;
            }
            clock::sleep(LIST_INTERVAL).await;
        }
    }

    /// Passes events on until the stream ends.
    async fn follow(&mut self) -> Result<(), Status> {
        let mut events = self.node.runtime.container_events().await?;
        loop {
            // What changed before the stream began, or was lost.
            if !self.list().await {
                return Ok(());
            }
            let next_list = clock::sleep(RARE_LIST_INTERVAL);
            tokio::pin!(next_list);
            loop {
                // An event is taken only when it is returned; losing a wait loses nothing.
                let event = tokio::select! {
                    () = &mut next_list => break,
                    event = events.message() => event?,
                };
                let Some(event) = event else { return Ok(()) };
                let metadata = event.pod_sandbox_status.and_then(|status| status.metadata);
                let Some(metadata) = metadata else { continue };
                if !self.notify(metadata.uid).await {
                    return Ok(());
                }
            }
        }
    }

    async fn notify(&self, uid: String) -> bool {
        self.notices.send(PodNotice::Containers(uid)).await.is_ok()
    }

    /// Compares the list of containers with the last one. Returns false if nobody receives notices.
    async fn list(&mut self) -> bool {
        let listed = match self.node.runtime.all_containers().await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::debug!(node = self.node.name(), error = %one_line(&error), "failed to list containers; trying again");
                return true;
            }
        };
        let mut present = ContainersByPod::new();
        for container in listed {
            let of_pod = present.entry(container.pod_uid.clone()).or_default();
            of_pod.push(container);
        }
        let changed: Vec<_> = changed(&self.known, &present);
        self.known = present;
        for uid in changed {
            if !self.notify(uid).await {
                return false;
            }
        }
        true
    }
}

/// Removes the files of pods that are gone, with their sandboxes: they went while no kubelet ran.
async fn remove_orphaned_files(node: &NodeContext) {
    let dir = node.pod_files.clone();
    let listed = task::spawn_blocking(move || list_dir(&dir)).await;
    // Listed before the pods: each directory of a live pod has its pod then.
    node.pods.synced().await;
    let (Ok(Ok(listed)), Ok(sandboxes)) = (listed, node.runtime.list().await) else {
        return; // They are removed after the next start.
    };
    let pods = node.own_pods();
    let known = pods.iter().map(|pod| pod.uid().to_owned());
    let known = known.chain(sandboxes.into_iter().map(|sandbox| sandbox.uid));
    let known: BTreeSet<_> = known.collect();
    let orphaned = listed.into_iter().filter(|uid| !known.contains(uid));
    for uid in orphaned {
        let dir = PodDir::new(node.pod_files.join(&uid));
        if let Ok(Err(error)) = task::spawn_blocking(move || dir.remove()).await {
            tracing::debug!(node = node.name(), uid, %error, "failed to remove the files of a pod that is gone");
        }
    }
}

/// The names in a directory; none if it is missing.
fn list_dir(dir: &Path) -> io::Result<Vec<String>> {
    let found = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found?,
    };
    let names = found.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// The pods whose containers differ.
fn changed(known: &ContainersByPod, present: &ContainersByPod) -> Vec<String> {
    let gone = known.keys().filter(|uid| !present.contains_key(*uid));
    let other = present
        .iter()
        .filter(|(uid, containers)| known.get(*uid) != Some(containers));
    other.map(|(uid, _)| uid).chain(gone).cloned().collect()
}
