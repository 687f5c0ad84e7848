//! A node with its addresses and, on its own machine, with what only that knows.

use std::collections::BTreeSet;

use podplane_map::{AddressSpace, NodeLink, NodeRoute, NodeTopology, TopologyLayout};
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
    /// The details of a node; `None` if there is no such node.
    #[must_use]
    pub fn of(
        space: &'a AddressSpace,
        summary: &'a ClusterSummary,
        name: &str,
        local: NodeLocal,
    ) -> Option<Self> {
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
            local,
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
    pub routes: Option<Vec<NodeRoute>>,
    /// The links of the node's network namespace.
    pub links: Option<Vec<NodeLink>>,
    /// The picture of links, routes and pods: boxes and lines, in columns and rows of characters.
    pub topology: Option<TopologyLayout>,
    /// The reason why links, routes and picture are not known; `None` if they are.
    pub network_unknown: Option<String>,
}

impl NodeLocal {
    /// The facts where the network is not known.
    #[must_use]
    pub fn without_network(why: impl Into<String>) -> Self {
        Self {
            network_unknown: Some(why.into()),
            ..Self::default()
        }
    }

    /// The same facts with the network.
    #[must_use]
    pub fn with_network(self, network: NodeTopology) -> Self {
        Self {
            topology: Some(TopologyLayout::new(&network)),
            routes: Some(network.routes),
            links: Some(network.links),
            network_unknown: None,
            ..self
        }
    }
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

#[cfg(test)]
mod tests {
    use podplane_map::PodAttachment;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_network_is_laid_out_and_an_unknown_one_has_a_reason() {
        let unknown = NodeLocal::without_network("elsewhere");
        let document = serde_json::to_value(&unknown).unwrap();
        assert_eq!(
            document,
            json!({
                "sandboxes": null, "leaseFiles": null, "routes": null, "links": null,
                "topology": null, "networkUnknown": "elsewhere",
            })
        );
        let link = NodeLink {
            name: "cni0".into(),
            kind: "bridge".into(),
            ..NodeLink::default()
        };
        let pod = PodAttachment {
            pod: "default/web".into(),
            ..PodAttachment::default()
        };
        let known = unknown.with_network(NodeTopology {
            node: "a".into(),
            links: vec![link],
            pods: vec![pod],
            ..NodeTopology::default()
        });
        let document = serde_json::to_value(&known).unwrap();
        assert_eq!(document["networkUnknown"], json!(null));
        assert_eq!(document["links"][0]["name"], "cni0");
        let boxes = document["topology"]["boxes"].as_array().unwrap();
        let shown: Vec<_> = boxes
            .iter()
            .map(|each| (each["role"].as_str().unwrap(), &each["lines"][0]))
            .collect();
        assert_eq!(
            shown,
            [
                ("namespace", &json!("a, network namespace")),
                ("downLink", &json!("cni0")),
                ("pod", &json!("pod default/web")),
                ("routes", &json!("no routes")),
            ]
        );
    }
}
