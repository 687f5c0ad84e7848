//! No node's block overlaps that of another, or a service range.
//!
//! Each block has a record, keyed by the bits of its prefix and the name of its node, that is
//! written in the same commit as the node. That nothing is recorded *below* a prefix, the prefix
//! itself included, is one guard on the key space; that nothing is recorded *above* it is one guard
//! for each shorter length that records have. Which lengths these are is a record of its own,
//! guarded too: two commits that do not know of each other's length cannot both pass. With its last
//! node a block is not free: its record stays until it is released, which is refused while the
//! block is held or a pod has an address of it.

mod hold;
mod lengths;
mod open;
mod record;
mod refusal;
mod update;

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use ipnet::IpNet;
use podplane_api::{
    Object as _, ObjectKey, coordination::Lease, core::Node, jiff::Timestamp, pod_ips,
};
use podplane_ipam::{Family, parse_cidr};
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_store::{Guard, Item, Key, ListQuery, Prefix, Revision, StoreError, Write};

use self::hold::MAX_ADDRESSES;
use self::lengths::Lengths;
use self::record::Record;
pub(crate) use self::{
    hold::{Claimant, Hold},
    record::{RecordState, Stored},
    update::{HoldMove, Move, Which},
};
use super::{Admission, Beside, Change, Policy, addresses, fences};
use crate::{engine::Engine, error, storage};

/// Where the Leases of nodes are.
const LEASES: &str = "kube-node-lease";

/// Admits nodes by their blocks.
#[derive(Debug)]
pub(crate) struct NodeBlocks {
    engine: Engine,
    policy: Policy,
}

impl NodeBlocks {
    async fn under(&self, prefix: Prefix) -> Result<(Vec<Item>, Revision), StoreError> {
        let query = ListQuery {
            prefix,
            ..ListQuery::default()
        };
        let listed = self.engine.list(query).await?;
        Ok((listed.items, listed.revision))
    }

    /// All records by address, and their revision.
    pub(crate) async fn records(&self) -> Result<(Vec<Stored>, Revision), ApiError> {
        let listed = self.under(Prefix::from(record::RECORDS)).await;
        let (items, revision) = listed.map_err(error::store)?;
        Ok((items.iter().filter_map(Stored::read).collect(), revision))
    }

    /// That the writer leads, if it says that it does.
    pub(crate) async fn leads(&self, fence: Option<&Fence>) -> Result<(), ApiError> {
        fences::guard(&self.engine, fence).await.map(drop)
    }

    /// The ranges that are kept from nodes.
    pub(crate) fn reserved(&self) -> &[IpNet] {
        self.policy.service_ranges.as_slice()
    }

    /// The lengths, if they can be read, and the guard that they stay so.
    async fn lengths(&self) -> Result<(Guard, Option<Lengths>), StoreError> {
        let key = Lengths::key();
        Ok(match self.engine.get(&key).await? {
            None => (Guard::Absent(key), None),
            Some(item) => {
                let revision = item.modified;
                let lengths = serde_json::from_slice(&item.value).ok();
                (Guard::At { key, revision }, lengths)
            }
        })
    }

    /// What a node's blocks have to find when they are recorded.
    async fn exclusive(
        &self,
        node: &str,
        nets: &[IpNet],
        beside: &mut Beside,
    ) -> Result<(), StoreError> {
        let (unchanged, lengths) = self.lengths().await?;
        let mut lengths = lengths.unwrap_or_default();
        let mut added = false;
        for net in nets {
            let shorter = lengths.of(Family::of(net)).range(..net.prefix_len());
            for length in shorter {
                let wider = IpNet::new(net.addr(), *length).unwrap_or(*net).trunc();
                beside
                    .guards
                    .push(Guard::NoneUnder(record::exactly(&wider)));
            }
            beside.guards.push(self.none_within(node, net).await?);
        }
        for net in nets {
            added |= lengths.insert(net);
        }
        if added {
            beside.writes.push(lengths.put());
        }
        beside.guards.push(unchanged);
        Ok(())
    }

    /// That nothing is recorded within a block, but that the node had it before it was gone and is back.
    async fn none_within(&self, node: &str, net: &IpNet) -> Result<Guard, StoreError> {
        let prefix = record::within(net);
        let (items, _) = self.under(prefix.clone()).await?;
        let back = match items.as_slice() {
            [item] => Stored::read(item).filter(|found| returns(found, node, net)),
            _ => None,
        };
        Ok(match back {
            Some(Stored { key, revision, .. }) => Guard::OnlyUnder {
                prefix,
                key,
                revision,
            },
            None => Guard::NoneUnder(prefix),
        })
    }

    /// That no service range is in the way of these blocks.
    async fn outside_of_services(&self, node: &Node, nets: &[IpNet]) -> Result<(), ApiError> {
        for net in nets {
            if let Some(range) = self.policy.service_ranges.overlapping(net) {
                let whose = format!("the service range {range}");
                let (records, _) = self.records().await?;
                let held = (range, whose.as_str());
                return Err(refusal::refusal(&self.policy, node, net, held, &records));
            }
        }
        Ok(())
    }

