//! `pods/NAME/log`: the pod's way through the network, since no container runs in it that could
//! write a log.
//!
//! Every line comes from the pod's object, one of its events or its trace, with its time. The
//! options are those of `core/v1.PodLogOptions`, the errors those of Kubernetes.

mod waterfall;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, extract::Query};
use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{StatusCode, Uri};
use podplane_api::{
    ObjectKey,
    jiff::{SignedDuration, Timestamp},
    printable,
};
use podplane_host::clock::{self, Instant};
use podplane_proto::{error::ApiError, wire::WatchEventType};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, RestAnswer},
    request::{ListOptions, boolean, integer},
    resource::{Resource, WatchNotice, WatchNotices},
};
use crate::{error, journeys::Journeys};

/// The longest time for which a pod is followed.
const LASTS: Duration = Duration::from_secs(24 * 60 * 60);

/// The sources of the lines.
pub(super) struct Sources<'a> {
    pub(super) pods: &'a Arc<dyn Resource>,
    pub(super) events: &'a Arc<dyn Resource>,
    pub(super) journeys: &'a Journeys,
}

/// The supported fields of core/v1.PodLogOptions, as text.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LogQuery {
    container: String,
    follow: String,
    previous: String,
    since_seconds: String,
    since_time: String,
    timestamps: String,
    tail_lines: String,
    limit_bytes: String,
}

/// The parsed options.
#[derive(Debug)]
struct LogRequest {
    follow: bool,
    timestamps: bool,
    since: Option<Timestamp>,
    tail: Option<usize>,
    limit: Option<usize>,
}

/// Answers with the present lines, and with later ones if the client follows.
pub(super) async fn answer(
    sources: Sources<'_>,
    key: &ObjectKey,
    uri: &Uri,
    stop: CancellationToken,
) -> Result<RestAnswer, ApiError> {
    let Query(query) = Query::<LogQuery>::try_from_uri(uri)
        .map_err(|rejection| error::bad_request(rejection.body_text()))?;
    let options = options(&query, clock::timestamp())?;
    let pod = sources.pods.get(key).await?;
    known_container(&query, &pod)?;
    let uid = text(&pod, "/metadata/uid").to_owned();
    let of_pod = format!("metadata.name={}", key.name);
    let of_events = format!("involvedObject.uid={uid}");

    let events = ListOptions::of(&key.namespace, &of_events, "");
    let listed = sources.events.list(&events).await?;
    let mut journey = FollowedPod {
        pod,
        events: BTreeMap::new(),
        told: BTreeSet::new(),
        is_over: false,
        uid,
    };
    for event in listed.items {
        journey.event(event.document()?);
    }
    let journeys = sources.journeys;
    let follows = options.follow && !journey.is_over;
    let mut first = journey.news();
    // A client that follows gets it when it is complete.
    if !follows {
        waterfall::soon_settled(journeys, &journey.uid).await;
        first.extend(waterfall::lines(journeys, &journey.uid));
    }
    first.retain(|line| options.since.is_none_or(|since| line.time >= since));
    if let Some(tail) = options.tail {
        first.drain(..first.len().saturating_sub(tail));
    }
    let format = move |line: LogLine| line.show(options.timestamps);
    let first = stream::iter(first).map(format);
    if !follows || journey.is_over {
        let lines = limited(first, options.limit);
        return Ok(plain(lines));
    }
    let after = listed.metadata.resource_version.unwrap_or_default();
    let after = after.as_str();
    let ends = Instant::now() + LASTS;
    let pods = ListOptions::of(&key.namespace, &of_pod, after);
    let pods = sources.pods.watch(&pods, ends).await?;
    let events = ListOptions::of(&key.namespace, &of_events, after);
    let events = sources.events.watch(&events, ends).await?;
    let end = async move {
        _ = clock::timeout_at(ends, stop.cancelled()).await;
    };
    let later = following(journey, pods, events, journeys.clone())
        .take_until(Box::pin(end))
        .map(format);
    Ok(plain(limited(first.chain(later), options.limit)))
}

