//! The events.

use std::{borrow::Cow, sync::Arc};

use super::{ago, by_age};
use crate::{
    cluster::{Cluster, Source},
    facts::EventFact,
    row::{
        Cell, Column,
        ColumnWidth::{AtLeast, Fixed},
        Row, Subject, Target, Tone,
    },
    scope::Scope,
};

/// An event.
pub(crate) struct EventRow {
    event: Arc<EventFact>,
    /// As kubectl shows it: `pod/web-0`.
    object: String,
}

impl Row for EventRow {
    const NAME: &'static str = "events";
    const NOUN: &'static str = "event";
    const NOTHING: &'static str = "no events";
    const IS_NAMESPACED: bool = true;
    const SOURCES: &'static [Source] = &[Source::Events];
    const SORTED_BY: (&'static str, bool) = ("SEEN", false);
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            title: "SEEN",
            sort_key: 'S',
            width: Fixed(5),
            rank: 0,
            cell: |row, now| ago(row.event.last_seen, now).into(),
            order: |a, b| by_age(a.event.last_seen, b.event.last_seen),
        },
        Column {
            title: "TYPE",
            sort_key: 'T',
            width: Fixed(7),
            rank: 1,
            cell: |row, _| {
                let tone = match row.event.kind.as_str() {
                    "Normal" => Tone::Plain,
                    _ => Tone::Warning,
                };
                Cell::toned(&*row.event.kind, tone)
            },
            order: |a, b| a.event.kind.cmp(&b.event.kind),
        },
        Column {
            title: "COUNT",
            sort_key: 'C',
            width: Fixed(5),
            rank: 3,
            cell: |row, _| row.event.count.to_string().into(),
            order: |a, b| a.event.count.cmp(&b.event.count),
        },
        Column {
            title: "NAMESPACE",
            sort_key: 'M',
            width: AtLeast(10),
            rank: 2,
            cell: |row, _| row.event.key.namespace.as_str().into(),
            order: |a, b| a.event.key.cmp(&b.event.key),
        },
        Column {
            title: "REASON",
            sort_key: 'R',
            width: AtLeast(16),
            rank: 0,
            cell: |row, _| row.event.reason.as_str().into(),
            order: |a, b| a.event.reason.cmp(&b.event.reason),
        },
        Column {
            title: "OBJECT",
            sort_key: 'O',
            width: AtLeast(16),
            rank: 0,
            cell: |row, _| row.object.as_str().into(),
            order: |a, b| a.object.cmp(&b.object),
        },
        Column {
            title: "MESSAGE",
            sort_key: 'E',
            width: AtLeast(30),
            rank: 0,
            cell: |row, _| row.event.message.as_str().into(),
            order: |a, b| a.event.message.cmp(&b.event.message),
        },
    ];

    fn all(cluster: &Cluster, scope: &Scope) -> Vec<Self> {
        let events = cluster.events.iter();
        let events = events.filter(|event| scope.has_namespace(&event.key.namespace));
        let row = |event: &Arc<EventFact>| Self {
            object: format!("{}/{}", event.object_kind.to_lowercase(), event.object.name),
            event: event.clone(),
        };
        events.map(row).collect()
    }

    fn key(&self) -> (&str, &str) {
        (&self.event.key.namespace, &self.event.key.name)
    }

    fn texts(&self) -> Vec<Cow<'_, str>> {
        let event = &self.event;
        let texts = [
            &event.reason,
            &event.kind,
            &self.object,
            &event.message,
            &event.key.namespace,
        ];
        texts.map(Cow::from).into()
    }

    fn subject(&self) -> Option<Subject> {
        let object = &self.event.object;
        match self.event.object_kind.as_str() {
            "Pod" => Some(Subject::Pod(object.clone())),
            "Node" => Some(Subject::Node(object.name.clone())),
            _ => None,
        }
    }

    fn target(&self) -> Option<Target> {
        self.subject().map(Target::Description)
    }
}
