//! Admission of node blocks: no node's block overlaps that of another node, or a service range.
//!
//! Each block has a record, keyed by the bits of its prefix and the name of its node, that is
//! written in the same commit as the node. One guard on the key space ensures that nothing is
//! recorded *below* a prefix, the prefix itself included; one guard for each shorter length in use
//! ensures that nothing is recorded *above* it. The lengths in use are a record of their own,
//! guarded too: two commits that do not know of each other's length cannot both pass.
//!
//! A block is not free when its last node is gone: its record stays until it is released, and a
//! release is refused while the block is held or a pod has an address of it.

mod hold;
mod lengths;
mod open;
mod record;
mod refusal;
mod services;
mod update;

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use ipnet::IpNet;
use podplane_api::{
    Object as _, ObjectKey, coordination::Lease, core::Node, jiff::Timestamp, pod_ips,
};
use podplane_host::clock;
use podplane_ipam::{Family, parse_cidr};
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_store::{Guard, Item, Key, ListQuery, Prefix, Revision, StoreError, Write};

use self::{hold::MAX_ADDRESSES, lengths::Lengths, record::NodeBlockRecord};
pub(crate) use self::{
    hold::{BlockHold, Claimant},
    record::{KeyedBlockRecord, RecordState},
    update::{BlockRecordId, HoldMove, RecordTransition},
};
use super::{Admission, BlockPolicy, CommitAdditions, ProposedChange, addresses, fences};
use crate::{engine::Engine, error, storage};

/// The namespace of the nodes' Leases.
const LEASES: &str = "kube-node-lease";

/// Admits nodes by their blocks.
#[derive(Debug)]
pub(crate) struct NodeBlockAdmission {
    engine: Engine,
    policy: BlockPolicy,
}

/// The most lengths of wider blocks that a commit guards one by one: two families have fewer than
/// etcd takes.
const MOST_LENGTHS: usize = 32;

impl NodeBlockAdmission {
    async fn records_under(
        &self,
        prefix: Prefix,
    ) -> Result<(Vec<Arc<Item>>, Revision), StoreError> {
        let query = ListQuery {
            prefix,
            ..ListQuery::default()
        };
        let listed = self.engine.list(query).await?;
        Ok((listed.items, listed.revision))
    }

    /// All records by address, and their revision.
    pub(crate) async fn records(&self) -> Result<(Vec<KeyedBlockRecord>, Revision), ApiError> {
        let listed = self.records_under(Self::prefix()).await;
        let (items, revision) = listed.map_err(error::store)?;
        Ok((
            items
                .iter()
                .filter_map(|item| KeyedBlockRecord::read(item))
                .collect(),
            revision,
        ))
    }

    /// The prefix of the keys of the records.
    pub(crate) fn prefix() -> Prefix {
        Prefix::from(record::RECORDS)
    }

    /// Waits until reads see what was acknowledged, by whatever server.
    pub(crate) async fn catch_up(&self) -> Result<(), ApiError> {
        self.engine.catch_up().await.map_err(error::store)
    }

    /// Checks that the writer leads, if it sent a fence.
    pub(crate) async fn check_fence(&self, fence: Option<&Fence>) -> Result<(), ApiError> {
        fences::guard(&self.engine, fence).await.map(drop)
    }

    /// The service ranges, which are reserved.
    pub(crate) async fn reserved(&self) -> Result<Vec<IpNet>, ApiError> {
        let ranges = self.service_ranges().await.map_err(error::store)?;
        Ok(ranges.1)
    }

    /// The recorded lengths, and the guard that they do not change. A list that cannot be read
    /// counts as all lengths: that costs guards, and no block in the way is overlooked.
    async fn lengths(&self) -> Result<(Guard, Lengths), StoreError> {
        let key = Lengths::key();
        Ok(match self.engine.get(&key).await? {
            None => (Guard::Absent(key), Lengths::default()),
            Some(item) => {
                let revision = item.modified;
                let lengths = serde_json::from_slice(&item.value());
                let unreadable = |error: serde_json::Error| {
                    tracing::error!(%key, %error, "list of block lengths is not valid; comparing blocks at every length");
                    Lengths::all()
                };
                let lengths = lengths.unwrap_or_else(unreadable);
                (Guard::At { key, revision }, lengths)
            }
        })
    }

