//! The permissions that the IPAM controller needs, beside those on its Lease.

use podplane_client::Permission;

/// Checked when the controller starts. NodeBlocks are asked for where blocks are objects, which is
/// where permissions are checked.
pub(crate) const NEEDED: &[Permission] = &[
    Permission::on("", "nodes", &["get", "list", "watch", "patch"]),
    Permission::on("", "nodes/status", &["update"]),
    Permission::on("", "pods", &["get", "list", "watch", "delete"]),
    Permission::on("", "events", &["create", "update"]),
    Permission::on(
        "podplane.io",
        "nodeblocks",
        &["get", "list", "create", "patch", "delete"],
    ),
];

/// Checked with them if blocks come from ClusterCIDRs.
pub(crate) const CLUSTER_CIDRS: Permission = Permission::on(
    "networking.x-k8s.io",
    "clustercidrs",
    &["get", "list", "watch", "create", "update"],
);
