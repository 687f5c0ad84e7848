//! The network of one node: the links of its namespace, its routes, and the pods behind its veths.
//!
//! [`NodeTopology`] has the facts, [`TopologyLayout`] their boxes and lines. Its `Display` is the
//! text for terminals, [`svg::topology`](crate::svg::topology) the picture.

mod layout;
mod text;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;

pub use layout::{BoxRole, TopologyBox, TopologyLayout, TopologyLine};

/// The network of a node. Every list may be in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopology {
    /// The name of the node.
    pub node: String,
    /// The path of its network namespace.
    pub namespace: String,
    /// The links in the namespace.
    pub links: Vec<NodeLink>,
    /// The pods with a network namespace of their own.
    pub pods: Vec<PodAttachment>,
    /// The routes of the main table.
    pub routes: Vec<NodeRoute>,
}

/// A link in the namespace of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeLink {
    /// Its name, unique in the namespace.
    pub name: String,
    /// `bridge`, `veth`, `vxlan`, …; empty for a physical link and for `lo`.
    pub kind: String,
    /// True if it is up administratively.
    #[serde(rename = "up")]
    pub is_up: bool,
    /// The name of the bridge that has it as a port.
    pub master: Option<String>,
    /// For a veth: the pod that has the other end, as `NAMESPACE/NAME`.
    pub peer: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
}

/// A pod and its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAttachment {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// The id of its sandbox.
    pub sandbox: String,
    /// Its interfaces, without `lo`.
    pub interfaces: Vec<PodInterface>,
}

/// An interface in the namespace of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInterface {
    /// Its name, unique in the pod.
    pub name: String,
    /// The name of the other end in the namespace of the node, if it is there.
    pub link: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRoute {
    /// The destination; its prefix length is 0 for a default route.
    pub destination: IpNet,
    /// The next hop; `None` if the destination is on the link.
    pub via: Option<IpAddr>,
    /// The name of the link.
    pub dev: Option<String>,
}

impl NodeTopology {
    /// The same facts in the order of pictures: links, pods and routes each by name or destination.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.links.sort_by(|a, b| a.name.cmp(&b.name));
        self.pods
            .sort_by(|a, b| (&a.pod, &a.sandbox).cmp(&(&b.pod, &b.sandbox)));
        self.routes.sort_by_key(|route| {
            let destination = route.destination;
            (destination.network(), destination.prefix_len(), route.via)
        });
        self
    }

    /// The ports of a bridge.
    fn ports_of(&self, bridge: &str) -> impl Iterator<Item = &NodeLink> {
        let is_port = move |link: &&NodeLink| link.master.as_deref() == Some(bridge);
        self.links.iter().filter(is_port)
    }

    /// Returns true if a link of the namespace has the other as its master.
    fn has_master(&self, link: &NodeLink) -> bool {
        let master = link.master.as_deref();
        self.links.iter().any(|other| Some(&*other.name) == master)
    }

    /// The interfaces of pods at the other end of a link.
    fn interfaces_at(&self, link: &str) -> impl Iterator<Item = (&PodAttachment, &PodInterface)> {
        let each = self
            .pods
            .iter()
            .flat_map(|pod| pod.interfaces.iter().map(move |interface| (pod, interface)));
        each.filter(move |(_, interface)| interface.link.as_deref() == Some(link))
    }
}

/// `bridge, up`.
fn kind_and_state(link: &NodeLink) -> String {
    let state = if link.is_up { "up" } else { "down" };
    match link.kind.as_str() {
        "" => state.to_owned(),
        kind => format!("{kind}, {state}"),
    }
}

fn list(addresses: &[IpNet]) -> String {
    let texts = addresses.iter().map(ToString::to_string);
    texts.collect::<Vec<_>>().join(", ")
}

impl std::fmt::Display for NodeRoute {
    /// As `ip route` has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.destination.prefix_len() {
            0 => write!(f, "default")?,
            _ => write!(f, "{}", self.destination)?,
        }
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(dev) = &self.dev {
            write!(f, " dev {dev}")?;
        }
        Ok(())
    }
}
