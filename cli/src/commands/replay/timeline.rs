//! A recording as the states of its cluster, one for each moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use podplane_api::{
    Object as _,
    core::{Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
    pod_ips::pod_cidrs,
};
use podplane_audit::{Code, Severity};
use podplane_ipam::parse_cidr;
use podplane_map::{AddressSpace, BlockState, Network, NodeBlock, SpaceParts};
use podplane_summary::{Cluster, ClusterSummary};
use podplane_test_cluster::recording::{
    EntryEvent, ObjectChange,
    replay::{Recording, RunStep},
};
use serde::Serialize;
use serde_json::{Value, json};

/// The most changes of objects of a recording that is audited at each of them: it takes a second.
const MOST_AUDITED: usize = 1_000;

/// A recording.
#[derive(Debug)]
pub(crate) struct Timeline {
    name: String,
    steps: Vec<StepRow>,
    /// By time.
    entries: Vec<(f64, TimedEntry)>,
    duration: f64,
    /// The time of the beginning, as far as the objects tell.
    began: Option<Timestamp>,
    /// The ranges of pods around all blocks of the recording, so that the map is of the same
    /// networks at each moment. Empty if the recording has ranges of its own.
    inferred_ranges: Vec<IpNet>,
    /// The times with an error, for each page that is loaded.
    faults: OnceLock<Option<Vec<[f64; 2]>>>,
    /// The moment that was asked for last: a page asks for several views of it.
    last: Mutex<Option<Arc<Moment>>>,
}

/// A step, as the page shows it beside the slider.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepRow {
    number: u64,
    title: String,
    from: f64,
    to: f64,
    outcome: Option<String>,
}

#[derive(Debug)]
enum TimedEntry {
    Pod(Box<Pod>),
    PodGone(String, String),
    Node(Box<Node>),
    NodeGone(String),
    Service(Box<Service>),
    ServiceGone(String, String),
    /// The ranges of the API server's flag.
    ClusterCidrs(Vec<IpNet>),
    ClusterCidr(Box<ClusterCIDR>),
    ClusterCidrGone(String),
    ServiceCidr(Box<ServiceCIDR>),
    ServiceCidrGone(String),
    /// An event, as the API has it.
    Event(Value),
}

/// The cluster at a moment.
#[derive(Debug)]
pub(super) struct Moment {
    at: f64,
    pub(super) space: AddressSpace,
    pub(super) summary: ClusterSummary,
}

impl Timeline {
    pub(crate) fn new(name: String, recording: Recording) -> Self {
        let mut steps = Vec::new();
        let (mut entries, mut duration) = (Vec::new(), 0.0_f64);
        for step in recording.steps {
            let RunStep {
                number,
                name: title,
                outcome,
                begun,
                ended,
                entries: of_step,
                ..
            } = step;
            duration = duration.max(ended);
            steps.push(StepRow {
                number,
                title,
                from: begun,
                to: ended,
                outcome,
            });
            for entry in of_step {
                let found = TimedEntry::of(entry.what, entries.len());
                entries.extend(found.map(|found| (entry.at, found)));
            }
        }
        entries.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Self {
            name,
            steps,
            began: began(&entries),
            inferred_ranges: inferred_ranges(&entries),
            entries,
            duration,
            faults: OnceLock::new(),
            last: Mutex::default(),
        }
    }

    /// The duration in seconds.
    pub(crate) const fn duration(&self) -> f64 {
        self.duration
    }

    /// The name, for people.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The document about the recording itself.
    pub(super) fn document(&self) -> Value {
        let mut times: Vec<f64> = self.changes().map(|(at, _)| *at).collect();
        times.dedup();
        json!({
            "name": self.name,
            "duration": self.duration,
            "began": self.began,
            "steps": self.steps,
            "times": times,
            "faults": self.faults.get_or_init(|| self.faults()),
        })
    }

