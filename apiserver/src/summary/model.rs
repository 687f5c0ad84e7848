//! The summary that all requests share: it is kept while somebody looks, and for a while after.

use std::{fmt, future, sync::Arc, time::Duration};

use futures::StreamExt as _;
use podplane_api::{Object, ObjectKey};
use podplane_host::{
    clock::{self, Instant},
    task,
};
use podplane_map::AddressSpace;
use podplane_proto::{
    error::{ApiError, Reason},
    ipam::Block,
};
use podplane_store::Revision;
use podplane_summary::{Cluster, ClusterSummary, FindingReport, PodFacts};
use tokio::sync::{oneshot, watch};

use super::sources::{Source, Sources, Update, Updates};
use crate::{cache::WatchedChange, parallel, renderers::Renderers};

/// The least time between two summaries.
const PAUSE: Duration = Duration::from_millis(50);
/// The least time between two audits, and between them as a multiple of their duration: they take
/// several times as long as a summary.
const AUDIT_PAUSE: Duration = Duration::from_secs(1);
const AUDIT_SHARE: u32 = 10;
/// The time for which the summary is kept when nobody looks: a page that is loaded again finds it.
const LINGER: Duration = Duration::from_secs(30);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// The pods that are decoded at once.
const DECODED: usize = 4096;

/// A cluster at a revision.
pub(super) struct Snapshot {
    pub(super) space: Arc<AddressSpace>,
    pub(super) summary: Arc<ClusterSummary>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("revision", &self.summary.revision)
            .finish_non_exhaustive()
    }
}

type Shown = Option<Arc<Snapshot>>;

/// The shared summary. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The number of those who look.
    users: watch::Sender<usize>,
    shown: watch::Sender<Shown>,
}

/// Somebody who looks, until this is dropped.
#[derive(Debug)]
struct User(watch::Sender<usize>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.send_modify(|users| *users = users.saturating_sub(1));
    }
}

/// The summary as one request sees it.
#[derive(Debug)]
pub(super) struct Subscription {
    shown: watch::Receiver<Shown>,
    _user: User,
}

impl Subscription {
    /// The present summary.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(super) async fn present(&mut self) -> Result<Arc<Snapshot>, ApiError> {
        // It counts as seen from here on.
        let shown = self.shown.wait_for(Option::is_some).await;
        let shown = shown.ok().and_then(|shown| Option::clone(&shown));
        shown.ok_or_else(stopping)
    }

    /// Waits until the summary has findings.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(super) async fn audited(&mut self) -> Result<(), ApiError> {
        let is_audited = |shown: &Shown| {
            let shown = shown.as_ref();
            shown.is_some_and(|shown| shown.summary.report.is_some())
        };
        let audited = self.shown.wait_for(is_audited).await;
        audited.map(drop).map_err(|_| stopping())
    }

    /// Waits until there is another one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(super) async fn changed(&mut self) -> Result<(), ApiError> {
        self.shown.changed().await.map_err(|_| stopping())
    }
}

fn stopping() -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            users: watch::Sender::new(0),
            shown: watch::Sender::new(None),
        }
    }

    pub(super) fn subscribe(&self) -> Subscription {
        self.users.send_modify(|users| *users += 1);
        Subscription {
            shown: self.shown.subscribe(),
            _user: User(self.users.clone()),
        }
    }

    /// Keeps the summary up to date while somebody looks. Never completes.
    pub(crate) async fn keep(self, sources: Sources, renderers: Renderers) -> Result<(), ApiError> {
        let mut users = self.users.subscribe();
        loop {
            users
                .wait_for(|users| *users > 0)
                .await
                .map_err(|_| stopping())?;
            let failed = tokio::select! {
                failed = self.follow(&sources, &renderers) => Some(failed),
                () = unused(self.users.subscribe()) => None,
            };
            self.shown.send_replace(None);
            match failed {
                None => tracing::debug!("nobody looks at the summary; dropped it"),
                Some(error) if error.is_expired() => {
                    tracing::debug!("the summary fell behind the watch cache; making it anew");
                }
                Some(error) => {
                    tracing::debug!(%error, "failed to keep the summary; trying again");
                    clock::sleep(RETRY).await;
                }
            }
        }
    }

    /// Follows the objects until that fails.
    async fn follow(&self, sources: &Sources, renderers: &Renderers) -> ApiError {
        let followed = async {
            let updates = sources.follow().await?;
            let mut follower = Follower::new(updates, sources);
            loop {
                follower.collect().await?;
                let snapshot = follower.advance(sources, renderers).await?;
                self.shown.send_replace(Some(snapshot));
                follower.due = Instant::now() + PAUSE;
            }
        };
        let followed: Result<std::convert::Infallible, ApiError> = followed.await;
        match followed {
            Err(error) => error,
        }
    }
}

