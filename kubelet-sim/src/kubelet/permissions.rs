//! The permissions that the kubelet needs, beside those on its Lease and for reading what is its
//! own. Kubernetes' Node authorizer gives all of them to `system:node:NAME`, and refuses questions
//! about reading that do not name the node.

use podplane_client::Permission;

/// Checked when the kubelet starts.
pub(super) const NEEDED: &[Permission] = &[
    of("", "nodes", &["create", "update"]),
    of("", "nodes/status", &["update"]),
    of("", "pods", &["delete"]),
    of("", "pods/status", &["update"]),
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
