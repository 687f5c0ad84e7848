//! No node's block overlaps that of another, or a service range.
//!
//! Each block has a record, keyed by the bits of its prefix and the name of its node, that is written and deleted in the same commit as
//! the node. That nothing is recorded *below* a prefix, the prefix itself included, is one guard on the key space; that nothing is recorded
//! *above* it is one guard for each shorter length that records have. Which lengths these are is a record of its own, guarded too: two
//! commits that do not know of each other's length cannot both pass.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use ipnet::IpNet;
use podplane_api::{
    Object as _,
    core::Node,
    pod_ips,
    validation::{ErrorList, Path},
};
use podplane_ipam::{Family, nearest_free, parse_cidr};
use podplane_proto::error::ApiError;
use podplane_store::{
    Guard, Item, Key, KeyError, ListQuery, MAX_WRITES, Prefix, StoreError, Txn, Write,
};
use serde::{Deserialize, Serialize};

use super::{Admission, Beside, Change, Policy};
use crate::{engine::Engine, error, storage};

const RECORDS: &str = "/podplane/blocks/";
const LENGTHS: &str = "/podplane/block-lengths";
/// How far from the refused block a free one is proposed where no range is known that it should be of, in bits: 2^16 blocks, of its size or that of what is in the way.
const NEARBY_BITS: u8 = 16;

/// Admits nodes by their blocks.
#[derive(Debug)]
pub(crate) struct NodeBlocks {
    engine: Engine,
    policy: Policy,
}

/// The lengths that records have, or had.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Lengths {
    v4: BTreeSet<u8>,
    v6: BTreeSet<u8>,
}