/// Completes when nobody has looked for a while.
async fn unused(mut users: watch::Receiver<usize>) {
    loop {
        if users.wait_for(|users| *users == 0).await.is_err() {
            return;
        }
        let again = users.wait_for(|users| *users > 0);
        if clock::timeout(LINGER, again).await.is_err() {
            return;
        }
    }
}

/// The facts, and the changes that are not in them yet.
struct Follower {
    updates: Updates,
    /// `None` only while another thread has it.
    cluster: Option<Arc<Cluster>>,
    /// The map of the facts; `None` before the first one.
    space: Option<Arc<AddressSpace>>,
    audits: Audits,
    pending: Vec<(Source, WatchedChange)>,
    are_blocks_stale: bool,
    /// The kinds whose present objects have not been sent yet.
    missing: usize,
    revision: Option<Revision>,
    /// The time before which no other summary is made.
    due: Instant,
}

impl Follower {
    fn new(updates: Updates, sources: &Sources) -> Self {
        let mut cluster = Cluster::new(sources.resource.clone());
        cluster.set_cluster_cidrs(&sources.ranges);
        Self {
            updates,
            cluster: Some(Arc::new(cluster)),
            space: None,
            audits: Audits::new(),
            pending: Vec::new(),
            are_blocks_stale: true,
            missing: Source::COUNT,
            revision: None,
            due: Instant::now(),
        }
    }

    /// Waits for changes: the present objects of all kinds first, later what comes until the next
    /// summary is due. Returns without changes if the findings are others, or an audit is due.
    async fn collect(&mut self) -> Result<(), ApiError> {
        loop {
            let has_news = !self.pending.is_empty() || self.are_blocks_stale;
            let due = match (self.missing, has_news) {
                (0, true) => Some(self.due),
                (0, false) => self.audits.due(),
                _ => None,
            };
            tokio::select! {
                batch = self.updates.stream.next() => {
                    for update in batch.ok_or_else(stopping)? {
                        self.take(update?);
                    }
                }
                () = until(due) => return Ok(()),
                () = self.audits.ended() => return Ok(()),
            }
        }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Object(source, change) => {
                self.revision = self.revision.max(Some(change.revision()));
                // The service ranges are among the blocks.
                self.are_blocks_stale |= source == Source::ServiceCidrs;
                self.pending.push((source, change));
            }
            Update::Present(revision) => {
                self.revision = self.revision.max(Some(revision));
                self.missing = self.missing.saturating_sub(1);
            }
            Update::Blocks => self.are_blocks_stale = true,
        }
    }

    /// Applies the changes and makes the summary, on a thread for long work. Begins an audit if it
    /// is time.
    async fn advance(
        &mut self,
        sources: &Sources,
        renderers: &Renderers,
    ) -> Result<Arc<Snapshot>, ApiError> {
        let blocks = match std::mem::take(&mut self.are_blocks_stale) {
            true => Some(sources.records.list("").await?.0),
            false => None,
        };
        let pending = std::mem::take(&mut self.pending);
        let has_changes = !pending.is_empty() || blocks.is_some();
        let unchanged = self.space.take().filter(|_| !has_changes);
        let report = self.audits.report.clone();
        let mut cluster = self.cluster.take().ok_or_else(stopping)?;
        let revision = self.revision.map(|revision| revision.to_string());
        let revision = revision.unwrap_or_default();
        let made = renderers.run(move || {
            // An audit that is under way keeps the facts as they were.
            let facts = Arc::make_mut(&mut cluster);
            let space = unchanged.unwrap_or_else(|| {
                apply(facts, &pending, blocks.as_deref());
                Arc::new(AddressSpace::new(facts.space_parts()))
            });
            let summary = Arc::new(facts.summary(&space, &revision, report.as_ref()));
            (cluster, Arc::new(Snapshot { space, summary }))
        });
        let (cluster, snapshot) = made.await?;
        self.audits.are_stale |= has_changes;
        if self.audits.due().is_some_and(|due| due <= Instant::now()) {
            self.audits.begin(&cluster, &snapshot.space);
        }
        self.cluster = Some(cluster);
        self.space = Some(Arc::clone(&snapshot.space));
        Ok(snapshot)
    }
}

/// Completes at a time; never without one.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => clock::sleep_until(due).await,
        None => future::pending().await,
    }
}

