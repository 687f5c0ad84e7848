//! Clients at work, and the record of what they saw.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use podplane_api::{Object as _, core::Node};
use podplane_client::{Api, ApiError, DeleteParams, ListParams, ObjectList, Reason};
use podplane_tests::{
    apiserver::Apiserver,
    history::{KeyOp, OpOutcome, Recorder, Value},
};
use rand::RngExt as _;
use tokio::{task::JoinSet, time};

use super::log::{Log, ObjectValues};

/// The keys that clients contend for.
const KEYS: usize = 5;
/// The beginning of those keys' names.
const CONTENDED: &str = "k";

/// The record of what all clients saw, in all rounds.
#[derive(Debug, Default)]
pub(crate) struct HistoryRecord {
    pub(crate) recorder: Recorder,
    written: AtomicU64,
    acknowledged: Mutex<Vec<(u64, String, Value)>>,
    /// Lists of the nodes whose names have the prefix, by revision.
    lists: Mutex<Vec<(u64, &'static str, ObjectValues)>>,
}

impl HistoryRecord {
    /// A value that was never written.
    fn fresh(&self) -> Value {
        self.written.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The newest revision that was acknowledged.
    pub(crate) fn newest(&self) -> u64 {
        let acknowledged = self.acknowledged.lock().unwrap();
        acknowledged.iter().map(|(at, ..)| *at).max().unwrap_or(0)
    }

    fn acknowledge(&self, node: &Node) {
        let write = (
            node::revision(node),
            node.name().to_owned(),
            node::value(node),
        );
        self.acknowledged.lock().unwrap().push(write);
    }

    /// Records a list of the nodes whose names have the prefix.
    pub(crate) fn listed(&self, prefix: &'static str, list: &ObjectList<Node>) {
        let state = list.items.iter().map(|node| {
            (
                node.name().to_owned(),
                (node::revision(node), node::value(node)),
            )
        });
        let revision = list.resource_version.parse().unwrap();
        self.lists
            .lock()
            .unwrap()
            .push((revision, prefix, state.collect()));
    }

    /// Compares what clients saw with what a watch saw.
    pub(crate) fn judge(&self, log: &Log) -> Result<()> {
        for (revision, name, value) in self.acknowledged.lock().unwrap().iter() {
            ensure!(
                log.wrote(*revision, name, *value),
                "{name}={value} was acknowledged at {revision}, and the watch did not see it"
            );
        }
        for (revision, prefix, list) in self.lists.lock().unwrap().iter() {
            let watched = log.state_at(*revision, prefix);
            ensure!(
                watched == *list,
                "the list at {revision} is {list:?}, by the watch it is {watched:?}"
            );
        }
        Ok(())
    }
}

/// Counts the writes of a round, and the longest time without one.
#[derive(Debug)]
pub(crate) struct WriteCounter(Mutex<(usize, Instant, Duration)>);

impl WriteCounter {
    fn new() -> Self {
        Self(Mutex::new((0, Instant::now(), Duration::ZERO)))
    }

    fn acknowledge(&self) {
        let mut counted = self.0.lock().unwrap();
        let (count, last, longest) = *counted;
        *counted = (count + 1, Instant::now(), longest.max(last.elapsed()));
    }

    /// The number of acknowledged writes.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().0
    }

