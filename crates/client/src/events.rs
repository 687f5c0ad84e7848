//! Events: messages about an object, for people to read.
//!
//! Repetitions are counted in one event, as client-go's event correlator does: those with the same
//! message, and from the tenth different message on all that are about the same object for the same
//! reason. Unlike there, messages are the same if they differ only in the ids of sandboxes and
//! containers, which are new at each attempt; the event has the last of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use podplane_api::{
    Object, ObjectKey,
    core::{Event, EventSource, ObjectReference},
    jiff::{SignedDuration, Timestamp},
    meta::{MicroTime, ObjectMeta, Time},
};
use podplane_host::clock;
use podplane_proto::error::ApiError;
use tokio::sync::mpsc;

use crate::api::Client;

/// The maximum number of events that wait to be written. When the queue is full, further ones are
/// dropped, and counted in a warning: events explain, they never hold work back.
const QUEUE: usize = 1000;
/// The maximum number of distinct events remembered for counting repetitions. Beyond that the older
/// half is forgotten; its next repetition is a new event.
const REMEMBERED: usize = 4096;
/// The number of different messages of similar events, within [`SIMILAR_INTERVAL`], from which on
/// they are combined into one event; client-go's `defaultAggregateMaxEvents`.
const MAX_MESSAGES: usize = 10;
/// The time after the last of similar events from which on the next one is not similar to them;
/// client-go's `defaultAggregateIntervalInSeconds`.
const SIMILAR_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
/// The beginning of the message of a combined event.
const COMBINED: &str = "(combined from similar events): ";
/// The number of hexadecimal digits of the id of a sandbox or container.
const ID_LENGTH: usize = 64;
/// The length at which Kubernetes cuts messages, with ` ...` at the end.
const MAX_MESSAGE: usize = 1024;

/// The type of an event: expected or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// An expected event.
    Normal,
    /// An event that people may have to act on.
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Writes events without ever failing or delaying its caller. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<Occurrence>,
    source: Arc<EventSource>,
    /// The number of events that were dropped since the queue was last empty.
    dropped: Arc<AtomicU64>,
}

/// One occurrence, before it becomes an Event object.
#[derive(Clone, Debug)]
struct Occurrence {
    about: ObjectReference,
    source: Arc<EventSource>,
    r#type: EventType,
    reason: &'static str,
    action: &'static str,
    message: String,
    at: Timestamp,
}

impl EventRecorder {
    /// Returns a recorder for `component` (such as `default-scheduler`) on `host` (a node's name,
    /// or empty), and the future that writes the recorded events.
    pub fn new(
        client: Client,
        component: &str,
        host: &str,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        let source = EventSource {
            component: Some(component.into()),
            host: Some(host).filter(|host| !host.is_empty()).map(Into::into),
        };
        let recorder = Self {
            queue,
            source: Arc::new(source),
            dropped: Arc::default(),
        };
        let write = write(client, occurrences, recorder.dropped.clone());
        (recorder, write)
    }

    /// The same recorder for another host, for a process that serves several nodes.
    #[must_use]
    pub fn for_host(&self, host: &str) -> Self {
        let source = EventSource {
            host: Some(host.into()),
            ..(*self.source).clone()
        };
        Self {
            source: Arc::new(source),
            ..self.clone()
        }
    }

    /// Records that something happened to `object`. `reason` is a CamelCase word; `action` is the
    /// attempted operation, or empty.
    pub fn record<K: Object>(
        &self,
        object: &K,
        r#type: EventType,
        reason: &'static str,
        action: &'static str,
        message: impl Into<String>,
    ) {
        self.record_about(reference(object), r#type, reason, action, message);
    }

    /// The same as [`record`](Self::record), for a caller that does not have the object.
    pub fn record_about(
        &self,
        about: ObjectReference,
        r#type: EventType,
        reason: &'static str,
        action: &'static str,
        message: impl Into<String>,
    ) {
        let occurrence = Occurrence {
            about,
            source: self.source.clone(),
            r#type,
            reason,
            action,
            message: cut(message.into()),
            at: clock::timestamp(),
        };
        if self.queue.try_send(occurrence).is_err()
            && self.dropped.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(
                reason,
                "too many events wait to be written; dropping further ones"
            );
        }
    }
}

