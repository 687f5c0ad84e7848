//! The records and the nodes agree when the server starts.

use std::collections::BTreeMap;

use podplane_api::core::Node;
use podplane_ipam::parse_cidr;
use podplane_store::{Item, Key, MAX_WRITES, Prefix, StoreError, Txn, Write};
use serde::Deserialize;

use super::{
    NodeBlocks,
    lengths::Lengths,
    record::{self, Record, RecordState, Stored},
};
use crate::{admission::Policy, engine::Engine, storage};

impl NodeBlocks {
    /// Makes the records agree with the nodes, where an older version wrote the store or one that knows nothing of records: every block of a node has its record, and
    /// what is recorded without a node is on its way to be free.
    pub(crate) async fn open(engine: Engine, policy: Policy) -> Result<Self, StoreError> {
        let this = Self { engine, policy };
        let mut lengths = Lengths::default();
        let mut wanted = BTreeMap::new();
        let (nodes, _) = this.under(storage::prefix::<Node>()).await?;
        for node in &nodes {
            let Some(node) = StoredNode::read(node) else {
                continue;
            };
            for net in node.spec.pod_cidrs.iter().flatten() {
                let Ok(net) = parse_cidr(net).map(|net| net.trunc()) else {
                    continue;
                };
                if let Ok(key) = record::key(&net, &node.metadata.name) {
                    wanted.insert(key, node.metadata.uid.clone());
                    lengths.insert(&net);
                }
            }
        }
        let mut writes = Vec::new();
        let (found, _) = this.under(Prefix::from(record::RECORDS)).await?;
        for item in &found {
            let Some(stored) = Stored::read(item) else {
                // No version writes such a key.
                continue;
            };
            match wanted.remove(&item.key) {
                Some(uid) if stored.record.state.has_node() && stored.record.node_uid == uid => {}
                Some(uid) => writes.push(assigned(uid).put(item.key.clone())),
                None if item.value.is_empty() => writes.push(Write::Delete {
                    key: item.key.clone(),
                }),
                None => {
                    lengths.insert(&stored.net);
                    if stored.record.state.has_node() {
                        let record = Record {
                            state: RecordState::Draining,
                            ..stored.record
                        };
                        writes.push(record.put(item.key.clone()));
                    }
                }
            }
        }
        let missing = wanted.into_iter();
        writes.extend(missing.map(|(key, uid): (Key, String)| assigned(uid).put(key)));
        let (_, known) = this.lengths().await?;
        if known.is_none_or(|known| known != lengths) {
            writes.push(lengths.put());
        }
        for writes in writes.chunks(MAX_WRITES) {
            let txn = Txn {
                guards: Vec::new(),
                writes: writes.to_vec(),
            };
            this.engine.commit(txn).await?;
        }
        Ok(this)
    }
}

fn assigned(node_uid: String) -> Record {
    Record {
        state: RecordState::Assigned,
        node_uid,
        fence: None,
        until: None,
    }
}

/// What has to be known of a stored node, without decoding the rest of it.
#[derive(Deserialize)]
struct StoredNode {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

impl StoredNode {
    fn read(item: &Item) -> Option<Self> {
        serde_json::from_slice(&item.value).ok()
    }
}
