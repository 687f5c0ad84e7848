//! The host's side: the bridge, its port, its address.

use std::{thread, time::Duration};

use ipnet::IpNet;

use super::config::Config;
use crate::{
    attach::{accept_no_router_advertisements, enable_forwarding},
    netlink::{Bridge, Link, Netlink, NetlinkError, OperState, Request},
    skel::text,
    types::{CniError, CniResult},
};

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// Finds or makes the bridge, and sets it up.
pub(super) fn ensure_bridge(netlink: &mut Netlink, config: &Config) -> Result<Link, CniError> {
    let name = config.bridge.as_str();
    let mut ensure = || {
        if netlink.link(name)?.is_none() {
            let bridge = Bridge {
                name,
                mtu: config.mtu,
                ..Bridge::default()
            };
            match netlink.execute([Request::create_bridge(&bridge)]) {
                Err(error) if error.is_exists() => {} // Another ADD was faster.
                other => other?,
            }
        }
        netlink.link(name)
    };
    let bridge = ensure().map_err(|error| failed(&error))?;
    let bridge = bridge
        .ok_or_else(|| CniError::internal(format!("could not lookup {name:?}: Link not found")))?;
    if bridge.kind != "bridge" {
        let msg = format!(
            "failed to create bridge {name:?}: {name:?} already exists but is not a bridge"
        );
        return Err(CniError::internal(msg));
    }
    accept_no_router_advertisements(name);
    let mut requests = Vec::new();
    if config.promiscuous && !bridge.is_promiscuous {
        requests.push(Request::promiscuous(bridge.index));
    }
    if !bridge.is_up {
        requests.push(Request::up(bridge.index));
    }
    netlink.execute(requests).map_err(|error| failed(&error))?;
    Ok(bridge)
}

pub(super) fn configure_port(
    netlink: &mut Netlink,
    config: &Config,
    port: u32,
) -> Result<(), CniError> {
    let mut requests = Vec::new();
    if config.hairpin {
        requests.push(Request::hairpin(port));
    }
    if config.isolated {
        requests.push(Request::isolated(port));
    }
    netlink.execute(requests).map_err(|error| failed(&error))
}

/// Gives the bridge the gateways' addresses, and lets the host forward.
pub(super) fn configure_gateway(
    netlink: &mut Netlink,
    config: &Config,
    bridge: u32,
    result: &CniResult,
) -> Result<(), CniError> {
    for ip in &result.ips {
        let Some(gateway) = ip
            .gateway
            .and_then(|gateway| IpNet::new(gateway, ip.address.prefix_len()).ok())
        else {
            continue;
        };
        ensure_address(netlink, config, bridge, gateway)
            .map_err(|error| CniError::internal(format!("failed to set bridge addr: {error}")))?;
    }
    enable_forwarding(result.ips.iter().filter_map(|ip| ip.gateway)).map_err(|error| {
        CniError::internal(format!("failed to enable forwarding: {}", text(&error)))
    })
}

/// One IPv4 address, and IPv6 addresses whose subnets do not overlap.
fn ensure_address(
    netlink: &mut Netlink,
    config: &Config,
    bridge: u32,
    wanted: IpNet,
) -> Result<(), String> {
    let is_v4 = wanted.addr().is_ipv4();
    let mut requests = Vec::new();
    for address in netlink.addresses(bridge).map_err(|error| text(&error))? {
        let net = address.net;
        if net == wanted {
            return Ok(());
        }
        let same_family = net.addr().is_ipv4() == is_v4;
        if !same_family || !(is_v4 || net.contains(&wanted.addr()) || wanted.contains(&net.addr()))
        {
            continue;
        }
        if !config.force_address {
            return Err(format!(
                "{:?} already has an IP address different from {wanted}",
                config.bridge
            ));
        }
        requests.push(Request::delete_address(bridge, net));
    }
    // Pods have the gateway's address from the same configuration. To ask for it first would leave them
    // without a gateway for the seconds that asking takes.
    requests.push(Request::add_address_unasked(bridge, wanted));
    match netlink.execute(requests) {
        Err(error) if error.is_exists() => {} // Another ADD was faster.
        other => other.map_err(|error| text(&error))?,
    }
    // Else the bridge takes the lowest of its ports' addresses, and changes it as they come and go.
    let link = netlink
        .link_by_index(bridge)
        .map_err(|error| text(&error))?;
    let pin = link.map(|link| Request::mac(bridge, &link.mac));
    netlink.execute(pin).map_err(|error| text(&error))
}

/// Waits until the bridge forwards for the port, as long as the reference does.
pub(super) fn wait_until_up(netlink: &mut Netlink, port: u32) -> Result<(), CniError> {
    // Soon first, since it nearly always is a matter of microseconds; in sum 2.5 s, as in the reference.
    const WAITS_MS: [u64; 9] = [0, 1, 4, 15, 30, 100, 350, 1000, 1000];
    let mut state = OperState::Unknown;
    for wait in WAITS_MS {
        thread::sleep(Duration::from_millis(wait));
        let link = netlink
            .link_by_index(port)
            .map_err(|error| failed(&error))?;
        let link = link.ok_or_else(|| CniError::internal(format!("bridge port {port} is gone")))?;
        if link.state == OperState::Up {
            return Ok(());
        }
        state = link.state;
    }
    Err(CniError::internal(format!(
        "bridge port in error state: {}",
        format!("{state:?}").to_lowercase()
    )))
}