/// The audits. One takes several times as long as a summary, which does not wait for it: the first
/// summary has no findings.
struct Audits {
    /// The findings of the last one; `None` before the first one.
    report: Option<Arc<FindingReport>>,
    /// True if the facts have changed since it began.
    are_stale: bool,
    /// The time before which the next one does not begin.
    next: Instant,
    running: Option<RunningAudit>,
}

struct RunningAudit {
    begun: Instant,
    report: oneshot::Receiver<FindingReport>,
}

impl Audits {
    fn new() -> Self {
        Self {
            report: None,
            are_stale: false,
            next: Instant::now(),
            running: None,
        }
    }

    /// The time of the next one; `None` while one is under way, or the last one is of these facts.
    fn due(&self) -> Option<Instant> {
        (self.are_stale && self.running.is_none()).then_some(self.next)
    }

    /// Begins an audit, on a thread of its own.
    fn begin(&mut self, cluster: &Arc<Cluster>, space: &Arc<AddressSpace>) {
        let (sender, report) = oneshot::channel();
        let (cluster, space) = (Arc::clone(cluster), Arc::clone(space));
        let audit = move || {
            let found = cluster.findings(&space);
            // Gives the facts back before anybody knows that it has ended.
            drop((cluster, space));
            _ = sender.send(found);
        };
        let begun = Instant::now();
        self.next = begun + AUDIT_PAUSE;
        match task::background_thread("audit", audit) {
            Ok(_detached) => {
                self.are_stale = false;
                self.running = Some(RunningAudit { begun, report });
            }
            Err(error) => tracing::debug!(%error, "failed to start an audit; trying again"),
        }
    }

    /// Completes when the audit that is under way has ended; never without one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the audit goes on.
    async fn ended(&mut self) {
        let Some(RunningAudit { begun, report }) = &mut self.running else {
            return future::pending().await;
        };
        let report = report.await;
        let pause = AUDIT_PAUSE.max(begun.elapsed() * AUDIT_SHARE);
        self.next = Instant::now() + pause;
        self.running = None;
        match report {
            Ok(report) => self.report = Some(Arc::new(report)),
            // It has panicked; the log has more.
            Err(_) => self.are_stale = true,
        }
    }
}

/// Applies changes in their order.
fn apply(cluster: &mut Cluster, changes: &[(Source, WatchedChange)], blocks: Option<&[Block]>) {
    // The objects of a kind are in the order of their changes, and kinds do not depend on each
    // other. Decoded pods are large: not all of them are in memory at once.
    let pods: Vec<&WatchedChange> = of(changes, Source::Pods).collect();
    let resource = cluster.resource().clone();
    for part in pods.chunks(DECODED) {
        let decoded = parallel::map(part, |change| {
            decoded(change).map(|pod| PodFacts::of(&pod, &resource))
        });
        for pod in decoded {
            match pod {
                Ok(pod) => cluster.insert_pod(pod),
                Err(key) => cluster.delete_pod(&key.namespace, &key.name),
            }
        }
    }
    for change in of(changes, Source::Nodes) {
        match decoded(change) {
            Ok(node) => cluster.apply_node(&node),
            Err(key) => cluster.delete_node(&key.name),
        }
    }
    for change in of(changes, Source::Services) {
        match decoded(change) {
            Ok(service) => cluster.apply_service(&service),
            Err(key) => cluster.delete_service(&key.namespace, &key.name),
        }
    }
    for change in of(changes, Source::ServiceCidrs) {
        match decoded(change) {
            Ok(range) => cluster.apply_service_cidr(&range),
            Err(key) => cluster.delete_service_cidr(&key.name),
        }
    }
    for change in of(changes, Source::ClusterCidrs) {
        match decoded(change) {
            Ok(range) => cluster.apply_cluster_cidr(&range),
            Err(key) => cluster.delete_cluster_cidr(&key.name),
        }
    }
    if let Some(blocks) = blocks {
        cluster.set_blocks(blocks);
    }
}

fn of(changes: &[(Source, WatchedChange)], wanted: Source) -> impl Iterator<Item = &WatchedChange> {
    let of_kind = changes.iter().filter(move |(source, _)| *source == wanted);
    of_kind.map(|(_, change)| change)
}

/// The object after a change, or the key of one that is gone. An object that cannot be read counts
/// as gone; the cache has logged it.
fn decoded<K: Object>(change: &WatchedChange) -> Result<K, ObjectKey> {
    match change {
        WatchedChange::Added(entry) | WatchedChange::Modified(entry) => {
            entry.decode().map_err(|_| entry.key())
        }
        WatchedChange::Deleted(_, before) => Err(before.key()),
    }
}
