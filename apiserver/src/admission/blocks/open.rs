//! Makes the records and the nodes agree when the server starts.

use std::collections::BTreeMap;

use bytes::Bytes;
use podplane_api::{core::Node, jiff::Timestamp, pod_ips::POD_IPS_ALLOCATED};
use podplane_host::clock;
use podplane_ipam::parse_cidr;
use podplane_store::{Item, Key, MAX_WRITES, Prefix, StoreError, Txn, Write};
use serde::Deserialize;

use super::{
    NodeBlockAdmission,
    hold::BlockHold,
    lengths::Lengths,
    record::{self, KeyedBlockRecord, NodeBlockRecord, RecordState},
};
use crate::{admission::BlockPolicy, engine::Engine, storage};

/// A key whose presence says that records have holds. A version without holds used an annotation
/// instead.
const HOLDS: &str = "/podplane/block-holds";

impl NodeBlockAdmission {
    /// Makes the records agree with the nodes, in case a version without records wrote the store:
    /// every block of a node gets its record, and a record without a node starts to drain.
    pub(crate) async fn open(engine: Engine, policy: BlockPolicy) -> Result<Self, StoreError> {
        let this = Self { engine, policy };
        let mut lengths = Lengths::default();
        let mut wanted = BTreeMap::new();
        let holds = Key::try_from(HOLDS).expect("neither empty nor long");
        let has_holds = this.engine.get(&holds).await?.is_some();
        let now = clock::timestamp();
        let (nodes, _) = this.records_under(storage::prefix::<Node>()).await?;
        for node in &nodes {
            let Some(node) = StoredNode::read(node) else {
                continue;
            };
            for net in node.spec.pod_cidrs.iter().flatten() {
                let Ok(net) = parse_cidr(net).map(|net| net.trunc()) else {
                    continue;
                };
                if let Ok(key) = record::key(&net, &node.metadata.name) {
                    let in_use = !has_holds && node.metadata.has_addresses_in_use();
                    let hold = in_use.then(|| BlockHold::of_nobody(now));
                    wanted.insert(key, (node.metadata.uid.clone(), hold));
                    lengths.insert(&net);
                }
            }
        }
        let mut writes = Vec::new();
        let (found, _) = this.records_under(Prefix::from(record::RECORDS)).await?;
        for item in &found {
            let Some(stored) = KeyedBlockRecord::read(item) else {
                // No version writes such a key.
                continue;
            };
            match wanted.remove(&item.key) {
                Some((uid, hold)) => {
                    let hold = stored.record.hold.clone().or(hold);
                    let fits = stored.record.state.has_node() && stored.record.node_uid == uid;
                    let record = match fits {
                        true => NodeBlockRecord {
                            hold,
                            ..stored.record.clone()
                        },
                        false => assigned((uid, hold)),
                    };
                    if !fits || record != stored.record {
                        writes.push(record.put(item.key.clone()));
                    }
                }
                None if item.value.is_empty() => writes.push(Write::Delete {
                    key: item.key.clone(),
                }),
                None => {
                    lengths.insert(&stored.net);
                    let record = draining_record(stored.record.clone(), has_holds, now);
                    if record != stored.record {
                        writes.push(record.put(item.key.clone()));
                    }
                }
            }
        }
        let missing = wanted.into_iter();
        writes.extend(missing.map(|(key, wanted)| assigned(wanted).put(key)));
        if !has_holds {
            writes.push(Write::Put {
                key: holds,
                value: Bytes::new(),
            });
        }
        let (_, known) = this.lengths().await?;
        if known != lengths {
            writes.push(lengths.put());
        }
        for writes in writes.chunks(MAX_WRITES) {
            let txn = Txn {
                guards: Vec::new(),
                writes: writes.to_vec(),
                reclaims: false,
            };
            this.engine.commit(txn).await?;
        }
        Ok(this)
    }
}

fn assigned((node_uid, hold): (String, Option<BlockHold>)) -> NodeBlockRecord {
    NodeBlockRecord {
        state: RecordState::Assigned,
        node_uid,
        fence: None,
        until: None,
        hold,
    }
}

/// The record of a node that is gone.
fn draining_record(record: NodeBlockRecord, has_holds: bool, now: Timestamp) -> NodeBlockRecord {
    match record.state {
        RecordState::Assigned | RecordState::Foreign => NodeBlockRecord {
            state: RecordState::Draining,
            ..record
        },
        // A version without holds kept it for a time because of its sandboxes.
        RecordState::Draining if !has_holds && record.until.is_some() => NodeBlockRecord {
            until: None,
            hold: Some(BlockHold::of_nobody(now)),
            ..record
        },
        RecordState::Draining | RecordState::Quarantined => record,
    }
}

/// The fields of a stored node that records need, without decoding the rest.
#[derive(Deserialize)]
struct StoredNode {
    metadata: NodeMetadata,
    #[serde(default)]
    spec: NodeSpecFields,
}

#[derive(Deserialize)]
struct NodeMetadata {
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl NodeMetadata {
    /// Returns true if a kubelet of a version without holds reported addresses in use.
    fn has_addresses_in_use(&self) -> bool {
        let said = self.annotations.get(POD_IPS_ALLOCATED);
        said.is_some_and(|count| count.parse().is_ok_and(|count: u64| count > 0))
    }
}

#[derive(Default, Deserialize)]
struct NodeSpecFields {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

impl StoredNode {
    fn read(item: &Item) -> Option<Self> {
        serde_json::from_slice(&item.value).ok()
    }
}
