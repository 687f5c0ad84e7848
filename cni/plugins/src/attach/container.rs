//! The container's side: its interface, addresses and routes.

use std::{
    fs::File,
    net::IpAddr,
    os::fd::AsFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use podplane_cni::{
    skel::text,
    types::{CniError, CniResult, Interface},
};
use podplane_netlink::{self, Link, Netlink, NetlinkError, Request, netns, sysctl};

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// Runs `f` in the container's namespace.
pub(crate) fn inside<T>(
    netns: &File,
    f: impl FnOnce() -> Result<T, CniError>,
) -> Result<T, CniError> {
    netns::visit(netns.as_fd(), f).map_err(|error| {
        CniError::internal(format!("failed to enter the container's netns: {error}"))
    })?
}

/// Opens a netlink socket in the container's namespace.
pub(crate) fn open(netns: &File) -> Result<Netlink, CniError> {
    inside(netns, || Netlink::open().map_err(|error| failed(&error)))
}

/// Fails if the interface exists already.
///
/// ADD calls this before it makes anything: an existing interface belongs to an earlier ADD.
pub(crate) fn refuse_existing(netlink: &mut Netlink, ifname: &str) -> Result<(), CniError> {
    match netlink.link(ifname).map_err(|error| failed(&error))? {
        None => Ok(()),
        Some(_) => Err(CniError::internal(format!(
            "container veth name ({ifname:?}) already exists"
        ))),
    }
}

/// Deletes the interface. A missing namespace or interface counts as success.
pub(crate) fn delete(path: &Path, ifname: &str) -> Result<(), CniError> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let netns = match netns::open(path) {
        Err(error) if error.is_not_found() => return Ok(()),
        other => other.map_err(|error| CniError::internal(text(&error)))?,
    };
    if !netns::is_netns(path) {
        return Ok(()); // After a reboot a plain file is left of a namespace.
    }
    let mut inside = open(&netns)?;
    // The child that deletes the pair would inherit this file and keep the namespace mounted.
    drop(netns);
    let mut delete = || {
        let Some(link) = inside.link(ifname)? else {
            return Ok(());
        };
        match Netlink::open()?.delete_pair(&mut inside, &link) {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    };
    delete().map_err(|error| failed(&error))
}

/// Duplicate address detection for the IPv6 addresses of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DuplicateDetection {
    /// The kernel asks the link first, which takes a second or two.
    Enabled,
    /// Addresses are usable at once: IPAM has made sure that they are unique.
    Disabled,
}

/// Writes the interface settings that the reference writes before the interface is up.
///
/// Failures are ignored, as in the reference: a kernel without IPv6 lacks some of the settings.
/// `netlink` is a socket in `netns`.
pub(crate) fn prepare(
    netns: &File,
    netlink: &mut Netlink,
    link: &Link,
    detection: DuplicateDetection,
) -> Result<(), CniError> {
    let ifname = &link.name;
    let mut settings = Vec::new();
    let accept_dad = match detection {
        DuplicateDetection::Enabled => {
            settings.push((format!("net/ipv6/conf/{ifname}/enhanced_dad"), 1));
            1
        }
        DuplicateDetection::Disabled => 0,
    };
    if link.ipv6.is_none_or(|ipv6| ipv6.accept_dad != accept_dad) {
        settings.push((format!("net/ipv6/conf/{ifname}/accept_dad"), accept_dad));
    }
    // Tells neighbours at once who has the address now.
    if netlink.execute([Request::arp_notify(link.index)]).is_err() {
        settings.push((format!("net/ipv4/conf/{ifname}/arp_notify"), 1));
    }
    if settings.is_empty() {
        return Ok(());
    }
    inside(netns, || {
        for (key, value) in settings {
            _ = sysctl::write(&key, &value.to_string());
        }
        Ok(())
    })
}

/// Adds the addresses to the interface and sets it up. The calling thread must be in the
/// container's namespace.
pub(crate) fn set_addresses(
    netlink: &mut Netlink,
    link: &Link,
    result: &CniResult,
) -> Result<(), CniError> {
    let has_v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    if has_v6 {
        enable_v6(&link.name).map_err(|error| CniError::internal(text(&error)))?;
    }
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
    Ok(())
}