/// An input of a followed log.
enum FollowInput {
    /// An event of a watch; true if it is the pod's.
    Notice(bool, Result<WatchNotice, ApiError>),
    /// The trace is complete.
    Arrival(Journeys),
    /// The watches have ended.
    End,
}

fn plain(lines: impl Stream<Item = Bytes> + Send + 'static) -> RestAnswer {
    let body = Body::from_stream(lines.map(Ok::<_, Infallible>));
    answer::body(StatusCode::OK, "text/plain", body)
}

/// The lines, cut after `limit` bytes.
fn limited(
    lines: impl Stream<Item = Bytes> + Send + 'static,
    limit: Option<usize>,
) -> impl Stream<Item = Bytes> + Send + 'static {
    lines.scan(limit.unwrap_or(usize::MAX), |left, mut line: Bytes| {
        line.truncate(*left);
        *left -= line.len();
        std::future::ready((!line.is_empty()).then_some(line))
    })
}

/// The later lines, until the pod has ended.
fn following(
    journey: FollowedPod,
    pods: WatchNotices,
    events: WatchNotices,
    journeys: Journeys,
) -> impl Stream<Item = LogLine> + Send {
    let pods = pods.map(|notice| FollowInput::Notice(true, notice));
    let events = events.map(|notice| FollowInput::Notice(false, notice));
    let uid = journey.uid.clone();
    let arrival = async move {
        waterfall::settled(&journeys, &uid).await;
        FollowInput::Arrival(journeys)
    };
    let arrival = stream::once(arrival.boxed());
    // Ends with the notices.
    let ends = stream::once(std::future::ready(FollowInput::End));
    let notices = stream::select(stream::select(pods, events).chain(ends), arrival);
    let lines = stream::unfold(
        (journey, notices),
        |(mut journey, mut notices)| async move {
            if journey.is_over {
                return None;
            }
            // After an error the watch is over, and the client has to ask again.
            let (of_pod, notice) = match notices.next().await? {
                FollowInput::End => return None,
                FollowInput::Arrival(journeys) => {
                    let lines = waterfall::lines(&journeys, &journey.uid);
                    return Some((stream::iter(lines), (journey, notices)));
                }
                FollowInput::Notice(of_pod, notice) => (of_pod, notice.ok()?),
            };
            match (of_pod, notice.event_type) {
                (_, WatchEventType::Bookmark | WatchEventType::Unspecified) => {}
                (true, WatchEventType::Deleted) => journey.deleted(notice.document),
                (true, _) => journey.pod(notice.document),
                (false, WatchEventType::Deleted) => {}
                (false, _) => journey.event(notice.document),
            }
            let news = stream::iter(journey.news());
            Some((news, (journey, notices)))
        },
    );
    lines.flatten()
}

fn options(query: &LogQuery, now: Timestamp) -> Result<LogRequest, ApiError> {
    let at_least = |name: &str, text: &str, least: i64| match integer(name, text)? {
        Some(number) if number < least => Err(error::bad_request(format!(
            "{name}: Invalid value: {number}: must be greater than or equal to {least}"
        ))),
        number => Ok(number),
    };
    let since_seconds = at_least("sinceSeconds", &query.since_seconds, 1)?;
    let since_time = match query.since_time.as_str() {
        "" => None,
        time => Some(time.parse().map_err(|_| {
            error::bad_request(format!(
                "invalid sinceTime {time:?}: must be an RFC 3339 time"
            ))
        })?),
    };
    let since = match (since_seconds, since_time) {
        (Some(_), Some(_)) => {
            return Err(error::bad_request(
                "at most one of `sinceTime` or `sinceSeconds` may be specified",
            ));
        }
        (Some(seconds), None) => now.checked_sub(SignedDuration::from_secs(seconds)).ok(),
        (None, time) => time,
    };
    let count = |number: Option<i64>| number.and_then(|number| usize::try_from(number).ok());
    Ok(LogRequest {
        follow: boolean("follow", &query.follow)?,
        timestamps: boolean("timestamps", &query.timestamps)?,
        since,
        tail: count(at_least("tailLines", &query.tail_lines, 0)?),
        limit: count(at_least("limitBytes", &query.limit_bytes, 1)?),
    })
}

