//! Clients that create objects and watch them while servers die, and the judgement of what they
//! saw.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use podplane_api::{Object as _, core::ConfigMap, meta::ObjectMeta};
use podplane_client::{Api, ApiError, Client, ListParams, ObjectEvent, Reason};
use podplane_test_cluster::within;
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

/// The namespace of the objects.
const NAMESPACE: &str = "default";
/// The annotation with the number of the create.
const NUMBER: &str = "number";
/// Clients that create.
const CREATORS: usize = 4;
/// The shortest time between two calls of a client, so that the machine has time for the rest.
const PACE: Duration = Duration::from_millis(25);
/// The time after which a create counts as one without an answer. It is longer than that in which a
/// server finds out what became of a write, 15 s.
const ANSWER: Duration = Duration::from_secs(25);
/// The time limit for the end of all clients.
const END: Duration = Duration::from_secs(90);

/// Clients at work. Each has a list of all servers.
#[derive(Debug)]
pub(crate) struct Load {
    progress: Arc<LoadProgress>,
    thread: JoinHandle<Result<LoadRecord>>,
}

/// The state that the clients share with the test.
#[derive(Debug, Default)]
struct LoadProgress {
    /// The number of acknowledged creates.
    acknowledged: AtomicUsize,
    /// True when no more creates are to begin.
    stopped: AtomicBool,
    /// The revision at which watches end; 0 while it is not known.
    last: AtomicU64,
}

/// Everything that the clients saw.
#[derive(Debug)]
struct LoadRecord {
    creates: Vec<CreateAttempt>,
    watches: Vec<Vec<WatchedObject>>,
    /// The objects at the end.
    list: Vec<ConfigMap>,
}

/// The attempt to create an object.
#[derive(Debug)]
struct CreateAttempt {
    /// The number that the object has.
    number: String,
    /// The object and the time of the acknowledgement, if there was one.
    acknowledged: Option<(ObjectIdentity, Instant)>,
}

/// The name and UID of an object.
type ObjectIdentity = (String, String);

/// An object that a watch showed as added.
#[derive(Debug)]
struct WatchedObject {
    identity: ObjectIdentity,
    revision: u64,
}

/// The figures of a load of which nothing was lost.
#[derive(Debug)]
pub(crate) struct LoadSummary {
    acknowledged: usize,
    /// Creates without an answer that were carried out.
    unknown_done: usize,
    /// Creates without an answer that were not.
    unknown_not_done: usize,
    /// The longest time in which no client got an acknowledgement.
    longest_stall: Duration,
}

impl fmt::Display for LoadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            acknowledged,
            unknown_done,
            unknown_not_done,
            longest_stall,
        } = self;
        write!(
            f,
            "{acknowledged} acknowledged creates; without an answer {unknown_done} that were carried out and {unknown_not_done} that were not; no acknowledgement for at most {longest_stall:.1?}"
        )
    }
}

impl Load {
    /// Starts the clients, on a thread that has the network of the calling one. `client` makes the
    /// client of that number.
    pub(crate) fn start(client: impl Fn(usize) -> Result<Client>) -> Result<Self> {
        let progress = Arc::<LoadProgress>::default();
        let creators = (0..CREATORS).map(&client).collect::<Result<_>>()?;
        let watchers = (0..2).map(&client).collect::<Result<_>>()?;
        let shared = Arc::clone(&progress);
        let thread = thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build()?;
            runtime.block_on(run(&shared, creators, watchers))
        });
        Ok(Self { progress, thread })
    }

    /// The number of creates that were acknowledged. An error of a client is shown at the
    /// [`end`](Self::end).
    pub(crate) fn acknowledged(&self) -> Result<usize> {
        ensure!(!self.thread.is_finished(), "the clients have ended");
        Ok(self.progress.acknowledged.load(Ordering::Relaxed))
    }

    /// Ends the clients. Checks that each acknowledged create is there once, that no other was
    /// carried out twice, and that each watch showed every object once, in the order of revisions.
    pub(crate) async fn end(self) -> Result<LoadSummary> {
        self.progress.stopped.store(true, Ordering::SeqCst);
        let ended = || async { self.thread.is_finished() };
        within(END, "the clients have ended", ended, |ended| *ended).await?;
        let record = self.thread.join();
        let record = record.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        record.judge()
    }
}

/// The objects of the load.
fn of_load() -> ListParams {
    ListParams {
        label_selector: "load=true".to_owned(),
        ..ListParams::default()
    }
}

fn revision(map: &ConfigMap) -> Result<u64> {
    Ok(map.resource_version().parse()?)
}

fn identity(map: &ConfigMap) -> ObjectIdentity {
    (map.name().to_owned(), map.uid().to_owned())
}

/// Returns true for what a client sees while servers die: it does not know the outcome, or nothing
/// was done.
fn is_outage(error: &ApiError) -> bool {
    error.is_unavailable() || error.reason == Reason::Timeout
}

async fn run(
    progress: &Arc<LoadProgress>,
    creators: Vec<Client>,
    watchers: Vec<Client>,
) -> Result<LoadRecord> {
    let first = watchers.first().context("a client")?;
    let maps: Api<ConfigMap> = first.namespaced(NAMESPACE);
    let begin = maps.list(&of_load()).await?.resource_version;
    let mut watching = JoinSet::new();
    for client in watchers {
        watching.spawn(watch(client, begin.parse()?, Arc::clone(progress)));
    }
    let mut creating = JoinSet::new();
    for (number, client) in creators.into_iter().enumerate() {
        creating.spawn(create(client, number, Arc::clone(progress)));
    }
    let mut creates = Vec::new();
    while let Some(created) = creating.join_next().await {
        creates.extend(created??);
    }
    let list = maps.list(&of_load()).await?.items;
    let revisions: Vec<u64> = list.iter().map(revision).collect::<Result<_>>()?;
    let last = revisions.into_iter().max().context("no object")?;
    progress.last.store(last, Ordering::SeqCst);
    let mut watches = Vec::new();
    while let Some(watched) = watching.join_next().await {
        watches.push(watched??);
    }
    Ok(LoadRecord {
        creates,
        watches,
        list,
    })
}