    /// How long after its last renewal a hold ends by itself; nothing: never.
    pub(crate) fn release_after(&self) -> Option<Duration> {
        self.policy.release_after
    }

    /// The hold of a block that a node has back. Guarded by [`exclusive`](Self::exclusive): nothing
    /// is recorded, or this very record is.
    async fn hold_of_former(&self, key: &Key) -> Result<Option<Hold>, StoreError> {
        let found = self.engine.get(key).await?;
        let former = found.as_ref().and_then(Stored::read);
        let hold = former.and_then(|former| former.record.hold);
        let now = Timestamp::now();
        let hold = hold.filter(|hold| !hold.is_over(self.policy.release_after, now));
        Ok(hold.map(Hold::resumed))
    }

    /// What is recorded of a block whose node goes, and that nobody else changes the record
    /// meanwhile.
    async fn left_behind(
        &self,
        node: &Node,
        net: &IpNet,
        key: &Key,
    ) -> Result<(Guard, Record), StoreError> {
        let item = self.engine.get(key).await?;
        let unchanged = match &item {
            Some(item) => Guard::At {
                key: key.clone(),
                revision: item.modified,
            },
            None => Guard::Absent(key.clone()),
        };
        let found = item.as_ref().and_then(Stored::read);
        let (fence, hold) = found
            .map(|found| (found.record.fence, found.record.hold))
            .unwrap_or_default();
        let hold = match hold {
            None => None,
            Some(hold) => {
                let holders = addresses::holders(&self.engine, net, MAX_ADDRESSES).await?;
                let heard = self.heard(node).await?;
                Some(hold.left(heard, holders, Timestamp::now()))
            }
        };
        let record = Record {
            state: RecordState::Draining,
            node_uid: node.uid().to_owned(),
            fence,
            until: None,
            hold,
        };
        Ok((unchanged, record))
    }

    /// When the node was last heard of, by its Lease.
    async fn heard(&self, node: &Node) -> Result<Option<Timestamp>, StoreError> {
        let Ok(key) = storage::key::<Lease>(&ObjectKey::new(LEASES, node.name())) else {
            return Ok(None);
        };
        let lease = self.engine.get(&key).await?;
        let lease = lease.and_then(|item| storage::decode::<Lease>(&item).ok());
        let renewed = lease.and_then(|lease| lease.spec?.renew_time);
        Ok(renewed.map(|time| time.0))
    }
}

/// Whether it is the block that the node left behind.
fn returns(found: &Stored, node: &str, net: &IpNet) -> bool {
    found.node == node && found.net == *net && !found.record.state.has_node()
}

impl Admission<Node> for NodeBlocks {
    fn beside<'a>(&'a self, change: Change<'a, Node>) -> BoxFuture<'a, Result<Beside, ApiError>> {
        async move {
            let Change { old, new, fence } = change;
            let (before, after) = (blocks(old), blocks(new));
            let given = difference(&after, &before);
            let taken = difference(&before, &after);
            let mut beside = Beside::default();
            let Some(node) = new.or(old) else {
                return Ok(beside);
            };
            if !given.is_empty() && !self.policy.lenient {
                self.outside_of_services(node, &given).await?;
                let exclusive = self.exclusive(node.name(), &given, &mut beside).await;
                exclusive.map_err(error::store)?;
            }
            for net in &given {
                let key = record::key(net, node.name()).map_err(|error| error::internal(&error))?;
                let hold = self.hold_of_former(&key).await.map_err(error::store)?;
                let record = Record {
                    state: RecordState::Assigned,
                    node_uid: node.uid().to_owned(),
                    fence: fence.map(ToString::to_string),
                    until: None,
                    hold,
                };
                beside.writes.push(record.put(key));
            }
            for net in &taken {
                let key = record::key(net, node.name()).map_err(|error| error::internal(&error))?;
                beside.writes.push(if self.policy.lenient {
                    Write::Delete { key }
                } else {
                    let left = self.left_behind(node, net, &key).await;
                    let (unchanged, record) = left.map_err(error::store)?;
                    beside.guards.push(unchanged);
                    record.put(key)
                });
            }
            Ok(beside)
        }
        .boxed()
    }

    fn judge<'a>(&'a self, change: Change<'a, Node>) -> BoxFuture<'a, Result<(), ApiError>> {
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
                let in_the_way =
                    |held: &&Stored| held.overlaps(net) && !returns(held, node.name(), net);
                if let Some(held) = records.iter().find(in_the_way) {
                    let whose = refusal::whose(held);
                    let held = (&held.net, whose.as_str());
                    return Err(refusal::refusal(&self.policy, node, net, held, &records));
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

/// The blocks of a node, without host bits. Validation has seen to it that each is one.
fn blocks(node: Option<&Node>) -> Vec<IpNet> {
    let texts = node.map(pod_ips::pod_cidrs).unwrap_or_default();
    let nets = texts.iter().filter_map(|text| parse_cidr(text).ok());
    nets.map(|net| net.trunc()).collect()
}
