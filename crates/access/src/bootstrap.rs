//! The roles and bindings that every cluster has.
//!
//! They are Kubernetes' own, without the kinds that podplane does not serve, and the bindings by
//! which nodes join, which the reference leaves to its installers. [`reconcile_role`] and
//! [`reconcile_binding`] bring stored objects up to date when a server starts.

mod bindings;
mod reconcile;
mod roles;

use podplane_api::rbac::{ClusterRole, ClusterRoleBinding, PolicyRule};

pub use reconcile::{Reconciliation, reconcile_binding, reconcile_role};

/// The label of objects that the API server maintains.
pub const BOOTSTRAPPING_LABEL: (&str, &str) = ("kubernetes.io/bootstrapping", "rbac-defaults");

/// The ClusterRole by which the garbage collector gets at custom objects. The API server writes its
/// rules as definitions come and go.
pub const CUSTOM_OBJECTS: &str = "system:podplane:custom-object-collector";

/// The annotation by whose value `false` an object is left as it is.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// The default ClusterRoles, in the order of their names. The rules of those that aggregate others
/// are [filled](crate::rbac::aggregation::settle) already, so that they work from the start.
pub fn cluster_roles() -> Vec<ClusterRole> {
    let roles = roles::ROLES.iter().map(|role| {
        let role = role.to_object();
        (role.metadata.name.clone().unwrap_or_default(), role)
    });
    let mut roles = roles.collect();
    crate::rbac::aggregation::settle(&mut roles);
    roles.into_values().collect()
}

/// The default ClusterRoleBindings, in the order of their names.
pub fn cluster_role_bindings() -> Vec<ClusterRoleBinding> {
    let mut bindings: Vec<_> = bindings::BINDINGS.iter().map(bindings::to_object).collect();
    bindings.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    bindings
}

/// The rules of the ClusterRole `system:node`, whose binding has no subjects: nodes get them, with
/// limits, from the [node authorizer](crate::node).
pub fn node_rules() -> Vec<PolicyRule> {
    roles::node_rules()
}
