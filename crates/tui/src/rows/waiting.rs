//! The pods that wait for a node, by reason.

use std::{borrow::Cow, collections::BTreeMap};

use podplane_api::jiff::Timestamp;

use super::{ago, by_age};
use crate::{
    cluster::{Cluster, Source},
    row::{
        Cell, Column,
        ColumnWidth::{AtLeast, Fixed},
        Row, Subject, Target, Tone,
    },
    scope::Scope,
};

/// The pods that wait for the same reason.
pub(crate) struct WaitingRow {
    reason: String,
    pods: usize,
    /// The time since which the first of them waits, and its name and message.
    since: Option<Timestamp>,
    first: String,
    message: String,
}

impl Row for WaitingRow {
    const NAME: &'static str = "waiting";
    const NOUN: &'static str = "reason";
    const NOTHING: &'static str = "no pods are waiting";
    const IS_NAMESPACED: bool = true;
    const SOURCES: &'static [Source] = &[Source::Pods];
    const SORTED_BY: (&'static str, bool) = ("PODS", true);
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            title: "PODS",
            sort_key: 'P',
            width: Fixed(6),
            rank: 0,
            cell: |row, _| Cell::toned(row.pods.to_string(), Tone::Warning),
            order: |a, b| a.pods.cmp(&b.pods),
        },
        Column {
            title: "LONGEST",
            sort_key: 'L',
            width: Fixed(7),
            rank: 0,
            cell: |row, now| ago(row.since, now).into(),
            order: |a, b| by_age(a.since, b.since),
        },
        Column {
            title: "REASON",
            sort_key: 'R',
            width: AtLeast(36),
            rank: 0,
            cell: |row, _| row.reason.as_str().into(),
            order: |a, b| a.reason.cmp(&b.reason),
        },
        Column {
            title: "FIRST POD",
            sort_key: 'F',
            width: AtLeast(20),
            rank: 1,
            cell: |row, _| row.first.as_str().into(),
            order: |a, b| a.first.cmp(&b.first),
        },
        Column {
            title: "ITS MESSAGE",
            sort_key: 'I',
            width: AtLeast(50),
            rank: 2,
            cell: |row, _| row.message.as_str().into(),
            order: |a, b| a.message.cmp(&b.message),
        },
    ];

    fn all(cluster: &Cluster, scope: &Scope) -> Vec<Self> {
        let mut groups = BTreeMap::<&str, Self>::new();
        let pods = cluster.pods.iter().filter(|pod| scope.has_pod(pod));
        for pod in pods {
            let Some(waits) = &pod.waits else { continue };
            let group = groups.entry(&waits.reason).or_insert_with(|| Self {
                reason: waits.reason.to_string(),
                pods: 0,
                since: None,
                first: String::new(),
                message: String::new(),
            });
            group.pods += 1;
            let is_longer = by_age(waits.since, group.since).is_gt();
            if group.pods == 1 || (waits.since.is_some() && is_longer) {
                group.since = waits.since;
                group.first = pod.key.to_string();
                group.message = waits.message.to_string();
            }
        }
        groups.into_values().collect()
    }

    fn key(&self) -> (&str, &str) {
        ("", &self.reason)
    }

    fn texts(&self) -> Vec<Cow<'_, str>> {
        [&self.reason, &self.first, &self.message]
            .map(Cow::from)
            .into()
    }

    fn subject(&self) -> Option<Subject> {
        None
    }

    fn target(&self) -> Option<Target> {
        Some(Target::Pods(Scope::Waiting(self.reason.clone())))
    }
}