/// Refuses a container that the pod does not have, in Kubernetes' words.
fn known_container(query: &LogQuery, pod: &Value) -> Result<(), ApiError> {
    let pod_name = text(pod, "/metadata/name");
    let names = |field: &str| {
        let containers = pod.pointer(field).and_then(Value::as_array);
        let containers = containers.into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str())
    };
    let own: Vec<_> = names("/spec/containers").collect();
    let others = names("/spec/initContainers").chain(names("/spec/ephemeralContainers"));
    let container = match (query.container.as_str(), own.as_slice()) {
        ("", [only]) => only,
        ("", _) => {
            return Err(error::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                own.join(" ")
            )));
        }
        (name, _) => name,
    };
    if !own
        .iter()
        .copied()
        .chain(others)
        .any(|name| name == container)
    {
        return Err(error::bad_request(format!(
            "container {container} is not valid for pod {pod_name}"
        )));
    }
    if boolean("previous", &query.previous)? {
        return Err(error::bad_request(format!(
            "previous terminated container {container:?} in pod {pod_name:?} not found"
        )));
    }
    Ok(())
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogLine {
    time: Timestamp,
    /// Orders steps of the same second, the resolution of most times.
    stage: LifeStage,
    what: String,
    how: String,
}

/// The stage of a pod's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LifeStage {
    Created,
    Scheduled,
    Reported,
    Attached,
    Ready,
    Ended,
    Deleting,
    Detached,
    Deleted,
    /// A line of the waterfall, which has its own times.
    Traced,
}

impl LogLine {
    fn show(self, timestamps: bool) -> Bytes {
        let Self {
            time,
            stage,
            what,
            how,
        } = self;
        // Messages, reasons and names of steps are untrusted text.
        let (what, how) = (printable::line(&what), printable::line(&how));
        let line = match stage {
            LifeStage::Traced => format!("{how}\n"),
            _ => format!("{time:.0} {what}: {how}\n"),
        };
        if timestamps {
            format!("{time:.9} {line}").into()
        } else {
            line.into()
        }
    }
}

/// The known state of a pod's way.
#[derive(Debug)]
struct FollowedPod {
    uid: String,
    pod: Value,
    /// The events by name.
    events: BTreeMap<String, Value>,
    told: BTreeSet<LogLine>,
    is_over: bool,
}

impl FollowedPod {
    fn event(&mut self, event: Value) {
        self.events
            .insert(text(&event, "/metadata/name").to_owned(), event);
    }

    fn pod(&mut self, pod: Value) {
        if text(&pod, "/metadata/uid") == self.uid {
            self.pod = pod;
        }
    }

    fn deleted(&mut self, pod: Value) {
        if text(&pod, "/metadata/uid") == self.uid {
            self.pod = pod;
            self.is_over = true;
        }
    }

    /// The lines that have not been returned yet, by time.
    fn news(&mut self) -> Vec<LogLine> {
        let mut lines = self.steps();
        lines.extend(self.events.values().filter_map(of_event));
        if self.is_over {
            let how = "its object is no longer there".to_owned();
            lines.push(line(clock::timestamp(), LifeStage::Deleted, "deleted", how));
        }
        // A failed pod does nothing more, unless it is being deleted.
        let is_deleting = self.pod.pointer("/metadata/deletionTimestamp").is_some();
        let has_ended = matches!(text(&self.pod, "/status/phase"), "Failed" | "Succeeded");
        self.is_over |= has_ended && !is_deleting;
        lines.retain(|line| !self.told.contains(line));
        lines.sort();
        self.told.extend(lines.iter().cloned());
        lines
    }

