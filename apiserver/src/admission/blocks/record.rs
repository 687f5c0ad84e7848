//! The record of a block, and its key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;
use podplane_store::{Item, Key, KeyError, Prefix, Revision, Write};
use serde::{Deserialize, Serialize};

use super::hold::BlockHold;

/// The key prefix of all records.
pub(super) const RECORDS: &str = "/podplane/blocks/";

/// The record of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeBlockRecord {
    pub(crate) state: RecordState,
    /// The UID of the node that has it, or had it.
    #[serde(rename = "nodeUID")]
    pub(crate) node_uid: String,
    /// The fence of the leader that assigned it; `None` if it came with its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<String>,
    /// For a quarantined block, the end of its quarantine. For a draining one that a version
    /// without holds wrote, the end of its hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    /// The hold, if sandboxes may have addresses of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<BlockHold>,
}

/// The state of a block between one node and the next. Service ranges, which no node may have, are
/// not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordState {
    /// Its node exists.
    Assigned,
    /// Its node exists, and the controller's configuration has no such block.
    Foreign,
    /// Its node is gone, and its addresses may still be in use.
    Draining,
    /// Its node is gone, nothing uses it any more, and it is reserved for a while.
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

    /// Returns true if a node has the block.
    pub(crate) fn has_node(self) -> bool {
        match self {
            Self::Assigned | Self::Foreign => true,
            Self::Draining | Self::Quarantined => false,
        }
    }
}

impl NodeBlockRecord {
    pub(super) fn put(&self, key: Key) -> Write {
        let value = serde_json::to_vec(self).expect("text and numbers have a JSON form");
        Write::Put {
            key,
            value: value.into(),
        }
    }
}

/// A record with its key and revision in the store.
#[derive(Clone, Debug)]
pub(crate) struct KeyedBlockRecord {
    pub(crate) net: IpNet,
    pub(crate) node: String,
    pub(crate) record: NodeBlockRecord,
    pub(crate) key: Key,
    pub(crate) revision: Revision,
}

impl KeyedBlockRecord {
    /// Decodes the record of an item. An unreadable value, as older versions wrote, becomes a
    /// record of a node with unknown UID.
    pub(super) fn read(item: &Item) -> Option<Self> {
        let (net, node) = parse(&item.key)?;
        let record = serde_json::from_slice(&item.value());
        let record = record.unwrap_or_else(|_| NodeBlockRecord {
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

/// `/podplane/blocks/v4/`: the key prefix of the records of a block's family.
pub(super) fn of_family(net: &IpNet) -> Prefix {
    let family = match net {
        IpNet::V4(_) => "v4",
        IpNet::V6(_) => "v6",
    };
    Prefix::from(format!("{RECORDS}{family}/"))
}

/// `/podplane/blocks/v4/00001010`: the key prefix of the records of this block and of all blocks
/// inside it.
pub(super) fn within(net: &IpNet) -> Prefix {
    Prefix::from(bits(net))
}

/// `/podplane/blocks/v4/00001010/`: the key prefix of the records of this block alone.
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

/// The block and the node of a record's key.
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
