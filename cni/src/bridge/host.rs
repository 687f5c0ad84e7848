//! The host's side: the bridge, its port, its address.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::{BuildHasher, Hasher},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use ipnet::IpNet;

use super::config::Config;
use crate::{
    netlink::{Bridge, Link, Netlink, NetlinkError, OperState, Request, Veth},
    skel::{Call, text},
    sysctl,
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

/// Makes the pair: this end is a port of the bridge, the other one is in the container. Returns the
/// index of this end.
pub(super) fn create_veth(
    netlink: &mut Netlink,
    config: &Config,
    call: &Call,
    netns: &File,
    bridge: u32,
) -> Result<u32, CniError> {
    const ATTEMPTS: u32 = 10;
    let mut outcome = Err(CniError::internal("failed to find a unique veth name"));
    for _ in 0..ATTEMPTS {
        let name = format!("veth{:08x}", random());
        let veth = Veth {
            name: &name,
            peer_name: &call.ifname,
            peer_netns: Some(netns.as_fd()),
            mtu: config.mtu,
            mac: None,
            peer_mac: config.mac,
            controller: Some(bridge),
            up: true,
        };
        let created = netlink
            .execute([Request::create_veth(&veth)])
            .and_then(|()| netlink.link(&name));
        match created {
            Ok(Some(link)) => {
                accept_no_router_advertisements(&name);
                return Ok(link.index);
            }
            Ok(None) => {
                outcome = Err(CniError::internal(format!(
                    "failed to lookup {name:?}: Link not found"
                )))
            }
            Err(error) => {
                outcome = Err(failed(&error));
                if !error.is_exists() {
                    break;
                }
            }
        }
    }
    outcome
}

/// Deletes this end, and with it the other one. It is the last act of an ADD that has failed already.
pub(super) fn delete(netlink: &mut Netlink, index: u32) {
    if let Err(error) = netlink.execute([Request::delete_link(index)]) {
        _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            format!("{}\n", text(&error)).as_bytes(),
        );
    }
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
    let mut forwards = (false, false);
    for ip in &result.ips {
        let Some(gateway) = ip
            .gateway
            .and_then(|gateway| IpNet::new(gateway, ip.address.prefix_len()).ok())
        else {
            continue;
        };
        ensure_address(netlink, config, bridge, gateway)
            .map_err(|error| CniError::internal(format!("failed to set bridge addr: {error}")))?;
        let is_v4 = gateway.addr().is_ipv4();
        forwards = (forwards.0 | is_v4, forwards.1 | !is_v4);
    }
    let enable = |key: &str| {
        if sysctl::read(key).is_ok_and(|value| value == "1") {
            return Ok(());
        }
        let written = sysctl::write(key, "1");
        written.map_err(|error| {
            CniError::internal(format!("failed to enable forwarding: {}", text(&error)))
        })
    };
    if forwards.0 {
        enable("net/ipv4/ip_forward")?;
    }
    if forwards.1 {
        enable("net/ipv6/conf/all/forwarding")?;
    }
    Ok(())
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

/// A bridge and its ports are no routers' clients. A host without IPv6 has no such setting.
fn accept_no_router_advertisements(link: &str) {
    _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_ra"), "0");
}

fn random() -> u32 {
    // Keyed by the system's random numbers, anew for each state.
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).unwrap_or_default()
}