    /// Adds the guards and writes that make a node's blocks exclusive.
    async fn exclusive(
        &self,
        node: &str,
        nets: &[IpNet],
        additions: &mut CommitAdditions,
    ) -> Result<(), StoreError> {
        let (unchanged, mut lengths) = self.lengths().await?;
        let mut added = false;
        for net in nets {
            let shorter = lengths.of(Family::of(net)).range(..net.prefix_len());
            if shorter.clone().count() > MOST_LENGTHS {
                additions
                    .guards
                    .extend(self.none_overlaps(node, net).await?);
                continue;
            }
            for length in shorter {
                let wider = IpNet::new(net.addr(), *length).unwrap_or(*net).trunc();
                additions
                    .guards
                    .push(Guard::NoneUnder(record::exactly(&wider)));
            }
            additions.guards.push(self.none_within(node, net).await?);
        }
        for net in nets {
            added |= lengths.insert(net);
        }
        if added {
            additions.writes.push(lengths.put());
        }
        additions.guards.push(unchanged);
        Ok(())
    }

    /// The guards that no block shares an address with this one, however many lengths there are:
    /// nothing is in the way now, and no block of the family comes before the commit.
    async fn none_overlaps(&self, node: &str, net: &IpNet) -> Result<[Guard; 2], StoreError> {
        let family = record::of_family(net);
        let (items, revision) = self.records_under(family.clone()).await?;
        let mut records = items.iter().filter_map(|item| KeyedBlockRecord::read(item));
        let wider = records.find(|found| found.net.contains(net) && found.net != *net);
        let none_newer = Guard::NoneNewerUnder {
            prefix: family,
            revision,
        };
        Ok(match wider {
            Some(found) => [Guard::NoneUnder(record::exactly(&found.net)), none_newer],
            None => [self.none_within(node, net).await?, none_newer],
        })
    }

    /// The guard that nothing is recorded within a block, except the node's own former record of
    /// it.
    async fn none_within(&self, node: &str, net: &IpNet) -> Result<Guard, StoreError> {
        let prefix = record::within(net);
        let (items, _) = self.records_under(prefix.clone()).await?;
        let back = match items.as_slice() {
            [item] => {
                KeyedBlockRecord::read(item).filter(|found| is_former_block(found, node, net))
            }
            _ => None,
        };
        Ok(match back {
            Some(KeyedBlockRecord { key, revision, .. }) => Guard::OnlyUnder {
                prefix,
                key,
                revision,
            },
            None => Guard::NoneUnder(prefix),
        })
    }

    /// Checks that no service range overlaps these blocks; the guard ensures it until the commit.
    async fn outside_of_services(&self, node: &Node, nets: &[IpNet]) -> Result<Guard, ApiError> {
        let (unchanged, ranges) = self.service_ranges().await.map_err(error::store)?;
        for net in nets {
            let overlaps = |range: &&IpNet| range.contains(net) || net.contains(*range);
            if let Some(range) = ranges.iter().find(overlaps) {
                let whose = format!("the service range {range}");
                let (records, _) = self.records().await?;
                let taken = refusal::OccupiedRanges {
                    ranges: &ranges,
                    records: &records,
                };
                let held = (range, whose.as_str());
                return Err(refusal::refusal(&self.policy, node, net, held, taken));
            }
        }
        Ok(unchanged)
    }

    /// The time after its last renewal at which a hold ends by itself; `None`: never.
    pub(crate) fn release_after(&self) -> Option<Duration> {
        self.policy.release_after
    }

    /// The hold of a block that its former node gets back. It is guarded by
    /// [`exclusive`](Self::exclusive): nothing is recorded, or this very record is.
    async fn hold_of_former(&self, key: &Key) -> Result<Option<BlockHold>, StoreError> {
        let found = self.engine.get(key).await?;
        let former = found.as_deref().and_then(KeyedBlockRecord::read);
        let hold = former.and_then(|former| former.record.hold);
        let now = clock::timestamp();
        let hold = hold.filter(|hold| !hold.is_over(self.policy.release_after, now));
        Ok(hold.map(BlockHold::resumed))
    }

    /// The record of a block whose node is deleted, and the guard that the old record does not
    /// change meanwhile.
    async fn draining_record(
        &self,
        node: &Node,
        net: &IpNet,
        key: &Key,
    ) -> Result<(Guard, NodeBlockRecord), StoreError> {
        let item = self.engine.get(key).await?;
        let unchanged = match &item {
            Some(item) => Guard::At {
                key: key.clone(),
                revision: item.modified,
            },
            None => Guard::Absent(key.clone()),
        };
        let found = item.as_deref().and_then(KeyedBlockRecord::read);
        let (fence, hold) = found
            .map(|found| (found.record.fence, found.record.hold))
            .unwrap_or_default();
        let hold = match hold {
            None => None,
            Some(hold) => {
                let holders = addresses::holders(&self.engine, net, MAX_ADDRESSES).await?;
                let heard = self.last_heard_of(node).await?;
                Some(hold.after_deletion(heard, holders, clock::timestamp()))
            }
        };
        let record = NodeBlockRecord {
            state: RecordState::Draining,
            node_uid: node.uid().to_owned(),
            fence,
            until: None,
            hold,
        };
        Ok((unchanged, record))
    }

