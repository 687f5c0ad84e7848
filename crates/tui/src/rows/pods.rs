//! The pods with their addresses and their way so far.

use std::{borrow::Cow, sync::Arc};

use podplane_api::{
    jiff::Timestamp,
    table::{NONE, age},
};

use super::{ago, by_age};
use crate::{
    cluster::{Cluster, Source},
    facts::{PodFact, PodStep, Way},
    row::{
        Cell, Column,
        ColumnWidth::{AtLeast, Fixed},
        Row, Subject, Target, Tone,
    },
    scope::Scope,
};

/// A pod.
pub(crate) struct PodRow {
    pod: Arc<PodFact>,
}

impl PodRow {
    /// Its addresses as text.
    fn ips(&self) -> String {
        let ips: Vec<_> = self.pod.ips.iter().map(ToString::to_string).collect();
        ips.join(",")
    }

    fn status(&self) -> Cell {
        let status = self.pod.status.as_str();
        let tone = match status {
            "Running" | "Completed" | "Succeeded" => Tone::Good,
            "Pending" | "ContainerCreating" | "Terminating" | "PodInitializing" => Tone::Warning,
            _ if status.starts_with("Init:") => Tone::Warning,
            _ => Tone::Bad,
        };
        Cell::toned(status, tone)
    }

    fn node(&self) -> &str {
        self.pod.node.as_deref().unwrap_or(NONE)
    }
}

/// The steps with their letters.
fn steps(way: &Way) -> [(char, &'static str, PodStep); 4] {
    [
        ('S', "scheduled", way.scheduled),
        ('B', "sandbox", way.sandbox),
        ('A', "address", way.address),
        ('R', "running", way.running),
    ]
}

/// The steps that are done, in an order for sorting.
fn progress(way: &Way) -> [bool; 4] {
    steps(way).map(|(_, _, step)| step.is_done())
}

/// The letters of the steps that are done, and a point for each other one: `SB..`.
fn letters(way: &Way) -> String {
    let steps = steps(way).into_iter();
    steps
        .map(|(letter, _, step)| if step.is_done() { letter } else { '.' })
        .collect()
}

/// The steps that are done, with the time from the pod's creation: `scheduled 0s, sandbox 1s`.
fn way(way: &Way, created: Option<Timestamp>) -> String {
    let done = steps(way).into_iter().filter_map(|(_, name, step)| {
        let PodStep::Done { at } = step else {
            return None;
        };
        Some(match (created, at) {
            (Some(created), Some(at)) => format!("{name} {}", age::between(created, at)),
            _ => name.to_owned(),
        })
    });
    done.collect::<Vec<_>>().join(", ")
}

impl Row for PodRow {
    const NAME: &'static str = "pods";
    const NOUN: &'static str = "pod";
    const NOTHING: &'static str = "no pods";
    const IS_NAMESPACED: bool = true;
    const SOURCES: &'static [Source] = &[Source::Pods];
    const SORTED_BY: (&'static str, bool) = ("NAMESPACE", false);
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            title: "NAMESPACE",
            sort_key: 'M',
            width: AtLeast(9),
            rank: 1,
            cell: |row, _| row.pod.key.namespace.as_str().into(),
            order: |a, b| a.pod.key.cmp(&b.pod.key),
        },
        Column {
            title: "NAME",
            sort_key: 'N',
            width: AtLeast(16),
            rank: 0,
            cell: |row, _| row.pod.key.name.as_str().into(),
            order: |a, b| a.pod.key.name.cmp(&b.pod.key.name),
        },
        Column {
            title: "STATUS",
            sort_key: 'S',
            width: Fixed(11),
            rank: 0,
            cell: |row, _| row.status(),
            order: |a, b| a.pod.status.cmp(&b.pod.status),
        },
        Column {
            title: "NODE",
            sort_key: 'O',
            width: AtLeast(8),
            rank: 2,
            cell: |row, _| row.node().into(),
            order: |a, b| a.pod.node.cmp(&b.pod.node),
        },
        Column {
            title: "IP",
            sort_key: 'I',
            width: AtLeast(14),
            rank: 0,
            cell: |row, _| match row.pod.ips.as_slice() {
                [] => NONE.into(),
                _ => row.ips().into(),
            },
            order: |a, b| a.pod.ips.cmp(&b.pod.ips),
        },
        Column {
            title: "AGE",
            sort_key: 'A',
            width: Fixed(5),
            rank: 4,
            cell: |row, now| ago(row.pod.created, now).into(),
            order: |a, b| by_age(a.pod.created, b.pod.created),
        },
        Column {
            title: "WAY",
            sort_key: 'W',
            width: Fixed(4),
            rank: 3,
            cell: |row, _| letters(&row.pod.way).into(),
            order: |a, b| progress(&a.pod.way).cmp(&progress(&b.pod.way)),
        },
        Column {
            title: "STEPS",
            sort_key: 'T',
            width: AtLeast(46),
            rank: 5,
            cell: |row, _| way(&row.pod.way, row.pod.created).into(),
            order: |a, b| progress(&a.pod.way).cmp(&progress(&b.pod.way)),
        },
    ];

    fn all(cluster: &Cluster, scope: &Scope) -> Vec<Self> {
        let pods = cluster.pods.iter().filter(|pod| scope.has_pod(pod));
        pods.cloned().map(|pod| Self { pod }).collect()
    }

    fn key(&self) -> (&str, &str) {
        (&self.pod.key.namespace, &self.pod.key.name)
    }

    fn texts(&self) -> Vec<Cow<'_, str>> {
        let key = &self.pod.key;
        let texts = [&key.name, &key.namespace, &self.pod.status];
        let texts = texts.into_iter().chain(&self.pod.node).map(Cow::from);
        texts.chain([Cow::from(self.ips())]).collect()
    }

    fn subject(&self) -> Option<Subject> {
        Some(Subject::Pod(self.pod.key.clone()))
    }

    fn target(&self) -> Option<Target> {
        self.subject().map(Target::Description)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_has_the_time_of_each_step() {
        let at = |text: &str| PodStep::Done {
            at: Some(text.parse().unwrap()),
        };
        let so_far = Way {
            scheduled: at("2026-01-01T00:00:01Z"),
            sandbox: at("2026-01-01T00:00:03Z"),
            address: PodStep::Done { at: None },
            running: PodStep::Open,
        };
        let created = "2026-01-01T00:00:00Z".parse().ok();
        assert_eq!(letters(&so_far), "SBA.");
        assert_eq!(way(&so_far, created), "scheduled 1s, sandbox 3s, address");
        assert_eq!(letters(&Way::default()), "....");
        assert_eq!(way(&Way::default(), created), "");
    }
}
