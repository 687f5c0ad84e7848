//! The bridges that plugins made in a node's namespace, and whether their address is of an earlier block.
//!
//! The bridge plugin refuses to work on a bridge with another address than its configuration's (`"cni0" already has an IP address different from
//! …`), so such a bridge keeps every pod of a node's new block from its network until it is removed.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_cni::{
    netlink::{Link, Netlink, NetlinkError, Request},
    types::{NetworkConfigList, PluginConfig},
};

use crate::ipam::Ipam;

/// The bridge plugin's own default.
const DEFAULT_BRIDGE: &str = "cni0";

/// A bridge that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// Its addresses, those of the link alone left out.
    pub addresses: Vec<IpNet>,
    /// Whether any interface is attached to it.
    pub has_ports: bool,
    index: u32,
}

impl Bridge {
    /// The bridges of a network's plugins in the namespace of `netlink`.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`].
    pub fn of(list: &NetworkConfigList, netlink: &mut Netlink) -> Result<Vec<Self>, NetlinkError> {
        let links = netlink.links()?;
        let mut bridges = Vec::new();
        for plugin in &list.plugins {
            if text(plugin, "type") != Some("bridge") {
                continue;
            }
            let name = text(plugin, "bridge").unwrap_or(DEFAULT_BRIDGE);
            let Some(link) = links.iter().find(|link| link.name == name) else {
                continue;
            };
            let is_port = |other: &Link| other.controller == Some(link.index);
            let addresses = netlink.addresses(link.index)?;
            let addresses = addresses.into_iter().map(|address| address.net);
            bridges.push(Self {
                name: link.name.clone(),
                addresses: addresses.filter(|net| !is_link_local(net)).collect(),
                has_ports: links.iter().any(is_port),
                index: link.index,
            });
        }
        Ok(bridges)
    }

    /// Whether it has an address that is not of the network's ranges as they are configured now. Unknown where another plugin than
    /// host-local gives addresses, and then it is not.
    #[must_use]
    pub fn is_stale(&self, list: &NetworkConfigList) -> bool {
        let ipam = Ipam::of(list).ok().flatten();
        ipam.is_some_and(|ipam| self.addresses.iter().any(|net| !ipam.gives(net.addr())))
    }

    /// Whether it has the addresses of an earlier network of this node, which then made it, and
    /// nothing is attached to it.
    #[must_use]
    pub fn is_left_by(&self, earlier: &NetworkConfigList) -> bool {
        let ipam = Ipam::of(earlier).ok().flatten();
        let of_earlier = |ipam: Ipam| self.addresses.iter().all(|net| ipam.gives(net.addr()));
        !self.has_ports && !self.addresses.is_empty() && ipam.is_some_and(of_earlier)
    }

    /// Removes it. Pods that were attached to it are cut off.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`].
    pub fn remove(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        netlink.execute([Request::delete_link(self.index)])
    }
}

fn text<'a>(plugin: &'a PluginConfig, key: &str) -> Option<&'a str> {
    plugin.get(key).and_then(|value| value.as_str())
}

fn is_link_local(net: &IpNet) -> bool {
    match net.addr() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