    /// The state after everything up to `at`.
    pub(super) fn moment(&self, at: f64) -> Arc<Moment> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.at.total_cmp(&at).is_eq()) {
            return Arc::clone(last);
        }
        let mut cluster = self.cluster(at);
        // The audit takes ranges for those of a flag, which these are not.
        let audited = cluster.clone();
        if !self.inferred_ranges.is_empty() {
            cluster.set_cluster_cidrs(&self.inferred_ranges);
        }
        let space = AddressSpace::new(cluster.space_parts());
        let report = Arc::new(audited.findings(&space));
        let revision = self.until(at).len().to_string();
        let summary = cluster.summary(&space, &revision, Some(&report));
        let moment = Arc::new(Moment { at, space, summary });
        *last = Some(Arc::clone(&moment));
        moment
    }

    /// The facts after everything up to `at`.
    pub(crate) fn cluster(&self, at: f64) -> Cluster {
        let mut cluster = Cluster::default();
        for (_, entry) in self.until(at) {
            entry.apply(&mut cluster);
        }
        cluster
    }

    /// The changes of the state, by time: all but the events.
    fn changes(&self) -> impl Iterator<Item = &(f64, TimedEntry)> {
        let entries = self.entries.iter();
        entries.filter(|(_, entry)| !matches!(entry, TimedEntry::Event(_)))
    }

    /// The times, from and to, at which the audit finds an error. A node that has no block yet is
    /// none: each node begins so. `None` for a recording of too many changes to audit each.
    fn faults(&self) -> Option<Vec<[f64; 2]>> {
        let changes: Vec<_> = self.changes().collect();
        if changes.len() > MOST_AUDITED {
            return None;
        }
        let (mut faults, mut since) = (Vec::new(), None);
        let mut cluster = Cluster::default();
        for moment in changes.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
            for (_, entry) in moment {
                entry.apply(&mut cluster);
            }
            let at = moment.first().map_or(0.0, |(at, _)| *at);
            match (since, has_error(&mut cluster)) {
                (None, true) => since = Some(at),
                (Some(from), false) => {
                    faults.push([from, at]);
                    since = None;
                }
                _ => {}
            }
        }
        faults.extend(since.map(|from| [from, self.duration]));
        Some(faults)
    }

    /// The pods at a moment, by namespace and name.
    pub(super) fn pods(&self, at: f64) -> Vec<&Pod> {
        let mut pods = BTreeMap::new();
        for (_, entry) in self.until(at) {
            match entry {
                TimedEntry::Pod(pod) => {
                    pods.insert((pod.namespace(), pod.name()), &**pod);
                }
                TimedEntry::PodGone(namespace, name) => {
                    pods.remove(&(namespace.as_str(), name.as_str()));
                }
                _ => {}
            }
        }
        pods.into_values().collect()
    }

    /// The nodes at a moment, by name.
    pub(super) fn nodes(&self, at: f64) -> Vec<&Node> {
        let mut nodes = BTreeMap::new();
        for (_, entry) in self.until(at) {
            match entry {
                TimedEntry::Node(node) => {
                    nodes.insert(node.name(), &**node);
                }
                TimedEntry::NodeGone(name) => {
                    nodes.remove(name.as_str());
                }
                _ => {}
            }
        }
        nodes.into_values().collect()
    }

    /// The events so far, with their times if that of the beginning is known.
    pub(super) fn events(&self, at: f64) -> Vec<Value> {
        let events = self.until(at).iter().filter_map(|(time, entry)| {
            let TimedEntry::Event(event) = entry else {
                return None;
            };
            let mut event = event.clone();
            if let Some(seen) = self.time(*time) {
                event["lastTimestamp"] = json!(seen);
            }
            Some(event)
        });
        events.collect()
    }

    /// The time of a moment.
    fn time(&self, at: f64) -> Option<Timestamp> {
        let since = SignedDuration::try_from_secs_f64(at).ok()?;
        self.began?.checked_add(since).ok()
    }

    fn until(&self, at: f64) -> &[(f64, TimedEntry)] {
        let end = self.entries.partition_point(|(time, _)| *time <= at);
        self.entries.get(..end).unwrap_or_default()
    }
}

fn has_error(cluster: &mut Cluster) -> bool {
    let space = AddressSpace::new(cluster.space_parts());
    let report = cluster.findings(&space);
    let mut findings = report.findings.iter();
    findings.any(|one| one.severity == Severity::Error && one.code != Code::MissingPodCidr)
}

/// The time of the beginning: objects are created at about the moment at which they are recorded,
/// in whole seconds, and older ones before.
fn began(entries: &[(f64, TimedEntry)]) -> Option<Timestamp> {
    let times = entries.iter().filter_map(|(at, entry)| {
        let metadata = match entry {
            TimedEntry::Pod(pod) => &pod.metadata,
            TimedEntry::Node(node) => &node.metadata,
            _ => return None,
        };
        let created = metadata.creation_timestamp.as_ref()?.0;
        created
            .checked_sub(SignedDuration::try_from_secs_f64(*at).ok()?)
            .ok()
    });
    times.max()
}