/// Adds the routes that IPAM asks for.
pub(crate) fn add_routes(
    netlink: &mut Netlink,
    index: u32,
    result: &CniResult,
) -> Result<(), CniError> {
    for route in routes(index, result) {
        match netlink.execute([Request::add_route(&route)]) {
            // IPAM may name a route twice, or one that an address brings; the first one stays.
            Err(error) if error.is_exists() => {}
            other => other.map_err(|error| failed(&error))?,
        }
    }
    Ok(())
}

/// Enables IPv6 on `lo` and the interface, and keeps addresses while the interface is down.
fn enable_v6(ifname: &str) -> Result<(), sysctl::SysctlError> {
    for name in ["lo", ifname] {
        let key = format!("net/ipv6/conf/{name}/disable_ipv6");
        if sysctl::read(&key)? != "0" {
            sysctl::write(&key, "0")?;
        }
    }
    sysctl::write(&format!("net/ipv6/conf/{ifname}/keep_addr_on_down"), "1")
}

fn routes(index: u32, result: &CniResult) -> Vec<podplane_netlink::Route> {
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
        Some(podplane_netlink::Route {
            gateway: gw,
            protocol: podplane_netlink::protocol::BOOT,
            // As in the reference: the lowest bits are used, and a value below 1 is left out.
            scope: route.scope.map(|scope| scope.to_le_bytes()[0]),
            priority: positive(route.priority),
            table: route
                .table
                .and_then(positive)
                .unwrap_or(podplane_netlink::Route::MAIN),
            ..podplane_netlink::Route::on_link(dst, index)
        })
    });
    routes.collect()
}

/// The lowest 32 bits of a positive number; `None` for others.
fn positive(number: i64) -> Option<u32> {
    let [a, b, c, d, ..] = number.to_le_bytes();
    (number > 0).then_some(u32::from_le_bytes([a, b, c, d]))
}

/// Waits up to 5 s until no global address is tentative: routes through an IPv6 gateway need that.
fn wait_for_addresses(netlink: &mut Netlink, index: u32) -> Result<(), CniError> {
    // The kernel checks a new address from a work queue: soon, or after a second or two if it
    // detects duplicates.
    let mut period = Duration::from_micros(250);
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
        thread::sleep(period);
        period = (period * 2).min(Duration::from_millis(50));
    }
}

/// Finds the interface that has just been made.
pub(crate) fn find(netlink: &mut Netlink, ifname: &str) -> Result<Link, CniError> {
    let link = netlink.link(ifname).map_err(|error| failed(&error))?;
    link.ok_or_else(|| CniError::internal(format!("failed to lookup {ifname:?}: Link not found")))
}

/// Describes a link for a result; `sandbox` is empty for a link of the host.
pub(crate) fn describe(link: Link, sandbox: &str) -> Interface {
    Interface {
        mac: link.mac_text(),
        mtu: link.mtu,
        name: link.name,
        sandbox: sandbox.to_owned(),
        ..Interface::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use podplane_cni::types::Route;

    #[test]
    fn truncates_wide_route_properties_as_the_reference_does() {
        let asked = |priority, table, scope| {
            let route = Route {
                dst: Some("10.0.0.0/8".parse().unwrap()),
                priority,
                table,
                scope,
                ..Route::default()
            };
            let result = CniResult {
                routes: vec![route],
                ..CniResult::default()
            };
            let route = routes(1, &result).remove(0);
            (route.priority, route.table, route.scope)
        };
        const MAIN: u32 = podplane_netlink::Route::MAIN;
        assert_eq!(asked(0, None, None), (None, MAIN, None));
        assert_eq!(asked(5, Some(100), Some(200)), (Some(5), 100, Some(200)));
        assert_eq!(asked(-1, Some(-1), Some(1500)), (None, MAIN, Some(220)));
        assert_eq!(
            asked((1 << 32) + 7, Some((1 << 32) + 8), Some(-1)),
            (Some(7), 8, Some(255))
        );
    }
}
