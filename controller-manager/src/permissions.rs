//! The permissions that the controllers need, beside those on their Lease, and on custom kinds,
//! whose objects the garbage collector follows as their definitions come and go.

use podplane_api::{
    Resource as _,
    kinds::{self, KindVisitor},
    networking::ClusterCIDR,
    strategy::Strategy,
};
use podplane_client::Permission;

const CERTIFICATES: &str = "certificates.k8s.io";

/// The writes of the controllers. Objects of collected kinds can be updated and deleted anyway.
const WRITES: &[Permission] = &[
    Permission::on("", "configmaps", CREATE),
    Permission::on("", "endpoints", CREATE),
    Permission::on("", "persistentvolumeclaims", CREATE),
    Permission::on("", "pods", CREATE),
    Permission::on("", "serviceaccounts", CREATE),
    Permission::on("", "events", &["create", "update"]),
    Permission::on("", "nodes/status", UPDATE),
    Permission::on("apps", "controllerrevisions", CREATE),
    Permission::on("apps", "replicasets", CREATE),
    Permission::on("apps", "daemonsets/status", UPDATE),
    Permission::on("apps", "deployments/status", UPDATE),
    Permission::on("apps", "replicasets/status", UPDATE),
    Permission::on("apps", "statefulsets/status", UPDATE),
    Permission::on("batch", "jobs/status", UPDATE),
    Permission::on("discovery.k8s.io", "endpointslices", CREATE),
    Permission::on("policy", "poddisruptionbudgets/status", UPDATE),
];

/// Needed to approve and sign certificates.
const SIGNING: &[Permission] = &[
    Permission::on(CERTIFICATES, "certificatesigningrequests/approval", UPDATE),
    Permission::on(CERTIFICATES, "certificatesigningrequests/status", UPDATE),
    Permission::on("authorization.k8s.io", "subjectaccessreviews", CREATE),
];
/// The verb on a signer, and the signer.
const SIGNERS: [(&[&str], &str); 4] = [
    (&["approve"], "kubernetes.io/kube-apiserver-client-kubelet"),
    (&["sign"], "kubernetes.io/kube-apiserver-client"),
    (&["sign"], "kubernetes.io/kube-apiserver-client-kubelet"),
    (&["sign"], "kubernetes.io/kubelet-serving"),
];

const CREATE: &[&str] = &["create"];
const UPDATE: &[&str] = &["update"];
/// Of the kinds that are collected.
const COLLECT: &[&str] = &["get", "list", "watch", "update", "delete"];

/// The permissions that are checked when the controllers start, with those of an authority if one
/// `signs`.
pub(crate) fn needed(signs: bool) -> Vec<Permission> {
    let mut collected = CollectedKinds(Vec::new());
    kinds::visit(&mut collected);
    let mut needed = [&collected.0, WRITES].concat();
    if signs {
        needed.extend_from_slice(SIGNING);
        needed.extend(
            SIGNERS.map(|(verbs, signer)| {
                Permission::on(CERTIFICATES, "signers", verbs).named(signer)
            }),
        );
    }
    needed
}

struct CollectedKinds(Vec<Permission>);

impl KindVisitor for CollectedKinds {
    fn visit<K: Strategy>(&mut self) {
        if K::IS_COLLECTED && K::GROUP != ClusterCIDR::GROUP {
            self.0.push(Permission::on(K::GROUP, K::PLURAL, COLLECT));
        }
    }
}
