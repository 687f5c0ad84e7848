//! Makes the records and the nodes agree when the server starts.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt as _;
use podplane_api::{core::Node, jiff::Timestamp, pod_ips::POD_IPS_ALLOCATED};
use podplane_host::clock;
use podplane_ipam::parse_cidr;
use podplane_store::{Guard, Item, Key, Prefix, StoreError, Write};
use serde::Deserialize;

use super::{
    NodeBlockAdmission,
    hold::BlockHold,
    lengths::Lengths,
    record::{self, KeyedBlockRecord, NodeBlockRecord, RecordState},
};
use crate::{
    admission::{
        BlockPolicy,
        repair::{self, RepairWrite},
    },
    engine::Engine,
    storage,
};

/// A key whose presence says that records have holds. A version without holds used an annotation
/// instead.
const HOLDS: &str = "/podplane/block-holds";

impl NodeBlockAdmission {
    /// The ranges of `--cluster-cidr`, as texts.
    pub(crate) fn cluster_cidrs(&self) -> Vec<String> {
        let ranges = self.policy.cluster_cidrs.iter();
        ranges.map(ToString::to_string).collect()
    }

    /// Makes the records agree with the nodes, in case a version without records wrote the store:
    /// every block of a node gets its record, and a record without a node starts to drain.
    pub(crate) async fn open(engine: Engine, policy: BlockPolicy) -> Result<Self, StoreError> {
        let this = Self { engine, policy };
        repair::repair(&this.engine, || this.repairs().boxed()).await?;
        Ok(this)
    }

    async fn repairs(&self) -> Result<Vec<RepairWrite>, StoreError> {
        let mut lengths = Lengths::default();
        let mut wanted = BTreeMap::new();
        let holds = Key::try_from(HOLDS).expect("neither empty nor long");
        let has_holds = self.engine.get(&holds).await?.is_some();
        let now = clock::timestamp();
        // Before the records: a length that is added meanwhile fails the guard.
        let (unchanged, known) = self.lengths().await?;
        // Before the nodes: what another server adds meanwhile is not taken for a record without a
        // node.
        let records = Prefix::from(record::RECORDS);
        let (found, revision) = self.records_under(records.clone()).await?;
        let (nodes, _) = self.records_under(storage::prefix::<Node>()).await?;
        for item in &nodes {
            let Some(node) = StoredNode::read(item) else {
                continue;
            };
            for net in node.spec.pod_cidrs.iter().flatten() {
                let Ok(net) = parse_cidr(net).map(|net| net.trunc()) else {
                    continue;
                };
                if let Ok(key) = record::key(&net, &node.metadata.name) {
                    let in_use = !has_holds && node.metadata.has_addresses_in_use();
                    let hold = in_use.then(|| BlockHold::of_nobody(now));
                    wanted.insert(key, (item, (node.metadata.uid.clone(), hold)));
                    lengths.insert(&net);
                }
            }
        }
        let mut repairs = Vec::new();
        for item in &found {
            let Some(stored) = KeyedBlockRecord::read(item) else {
                // No version writes such a key.
                continue;
            };
            let over = |write| RepairWrite::over(Some(item), write);
            let key = item.key.clone();
            match wanted.remove(&item.key) {
                Some((node, (uid, hold))) => {
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
                        repairs.push(over(record.put(key)).from(node));
                    }
                }
                None if item.value_len() == 0 => repairs.push(over(Write::Delete { key })),
                None => {
                    lengths.insert(&stored.net);
                    let record = draining_record(stored.record.clone(), has_holds, now);
                    if record != stored.record {
                        repairs.push(over(record.put(key)));
                    }
                }
            }
        }
        let missing = wanted.into_iter();
        repairs.extend(missing.map(|(key, (node, wanted))| {
            RepairWrite::over(None, assigned(wanted).put(key)).from(node)
        }));
        if !has_holds {
            let value = Bytes::new();
            repairs.push(RepairWrite::over(None, Write::Put { key: holds, value }));
        }
        if known != lengths {
            let no_other_block = Guard::NoneNewerUnder {
                prefix: records,
                revision,
            };
            let put = RepairWrite::new(lengths.put()).while_holds(unchanged);
            repairs.push(put.while_holds(no_other_block));
        }
        Ok(repairs)
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
        serde_json::from_slice(&item.value()).ok()
    }
}