impl Lengths {
    fn of(&self, family: Family) -> &BTreeSet<u8> {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// Adds the length of a block, and says whether it was not there yet.
    fn insert(&mut self, net: &IpNet) -> bool {
        let lengths = match Family::of(net) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        lengths.insert(net.prefix_len())
    }
}

impl NodeBlocks {
    /// Makes the records agree with the nodes: a store that an older version wrote has none.
    pub(crate) async fn open(engine: Engine, policy: Policy) -> Result<Self, StoreError> {
        let this = Self { engine, policy };
        let mut wanted = BTreeSet::new();
        let mut lengths = Lengths::default();
        for node in this.under(storage::prefix::<Node>()).await? {
            for net in stored_blocks(&node) {
                wanted.extend(record(&net, name_of(&node.key)).ok());
                lengths.insert(&net);
            }
        }
        let found = this.under(Prefix::from(RECORDS)).await?.into_iter();
        let found: BTreeSet<_> = found.map(|item| item.key).collect();
        let new = wanted.difference(&found).cloned().map(put_record);
        let stale = found.difference(&wanted).cloned();
        let mut writes: Vec<_> = new.chain(stale.map(|key| Write::Delete { key })).collect();
        let (_, known) = this.lengths().await?;
        if known.is_none_or(|known| known != lengths) {
            writes.push(put_lengths(&lengths));
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

    async fn under(&self, prefix: Prefix) -> Result<Vec<Item>, StoreError> {
        let query = ListQuery {
            prefix,
            ..ListQuery::default()
        };
        Ok(self.engine.list(query).await?.items)
    }

    /// The lengths, if they can be read, and the guard that they stay so.
    async fn lengths(&self) -> Result<(Guard, Option<Lengths>), StoreError> {
        let key = lengths_key();
        Ok(match self.engine.get(&key).await? {
            None => (Guard::Absent(key), None),
            Some(item) => {
                let revision = item.modified;
                let lengths = serde_json::from_slice(&item.value).ok();
                (Guard::At { key, revision }, lengths)
            }
        })
    }

    /// What a block has to find when it is recorded.
    async fn exclusive(&self, nets: &[IpNet], beside: &mut Beside) -> Result<(), ApiError> {
        let (unchanged, lengths) = self.lengths().await.map_err(error::store)?;
        let mut lengths = lengths.unwrap_or_default();
        let mut added = false;
        for net in nets {
            let shorter = lengths.of(Family::of(net)).range(..net.prefix_len());
            for length in shorter {
                let wider = IpNet::new(net.addr(), *length).unwrap_or(*net).trunc();
                beside.guards.push(Guard::NoneUnder(exactly(&wider)));
            }
            beside.guards.push(Guard::NoneUnder(within(net)));
        }
        for net in nets {
            added |= lengths.insert(net);
        }
        if added {
            beside.writes.push(put_lengths(&lengths));
        }
        beside.guards.push(unchanged);
        Ok(())
    }

    /// That no service range is in the way of these blocks.
    async fn outside_of_services(&self, node: &Node, nets: &[IpNet]) -> Result<(), ApiError> {
        for net in nets {
            if let Some(range) = self.policy.service_ranges.overlapping(net) {
                let whose = format!("the service range {range}");
                let records = self.records().await?;
                return Err(self.refusal(node, net, (range, &whose), &records));
            }
        }
        Ok(())
    }

    async fn records(&self) -> Result<Vec<(IpNet, String)>, ApiError> {
        let items = self.under(Prefix::from(RECORDS)).await;
        let items = items.map_err(error::store)?;
        Ok(items.iter().filter_map(|item| parse(&item.key)).collect())
    }

    fn refusal(
        &self,
        node: &Node,
        net: &IpNet,
        (held, whose): (&IpNet, &str),
        records: &[(IpNet, String)],
    ) -> ApiError {
        let mut errors = ErrorList::new();
        let detail = format!("overlaps {whose}; {}", self.proposal(net, held, records));
        let path = Path::new("spec").child("podCIDRs");
        errors.invalid(&path, net.to_string(), &detail);
        error::invalid::<Node>(node.name(), &errors)
    }

    /// What could be taken instead.
    fn proposal(&self, net: &IpNet, held: &IpNet, records: &[(IpNet, String)]) -> String {
        let services = self.policy.service_ranges.as_slice().iter().copied();
        let taken = || records.iter().map(|(net, _)| *net).chain(services.clone());
        let of_family = |range: &&IpNet| Family::of(range) == Family::of(net);
        let mut ranges = self
            .policy
            .cluster_cidrs
            .iter()
            .filter(of_family)
            .peekable();
        let length = net.prefix_len();
        if ranges.peek().is_none() {
            let wider = length.min(held.prefix_len()).saturating_sub(NEARBY_BITS);
            let nearby = IpNet::new(net.addr(), wider);
            return match nearby
                .ok()
                .and_then(|nearby| nearest_free(net, &nearby, taken()))
            {
                Some(free) => format!("{free} is free"),
                None => format!("no /{length} nearby is free"),
            };
        }
        let mut full = Vec::new();
        for range in ranges {
            match nearest_free(net, range, taken()) {
                Some(free) => return format!("{free} is free"),
                None => full.push(range.to_string()),
            }
        }
        format!(
            "no /{length} is free in the cluster CIDR {}",
            full.join(",")
        )
    }
}

impl Admission<Node> for NodeBlocks {
    fn beside<'a>(&'a self, change: Change<'a, Node>) -> BoxFuture<'a, Result<Beside, ApiError>> {
        async move {
            let (before, after) = (blocks(change.old), blocks(change.new));
            let given: Vec<_> = difference(&after, &before);
            let taken: Vec<_> = difference(&before, &after);
            let mut beside = Beside::default();
            let Some(node) = change.new.or(change.old) else {
                return Ok(beside);
            };
            if !given.is_empty() && !self.policy.lenient {
                self.outside_of_services(node, &given).await?;
                self.exclusive(&given, &mut beside).await?;
            }
            for net in &given {
                let key = record(net, node.name()).map_err(|error| error::internal(&error))?;
                beside.writes.push(put_record(key));
            }
            for net in &taken {
                let key = record(net, node.name()).map_err(|error| error::internal(&error))?;
                beside.writes.push(Write::Delete { key });
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
            let records = self.records().await?;
            for net in &given {
                let overlap =
                    |(held, _): &&(IpNet, String)| held.contains(net) || net.contains(held);
                if let Some((held, owner)) = records.iter().find(overlap) {
                    let whose = format!("{held} of node \"{owner}\"");
                    return Err(self.refusal(node, net, (held, &whose), &records));
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

/// The same of a stored node, without decoding the rest of it.
fn stored_blocks(item: &Item) -> Vec<IpNet> {
    #[derive(Deserialize)]
    struct Stored {
        spec: Option<Spec>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        #[serde(rename = "podCIDRs")]
        pod_cidrs: Option<Vec<String>>,
    }
    let stored = serde_json::from_slice::<Stored>(&item.value).ok();
    let texts = stored
        .and_then(|stored| stored.spec?.pod_cidrs)
        .unwrap_or_default();
    let nets = texts.iter().filter_map(|text| parse_cidr(text).ok());
    nets.map(|net| net.trunc()).collect()
}

/// The name at the end of a key.
fn name_of(key: &Key) -> &str {
    key.as_str()
        .and_then(|text| text.rsplit('/').next())
        .unwrap_or_default()
}

/// `/podplane/blocks/v4/00001010`: what the records of the prefix, and of all inside it, begin with.
fn within(net: &IpNet) -> Prefix {
    Prefix::from(bits(net))
}

/// `/podplane/blocks/v4/00001010/`: what the records of this prefix alone begin with.
fn exactly(net: &IpNet) -> Prefix {
    Prefix::from(format!("{}/", bits(net)))
}

/// `/podplane/blocks/v4/00001010/NODE`
fn record(net: &IpNet, node: &str) -> Result<Key, KeyError> {
    Key::try_from(format!("{}/{node}", bits(net)))
}

fn bits(net: &IpNet) -> String {
    let (family, bits) = match net {
        IpNet::V4(net) => ("v4", format!("{:032b}", net.network().to_bits())),
        IpNet::V6(net) => ("v6", format!("{:0128b}", net.network().to_bits())),
    };
    let length = usize::from(net.prefix_len());
    format!("{RECORDS}{family}/{}", bits.get(..length).unwrap_or(&bits))
}

/// The block and the node of a record.
fn parse(key: &Key) -> Option<(IpNet, String)> {
    let (family, rest) = key.as_str()?.strip_prefix(RECORDS)?.split_once('/')?;
    let (bits, node) = rest.split_once('/')?;
    let length = u8::try_from(bits.len()).ok()?;
    let address = match family {
        "v4" => u32::from_str_radix(&format!("{bits:0<32}"), 2)
            .map(Ipv4Addr::from_bits)
            .map(IpAddr::from),
        _ => u128::from_str_radix(&format!("{bits:0<128}"), 2)
            .map(Ipv6Addr::from_bits)
            .map(IpAddr::from),
    };
    let net = IpNet::new(address.ok()?, length).ok()?;
    Some((net, node.to_owned()))
}

fn put_record(key: Key) -> Write {
    // All that it says is in its key.
    let value = Bytes::new();
    Write::Put { key, value }
}

fn lengths_key() -> Key {
    Key::try_from(LENGTHS).expect("neither empty nor long")
}

fn put_lengths(lengths: &Lengths) -> Write {
    let value = serde_json::to_vec(lengths).expect("lists of numbers have a JSON form");
    Write::Put {
        key: lengths_key(),
        value: value.into(),
    }
}
