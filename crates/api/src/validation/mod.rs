//! What makes an object well-formed, and which of its fields may change, as Kubernetes has it and in its words.

mod cluster_cidr;
mod controller_revision;
mod deployment;
mod event;
pub mod field;
mod lease;
mod metadata;
mod namespace;
mod node;
mod node_selector;
mod pod;
mod replica_set;
mod resources;
mod service;
mod taints;
mod workload;

pub use event::{validate_new_event, validate_new_event_update};
pub use field::{ErrorList, FieldError, Path, Rule};
pub use metadata::{ANNOTATIONS_MAX_BYTES, NameRules};
pub use node::{is_cidr, sync_pod_cidrs};

use crate::Object;

/// The rules of a kind. Objects are judged after defaults were set.
pub trait Validate: Object {
    /// The rules that the object breaks.
    fn validate(&self) -> ErrorList;

    /// The rules that the object breaks as the successor of `old`.
    fn validate_update(&self, old: &Self) -> ErrorList;
}