    /// The longest time between two writes that followed each other.
    pub(crate) fn longest_standstill(&self) -> Duration {
        self.0.lock().unwrap().2
    }
}

/// Clients at work on one run of the server.
pub(crate) struct Round {
    clients: JoinSet<Vec<String>>,
    pub(crate) writes: Arc<WriteCounter>,
    /// True from the time on at which the server need not answer, and no more operations begin.
    pub(crate) killed: Arc<AtomicBool>,
    /// True while the server's store need not answer. Operations go on.
    pub(crate) cut_off: Arc<AtomicBool>,
}

impl Round {
    /// Sets clients to work, each with a connection of its own to one of the servers.
    pub(crate) fn start(
        world: &Arc<HistoryRecord>,
        servers: &[&Apiserver],
        number: usize,
        contenders: usize,
        creators: usize,
    ) -> Result<Self> {
        let mut round = Self {
            clients: JoinSet::new(),
            writes: Arc::new(WriteCounter::new()),
            killed: Arc::default(),
            cut_off: Arc::default(),
        };
        for index in 0..contenders + creators {
            let client = Client {
                world: Arc::clone(world),
                nodes: servers[index % servers.len()].client()?.all(),
                writes: Arc::clone(&round.writes),
                killed: Arc::clone(&round.killed),
                cut_off: Arc::clone(&round.cut_off),
                seen: BTreeMap::new(),
            };
            if index < contenders {
                round.clients.spawn(client.contend());
            } else {
                let prefix = format!("r{number}-c{index}");
                round.clients.spawn(client.create(prefix, number));
            }
        }
        Ok(round)
    }

    /// Waits for the clients to notice that the server is gone; returns the names that the creating
    /// clients created.
    pub(crate) async fn end(self) -> Vec<String> {
        self.clients.join_all().await.concat()
    }
}

struct Client {
    world: Arc<HistoryRecord>,
    nodes: Api<Node>,
    writes: Arc<WriteCounter>,
    killed: Arc<AtomicBool>,
    cut_off: Arc<AtomicBool>,
    /// The last state of each key that it saw.
    seen: BTreeMap<String, Node>,
}

/// An operation that may have happened, or not.
struct Unanswered;

impl Client {
    /// Works on the keys that all contend for.
    async fn contend(mut self) -> Vec<String> {
        while !self.killed.load(Ordering::SeqCst) {
            let (key, dice, impatient) = {
                let mut random = rand::rng();
                let key = format!("{CONTENDED}{}", random.random_range(0..KEYS));
                let impatient = random.random_range(0..200) == 0;
                let patience = random.random_range(0..3_000);
                let patience = impatient.then(|| Duration::from_micros(patience));
                (key, random.random_range(0..100), patience)
            };
            let one = self.one(key, dice);
            // An operation that was begun and is dropped here has no answer: it may happen, or not.
            let _open = match impatient {
                None => one.await,
                Some(patience) => time::timeout(patience, one).await.unwrap_or(Ok(())),
            };
        }
        Vec::new()
    }

    async fn one(&mut self, key: String, dice: u32) -> Result<(), Unanswered> {
        match (dice, self.seen.get(&key).cloned()) {
            (0..20, _) => {
                let value = self.world.fresh();
                let id = self.world.recorder.began(&key, KeyOp::Create(value));
                let created = self.nodes.create(&node::new(&key, value, "")).await;
                let outcome = self.written(created)?;
                self.world.recorder.ended(id, outcome);
            }
            (20..50, Some(mut seen)) => {
                let (old, value) = (node::value(&seen), self.world.fresh());
                node::set_value(&mut seen, value);
                let id = self.world.recorder.began(&key, KeyOp::Swap(old, value));
                let outcome = self.written(self.nodes.update(&seen).await)?;
                self.world.recorder.ended(id, outcome);
            }
            (50..60, _) => {
                let value = self.world.fresh();
                let id = self.world.recorder.began(&key, KeyOp::Put(value));
                let updated = self.nodes.update(&node::new(&key, value, "")).await;
                let outcome = self.written(updated)?;
                self.world.recorder.ended(id, outcome);
            }
            (60..70, _) => {
                let id = self.world.recorder.began(&key, KeyOp::Delete);
                let deleted = self.nodes.delete(&key, &DeleteParams::default()).await;
                let outcome = match deleted {
                    Ok(node) => OpOutcome::Found(node::value(&node)),
                    Err(error) => self.refused(&error)?,
                };
                self.world.recorder.ended(id, outcome);
            }
            (70..75, _) => self.list().await?,
            _ => {
                let id = self.world.recorder.began(&key, KeyOp::Get);
                let outcome = match self.nodes.get(&key).await {
                    Ok(node) => {
                        let value = node::value(&node);
                        self.seen.insert(key, node);
                        OpOutcome::Found(value)
                    }
                    Err(error) => self.refused(&error)?,
                };
                self.world.recorder.ended(id, outcome);
            }
        }
        Ok(())
    }

