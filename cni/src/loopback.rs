//! The loopback interface of a container, set up as by the plugin `loopback`, which does no more:
//! a runtime need not execute it.

use ipnet::IpNet;
use podplane_netlink::{Netlink, NetlinkError, Request};

use crate::types::{CniResult, Interface, IpConfig};

/// The name of the interface.
pub const LO: &str = "lo";

/// Sets `lo` of the calling thread's network namespace up, as the plugin does, and returns its
/// addresses. A runtime that has just made the namespace calls this instead of the plugin.
///
/// # Errors
///
/// [`NetlinkError`].
pub fn bring_up() -> Result<Vec<IpNet>, NetlinkError> {
    set_up(Netlink::open()?)
}

/// The plugin's result for the namespace `netns` whose `lo` has these addresses.
pub fn result(netns: &str, addresses: &[IpNet]) -> CniResult {
    // The first address of each family.
    let first = |v4| addresses.iter().find(|net| net.addr().is_ipv4() == v4);
    let ips = [first(true), first(false)].into_iter().flatten();
    let ips = ips.map(|address| IpConfig {
        interface: Some(0),
        address: *address,
        gateway: None,
    });
    CniResult {
        interfaces: vec![Interface {
            name: LO.to_owned(),
            mac: "00:00:00:00:00:00".to_owned(),
            sandbox: netns.to_owned(),
            ..Interface::default()
        }],
        ips: ips.collect(),
        ..CniResult::default()
    }
}

/// Sets `lo` of the socket's network namespace up, and returns its addresses.
///
/// # Errors
///
/// [`NetlinkError`].
pub fn set_up(mut netlink: Netlink) -> Result<Vec<IpNet>, NetlinkError> {
    let Some(lo) = netlink.link(LO)? else {
        return Ok(Vec::new());
    };
    netlink.execute([Request::up(lo.index)])?;
    let addresses = netlink.addresses(lo.index)?;
    Ok(addresses.into_iter().map(|address| address.net).collect())
}
