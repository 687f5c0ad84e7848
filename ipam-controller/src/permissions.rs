//! The permissions that the IPAM controller needs, beside those on its Lease.

use podplane_client::Permission;

/// Checked when the controller starts.
pub(crate) const NEEDED: &[Permission] = &[
    Permission {
        group: "",
        resource: "nodes",
        verbs: &["get", "list", "watch", "patch"],
    },
    Permission {
        group: "",
        resource: "nodes/status",
        verbs: &["update"],
    },
    Permission {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch", "delete"],
    },
    Permission {
        group: "",
        resource: "events",
        verbs: &["create", "update"],
    },
];
