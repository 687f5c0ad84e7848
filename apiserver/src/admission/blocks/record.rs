//! What is recorded of a block, and where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;
use podplane_store::{Item, Key, KeyError, Prefix, Revision, Write};
use serde::{Deserialize, Serialize};

use super::hold::Hold;

/// What all records begin with.
pub(super) const RECORDS: &str = "/podplane/blocks/";

/// What is recorded of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) state: RecordState,
    /// The UID of the node that has it, or had it.
    #[serde(rename = "nodeUID")]
    pub(crate) node_uid: String,
    /// The fence of the leader that gave it; none if it came with its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<String>,
    /// Of a quarantined block: until when it is kept back. Of a draining one that a version without
    /// holds wrote: until when it was held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    /// Who holds it, if sandboxes may have addresses of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<Hold>,
}

/// How far a block is on its way from one node to the next. Service ranges, which no node may have, are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordState {
    /// Its node lives.
    Assigned,
    /// The same, and the controller's configuration has no such block.
    Foreign,
    /// Its node is gone, and its addresses may still be in use.
    Draining,
    /// Its node is gone, nothing uses it any more, and it is kept back for a while.
    Quarantined,
}

impl RecordState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Foreign => "foreign",
            Self::Draining => "draining",
            Self::Quarantined => "quarantined",
        }
    }

    /// Whether there is a node that has the block.
    pub(crate) fn has_node(self) -> bool {
        match self {
            Self::Assigned | Self::Foreign => true,
            Self::Draining | Self::Quarantined => false,
        }
    }
}

impl Record {
    pub(super) fn put(&self, key: Key) -> Write {
        let value = serde_json::to_vec(self).expect("text and numbers have a JSON form");
        Write::Put {
            key,
            value: value.into(),
        }
    }
}

/// A record as it is in the store.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) net: IpNet,
    pub(crate) node: String,
    pub(crate) record: Record,
    pub(crate) key: Key,
    pub(crate) revision: Revision,
}

impl Stored {
    /// The record of an item. One that says nothing, as those of older versions, is of a node whose UID is not known.
    pub(super) fn read(item: &Item) -> Option<Self> {
        let (net, node) = parse(&item.key)?;
        let record = serde_json::from_slice(&item.value);
        let record = record.unwrap_or_else(|_| Record {
            state: RecordState::Assigned,
            node_uid: String::new(),
            fence: None,
            until: None,
            hold: None,
        });
        Some(Self {
            net,
            node,
            record,
            key: item.key.clone(),
            revision: item.modified,
        })
    }

    pub(super) fn overlaps(&self, net: &IpNet) -> bool {
        self.net.contains(net) || net.contains(&self.net)
    }
}

/// `/podplane/blocks/v4/00001010`: what the records of the prefix, and of all inside it, begin with.
pub(super) fn within(net: &IpNet) -> Prefix {
    Prefix::from(bits(net))
}

/// `/podplane/blocks/v4/00001010/`: what the records of this prefix alone begin with.
pub(super) fn exactly(net: &IpNet) -> Prefix {
    Prefix::from(format!("{}/", bits(net)))
}

/// `/podplane/blocks/v4/00001010/NODE`
pub(super) fn key(net: &IpNet, node: &str) -> Result<Key, KeyError> {
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
