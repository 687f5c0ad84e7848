//! CHECK of the container's side.

use std::path::Path;

use ipnet::IpNet;

use crate::{
    netlink::{Link, Netlink, NetlinkError},
    skel::Call,
    types::{CniResult, Interface},
};

/// The first thing that is not as the previous result says: link, addresses, routes.
pub(crate) fn find_container_faults(
    call: &Call,
    container: &Interface,
    previous: &CniResult,
) -> Result<Option<String>, NetlinkError> {
    let mut inside = Netlink::open_in(Path::new(&call.netns))?;
    let Some(link) = inside.link(&call.ifname)? else {
        return Ok(Some(format!(
            "link {} not found in {}",
            call.ifname, call.netns
        )));
    };
    if let Some(fault) = differs(container, &link) {
        return Ok(Some(fault));
    }
    let addresses = inside.addresses(link.index)?;
    let missing = previous
        .ips
        .iter()
        .find(|ip| !addresses.iter().any(|address| address.net == ip.address));
    if let Some(ip) = missing {
        return Ok(Some(format!(
            "address {} not found on {}",
            ip.address, call.ifname
        )));
    }
    let routes = inside.routes()?;
    let is_there = |dst: &IpNet| routes.iter().any(|route| route.destination == dst.trunc());
    let missing = previous
        .routes
        .iter()
        .filter_map(|route| route.dst)
        .find(|dst| !is_there(dst));
    Ok(missing.map(|dst| format!("route to {dst} not found in {}", call.netns)))
}

/// Says so if a link has another hardware address than the previous result says.
pub(crate) fn differs(expected: &Interface, link: &Link) -> Option<String> {
    let (Interface { name, mac, .. }, found) = (expected, link.mac_text());
    let differs = !mac.is_empty() && !mac.eq_ignore_ascii_case(&found);
    differs.then(|| format!("link {name} has the hardware address {found}, expected {mac}"))
}
