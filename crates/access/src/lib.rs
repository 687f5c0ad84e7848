//! The decisions of access control, without the requests.
//!
//! Kubernetes' rules as functions of values: RBAC ([`rbac`]), the node authorizer ([`node`]),
//! NodeRestriction ([`restriction`]) and the default roles ([`bootstrap`]). The crate authenticates
//! nobody, stores nothing, reads no clock and does no I/O; what it must know of other objects, it
//! asks [`relations::Relations`]. It answers any input without a panic.
//!
//! Start reading at [`authorizer::authorize`], the decision about a request. Its reasons and
//! refusals are worded as the reference words them, for people and programs that know them.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod attributes;
pub mod authorizer;
pub mod bootstrap;
pub mod identity;
pub mod node;
pub mod rbac;
mod references;
pub mod relations;
pub mod restriction;

pub use attributes::{Attributes, Requirement, RequirementOperator, ResourceTarget, Target};
pub use authorizer::{Authorizer, Decision, Verdict, authorize, review_rules};
pub use identity::Identity;
pub use rbac::Policy;
pub use relations::Relations;

/// The name of an object; empty for none.
fn name(metadata: &podplane_api::meta::ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

/// The namespace of an object; empty for none.
fn namespace(metadata: &podplane_api::meta::ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

/// The words of an optional list.
fn words(list: Option<&Vec<String>>) -> &[String] {
    list.map(Vec::as_slice).unwrap_or_default()
}