fn reference<K: Object>(object: &K) -> ObjectReference {
    let metadata = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.into()),
        kind: Some(K::KIND.into()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        resource_version: metadata.resource_version.clone(),
        uid: metadata.uid.clone(),
        field_path: None,
    }
}

fn cut(mut message: String) -> String {
    const MORE: &str = " ...";
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE - MORE.len()));
        message.push_str(MORE);
    }
    message
}

/// The key by which two occurrences are similar.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SimilarKey {
    object: (Option<String>, Option<String>, ObjectKey),
    host: Option<String>,
    r#type: EventType,
    reason: &'static str,
}

/// The key by which two occurrences count as the same event: similar, with the same message; `None`
/// is that of all messages beyond [`MAX_MESSAGES`].
type EventKey = (SimilarKey, Option<String>);

/// The latest messages of similar events.
#[derive(Debug, Default)]
struct SimilarMessages {
    messages: BTreeSet<String>,
    last: Timestamp,
}

impl SimilarMessages {
    /// Adds a message. Returns true if it is to be combined with others.
    fn add(&mut self, message: String, at: Timestamp) -> bool {
        if at.duration_since(self.last) > SIMILAR_INTERVAL {
            self.messages.clear();
        }
        self.last = at;
        self.messages.insert(message);
        let is_combined = self.messages.len() >= MAX_MESSAGES;
        if is_combined {
            self.messages.pop_first();
        }
        is_combined
    }
}

/// Finds the event that an occurrence repeats.
#[derive(Debug, Default)]
struct EventCorrelator(BTreeMap<SimilarKey, SimilarMessages>);

impl EventCorrelator {
    /// Returns the key of the occurrence's event. The message of a combined event says so.
    fn correlate(&mut self, occurrence: &mut Occurrence) -> EventKey {
        if self.0.len() >= REMEMBERED {
            forget_older_half(&mut self.0, |similar| Some(similar.last));
        }
        let key = occurrence.key();
        let message = without_ids(&occurrence.message);
        let similar = self.0.entry(key.clone()).or_default();
        if !similar.add(message.clone(), occurrence.at) {
            return (key, Some(message));
        }
        let message = mem::take(&mut occurrence.message);
        occurrence.message = cut(format!("{COMBINED}{message}"));
        (key, None)
    }
}

/// The message without quoted ids of sandboxes and containers.
fn without_ids(message: &str) -> String {
    let is_id =
        |part: &&str| part.len() == ID_LENGTH && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = message.split('"').filter(|part| !is_id(part));
    parts.collect::<Vec<_>>().join("\"")
}

async fn write(
    client: Client,
    mut occurrences: mpsc::Receiver<Occurrence>,
    dropped: Arc<AtomicU64>,
) {
    let mut written = BTreeMap::<EventKey, Event>::new();
    let mut correlator = EventCorrelator::default();
    while let Some(mut occurrence) = occurrences.recv().await {
        if occurrences.is_empty() {
            let events = dropped.swap(0, Ordering::Relaxed);
            if events > 0 {
                tracing::warn!(events, "events were dropped");
            }
        }
        let key = correlator.correlate(&mut occurrence);
        let namespace = occurrence.namespace();
        let known = written.remove(&key);
        match store(&client, &namespace, known, &occurrence).await {
            Ok(event) => {
                if written.len() >= REMEMBERED {
                    let last = |event: &Event| event.last_timestamp.as_ref().map(|time| time.0);
                    forget_older_half(&mut written, last);
                }
                written.insert(key, event);
            }
            // Lost on purpose: the object itself carries the state, and waiting here would fill the
            // queue.
            Err(error) => tracing::debug!(reason = occurrence.reason, %error, "event not written"),
        }
    }
}

/// Increments the count of a known event, or creates a new one if there is none or it was deleted.
async fn store(
    client: &Client,
    namespace: &str,
    known: Option<Event>,
    occurrence: &Occurrence,
) -> Result<Event, ApiError> {
    let events = client.namespaced::<Event>(namespace);
    if let Some(mut event) = known {
        event.count = event.count.map(|count| count.saturating_add(1));
        event.last_timestamp = Some(Time(occurrence.at));
        event.message = Some(occurrence.message.clone());
        match events.update(&event).await {
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            other => return other,
        }
    }
    events.create(&occurrence.event(namespace)).await
}

