//! A pod as the guard keeps it: its identity, its node, and its addresses.

use std::sync::Arc;

use podplane_api::{Object, ObjectKey, core::Pod, pod_ips::PodIpResource};

/// `metadata.uid`. Cloning is cheap.
pub type PodUid = Arc<str>;

/// A pod with the number of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: PodUid,
    /// `spec.nodeName`; `None` if the pod is not bound.
    pub node: Option<Arc<str>>,
    /// The addresses that it needs on a node; see [`PodIpResource::addresses_needed`].
    pub needed: u64,
    /// The addresses that it holds; see [`PodIpResource::addresses_held`].
    pub held: u64,
}

impl PodAddresses {
    /// Reads a pod.
    pub fn of(pod: &Pod, resource: &PodIpResource) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        Self {
            key: Object::key(pod),
            uid: Object::uid(pod).into(),
            node: node.filter(|node| !node.is_empty()).map(Arc::from),
            needed: resource.addresses_needed(pod),
            held: resource.addresses_held(pod),
        }
    }
}

impl podplane_client::CacheItem for PodAddresses {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }
}