    /// A list is a read of every key at once.
    async fn list(&self) -> Result<(), Unanswered> {
        let reads: Vec<_> = (0..KEYS)
            .map(|index| {
                let key = format!("{CONTENDED}{index}");
                let id = self.world.recorder.began(&key, KeyOp::Get);
                (key, id)
            })
            .collect();
        let contended = ListParams {
            label_selector: "!round".into(),
            ..ListParams::default()
        };
        let list = match self.nodes.list(&contended).await {
            Ok(list) => list,
            Err(error) => return self.refused(&error).map(drop),
        };
        self.world.listed(CONTENDED, &list);
        for (key, id) in reads {
            let found = list.items.iter().find(|node| node.name() == key);
            let found = found.map(|node| OpOutcome::Found(node::value(node)));
            self.world
                .recorder
                .ended(id, found.unwrap_or(OpOutcome::Absent));
        }
        Ok(())
    }

    /// Creates one object after the other; returns the names of the acknowledged ones.
    async fn create(self, prefix: String, round: usize) -> Vec<String> {
        let mut created = Vec::new();
        while !self.killed.load(Ordering::SeqCst) {
            let name = format!("{prefix}-{}", created.len());
            let node = node::new(&name, self.world.fresh(), &round.to_string());
            // One whose outcome is not known is created again, or found.
            if self.written(self.nodes.create(&node).await).is_ok() {
                created.push(name);
            }
        }
        created
    }

    fn written(&self, written: Result<Node, ApiError>) -> Result<OpOutcome, Unanswered> {
        match written {
            Ok(node) => {
                self.world.acknowledge(&node);
                self.writes.acknowledge();
                Ok(OpOutcome::Done)
            }
            Err(error) => self.refused(&error),
        }
    }

    fn refused(&self, error: &ApiError) -> Result<OpOutcome, Unanswered> {
        match error.reason {
            Reason::NotFound => Ok(OpOutcome::Absent),
            Reason::AlreadyExists | Reason::Conflict => Ok(OpOutcome::Refused),
            Reason::ServiceUnavailable if self.killed.load(Ordering::SeqCst) => Err(Unanswered),
            Reason::ServiceUnavailable | Reason::Timeout if self.cut_off.load(Ordering::SeqCst) => {
                Err(Unanswered)
            }
            _ => panic!("only a kill may leave a request without an answer: {error:?}"),
        }
    }
}

/// The objects that clients write: nodes, since everything in them may be changed, and they are
/// deleted at once.
pub(crate) mod node {
    use podplane_api::{Object as _, core::Node, meta::ObjectMeta};
    use podplane_tests::history::Value;

    const VALUE: &str = "value";

    pub(crate) fn new(name: &str, value: Value, round: &str) -> Node {
        let round = (!round.is_empty()).then(|| ("round".to_owned(), round.to_owned()));
        Node {
            metadata: ObjectMeta {
                name: Some(name.into()),
                annotations: Some([(VALUE.to_owned(), value.to_string())].into()),
                labels: round.map(|label| [label].into()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        }
    }

    pub(crate) fn value(node: &Node) -> Value {
        let annotations = node.metadata.annotations.as_ref().unwrap();
        annotations[VALUE].parse().unwrap()
    }

    pub(crate) fn set_value(node: &mut Node, value: Value) {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(VALUE.into(), value.to_string());
    }

    pub(crate) fn revision(node: &Node) -> u64 {
        node.resource_version().parse().unwrap()
    }
}
