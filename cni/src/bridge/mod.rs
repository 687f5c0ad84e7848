//! The plugin `bridge`: a veth pair between the container and a bridge of the host.
//!
//! The contract is the reference plugin of that name. It differs in order only: whether the interface
//! exists is asked, and addresses are got, before any device is made, so that a full range costs no
//! device; and what a failed ADD has made is taken back, the veth pair included.

mod check;
mod config;
mod host;

use std::{fs::File, path::Path};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use self::config::Config;
use crate::{
    attach::{container, veth},
    netlink::Netlink,
    netns,
    skel::{Call, Ipam, Plugin, text},
    types::{CniError, CniResult, Interface, Route, next_ip},
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct BridgePlugin;

impl Plugin for BridgePlugin {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = Config::parse(call)?;
        config.check()?;
        let path = Path::new(&call.netns);
        let netns = netns::open(path).map_err(|error| {
            CniError::internal(format!("failed to open netns {path:?}: {}", error.source))
        })?;
        container::refuse_existing(path, &call.ifname)?;
        let Some(ipam) = Ipam::new(call, &config.ipam) else {
            return attach(call, &config, &netns, CniResult::default());
        };
        ipam.add_for(|addresses| attach(call, &config, &netns, addresses))
    }

    /// The link goes first, so that nobody is given an address that is still in use.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(call)?;
        let deleted = container::delete(Path::new(&call.netns), &call.ifname);
        // Addresses are given back also when the link could not be deleted: a DEL is not repeated for ever.
        let released = Ipam::new(call, &config.ipam).map_or(Ok(()), Ipam::del);
        deleted.and(released)
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(call)?;
        Ipam::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("CHECK"))?;
        check::check(call, &config)
    }

    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(call)?;
        Ipam::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("GC"))
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(call)?;
        Ipam::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("STATUS"))
    }
}

/// Makes the devices for addresses that are got already; leaves none behind on failure but the bridge.
fn attach(
    call: &Call,
    config: &Config,
    netns: &File,
    mut result: CniResult,
) -> Result<CniResult, CniError> {
    let mut netlink = Netlink::open().map_err(|error| CniError::internal(text(&error)))?;
    let bridge = host::ensure_bridge(&mut netlink, config)?;
    let pair = veth::Pair {
        netns,
        ifname: &call.ifname,
        mtu: config.mtu,
        mac: config.mac,
        controller: Some(bridge.index),
    };
    let host_end = veth::create(&mut netlink, pair)?;
    complete(config, &mut result);
    let finished = finish(
        call,
        config,
        &mut netlink,
        netns,
        (bridge.index, host_end),
        &result,
    );
    match finished {
        Ok(interfaces) => {
            result.interfaces = interfaces;
            if !config.dns.is_empty() {
                result.dns = config.dns.clone();
            }
            Ok(result)
        }
        Err(error) => {
            veth::delete(&mut netlink, host_end);
            Err(error)
        }
    }
}

/// What follows once there is a veth pair to be taken back.
fn finish(
    call: &Call,
    config: &Config,
    netlink: &mut Netlink,
    netns: &File,
    (bridge, host_end): (u32, u32),
    result: &CniResult,
) -> Result<Vec<Interface>, CniError> {
    host::configure_port(netlink, config, host_end)?;
    if config.container_interface_up {
        let ask = config.duplicate_address_detection;
        container::inside(netns, |netlink| {
            let index = container::set_addresses(netlink, &call.ifname, result, ask)?;
            container::add_routes(netlink, index, result)
        })?;
    }
    if config.is_gateway {
        host::configure_gateway(netlink, config, bridge, result)?;
    }
    if config.container_interface_up {
        host::wait_until_up(netlink, host_end)?;
    }
    let container = container::describe(netns, &call.ifname, &call.netns)?;
    Ok(vec![
        veth::describe(netlink, bridge)?,
        veth::describe(netlink, host_end)?,
        container,
    ])
}

/// Fills in what IPAM leaves to the bridge: which interface, gateways, and default routes.
fn complete(config: &Config, result: &mut CniResult) {
    let CniResult { ips, routes, .. } = result;
    for ip in ips {
        ip.interface = Some(2);
        if config.is_gateway && ip.gateway.is_none() {
            ip.gateway = Some(next_ip(ip.address.network()));
        }
        let default = match ip.address {
            IpNet::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpNet::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        let has_default = routes
            .iter()
            .any(|route| route.dst == Some(default) && route.gw.is_some());
        if config.is_default_gateway && !has_default {
            routes.push(Route {
                dst: Some(default),
                gw: ip.gateway,
                ..Route::default()
            });
        }
    }
}
