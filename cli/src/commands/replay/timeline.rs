//! A recording as the states of its cluster, one for each moment.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use ipnet::IpNet;
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    networking::{ClusterCIDR, ServiceCIDR},
};
use podplane_map::AddressSpace;
use podplane_summary::{Cluster, ClusterSummary};
use podplane_test_cluster::recording::{
    EntryEvent, ObjectChange,
    replay::{Recording, RunStep},
};
use serde::Serialize;
use serde_json::{Value, json};

/// A recording.
#[derive(Debug)]
pub(crate) struct Timeline {
    name: String,
    steps: Vec<StepRow>,
    /// By time.
    entries: Vec<(f64, TimedEntry)>,
    duration: f64,
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
            entries,
            duration,
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
        let mut times: Vec<f64> = self
            .entries
            .iter()
            .filter(|(_, entry)| !matches!(entry, TimedEntry::Event(_)))
            .map(|(at, _)| *at)
            .collect();
        times.dedup();
        json!({
            "name": self.name,
            "duration": self.duration,
            "steps": self.steps,
            "times": times,
        })
    }

    /// The state after everything up to `at`.
    pub(super) fn moment(&self, at: f64) -> Arc<Moment> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.at.total_cmp(&at).is_eq()) {
            return Arc::clone(last);
        }
        let mut cluster = self.cluster(at);
        let space = AddressSpace::new(cluster.space_parts());
        let summary = cluster.summary(&space, &self.until(at).len().to_string());
        let moment = Arc::new(Moment { at, space, summary });
        *last = Some(Arc::clone(&moment));
        moment
    }

    /// The facts after everything up to `at`.
    pub(crate) fn cluster(&self, at: f64) -> Cluster {
        let mut cluster = Cluster::default();
        for (_, entry) in self.until(at) {
            match entry {
                TimedEntry::Pod(pod) => cluster.apply_pod(pod),
                TimedEntry::PodGone(namespace, name) => cluster.delete_pod(namespace, name),
                TimedEntry::Node(node) => cluster.apply_node(node),
                TimedEntry::NodeGone(name) => cluster.delete_node(name),
                TimedEntry::ClusterCidrs(ranges) => cluster.set_cluster_cidrs(ranges),
                TimedEntry::ClusterCidr(range) => cluster.apply_cluster_cidr(range),
                TimedEntry::ClusterCidrGone(name) => cluster.delete_cluster_cidr(name),
                TimedEntry::ServiceCidr(range) => cluster.apply_service_cidr(range),
                TimedEntry::ServiceCidrGone(name) => cluster.delete_service_cidr(name),
                TimedEntry::Event(_) => {}
            }
        }
        cluster
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

    /// The events so far.
    pub(super) fn events(&self, at: f64) -> Vec<&Value> {
        let events = self.until(at).iter().filter_map(|(_, entry)| match entry {
            TimedEntry::Event(event) => Some(event),
            _ => None,
        });
        events.collect()
    }

    fn until(&self, at: f64) -> &[(f64, TimedEntry)] {
        let end = self.entries.partition_point(|(time, _)| *time <= at);
        self.entries.get(..end).unwrap_or_default()
    }
}

impl TimedEntry {
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
                    "ClusterCIDR" if is_gone => Some(Self::ClusterCidrGone(text("name")?)),
                    "ServiceCIDR" if is_gone => Some(Self::ServiceCidrGone(text("name")?)),
                    _ if object.get("omitted").is_some() => None,
                    "Pod" => Some(Self::Pod(serde_json::from_value(object).ok()?)),
                    "Node" => Some(Self::Node(serde_json::from_value(object).ok()?)),
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
    use podplane_summary::FindingRule;
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

    #[test]
    fn a_duplicate_is_there_from_its_first_moment_until_its_last() {
        let step = RunStep {
            number: 1,
            name: "change the CIDR".into(),
            ended: 9.0,
            entries: vec![
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
            let of_rule = moment.summary.findings.iter();
            let found = of_rule
                .filter(|one| one.rule == FindingRule::DuplicateAddress)
                .count();
            assert_eq!((found, timeline.pods(at).len()), (duplicates, pods), "{at}");
        }
        assert_eq!(timeline.document()["times"], json!([1.0, 2.5, 7.0]));
        assert_eq!(timeline.document()["duration"], 9.0);
    }
}
