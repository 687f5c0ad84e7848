//! The permissions that the kubelet needs, beside those on its Lease and for reading what is its
//! own. Kubernetes' Node authorizer gives all of them to `system:node:NAME`, and refuses questions
//! about reading that do not name the node.

use podplane_client::Permission;

/// Checked when the kubelet starts.
pub(super) const NEEDED: &[Permission] = &[
    Permission::on("", "nodes", &["create", "update"]),
    Permission::on("", "nodes/status", &["update"]),
    Permission::on("", "pods", &["delete"]),
    Permission::on("", "pods/status", &["update"]),
    Permission::on("", "events", &["create", "update"]),
];