/// The smallest ranges of pods around the blocks that nodes have at any moment; empty if the
/// entries state ranges.
fn inferred_ranges(entries: &[(f64, TimedEntry)]) -> Vec<IpNet> {
    let states_ranges = |entry: &TimedEntry| {
        matches!(
            entry,
            TimedEntry::ClusterCidrs(_) | TimedEntry::ClusterCidr(_)
        )
    };
    if entries.iter().any(|(_, entry)| states_ranges(entry)) {
        return Vec::new();
    }
    let nodes = entries.iter().filter_map(|(_, entry)| match entry {
        TimedEntry::Node(node) => Some(node),
        _ => None,
    });
    let blocks: BTreeSet<IpNet> = nodes
        .flat_map(|node| pod_cidrs(node))
        .filter_map(|text| Some(parse_cidr(text).ok()?.trunc()))
        .collect();
    let blocks = blocks.into_iter();
    let blocks = blocks
        .filter_map(|block| NodeBlock::new(block, BlockState::Unowned, None).ok())
        .collect();
    let mut parts = SpaceParts {
        blocks,
        ..SpaceParts::default()
    };
    parts.infer_pod_networks();
    parts.networks.iter().map(Network::cidr).collect()
}

impl TimedEntry {
    fn apply(&self, cluster: &mut Cluster) {
        match self {
            Self::Pod(pod) => cluster.apply_pod(pod),
            Self::PodGone(namespace, name) => cluster.delete_pod(namespace, name),
            Self::Node(node) => cluster.apply_node(node),
            Self::NodeGone(name) => cluster.delete_node(name),
            Self::Service(service) => cluster.apply_service(service),
            Self::ServiceGone(namespace, name) => cluster.delete_service(namespace, name),
            Self::ClusterCidrs(ranges) => cluster.set_cluster_cidrs(ranges),
            Self::ClusterCidr(range) => cluster.apply_cluster_cidr(range),
            Self::ClusterCidrGone(name) => cluster.delete_cluster_cidr(name),
            Self::ServiceCidr(range) => cluster.apply_service_cidr(range),
            Self::ServiceCidrGone(name) => cluster.delete_service_cidr(name),
            Self::Event(_) => {}
        }
    }

