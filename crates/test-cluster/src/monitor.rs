//! The invariants of pods and nodes at every revision, by watches.
//!
//! [`Cluster::check`](crate::Cluster::check) compares lists that were read one after the other, so
//! it has to wait until a finding cannot be an artefact. A [`RevisionMonitor`] sees every revision
//! in order: it also finds a violation that lasts for one revision only, and that violation is
//! certain.

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
    /// Begins to watch, from the present state on. `note` gets a line for each revision, and for
    /// each interruption of a watch.
    pub fn start(client: &Client, note: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let history = Arc::new(Mutex::new(RevisionHistory::default()));
        let note: NoteSink = Arc::new(note);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::<Node>(client.clone(), history.clone(), note.clone()));
        tasks.spawn(watch::<Pod>(client.clone(), history.clone(), note));
        Self {
            client: client.clone(),
            history,
            _tasks: tasks,
        }
    }

    /// Lists the pods and nodes, for [`RevisionHistory::has_reached`]: the watches see them a
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

    /// The history up to now.
    pub fn history(&self) -> MutexGuard<'_, RevisionHistory> {
        lock(&self.history)
    }
}

type NoteSink = Arc<dyn Fn(&str) + Send + Sync>;

async fn watch<K: Watchable>(client: Client, history: Arc<Mutex<RevisionHistory>>, note: NoteSink) {
    let tell = move |watched| {
        let lines = lock(&history).observe::<K>(Timestamp::now(), watched);
        lines.iter().for_each(|line| note(line));
    };
    watcher(client.all::<K>(), ListParams::default(), tell).await;
}

/// Locks a history. A panic elsewhere does not spoil it: it is consistent between any two
/// statements.
fn lock(history: &Mutex<RevisionHistory>) -> MutexGuard<'_, RevisionHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}
