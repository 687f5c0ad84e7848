//! A node with its addresses and, on its own machine, with what only that knows.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podplane_map::AddressSpace;
use serde::Serialize;

use crate::{
    addresses::AddressRow,
    documents::{ClusterSummary, NodeRow},
};

/// The most addresses of a node.
const MOST_ADDRESSES: usize = 5_000;

/// A node in detail.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeDetails<'a> {
    /// The node.
    pub node: &'a NodeRow,
    /// The addresses of its blocks that have a state of their own, ascending; at most 5,000.
    pub addresses: Vec<AddressRow<'a>>,
    /// The facts of its machine; none elsewhere.
    #[serde(flatten)]
    pub local: NodeLocal,
}

impl<'a> NodeDetails<'a> {
    /// The details of a node as an API server knows them; `None` if there is no such node.
    #[must_use]
    pub fn of(space: &'a AddressSpace, summary: &'a ClusterSummary, name: &str) -> Option<Self> {
        let node = summary.nodes.get(name)?;
        let mut seen = BTreeSet::new();
        let blocks = node.blocks.iter();
        let records = blocks.flat_map(|block| space.records(&block.cidr));
        let mut addresses: Vec<_> = records
            .filter(|record| seen.insert(record.ip))
            .take(MOST_ADDRESSES)
            .map(|record| AddressRow::of(&record))
            .collect();
        addresses.sort_by_key(|row| row.ip);
        Some(Self {
            node,
            addresses,
            local: NodeLocal::default(),
        })
    }
}

/// The facts that only the machine of a node knows; `None` where that is not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLocal {
    /// The sandboxes of the CRI server.
    pub sandboxes: Option<Vec<SandboxRow>>,
    /// The allocation files of host-local.
    pub lease_files: Option<Vec<LeaseFileRow>>,
    /// The routes of the node's network namespace.
    pub routes: Option<Vec<RouteRow>>,
    /// The links of the node's network namespace.
    pub links: Option<Vec<LinkRow>>,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRow {
    /// Its id.
    pub id: String,
    /// `NAMESPACE/NAME` of the pod.
    pub pod: String,
    /// `ready` or `notReady`.
    pub state: String,
    /// Its addresses.
    pub ips: Vec<String>,
    /// RFC 3339; `None` if it is not known.
    pub created: Option<String>,
}

/// An allocation file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseFileRow {
    /// The CNI network.
    pub network: String,
    /// The address.
    pub ip: String,
    /// The id of the sandbox.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in the sandbox.
    pub if_name: String,
    /// RFC 3339; `None` if it is not known.
    pub modified: Option<String>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRow {
    /// The prefix.
    pub destination: IpNet,
    /// The gateway, if there is one.
    pub via: Option<String>,
    /// The link, if there is one.
    pub dev: Option<String>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkRow {
    /// Its name.
    pub name: String,
    /// Its kind, such as `bridge`; `None` if the kernel names none.
    pub kind: Option<String>,
    /// True if it is up.
    pub up: bool,
    /// The link that it is a port of.
    pub master: Option<String>,
    /// The pod at its other end.
    pub peer: Option<String>,
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: Vec<String>,
}
