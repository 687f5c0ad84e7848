//! The permissions that the scheduler needs, beside those on its Lease. Kubernetes' ClusterRole
//! `system:kube-scheduler` has all of them.

use podplane_client::Permission;

const READ: &[&str] = &["get", "list", "watch"];
const FOLLOW: &[&str] = &["list", "watch"];

/// Checked when the scheduler starts.
pub(crate) const NEEDED: &[Permission] = &[
    of("", "pods", READ),
    of("", "nodes", FOLLOW),
    of("", "namespaces", FOLLOW),
    of("", "services", FOLLOW),
    of("apps", "replicasets", FOLLOW),
    of("policy", "poddisruptionbudgets", FOLLOW),
    of("", "pods/binding", &["create"]),
    of("", "pods/status", &["update"]),
    of("", "pods", &["delete"]),
    of("", "events", &["create", "update"]),
];

const fn of(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
) -> Permission {
    Permission {
        group,
        resource,
        verbs,
    }
}