    /// The time at which the node was last heard of, from its Lease.
    async fn last_heard_of(&self, node: &Node) -> Result<Option<Timestamp>, StoreError> {
        let Ok(key) = storage::key::<Lease>(&ObjectKey::new(LEASES, node.name())) else {
            return Ok(None);
        };
        let lease = self.engine.get(&key).await?;
        let lease = lease.and_then(|item| storage::decode::<Lease>(&item).ok());
        let renewed = lease.and_then(|lease| lease.spec?.renew_time);
        Ok(renewed.map(|time| time.0))
    }
}

/// Returns true if the record is that of the block which the node left behind.
fn is_former_block(found: &KeyedBlockRecord, node: &str, net: &IpNet) -> bool {
    found.node == node && found.net == *net && !found.record.state.has_node()
}

impl Admission<Node> for NodeBlockAdmission {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Node>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        async move {
            let ProposedChange {
                old,
                new,
                operation: _,
                by: _,
                fence,
            } = change;
            let (before, after) = (blocks(old), blocks(new));
            let given = difference(&after, &before);
            let taken = difference(&before, &after);
            let mut additions = CommitAdditions::default();
            let Some(node) = new.or(old) else {
                return Ok(additions);
            };
            if !given.is_empty() && !self.policy.lenient {
                let unchanged = self.outside_of_services(node, &given).await?;
                additions.guards.push(unchanged);
                let exclusive = self.exclusive(node.name(), &given, &mut additions).await;
                exclusive.map_err(error::store)?;
            }
            for net in &given {
                let key = record::key(net, node.name()).map_err(|error| error::internal(&error))?;
                let hold = self.hold_of_former(&key).await.map_err(error::store)?;
                let record = NodeBlockRecord {
                    state: RecordState::Assigned,
                    node_uid: node.uid().to_owned(),
                    fence: fence.map(ToString::to_string),
                    until: None,
                    hold,
                };
                additions.writes.push(record.put(key));
            }
            for net in &taken {
                let key = record::key(net, node.name()).map_err(|error| error::internal(&error))?;
                additions.writes.push(if self.policy.lenient {
                    Write::Delete { key }
                } else {
                    let left = self.draining_record(node, net, &key).await;
                    let (unchanged, record) = left.map_err(error::store)?;
                    additions.guards.push(unchanged);
                    record.put(key)
                });
            }
            Ok(additions)
        }
        .boxed()
    }

    fn check_guards<'a>(
        &'a self,
        change: ProposedChange<'a, Node>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let given = difference(&blocks(change.new), &blocks(change.old));
            let Some(node) = change
                .new
                .filter(|_| !self.policy.lenient && !given.is_empty())
            else {
                return Ok(());
            };
            self.outside_of_services(node, &given).await?;
            let (records, _) = self.records().await?;
            for net in &given {
                let in_the_way = |held: &&KeyedBlockRecord| {
                    held.overlaps(net) && !is_former_block(held, node.name(), net)
                };
                if let Some(held) = records.iter().find(in_the_way) {
                    let whose = refusal::describe_owner(held);
                    let (_, ranges) = self.service_ranges().await.map_err(error::store)?;
                    let taken = refusal::OccupiedRanges {
                        ranges: &ranges,
                        records: &records,
                    };
                    let held = (&held.net, whose.as_str());
                    return Err(refusal::refusal(&self.policy, node, net, held, taken));
                }
            }
            Ok(())
        }
        .boxed()
    }
}

fn difference(these: &[IpNet], those: &[IpNet]) -> Vec<IpNet> {
    let mut nets: Vec<_> = these
        .iter()
        .filter(|net| !those.contains(net))
        .copied()
        .collect();
    nets.sort();
    nets.dedup();
    nets
}

/// The blocks of a node, without host bits. Validation has checked that each is one.
fn blocks(node: Option<&Node>) -> Vec<IpNet> {
    let texts = node.map(pod_ips::pod_cidrs).unwrap_or_default();
    let nets = texts.iter().filter_map(|text| parse_cidr(text).ok());
    nets.map(|net| net.trunc()).collect()
}
