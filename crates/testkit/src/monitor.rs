//! The invariants of pods and nodes at every revision, by watches.
//!
//! [`Cluster::check`](crate::Cluster::check) compares what three lists say that were made one after
//! the other, so that it has to wait until what it found can be no deception. A [`RevisionMonitor`]
//! is told of every revision in order: what breaks an invariant for one revision alone is found,
//! and is certain.

mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podplane_api::{
    core::{Node, Pod},
    jiff::Timestamp,
};
use podplane_client::{Client, ListParams, watcher};
use tokio::task::JoinSet;

use crate::Result;
use history::{ListedKind, Watchable};
pub use history::{ListedRevisions, ObservedRevision, RevisionHistory, ViolationSpan, WatchGap};

/// Watches the pods and nodes of a cluster until it is dropped.
#[derive(Debug)]
pub struct RevisionMonitor {
    client: Client,
    history: Arc<Mutex<RevisionHistory>>,
    _tasks: JoinSet<()>,
}

impl RevisionMonitor {
    /// Begins to watch, with what is there now. `note` is given a line for each revision, and for
    /// each loss of a watch.
    pub fn start(client: &Client, note: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let history = Arc::new(Mutex::new(RevisionHistory::default()));
        let note: Note = Arc::new(note);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::<Node>(client.clone(), history.clone(), note.clone()));
        tasks.spawn(watch::<Pod>(client.clone(), history.clone(), note));
        Self {
            client: client.clone(),
            history,
            _tasks: tasks,
        }
    }

    /// Lists the pods and nodes, for [`RevisionHistory::has_reached`]: watches are told of them a
    /// little later.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Api`](crate::ClusterError::Api) if the API server does not answer.
    pub async fn listed(&self) -> Result<ListedRevisions> {
        let all = ListParams::default();
        let pods = self.client.all::<Pod>().list(&all).await?;
        let nodes = self.client.all::<Node>().list(&all).await?;
        let each = [ListedKind::new(&pods)?, ListedKind::new(&nodes)?];
        Ok(ListedRevisions(each.into()))
    }

    /// What was seen up to now.
    pub fn history(&self) -> MutexGuard<'_, RevisionHistory> {
        lock(&self.history)
    }
}

type Note = Arc<dyn Fn(&str) + Send + Sync>;

async fn watch<K: Watchable>(client: Client, history: Arc<Mutex<RevisionHistory>>, note: Note) {
    let tell = move |watched| {
        let lines = lock(&history).observe::<K>(Timestamp::now(), watched);
        lines.iter().for_each(|line| note(line));
    };
    watcher(client.all::<K>(), ListParams::default(), tell).await;
}

/// A history is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock(history: &Mutex<RevisionHistory>) -> MutexGuard<'_, RevisionHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}
