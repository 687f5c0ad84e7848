//! The events of a watch that is resumed after every kill.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use podplane_api::{Object as _, core::Node};
use podplane_client::{Client, ListParams, ObjectEvent};
use podplane_http_client::HttpClient;
use podplane_tests::history::Value;
use serde_json::Value as Json;

use super::clients::node;

/// The value of each object, with the revision since which it has it.
pub(crate) type ObjectValues = BTreeMap<String, (u64, Value)>;

/// The change of an object in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchedChange {
    Added,
    Modified,
    Deleted,
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchedEvent {
    change: WatchedChange,
    name: String,
    revision: u64,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Face {
    Grpc,
    Rest,
}

/// A client that watches all nodes and resumes at the last revision that it saw when its stream
/// ends.
#[derive(Debug)]
pub(crate) struct Watcher {
    face: Face,
    from: u64,
    pub(crate) seen: Vec<WatchedEvent>,
}

impl Watcher {
    /// Creates one for each face, which begin after the revision `from`.
    pub(crate) fn both(from: u64) -> Vec<Self> {
        let watcher = |face| Self {
            face,
            from,
            seen: Vec::new(),
        };
        vec![watcher(Face::Grpc), watcher(Face::Rest)]
    }

    /// The last revision that it saw.
    pub(crate) fn revision(&self) -> u64 {
        self.seen.last().map_or(self.from, |seen| seen.revision)
    }

    /// Watches until it has seen a revision, or until the stream ends.
    pub(crate) async fn follow(
        mut self,
        client: Client,
        rest: HttpClient,
        until: Option<u64>,
    ) -> Self {
        let followed = match self.face {
            Face::Grpc => self.follow_grpc(client, until).await,
            Face::Rest => self.follow_rest(rest, until).await,
        };
        if let Err(error) = followed {
            panic!("{:?} watch after {}: {error:#}", self.face, self.revision());
        }
        self
    }

    fn done(&self, until: Option<u64>) -> bool {
        until.is_some_and(|until| self.revision() >= until)
    }

    async fn follow_grpc(&mut self, client: Client, until: Option<u64>) -> Result<()> {
        let nodes = client.all::<Node>();
        let mut events = match nodes
            .watch(&ListParams::default(), &self.revision().to_string())
            .await
        {
            Ok(events) => Box::pin(events),
            // The server was killed before the watch began.
            Err(error) if error.is_unavailable() && until.is_none() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        while !self.done(until) {
            let (change, node) = match events.next().await {
                Some(Ok(ObjectEvent::Added(node))) => (WatchedChange::Added, node),
                Some(Ok(ObjectEvent::Modified(node))) => (WatchedChange::Modified, node),
                Some(Ok(ObjectEvent::Deleted(node))) => (WatchedChange::Deleted, node),
                Some(Ok(ObjectEvent::Bookmark(_))) => continue,
                None if until.is_none() => return Ok(()),
                Some(Err(error)) if error.is_unavailable() && until.is_none() => return Ok(()),
                other => bail!("{other:?}"),
            };
            self.seen.push(WatchedEvent {
                change,
                name: node.name().to_owned(),
                revision: node::revision(&node),
                value: node::value(&node),
            });
        }
        Ok(())
    }

    async fn follow_rest(&mut self, rest: HttpClient, until: Option<u64>) -> Result<()> {
        let path = format!(
            "/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion={}",
            self.revision()
        );
        let (code, mut events) = match rest.watch(&path).await {
            Ok(watch) => watch,
            Err(_killed) if until.is_none() => return Ok(()),
            Err(error) => return Err(error),
        };
        ensure!(code == 200, "answered with {code}");
        while !self.done(until) {
            let event = match events.next().await {
                Some(Ok(event)) => event,
                None | Some(Err(_)) if until.is_none() => return Ok(()),
                other => bail!("{other:?}"),
            };
            let change = match event["type"].as_str() {
                Some("ADDED") => WatchedChange::Added,
                Some("MODIFIED") => WatchedChange::Modified,
                Some("DELETED") => WatchedChange::Deleted,
                Some("BOOKMARK") => continue,
                _ => bail!("{event}"),
            };
            self.seen.push(document(change, &event["object"])?);
        }
        Ok(())
    }
}

fn document(change: WatchedChange, object: &Json) -> Result<WatchedEvent> {
    let text = |pointer: &str| {
        let text = object.pointer(pointer).and_then(Json::as_str);
        text.with_context(|| format!("{pointer} of {object}"))
    };
    Ok(WatchedEvent {
        change,
        name: text("/metadata/name")?.to_owned(),
        revision: text("/metadata/resourceVersion")?.parse()?,
        value: text("/metadata/annotations/value")?.parse()?,
    })
}

/// A watch that saw everything from the beginning of the store, once and in order.
#[derive(Debug)]
pub(crate) struct Log(BTreeMap<u64, WatchedEvent>);

impl Log {
    /// Checks the guarantees of a watch: revisions grow, an added object was missing before, a
    /// modified or deleted one existed.
    pub(crate) fn new(seen: Vec<WatchedEvent>) -> Result<Self> {
        let mut present = BTreeMap::new();
        let mut log = BTreeMap::<u64, WatchedEvent>::new();
        for event in seen {
            let was_there = present.contains_key(&event.name);
            ensure!(
                was_there == (event.change != WatchedChange::Added),
                "{event:?}, and it was there: {was_there}"
            );
            if event.change == WatchedChange::Deleted {
                present.remove(&event.name);
            } else {
                present.insert(event.name.clone(), event.value);
            }
            if let Some((last, _)) = log.last_key_value() {
                ensure!(*last < event.revision, "{event:?} came after {last}");
            }
            log.insert(event.revision, event);
        }
        Ok(Self(log))
    }

    /// Returns true if it saw that write.
    pub(crate) fn wrote(&self, revision: u64, name: &str, value: Value) -> bool {
        self.0.get(&revision).is_some_and(|seen| {
            seen.change != WatchedChange::Deleted
                && (seen.name.as_str(), seen.value) == (name, value)
        })
    }

    /// The objects at a revision whose names have the prefix.
    pub(crate) fn state_at(&self, revision: u64, prefix: &str) -> ObjectValues {
        let mut state = ObjectValues::new();
        let seen = self.0.range(..=revision).map(|(_, seen)| seen);
        for seen in seen.filter(|seen| seen.name.starts_with(prefix)) {
            if seen.change == WatchedChange::Deleted {
                state.remove(&seen.name);
            } else {
                state.insert(seen.name.clone(), (seen.revision, seen.value));
            }
        }
        state
    }
}
