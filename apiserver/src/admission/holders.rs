//! An index of the pods that hold addresses of each node.
//!
//! Each address that a pod holds, or will get, on its node has a key,
//! `/podplane/holders/<node>/<namespace>/<name>/<number>`, written in the commit of the pod. So
//! "the node has an address for one more pod" is one guard on the key space: whoever binds, no node
//! gets more pods than it has addresses for.

use std::collections::BTreeSet;

use podplane_api::{Object as _, ObjectKey, core::Pod, pod_ips::PodIpResource};
use podplane_store::{Key, KeyError, ListQuery, Prefix, StoreError};

use crate::engine::Engine;

pub(super) const HOLDERS: &str = "/podplane/holders/";

/// The most addresses of one pod that are counted; a pod that requests more is not bound. Each is a
/// write of the pod's commit, which has a limit.
pub(super) const MAX_ADDRESSES: u64 = 64;

/// The pods that hold addresses of a node.
#[derive(Debug, Default)]
pub(super) struct NodeHolders {
    /// The number of addresses.
    pub(super) held: u64,
    /// The pods, in the order of their names.
    pub(super) pods: Vec<ObjectKey>,
}

/// The keys of the addresses that the pod holds on its node.
pub(super) fn keys(pod: &Pod, resource: &PodIpResource) -> Result<BTreeSet<Key>, KeyError> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let Some(node) = node else {
        return Ok(BTreeSet::new());
    };
    let ObjectKey { namespace, name } = pod.key();
    let key = |n| Key::try_from(format!("{HOLDERS}{node}/{namespace}/{name}/{n}"));
    let addresses = resource.addresses_held(pod).min(MAX_ADDRESSES);
    (0..addresses).map(key).collect()
}

/// The key prefix of the addresses that pods hold on the node.
pub(super) fn on_node(node: &str) -> Prefix {
    Prefix::from(format!("{HOLDERS}{node}/"))
}

/// Reads the pods that hold addresses of the node.
pub(super) async fn read(engine: &Engine, node: &str) -> Result<NodeHolders, StoreError> {
    let query = ListQuery {
        prefix: on_node(node),
        ..ListQuery::default()
    };
    let mut holders = NodeHolders::default();
    for item in engine.list(query).await?.items {
        holders.held += 1;
        let pod = item.key.as_str().and_then(pod_of);
        if let Some(pod) = pod.filter(|pod| holders.pods.last() != Some(pod)) {
            holders.pods.push(pod);
        }
    }
    Ok(holders)
}

fn pod_of(key: &str) -> Option<ObjectKey> {
    let mut parts = key.strip_prefix(HOLDERS)?.split('/').skip(1);
    Some(ObjectKey::new(parts.next()?, parts.next()?))
}
