//! The host's side: the bridge, its port and its address.

use std::{fmt::Display, thread, time::Duration};

use ipnet::IpNet;
use podplane_cni::{
    skel::text,
    types::{CniError, CniResult},
};
use podplane_netlink::{Bridge, Link, Netlink, NetlinkError, OperState, Request, netns};

use super::config::{BridgeConfig, Vlans};
use crate::attach::{accept_no_router_advertisements, enable_forwarding, veth};

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// Finds or makes the bridge, and sets it up.
pub(super) fn ensure_bridge(
    netlink: &mut Netlink,
    config: &BridgeConfig,
) -> Result<Link, CniError> {
    let name = config.bridge.as_str();
    let mut ensure = || {
        if let Some(link) = netlink.link(name)? {
            return Ok(Some(link));
        }
        let bridge = Bridge {
            name,
            mtu: config.mtu,
            // A bridge whose address is set keeps it when ports come and go.
            mac: config.is_gateway.then(veth::random_mac),
            vlan_filtering: config.vlans.filtering,
        };
        match netlink.execute([Request::create_bridge(&bridge)]) {
            Err(error) if error.is_exists() => {} // Another ADD was faster.
            other => other?,
        }
        netlink.link(name)
    };
    let bridge =
        ensure().map_err(
            |error| match error.is_unsupported() && config.vlans.filtering {
                true => CniError::internal(format!("failed to create bridge {name:?}: {NO_VLANS}")),
                false => failed(&error),
            },
        )?;
    let bridge = bridge
        .ok_or_else(|| CniError::internal(format!("could not lookup {name:?}: Link not found")))?;
    if bridge.kind != "bridge" {
        let msg = format!(
            "failed to create bridge {name:?}: {name:?} already exists but is not a bridge"
        );
        return Err(CniError::internal(msg));
    }
    accept_no_router_advertisements(&bridge);
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

/// Configures the port of the bridge: hairpin mode, isolation, VLANs.
pub(super) fn configure_port(
    netlink: &mut Netlink,
    config: &BridgeConfig,
    port: &Link,
) -> Result<(), CniError> {
    let mut requests = Vec::new();
    if config.hairpin {
        requests.push(Request::hairpin(port.index));
    }
    if config.isolated {
        requests.push(Request::isolated(port.index));
    }
    netlink.execute(requests).map_err(|error| failed(&error))?;
    configure_vlans(netlink, &config.vlans, port)
}

/// The explanation of a kernel's bare "operation not supported".
const NO_VLANS: &str = "vlan and vlanTrunk cannot be served: this kernel has no VLAN filtering for bridges (CONFIG_BRIDGE_VLAN_FILTERING)";

fn configure_vlans(netlink: &mut Netlink, vlans: &Vlans, port: &Link) -> Result<(), CniError> {
    if vlans.access.is_none() && vlans.trunk.is_empty() {
        return Ok(());
    }
    let wrong = |what: &str, error: &NetlinkError| {
        let why = match error.is_unsupported() {
            true => NO_VLANS.to_owned(),
            false => text(error),
        };
        CniError::internal(format!(
            "failed to {what} on interface {:?}: {why}",
            port.name
        ))
    };
    if !vlans.keep_default {
        let removed = netlink.port_vlans(port.index).and_then(|default| {
            let delete = |vlan| Request::delete_port_vlan(port.index, vlan);
            netlink.execute(default.into_iter().map(delete))
        });
        removed.map_err(|error| wrong("remove default vlan", &error))?;
    }
    let access = vlans
        .access
        .map(|vlan| Request::add_port_vlan(port.index, vlan, true));
    let trunk = vlans.trunk.iter();
    let trunk = trunk.map(|vlan| Request::add_port_vlan(port.index, *vlan, false));
    let added = netlink.execute(access.into_iter().chain(trunk));
    added.map_err(|error| wrong("setup vlan tag", &error))
}

/// Gives the host the gateways' addresses and enables forwarding. The addresses belong to the
/// bridge or, with a VLAN, to an interface in the VLAN, which is returned.
pub(super) fn configure_gateway(
    netlink: &mut Netlink,
    config: &BridgeConfig,
    bridge: &Link,
    result: &CniResult,
) -> Result<Option<Link>, CniError> {
    let mut vlan_gateway = None;
    let gateways = result.ips.iter();
    let gateways = gateways.filter_map(|ip| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok());
    for gateway in gateways {
        let (link, what) = match config.vlans.access {
            None => (bridge, "set bridge addr"),
            Some(vlan) => {
                let link = match vlan_gateway.take() {
                    Some(link) => link,
                    None => ensure_vlan_gateway(netlink, config, bridge, vlan)?,
                };
                (
                    &*vlan_gateway.insert(link),
                    "set vlan interface for bridge with addr",
                )
            }
        };
        ensure_address(netlink, config, link, gateway)
            .map_err(|error| CniError::internal(format!("failed to {what}: {error}")))?;
    }
    enable_forwarding(result.ips.iter().filter_map(|ip| ip.gateway)).map_err(|error| {
        CniError::internal(format!("failed to enable forwarding: {}", text(&error)))
    })?;
    Ok(vlan_gateway)
}

/// Finds or makes the host's interface in a VLAN of the bridge: one end of a pair whose other end
/// is a port.
fn ensure_vlan_gateway(
    netlink: &mut Netlink,
    config: &BridgeConfig,
    bridge: &Link,
    vlan: u16,
) -> Result<Link, CniError> {
    let name = format!("{}.{vlan}", bridge.name);
    let wrong = |error: &dyn Display| {
        CniError::internal(format!("failed to create vlan interface: {error}"))
    };
    let find = |netlink: &mut Netlink| {
        let found = netlink.link(&name);
        found.map_err(|error| {
            wrong(&format_args!(
                "failed to find interface {name:?}: {}",
                text(&error)
            ))
        })
    };
    if let Some(link) = find(netlink)? {
        return Ok(link);
    }
    let own = netns::current().map_err(|error| wrong(&text(&error)))?;
    let pair = veth::VethPair {
        netns: &own,
        ifname: &name,
        mtu: Some(bridge.mtu),
        mac: None,
        controller: Some(bridge.index),
    };
    let port = veth::create(netlink, pair);
    let port = port.map_err(|error| {
        wrong(&format_args!(
            "failed to create vlan gateway {name:?}: {error}"
        ))
    })?;
    let vlans = Vlans {
        access: Some(vlan),
        trunk: Vec::new(),
        ..config.vlans.clone()
    };
    let finished = configure_vlans(netlink, &vlans, &port).and_then(|()| {
        let link =
            find(netlink)?.ok_or_else(|| wrong(&format_args!("failed to lookup {name:?}")))?;
        let up = netlink.execute([Request::up(link.index)]);
        up.map_err(|error| wrong(&format_args!("failed to up {name:?}: {}", text(&error))))?;
        Ok(link)
    });
    finished.inspect_err(|_| veth::delete(netlink, port.index))
}

/// Gives the link the address `wanted`. A link has one IPv4 address, and IPv6 addresses whose
/// subnets do not overlap; others are replaced with `forceAddress`, else they are an error.
fn ensure_address(
    netlink: &mut Netlink,
    config: &BridgeConfig,
    link: &Link,
    wanted: IpNet,
) -> Result<(), String> {
    let index = link.index;
    let is_v4 = wanted.addr().is_ipv4();
    let mut requests = Vec::new();
    for address in netlink.addresses(index).map_err(|error| text(&error))? {
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
                link.name
            ));
        }
        requests.push(Request::delete_address(index, net));
    }
    // Pods have the gateway's address from the same configuration. Duplicate detection would leave
    // them without a gateway for seconds.
    requests.push(Request::add_address_unasked(index, wanted));
    match netlink.execute(requests) {
        Err(error) if error.is_exists() => {} // Another ADD was faster.
        other => other.map_err(|error| text(&error))?,
    }
    // A bridge that was made by somebody else would take the lowest of its ports' addresses. Pin
    // the address that it had before this port; a bridge without ports has none, so look up the
    // present one.
    let pin = match link.mac.iter().all(|byte| *byte == 0) {
        true => find(netlink, index).map_err(|error| error.msg)?.mac,
        false => link.mac.clone(),
    };
    let pin = Request::mac(index, &pin);
    netlink.execute([pin]).map_err(|error| text(&error))
}

/// Waits until the bridge forwards for the port, up to 2.5 s as the reference does. Returns the
/// port's state of then.
pub(super) fn wait_until_up(netlink: &mut Netlink, port: u32) -> Result<Link, CniError> {
    // The port is nearly always up within microseconds, so the first waits are short. The sum is
    // 2.5 s.
    const WAITS_MS: [u64; 9] = [0, 1, 4, 15, 30, 100, 350, 1000, 1000];
    let mut state = OperState::Unknown;
    for wait in WAITS_MS {
        thread::sleep(Duration::from_millis(wait));
        let link = find(netlink, port)?;
        if link.state == OperState::Up {
            return Ok(link);
        }
        state = link.state;
    }
    Err(CniError::internal(format!(
        "bridge port in error state: {}",
        format!("{state:?}").to_lowercase()
    )))
}

/// Looks up a link of the host by index.
pub(super) fn find(netlink: &mut Netlink, index: u32) -> Result<Link, CniError> {
    let link = netlink
        .link_by_index(index)
        .map_err(|error| failed(&error))?;
    link.ok_or_else(|| CniError::internal(format!("link {index} is gone")))
}
