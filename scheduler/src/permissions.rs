//! The permissions that the scheduler needs, beside those on its Lease. Kubernetes' ClusterRole
//! `system:kube-scheduler` has all of them.

use podplane_client::Permission;

const READ: &[&str] = &["get", "list", "watch"];
const FOLLOW: &[&str] = &["list", "watch"];

/// Checked when the scheduler starts.
pub(crate) const NEEDED: &[Permission] = &[
    Permission::on("", "pods", READ),
    Permission::on("", "nodes", FOLLOW),
    Permission::on("", "namespaces", FOLLOW),
    Permission::on("", "services", FOLLOW),
    Permission::on("apps", "replicasets", FOLLOW),
    Permission::on("policy", "poddisruptionbudgets", FOLLOW),
    Permission::on("", "pods/binding", &["create"]),
    Permission::on("", "pods/status", &["update"]),
    Permission::on("", "pods", &["delete"]),
    Permission::on("", "events", &["create", "update"]),
];
