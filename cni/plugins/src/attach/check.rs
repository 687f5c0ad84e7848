//! CHECK of the container's side, with the error texts of the reference plugins.

use std::path::Path;

use podplane_cni::{
    skel::Call,
    types::{CniResult, Interface},
};
use podplane_netlink::{Link, Netlink, NetlinkError};

/// Compares the container's link, addresses and routes with the previous result.
///
/// Returns the link, or the text of the first difference.
pub(crate) fn find_container_faults(
    call: &Call,
    container: &Interface,
    previous: &CniResult,
) -> Result<Result<Link, String>, NetlinkError> {
    let mut inside = Netlink::open_in(Path::new(&call.netns))?;
    let (name, mac) = (&call.ifname, &container.mac);
    let Some(link) = inside.link(name)? else {
        return Ok(Err(format!("Interface name {name} not found")));
    };
    if link.kind != "veth" {
        let fault = format!("Error: Container interface {name} not of type veth");
        return Ok(Err(fault));
    }
    if !mac.is_empty() && *mac != link.mac_text() {
        return Ok(Err(format!(
            "Interface {name} Mac {mac} doesn't match container Mac: {}",
            link.mac_text()
        )));
    }
    let addresses = inside.addresses(link.index)?;
    let routes = inside.routes()?;
    let has_route = |dst: ipnet::IpNet| routes.iter().any(|r| r.destination == dst.trunc());
    for ip in &previous.ips {
        if !addresses.iter().any(|address| address.net == ip.address) {
            return Ok(Err(format!(
                "Failed to match addr {} on interface {name}",
                ip.address
            )));
        }
    }
    let mut expected = previous.routes.iter().filter_map(|route| route.dst);
    if let Some(missing) = expected.find(|dst| !has_route(*dst)) {
        return Ok(Err(format!(
            "Expected Route {missing} not found in routing table"
        )));
    }
    Ok(Ok(link))
}