/// Creates objects whose names the server chooses, each with a number of its own: one that was
/// carried out twice would be there twice.
async fn create(
    client: Client,
    creator: usize,
    progress: Arc<LoadProgress>,
) -> Result<Vec<CreateAttempt>> {
    let maps: Api<ConfigMap> = client.namespaced(NAMESPACE);
    let mut attempts = Vec::new();
    let mut pace = time::interval(PACE);
    while !progress.stopped.load(Ordering::SeqCst) {
        pace.tick().await;
        let number = format!("{creator}-{}", attempts.len());
        let map = ConfigMap {
            metadata: ObjectMeta {
                generate_name: Some("load-".to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                labels: Some([("load".to_owned(), "true".to_owned())].into()),
                annotations: Some([(NUMBER.to_owned(), number.clone())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let acknowledged = match time::timeout(ANSWER, maps.create(&map)).await {
            Ok(Ok(created)) => {
                progress.acknowledged.fetch_add(1, Ordering::Relaxed);
                Some((identity(&created), Instant::now()))
            }
            Ok(Err(error)) if is_outage(&error) => None,
            Ok(Err(error)) => return Err(error).context("a create was refused"),
            Err(_elapsed) => None,
        };
        attempts.push(CreateAttempt {
            number,
            acknowledged,
        });
    }
    Ok(attempts)
}

/// Watches from a revision on, and after each end of a stream from the last one that it saw.
async fn watch(
    client: Client,
    from: u64,
    progress: Arc<LoadProgress>,
) -> Result<Vec<WatchedObject>> {
    let maps: Api<ConfigMap> = client.namespaced(NAMESPACE);
    let mut seen = Vec::new();
    let mut at = from;
    let mut pace = time::interval(PACE);
    let is_done = |at| {
        let last = progress.last.load(Ordering::SeqCst);
        last > 0 && at >= last
    };
    while !is_done(at) {
        pace.tick().await;
        let mut events = match maps.watch(&of_load(), &at.to_string()).await {
            Ok(events) => Box::pin(events),
            Err(error) if is_outage(&error) => continue,
            Err(error) => return Err(error).with_context(|| format!("a watch after {at}")),
        };
        while !is_done(at) {
            // Dropping a wait for an event loses nothing.
            match time::timeout(PACE, events.next()).await {
                Ok(Some(Ok(ObjectEvent::Added(map)))) => {
                    let revision = revision(&map)?;
                    ensure!(revision > at, "{revision} came after {at}");
                    at = revision;
                    let identity = identity(&map);
                    seen.push(WatchedObject { identity, revision });
                }
                Ok(Some(Ok(ObjectEvent::Bookmark(revision)))) => at = at.max(revision.parse()?),
                Ok(Some(Err(error))) if is_outage(&error) => break,
                Ok(None) => break,
                Err(_elapsed) => {}
                Ok(other) => bail!("a watch after {at} showed {other:?}"),
            }
        }
    }
    Ok(seen)
}

impl LoadRecord {
    fn judge(self) -> Result<LoadSummary> {
        let Self {
            creates,
            watches,
            list,
        } = self;
        let mut by_number = BTreeMap::<&str, Vec<ObjectIdentity>>::new();
        for map in &list {
            let annotations = map.metadata.annotations.as_ref();
            let number = annotations.and_then(|all| all.get(NUMBER));
            let number = number.with_context(|| format!("{} has no number", map.name()))?;
            by_number.entry(number).or_default().push(identity(map));
        }
        let (mut acknowledged, mut unknown_done, mut unknown_not_done) = (Vec::new(), 0, 0);
        for attempt in &creates {
            let found = by_number.remove(attempt.number.as_str());
            let found = found.unwrap_or_default();
            match &attempt.acknowledged {
                Some((identity, at)) => {
                    ensure!(
                        found == [identity.clone()],
                        "{attempt:?} was acknowledged, and there is {found:?}"
                    );
                    acknowledged.push(*at);
                }
                None if found.is_empty() => unknown_not_done += 1,
                None => {
                    ensure!(
                        found.len() == 1,
                        "{attempt:?} was carried out twice: {found:?}"
                    );
                    unknown_done += 1;
                }
            }
        }
        ensure!(by_number.is_empty(), "nobody created {by_number:?}");

        let listed: BTreeSet<_> = list
            .iter()
            .map(|map| Ok((identity(map), revision(map)?)))
            .collect::<Result<_>>()?;
        for watched in watches {
            let count = watched.len();
            let shown: BTreeSet<_> = watched
                .into_iter()
                .map(|WatchedObject { identity, revision }| (identity, revision))
                .collect();
            ensure!(shown.len() == count, "a watch showed an object twice");
            let missed: Vec<_> = listed.symmetric_difference(&shown).collect();
            ensure!(missed.is_empty(), "a watch and the list differ: {missed:?}");
        }

        acknowledged.sort();
        let stalls = acknowledged.windows(2).map(|pair| pair[1] - pair[0]);
        Ok(LoadSummary {
            acknowledged: acknowledged.len(),
            unknown_done,
            unknown_not_done,
            longest_stall: stalls.max().unwrap_or_default(),
        })
    }
}
