//! Validation of objects and of updates, with the rules and messages of Kubernetes.

pub(crate) mod admission;
pub(crate) mod conditions;
pub(crate) mod data;
pub mod field;
pub(crate) mod metadata;
pub(crate) mod node_selector;
pub(crate) mod pem;
pub(crate) mod rbac;
pub(crate) mod resources;
pub(crate) mod taints;
pub(crate) mod values;
pub(crate) mod workload;

pub use field::{ErrorList, ErrorRule, FieldError, FieldPath};
pub use metadata::{ANNOTATIONS_MAX_BYTES, NameRules, validate_metadata, validate_metadata_update};

use crate::{Object, names};

/// The validation rules of a kind. Objects are validated after defaulting.
pub trait Validate: Object {
    /// Validates an object. The default checks the metadata, with the rules of a DNS subdomain for
    /// the name.
    fn validate(&self) -> ErrorList {
        metadata::validate(self, names::dns1123_subdomain)
    }

    /// Validates an object as the successor of `old`.
    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        errors
    }
}