    /// The lines from the pod's object.
    fn steps(&self) -> Vec<LogLine> {
        let pod = &self.pod;
        let say = |pointer| text(pod, pointer);
        let mut lines = Vec::new();
        if let Some(time) = time_at(pod, "/metadata/creationTimestamp") {
            let (namespace, name) = (say("/metadata/namespace"), say("/metadata/name"));
            let network = match pod.pointer("/spec/hostNetwork") {
                Some(Value::Bool(true)) => "on its node's network",
                _ => "with an address of its own to come",
            };
            let how = format!("{namespace}/{name} (uid {}), {network}", self.uid);
            lines.push(line(time, LifeStage::Created, "created", how));
        }
        let is_told = |reason: &str| self.events.values().any(|e| e["reason"] == reason);
        let node = say("/spec/nodeName");
        for condition in pod
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let Some(time) = time_at(condition, "/lastTransitionTime") else {
                continue;
            };
            let say = |field: &str| condition[field].as_str().unwrap_or_default();
            match (say("type"), say("status")) {
                // The event names the scheduler, but events expire.
                ("PodScheduled", "True") if !is_told("Scheduled") => {
                    let how = format!("to node {node}");
                    lines.push(line(time, LifeStage::Scheduled, "Scheduled", how));
                }
                ("PodScheduled", "False") => {
                    let how = format!("{}: {}", say("reason"), say("message"));
                    lines.push(line(time, LifeStage::Scheduled, "not scheduled", how));
                }
                ("Ready", "True") => {
                    let how = format!(
                        "on node {node} ({}), {}",
                        text(pod, "/status/hostIP"),
                        addresses(pod)
                    );
                    lines.push(line(
                        time,
                        LifeStage::Ready,
                        text(pod, "/status/phase"),
                        how,
                    ));
                }
                ("Ready", "False")
                    if matches!(text(pod, "/status/phase"), "Failed" | "Succeeded")
                        && pod.pointer("/metadata/deletionTimestamp").is_none() =>
                {
                    let how = format!(
                        "{}: {}",
                        text(pod, "/status/reason"),
                        text(pod, "/status/message")
                    );
                    lines.push(line(
                        time,
                        LifeStage::Ended,
                        text(pod, "/status/phase"),
                        how,
                    ));
                }
                _ => {}
            }
        }
        if let Some(deadline) = time_at(pod, "/metadata/deletionTimestamp") {
            let grace = pod.pointer("/metadata/deletionGracePeriodSeconds");
            let grace = grace.and_then(Value::as_i64).unwrap_or_default();
            let asked = deadline.checked_sub(SignedDuration::from_secs(grace));
            let how = format!("to be gone by {deadline}");
            lines.push(line(
                asked.unwrap_or(deadline),
                LifeStage::Deleting,
                "deleting",
                how,
            ));
        }
        lines
    }
}

fn line(time: Timestamp, stage: LifeStage, what: &str, how: String) -> LogLine {
    LogLine {
        time,
        stage,
        what: what.to_owned(),
        how,
    }
}

fn addresses(pod: &Value) -> String {
    let ips = pod.pointer("/status/podIPs").and_then(Value::as_array);
    let ips: Vec<_> = ips
        .into_iter()
        .flatten()
        .filter_map(|ip| ip["ip"].as_str())
        .collect();
    match ips.as_slice() {
        [] => "no address".to_owned(),
        ips => format!("address {}", ips.join(", ")),
    }
}