    /// The part of an entry that a state is made of; `None` of an object of another kind, and of
    /// one that was too large to be recorded.
    fn of(entry: EntryEvent, number: usize) -> Option<Self> {
        match entry {
            EntryEvent::Object { change, object } => {
                let is_gone = change == ObjectChange::Deleted;
                let text = |field: &str| Some(object["metadata"][field].as_str()?.to_owned());
                match object["kind"].as_str()? {
                    "Pod" if is_gone => Some(Self::PodGone(text("namespace")?, text("name")?)),
                    "Node" if is_gone => Some(Self::NodeGone(text("name")?)),
                    "Service" if is_gone => {
                        Some(Self::ServiceGone(text("namespace")?, text("name")?))
                    }
                    "ClusterCIDR" if is_gone => Some(Self::ClusterCidrGone(text("name")?)),
                    "ServiceCIDR" if is_gone => Some(Self::ServiceCidrGone(text("name")?)),
                    _ if object.get("omitted").is_some() => None,
                    "Pod" => Some(Self::Pod(serde_json::from_value(object).ok()?)),
                    "Node" => Some(Self::Node(serde_json::from_value(object).ok()?)),
                    "Service" => Some(Self::Service(serde_json::from_value(object).ok()?)),
                    "ClusterCIDR" => Some(Self::ClusterCidr(serde_json::from_value(object).ok()?)),
                    "ServiceCIDR" => Some(Self::ServiceCidr(serde_json::from_value(object).ok()?)),
                    _ => None,
                }
            }
            EntryEvent::Log { cluster_cidrs, .. } => cluster_cidrs.map(Self::ClusterCidrs),
            EntryEvent::Event {
                about,
                type_,
                reason,
                message,
                by,
                count,
            } => {
                let parts: Vec<&str> = about.split('/').collect();
                let (kind, namespace, name) = match parts.as_slice() {
                    ["node", name] => ("Node", "", *name),
                    ["pod", namespace, name] => ("Pod", *namespace, *name),
                    [kind, namespace, name] => (*kind, *namespace, *name),
                    _ => return None,
                };
                Some(Self::Event(json!({
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"namespace": namespace, "name": format!("{name}.{number}")},
                    "involvedObject": {"kind": kind, "namespace": namespace, "name": name},
                    "type": type_,
                    "reason": reason,
                    "message": message,
                    "count": count,
                    "source": {"component": by},
                })))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use podplane_test_cluster::recording::RecordingEntry;

    use super::*;

    fn entry(at: f64, change: ObjectChange, object: Value) -> RecordingEntry {
        RecordingEntry {
            at,
            step: 1,
            what: EntryEvent::Object { change, object },
        }
    }

    fn pod(name: &str, node: &str) -> Value {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}]},
        })
    }

    fn node(name: &str, block: &str) -> Value {
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name},
            "spec": {"podCIDR": block, "podCIDRs": [block]},
        })
    }

    #[test]
    fn a_duplicate_is_there_from_its_first_moment_until_its_last() {
        let step = RunStep {
            number: 1,
            name: "change the CIDR".into(),
            ended: 9.0,
            entries: vec![
                entry(0.25, ObjectChange::Added, node("a", "10.244.1.0/24")),
                entry(0.25, ObjectChange::Added, node("b", "10.244.2.0/24")),
                entry(1.0, ObjectChange::Added, pod("one", "a")),
                entry(2.5, ObjectChange::Added, pod("two", "b")),
                entry(7.0, ObjectChange::Deleted, pod("two", "b")),
                entry(
                    8.0,
                    ObjectChange::Added,
                    json!({"kind": "Pod", "omitted": "20000 bytes"}),
                ),
            ],
            ..RunStep::default()
        };
        let recording = Recording {
            steps: vec![step],
            ..Recording::default()
        };
        let timeline = Timeline::new("run".into(), recording);
        for (at, duplicates, pods) in [
            (0.5, 0, 0),
            (1.0, 0, 1),
            (2.5, 1, 2),
            (6.9, 1, 2),
            (7.0, 0, 1),
            (9.0, 0, 1),
        ] {
            let moment = timeline.moment(at);
            let report = moment.summary.report.as_ref().unwrap();
            let findings = report.findings.iter();
            let found = findings
                .filter(|one| one.code == Code::DuplicatePodIp)
                .count();
            assert_eq!((found, timeline.pods(at).len()), (duplicates, pods), "{at}");
        }
        assert_eq!(timeline.document()["times"], json!([0.25, 1.0, 2.5, 7.0]));
        assert_eq!(timeline.document()["duration"], 9.0);
        assert_eq!(timeline.document()["faults"], json!([[2.5, 7.0]]));
    }

    #[test]
    fn errors_are_unknown_beyond_the_limit_of_changes_which_events_do_not_count_for() {
        let event = |at: f64| RecordingEntry {
            at,
            step: 1,
            what: EntryEvent::Event {
                about: "pod/default/one".into(),
                type_: "Normal".into(),
                reason: "Pulled".into(),
                message: "again".into(),
                by: "kubelet".into(),
                count: 1,
            },
        };
        let faults = |changes: u32, events: u32| {
            let mut entries = vec![
                entry(0.0, ObjectChange::Added, node("a", "10.244.1.0/24")),
                entry(1.0, ObjectChange::Added, pod("one", "a")),
                entry(2.0, ObjectChange::Added, pod("two", "a")),
            ];
            let before = u32::try_from(entries.len()).unwrap();
            let more =
                (before..changes).map(|_| entry(3.0, ObjectChange::Modified, pod("two", "a")));
            entries.extend(more);
            entries.extend((0..events).map(|at| event(f64::from(at))));
            let step = RunStep {
                number: 1,
                ended: 9.0,
                entries,
                ..RunStep::default()
            };
            let recording = Recording {
                steps: vec![step],
                ..Recording::default()
            };
            Timeline::new("run".into(), recording).document()["faults"].clone()
        };
        assert_eq!(faults(1_000, 1_001), json!([[2.0, 9.0]]));
        assert_eq!(faults(1_001, 0), Value::Null);
    }

    #[test]
    fn events_have_the_times_at_which_they_were_recorded() {
        let mut first = pod("one", "a");
        first["metadata"]["creationTimestamp"] = json!("2026-11-01T10:00:00Z");
        let event = RecordingEntry {
            at: 2.5,
            step: 1,
            what: EntryEvent::Event {
                about: "pod/default/one".into(),
                type_: "Normal".into(),
                reason: "Scheduled".into(),
                message: "bound".into(),
                by: "scheduler".into(),
                count: 1,
            },
        };
        let recording = Recording {
            steps: vec![RunStep {
                number: 1,
                ended: 9.0,
                entries: vec![entry(0.0, ObjectChange::Added, first), event],
                ..RunStep::default()
            }],
            ..Recording::default()
        };
        let timeline = Timeline::new("run".into(), recording);
        assert!(timeline.events(2.4).is_empty());
        let events = timeline.events(9.0);
        assert_eq!(events[0]["lastTimestamp"], "2026-11-01T10:00:02.5Z");
    }
}
