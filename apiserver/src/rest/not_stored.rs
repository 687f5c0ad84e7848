//! Kinds of Kubernetes that are not stored; their lists are empty.
//!
//! `kubectl apply --prune` and `kubectl cluster-info dump` list a fixed set of kinds, and give up
//! at the first one that a server does not know. kube-scheduler places no pod before it has listed
//! every kind that its plugins read, also those of plugins that its configuration disables.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, future::BoxFuture};
use podplane_api::{ObjectKey, Scope};
use podplane_host::clock::Instant;
use podplane_proto::error::ApiError;
use serde_json::Value;

use super::{
    request::ListOptions,
    resource::{Documents, KindNames, Resource, WatchNotice, WatchNotices},
};
use crate::error;

/// A field selector that matches nothing: no name begins with `-`.
const NOTHING: &str = "metadata.name=-";

type UnstoredKind = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    Scope,
);

/// The kinds that kubectl prunes and dumps and that kube-scheduler reads, besides the stored ones:
/// group, kind, plural, singular, short names and scope. All are of version v1.
const KINDS: [UnstoredKind; 19] = [
    (
        "",
        "ConfigMap",
        "configmaps",
        "configmap",
        &["cm"],
        Scope::Namespaced,
    ),
    (
        "",
        "Endpoints",
        "endpoints",
        "endpoints",
        &["ep"],
        Scope::Namespaced,
    ),
    (
        "",
        "PersistentVolume",
        "persistentvolumes",
        "persistentvolume",
        &["pv"],
        Scope::Cluster,
    ),
    (
        "",
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        "persistentvolumeclaim",
        &["pvc"],
        Scope::Namespaced,
    ),
    (
        "",
        "ReplicationController",
        "replicationcontrollers",
        "replicationcontroller",
        &["rc"],
        Scope::Namespaced,
    ),
    ("", "Secret", "secrets", "secret", &[], Scope::Namespaced),
    (
        "apps",
        "DaemonSet",
        "daemonsets",
        "daemonset",
        &["ds"],
        Scope::Namespaced,
    ),
    (
        "apps",
        "StatefulSet",
        "statefulsets",
        "statefulset",
        &["sts"],
        Scope::Namespaced,
    ),
    (
        "batch",
        "CronJob",
        "cronjobs",
        "cronjob",
        &["cj"],
        Scope::Namespaced,
    ),
    ("batch", "Job", "jobs", "job", &[], Scope::Namespaced),
    (
        "networking.k8s.io",
        "Ingress",
        "ingresses",
        "ingress",
        &["ing"],
        Scope::Namespaced,
    ),
    (
        "resource.k8s.io",
        "DeviceClass",
        "deviceclasses",
        "deviceclass",
        &[],
        Scope::Cluster,
    ),
    (
        "resource.k8s.io",
        "ResourceClaim",
        "resourceclaims",
        "resourceclaim",
        &[],
        Scope::Namespaced,
    ),
    (
        "resource.k8s.io",
        "ResourceSlice",
        "resourceslices",
        "resourceslice",
        &[],
        Scope::Cluster,
    ),
    (
        "storage.k8s.io",
        "CSIDriver",
        "csidrivers",
        "csidriver",
        &[],
        Scope::Cluster,
    ),
    (
        "storage.k8s.io",
        "CSINode",
        "csinodes",
        "csinode",
        &[],
        Scope::Cluster,
    ),
    (
        "storage.k8s.io",
        "CSIStorageCapacity",
        "csistoragecapacities",
        "csistoragecapacity",
        &[],
        Scope::Namespaced,
    ),
    (
        "storage.k8s.io",
        "StorageClass",
        "storageclasses",
        "storageclass",
        &["sc"],
        Scope::Cluster,
    ),
    (
        "storage.k8s.io",
        "VolumeAttachment",
        "volumeattachments",
        "volumeattachment",
        &[],
        Scope::Cluster,
    ),
];

/// The verbs of these kinds.
const VERBS: [&str; 3] = ["get", "list", "watch"];

/// A kind without objects.
struct NotStored {
    names: KindNames,
    /// A stored kind, which provides the revisions and bookmarks.
    stored: Arc<dyn Resource>,
}

/// The kinds that are not stored; `stored` provides their revisions.
pub(crate) fn kinds(stored: &Arc<dyn Resource>) -> impl Iterator<Item = Arc<dyn Resource>> {
    KINDS
        .into_iter()
        .map(|(group, kind, plural, singular, short, scope)| {
            let names = KindNames {
                group,
                version: "v1",
                kind,
                plural,
                singular,
                short,
                categories: &[],
                scope,
                verbs: &VERBS,
                subresources: &[],
                returns_deleted: false,
                is_stored: false,
            };
            let stored = Arc::clone(stored);
            Arc::new(NotStored { names, stored }) as Arc<dyn Resource>
        })
}

impl Resource for NotStored {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        let resource = error::qualified(self.names.plural, self.names.group);
        async move { Err(ApiError::not_found(&resource, &key.name)) }.boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move { self.stored.list(&of_nothing(options)).await }.boxed()
    }

    fn watch<'a>(
        &'a self,
        options: &'a ListOptions,
        ends: Instant,
    ) -> BoxFuture<'a, Result<WatchNotices, ApiError>> {
        let (api_version, kind) = (self.names.api_version(), self.names.kind);
        // Only bookmarks arrive.
        let renamed = move |mut notice: WatchNotice| {
            notice.document["apiVersion"] = api_version.as_str().into();
            notice.document["kind"] = kind.into();
            notice
        };
        async move { self.stored.watch(&of_nothing(options), ends).await }
            .map_ok(|notices| notices.map(move |notice| notice.map(&renamed)).boxed())
            .boxed()
    }
}

fn of_nothing(options: &ListOptions) -> ListOptions {
    let mut nothing = options.clone();
    NOTHING.clone_into(&mut nothing.selection.fields);
    nothing
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        kinds::{self as stored, KindVisitor},
        strategy::Strategy,
    };

    use super::*;

    struct DisjointnessCheck;

    impl KindVisitor for DisjointnessCheck {
        fn visit<K: Strategy>(&mut self) {
            let (group, kind) = (K::GROUP, K::KIND);
            let is_empty = KINDS
                .iter()
                .any(|empty| (empty.0, empty.1) == (group, kind));
            assert!(!is_empty, "{kind} is stored: remove it from KINDS");
        }
    }

    #[test]
    fn stored_kinds_are_not_among_those_served_empty() {
        stored::visit(&mut DisjointnessCheck);
    }
}