/// An event as a line; `None` if it has no time.
fn of_event(event: &Value) -> Option<LogLine> {
    let when = ["/lastTimestamp", "/eventTime", "/firstTimestamp"]
        .into_iter()
        .find_map(|pointer| time_at(event, pointer))?;
    let stage = match text(event, "/reason") {
        "Scheduled" | "FailedScheduling" => LifeStage::Scheduled,
        "AddedInterface" => LifeStage::Attached,
        "Killing" => LifeStage::Detached,
        _ => LifeStage::Reported,
    };
    let first = |pointers: [&'static str; 2]| {
        let mut texts = pointers.into_iter().map(|pointer| text(event, pointer));
        texts.find(|text| !text.is_empty())
    };
    let by = first(["/source/component", "/reportingComponent"]);
    let at = first(["/source/host", "/reportingInstance"]);
    let by: Vec<_> = by
        .into_iter()
        .chain(at.filter(|at| Some(*at) != by))
        .collect();
    let times = match event["count"].as_i64() {
        Some(count @ 2..) => format!(" ({count} times)"),
        _ => String::new(),
    };
    let message = text(event, "/message").trim();
    let how = format!("{message}{times} [{}]", by.join(", "));
    Some(line(when, stage, text(event, "/reason"), how))
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn time_at(value: &Value, pointer: &str) -> Option<Timestamp> {
    text(value, pointer).parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn journey() -> FollowedPod {
        let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "hostIP": "172.18.0.2", "podIPs": [{"ip": "10.244.0.5"}], "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}]}});
        FollowedPod {
            uid: "u".into(),
            pod,
            events: BTreeMap::new(),
            told: BTreeSet::new(),
            is_over: false,
        }
    }

    fn text_of(lines: Vec<LogLine>) -> String {
        let lines = lines.into_iter().map(|line| line.show(false));
        let text: Vec<_> = lines.flatten().collect();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn log_without_events_is_derived_from_the_pod() {
        assert_eq!(
            text_of(journey().news()),
            "2026-01-01T00:00:00Z created: default/web (uid u), with an address of its own to come\n\
             2026-01-01T00:00:01Z Scheduled: to node node-0\n\
             2026-01-01T00:00:02Z Running: on node node-0 (172.18.0.2), address 10.244.0.5\n"
        );
    }

    #[test]
    fn logs_each_step_once_in_order_of_the_lifecycle() {
        let mut journey = journey();
        let event = |name: &str, reason: &str, message: &str, count: i64| {
            json!({"metadata": {"name": name}, "reason": reason, "message": message, "count": count,
                "lastTimestamp": "2026-01-01T00:00:01Z", "source": {"component": "kubelet", "host": "node-0"}})
        };
        journey.event(event("a", "AddedInterface", "Add eth0 [10.244.0.5]", 1));
        journey.event(event("b", "FailedCreatePodSandBox", "no", 3));
        let text = text_of(journey.news());
        let lines: Vec<_> = text.lines().map(|line| &line[21..]).collect();
        assert_eq!(
            lines[1..4],
            [
                "Scheduled: to node node-0",
                "FailedCreatePodSandBox: no (3 times) [kubelet, node-0]",
                "AddedInterface: Add eth0 [10.244.0.5] [kubelet, node-0]"
            ]
        );
        assert_eq!(journey.news(), []);
        let mut deleting = journey.pod.clone();
        deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:40Z".into();
        deleting["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        journey.pod(deleting.clone());
        assert_eq!(
            text_of(journey.news()),
            "2026-01-01T00:00:10Z deleting: to be gone by 2026-01-01T00:00:40Z\n"
        );
        journey.deleted(deleting);
        assert!(text_of(journey.news()).ends_with("deleted: its object is no longer there\n"));
    }

    #[test]
    fn refusals_have_the_texts_of_the_reference() {
        let pod = journey().pod;
        let refused = |query: LogQuery| known_container(&query, &pod).unwrap_err().message;
        let container = |name: &str, previous: &str| LogQuery {
            container: name.into(),
            previous: previous.into(),
            ..LogQuery::default()
        };
        assert_eq!(
            refused(container("d", "")),
            "container d is not valid for pod web"
        );
        assert_eq!(
            refused(container("", "true")),
            "previous terminated container \"c\" in pod \"web\" not found"
        );
        let both = LogQuery {
            since_seconds: "1".into(),
            since_time: "2026-01-01T00:00:00Z".into(),
            ..LogQuery::default()
        };
        assert_eq!(
            options(&both, Timestamp::UNIX_EPOCH).unwrap_err().message,
            "at most one of `sinceTime` or `sinceSeconds` may be specified"
        );
        let negative = LogQuery {
            tail_lines: "-1".into(),
            ..LogQuery::default()
        };
        assert!(options(&negative, Timestamp::UNIX_EPOCH).is_err());
    }
}