fn forget_older_half<K: Ord, V>(
    remembered: &mut BTreeMap<K, V>,
    last: impl Fn(&V) -> Option<Timestamp>,
) {
    let mut times: Vec<_> = remembered.values().filter_map(&last).collect();
    times.sort();
    if let Some(median) = times.get(times.len() / 2) {
        remembered.retain(|_, value| last(value) > Some(*median));
    }
}

impl Occurrence {
    /// The namespace of the event. Events about cluster-scoped objects are in `default`, as in
    /// Kubernetes.
    fn namespace(&self) -> String {
        self.about
            .namespace
            .clone()
            .filter(|ns| !ns.is_empty())
            .unwrap_or_else(|| "default".into())
    }

    fn key(&self) -> SimilarKey {
        let name = self.about.name.clone().unwrap_or_default();
        SimilarKey {
            object: (
                self.about.kind.clone(),
                self.about.uid.clone(),
                ObjectKey::new(self.namespace(), name),
            ),
            host: self.source.host.clone(),
            r#type: self.r#type,
            reason: self.reason,
        }
    }

    fn event(&self, namespace: &str) -> Event {
        let name = self.about.name.as_deref().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                // Kubernetes' own form: the object's name and the time, in hexadecimal nanoseconds.
                name: Some(format!("{name}.{:x}", self.at.as_nanosecond())),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            involved_object: self.about.clone(),
            type_: Some(self.r#type.as_str().into()),
            reason: Some(self.reason.into()),
            action: Some(self.action)
                .filter(|action| !action.is_empty())
                .map(Into::into),
            message: Some(self.message.clone()),
            source: Some((*self.source).clone()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            first_timestamp: Some(Time(self.at)),
            last_timestamp: Some(Time(self.at)),
            event_time: None::<MicroTime>,
            count: Some(1),
            ..Event::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(message: &str, second: i64) -> Occurrence {
        Occurrence {
            about: ObjectReference::default(),
            source: Arc::default(),
            r#type: EventType::Warning,
            reason: "FailedCreatePodSandBox",
            action: "",
            message: message.into(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn attempts_that_fail_alike_are_one_event() {
        let mut correlator = EventCorrelator::default();
        let mut key = |id: &str, why: &str| {
            let message = format!("failed to setup network for sandbox \"{id}\": {why}");
            correlator.correlate(&mut occurrence(&message, 1))
        };
        let first = key(&"a1".repeat(32), "no addresses");
        assert_eq!(key(&"b2".repeat(32), "no addresses"), first);
        assert_ne!(key(&"b2".repeat(32), "no plugin"), first);
        assert_ne!(key("node-0", "no addresses"), first);
    }

    #[test]
    fn combines_similar_events_from_the_tenth_message_on() {
        let mut correlator = EventCorrelator::default();
        let mut message = |number: i64, at: i64| {
            let mut occurrence = occurrence(&format!("no {number}"), at);
            let (_, own) = correlator.correlate(&mut occurrence);
            assert_eq!(own.is_none(), occurrence.message.starts_with(COMBINED));
            occurrence.message
        };
        for number in 1..=9 {
            assert_eq!(message(number, number), format!("no {number}"));
        }
        assert_eq!(message(9, 9), "no 9", "a repetition");
        let combined = "(combined from similar events): no 10";
        assert_eq!(message(10, 10), combined);
        let combined = "(combined from similar events): no 11";
        assert_eq!(message(11, 610), combined);
        assert_eq!(message(12, 1211), "no 12", "after more than ten minutes");
    }

    #[test]
    fn truncates_long_messages_between_characters() {
        let cut = cut("é".repeat(1000));
        assert!(
            cut.len() <= MAX_MESSAGE && cut.ends_with(" ..."),
            "{}",
            cut.len()
        );
        assert_eq!(super::cut("short".into()), "short");
    }
}
