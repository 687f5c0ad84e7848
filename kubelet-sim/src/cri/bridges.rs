//! The bridges that CNI plugins made in a node's network namespace, and the detection of those
//! whose address belongs to an earlier block.
//!
//! The bridge plugin refuses a bridge that has another address than its configuration (`"cni0"
//! already has an IP address different from …`). Such a bridge makes every ADD in the node's new
//! block fail until it is removed.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_cni::types::{NetworkConfigList, PluginConfig};
use podplane_netlink::{Link, Netlink, NetlinkError, Request};

use crate::ipam::NetworkAddresses;

/// The bridge plugin's own default.
const DEFAULT_BRIDGE: &str = "cni0";

/// An existing link with the name of a network's bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// Its addresses, without link-local ones.
    pub addresses: Vec<IpNet>,
    /// True if any interface is attached to it.
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

    /// Returns true if an address of the bridge is outside the network's configured ranges. Returns
    /// false if another plugin than host-local gives addresses, since the ranges are not known
    /// then.
    #[must_use]
    pub fn is_stale(&self, list: &NetworkConfigList) -> bool {
        let ipam = NetworkAddresses::of(list).ok().flatten();
        ipam.is_some_and(|ipam| self.addresses.iter().any(|net| !ipam.gives(net.addr())))
    }

    /// Returns true if nothing is attached to the bridge, and all its addresses (at least one) are
    /// of `earlier`: that network of this node made it.
    #[must_use]
    pub fn is_left_by(&self, earlier: &NetworkConfigList) -> bool {
        let ipam = NetworkAddresses::of(earlier).ok().flatten();
        let of_earlier =
            |ipam: NetworkAddresses| self.addresses.iter().all(|net| ipam.gives(net.addr()));
        !self.has_ports && !self.addresses.is_empty() && ipam.is_some_and(of_earlier)
    }

    /// Removes it. Pods that were attached to it are cut off. A bridge that is gone is no error:
    /// the node and `reset-bridge` may remove it at the same time.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`].
    pub fn remove(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        match netlink.execute([Request::delete_link(self.index)]) {
            Err(error) if error.is_not_found() => Ok(()),
            done => done,
        }
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
