//! The history of a fake API server.

use bytes::Bytes;
use podplane_api::Object;
use podplane_proto::wire::{self, WatchEventType};
use prost::Message as _;

use crate::encode;

/// The changes of a fake's objects, which its watches send.
#[derive(Debug, Default)]
pub struct ChangeLog {
    changes: Vec<LoggedChange>,
}

/// A change of an object of a kind; its revision is its place in the log, from 1.
#[derive(Clone, Debug)]
struct LoggedChange {
    kind: &'static str,
    r#type: WatchEventType,
    object: Bytes,
}

impl ChangeLog {
    fn revision(&self) -> usize {
        self.changes.len()
    }

    /// Records a change, and gives the object its revision.
    pub fn push<K: Object>(&mut self, r#type: WatchEventType, object: &mut K) {
        let revision = self.revision() + 1;
        object.metadata_mut().resource_version = Some(revision.to_string());
        self.changes.push(LoggedChange {
            kind: K::KIND,
            r#type,
            object: encode(object),
        });
    }

    /// The answer to a list of these objects now.
    pub fn list<'a, K: Object>(&self, items: impl Iterator<Item = &'a K>) -> Bytes {
        let metadata = wire::ListMeta {
            resource_version: Some(self.revision().to_string()),
            ..wire::ListMeta::default()
        };
        let list = wire::ObjectList {
            metadata: Some(metadata),
            items: items.map(encode).collect(),
        };
        list.encode_to_vec().into()
    }

    /// The first event of a kind after a revision, with its own revision.
    pub(crate) fn event_after(&self, after: usize, kind: &str) -> Option<(usize, Bytes)> {
        let later = self.changes.iter().enumerate().skip(after);
        let (index, change) = later.into_iter().find(|(_, change)| change.kind == kind)?;
        let event = wire::WatchEvent {
            r#type: change.r#type.into(),
            object: Some(change.object.clone()),
        };
        Some((index + 1, event.encode_to_vec().into()))
    }
}
