//! The container's side: its interface, addresses and routes.

use std::{
    fs::File,
    net::IpAddr,
    os::fd::AsFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    netlink::{self, Netlink, NetlinkError, Request},
    netns,
    skel::text,
    sysctl,
    types::{CniError, CniResult, Interface},
};

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// Runs `f` on a thread in the container's namespace.
pub(crate) fn inside<T: Send>(
    netns: &File,
    f: impl FnOnce(&mut Netlink) -> Result<T, CniError> + Send,
) -> Result<T, CniError> {
    let entered = netns::in_netns_fd(netns.as_fd(), || {
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        f(&mut netlink)
    });
    entered.map_err(|error| {
        CniError::internal(format!("failed to enter the container's netns: {error}"))
    })?
}

/// Asked before anything is made: what is there belongs to an earlier ADD.
pub(crate) fn refuse_existing(netns: &Path, ifname: &str) -> Result<(), CniError> {
    let existing = Netlink::open_in(netns).and_then(|mut netlink| netlink.link(ifname));
    match existing.map_err(|error| failed(&error))? {
        None => Ok(()),
        Some(_) => Err(CniError::internal(format!(
            "container veth name ({ifname:?}) already exists"
        ))),
    }
}

/// Deletes the interface. A namespace or an interface that is gone is success.
pub(crate) fn delete(path: &Path, ifname: &str) -> Result<(), CniError> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let delete = || {
        let mut netlink = match Netlink::open_in(path) {
            Err(NetlinkError::Netns(error)) if error.is_not_found() => return Ok(()),
            // A file that is left of a namespace, as after a reboot, is no namespace.
            Err(NetlinkError::Netns(_)) if !netns::is_netns(path) => return Ok(()),
            other => other?,
        };
        let link = netlink.link(ifname)?;
        match netlink.execute(link.map(|link| Request::delete_link(link.index))) {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    };
    delete().map_err(|error| failed(&error))
}

/// Gives the interface its addresses and sets it up. Returns its index.
pub(crate) fn set_addresses(
    netlink: &mut Netlink,
    ifname: &str,
    result: &CniResult,
    detect_duplicates: bool,
) -> Result<u32, CniError> {
    let link = netlink.link(ifname).map_err(|error| failed(&error))?;
    let link = link.ok_or_else(|| {
        CniError::internal(format!("failed to lookup {ifname:?}: Link not found"))
    })?;
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    settings(ifname, has_v6, detect_duplicates)
        .map_err(|error| CniError::internal(text(&error)))?;
    let addresses = result.ips.iter();
    let mut requests: Vec<_> = addresses
        .map(|ip| Request::add_address(link.index, ip.address))
        .collect();
    requests.push(Request::up(link.index));
    netlink.execute(requests).map_err(|error| failed(&error))?;
    let is_v6 = |gateway: IpAddr| gateway.is_ipv6();
    if result.ips.iter().any(|ip| ip.gateway.is_some_and(is_v6)) {
        wait_for_addresses(netlink, link.index)?;
    }
    Ok(link.index)
}

/// Adds the routes that IPAM asks for.
pub(crate) fn add_routes(
    netlink: &mut Netlink,
    index: u32,
    result: &CniResult,
) -> Result<(), CniError> {
    for route in routes(index, result) {
        match netlink.execute([Request::add_route(&route)]) {
            // IPAM may name one twice, or one that an address brings; the first one holds.
            Err(error) if error.is_exists() => {}
            other => other.map_err(|error| failed(&error))?,
        }
    }
    Ok(())
}

/// What must be set before the interface is up.
fn settings(
    ifname: &str,
    has_v6: bool,
    detect_duplicates: bool,
) -> Result<(), sysctl::SysctlError> {
    // Neighbours learn at once who has the address now.
    sysctl::write(&format!("net/ipv4/conf/{ifname}/arp_notify"), "1")?;
    if !has_v6 {
        return Ok(());
    }
    for name in ["lo", ifname] {
        sysctl::write(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
    }
    sysctl::write(&format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1")?;
    if detect_duplicates {
        return Ok(());
    }
    // IPAM has seen to it that nobody else has the address.
    sysctl::write(&format!("net/ipv6/conf/{ifname}/accept_dad"), "0")
}

fn routes(index: u32, result: &CniResult) -> Vec<netlink::Route> {
    let gateway = |is_v4: bool| {
        result
            .ips
            .iter()
            .filter_map(|ip| ip.gateway)
            .find(|gateway| gateway.is_ipv4() == is_v4)
    };
    let routes = result.routes.iter().filter_map(|route| {
        let dst = route.dst?;
        let gw: Option<IpAddr> = route.gw.or_else(|| gateway(dst.addr().is_ipv4()));
        Some(netlink::Route {
            gateway: gw,
            protocol: netlink::protocol::BOOT,
            scope: route.scope,
            priority: Some(route.priority).filter(|priority| *priority != 0),
            table: route
                .table
                .filter(|table| *table != 0)
                .unwrap_or(netlink::Route::MAIN),
            ..netlink::Route::on_link(dst, index)
        })
    });
    routes.collect()
}

/// Routes through an IPv6 gateway need an address that is not tentative any more.
fn wait_for_addresses(netlink: &mut Netlink, index: u32) -> Result<(), CniError> {
    const PERIOD: Duration = Duration::from_millis(50);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let addresses = netlink.addresses(index).map_err(|error| failed(&error))?;
        let addresses = addresses.iter().filter(|address| address.is_global);
        if let Some(duplicate) = addresses.clone().find(|address| address.is_duplicate) {
            return Err(CniError::internal(format!(
                "address {} is in use by another host",
                duplicate.net
            )));
        }
        if !addresses.clone().any(|address| address.is_tentative) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CniError::internal(format!(
                "link {index} still has tentative addresses after 5s"
            )));
        }
        thread::sleep(PERIOD);
    }
}

/// The interface as the result shows it.
pub(crate) fn describe(netns: &File, ifname: &str, sandbox: &str) -> Result<Interface, CniError> {
    let link = inside(netns, |netlink| {
        netlink.link(ifname).map_err(|error| failed(&error))
    })?;
    let link = link.ok_or_else(|| {
        CniError::internal(format!("failed to lookup {ifname:?}: Link not found"))
    })?;
    Ok(Interface {
        mac: link.mac_text(),
        mtu: link.mtu,
        name: link.name,
        sandbox: sandbox.to_owned(),
        ..Interface::default()
    })
}
