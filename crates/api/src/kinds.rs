//! The kinds that podplane stores and serves: the list, and the declaration of each kind in its own
//! module.
//!
//! A declaration is the implementation of five traits: [`Object`](crate::Object) has the names,
//! [`FieldSelectable`](crate::selector::FieldSelectable) the fields of selectors,
//! [`Validate`](crate::validation::Validate) the rules, [`TableRow`](crate::table::TableRow) the
//! columns of its table, and [`Strategy`] the behaviour in the API server. All have defaults, so
//! that a module says only what is particular to its kind. From the list come the registries, the
//! REST paths and gRPC services of the API server, the kinds of the command line, the garbage
//! collector's watches, and the generated `.proto` files and OpenAPI definitions (ADR 0034).

pub mod certificate_signing_request;
mod cluster_cidr;
mod cluster_role;
mod cluster_role_binding;
mod controller_revision;
mod deployment;
pub mod event;
mod lease;
mod namespace;
pub mod node;
pub mod pod;
pub mod pod_disruption_budget;
pub mod priority_class;
mod replica_set;
mod role;
mod role_binding;
mod service;
pub mod service_account;

pub use namespace::SYSTEM_NAMESPACES;

use crate::strategy::Strategy;

/// The list of all kinds, in the order in which help texts name them: calls the macro `$with`, for
/// example to declare an enum that has a variant for each.
#[macro_export]
macro_rules! stored_kinds {
    ($with:ident!($($arguments:tt)*)) => {
        $with! {
            ($($arguments)*)
            Node: $crate::core::Node,
            Pod: $crate::core::Pod,
            Event: $crate::core::Event,
            Lease: $crate::coordination::Lease,
            Namespace: $crate::core::Namespace,
            Service: $crate::core::Service,
            Deployment: $crate::apps::Deployment,
            ReplicaSet: $crate::apps::ReplicaSet,
            ControllerRevision: $crate::apps::ControllerRevision,
            PodDisruptionBudget: $crate::policy::PodDisruptionBudget,
            PriorityClass: $crate::scheduling::PriorityClass,
            ServiceAccount: $crate::core::ServiceAccount,
            Role: $crate::rbac::Role,
            ClusterRole: $crate::rbac::ClusterRole,
            RoleBinding: $crate::rbac::RoleBinding,
            ClusterRoleBinding: $crate::rbac::ClusterRoleBinding,
            CertificateSigningRequest: $crate::certificates::CertificateSigningRequest,
            ClusterCIDR: $crate::networking::ClusterCIDR,
        }
    };
}

/// A generic function that is called for each kind.
pub trait KindVisitor {
    /// Visits a kind.
    fn visit<K: Strategy>(&mut self);
}

macro_rules! visit_each {
    (($visitor:expr) $($kind:ident: $type:ty,)*) => {
        $($visitor.visit::<$type>();)*
    };
}

/// Visits all kinds in the order of the list.
pub fn visit(visitor: &mut impl KindVisitor) {
    stored_kinds!(visit_each!(visitor));
}
