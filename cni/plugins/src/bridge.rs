//! The plugin `bridge`: a veth pair between the container and a bridge of the host.
//!
//! The contract is the reference plugin of that name. Only the order differs: an existing interface
//! is refused before anything is made, the pair is made while the IPAM plugin runs, and a failed
//! ADD removes everything it made, the veth pair included.

mod check;
mod config;
mod host;
mod spoof;

use std::{fs::File, path::Path};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_cni::{
    skel::{Call, IpamPlugin, Plugin, text, valid_attachments},
    types::{CniError, CniResult, Route, Version, next_ip},
};
use podplane_netlink::{Link, Netlink, Request, netns};

use self::{config::BridgeConfig, spoof::MacCheck};
use crate::{
    attach::{container, veth},
    masquerade,
};

/// The plugin `bridge`.
#[derive(Debug, Clone, Copy)]
pub struct BridgePlugin;

impl Plugin for BridgePlugin {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = BridgeConfig::parse(call)?;
        config.check()?;
        let path = Path::new(&call.netns);
        let netns = netns::open(path).map_err(|error| {
            CniError::internal(format!("failed to open netns {path:?}: {}", error.source))
        })?;
        let mut inside = container::open(&netns)?;
        container::refuse_existing(&mut inside, &call.ifname)?;
        let attachment = BridgeAttachment {
            call,
            config: &config,
            netns: &netns,
        };
        match IpamPlugin::new(call, &config.ipam) {
            None => attachment.with_pair(&mut inside, |pair| pair.finish(CniResult::default())),
            Some(ipam) if ipam.needs_interface() => {
                attachment.with_pair(&mut inside, |mut pair| {
                    pair.set_up()?;
                    ipam.add_for(|addresses| pair.finish(addresses.wait()?))
                })
            }
            Some(ipam) => ipam.add_for(|addresses| {
                attachment.with_pair(&mut inside, |pair| pair.finish(addresses.wait()?))
            }),
        }
    }

    /// Deletes the interface, frees the addresses and removes the rules.
    ///
    /// The link is deleted first, so that no address is reassigned while in use; if the IPAM plugin
    /// needs the link to release the address, IPAM runs first. Every step is tried even if another
    /// one fails: a DEL is not repeated for ever.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = BridgeConfig::parse(call)?;
        let delete = || container::delete(Path::new(&call.netns), &call.ifname);
        let (deleted, released) = match IpamPlugin::new(call, &config.ipam) {
            None => (delete(), Ok(())),
            Some(ipam) if ipam.needs_interface() => {
                let released = ipam.del();
                (delete(), released)
            }
            Some(ipam) => (delete(), ipam.del()),
        };
        let unchecked = match config.check_mac {
            true => MacCheck::of(call, &config).remove(),
            false => Ok(()),
        };
        let unmasqueraded = match config.masquerade {
            true => masquerade::remove(owner(call, &config)),
            false => Ok(()),
        };
        deleted.and(released).and(unchecked).and(unmasqueraded)
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = BridgeConfig::parse(call)?;
        IpamPlugin::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("CHECK"))?;
        check::check(call, &config)
    }

    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let config = BridgeConfig::parse(call)?;
        let freed = IpamPlugin::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("GC"));
        let Some(valid) = valid_attachments(&call.stdin)? else {
            return freed; // The valid attachments are not known.
        };
        let unmasqueraded = masquerade::collect_garbage(&config.network, &valid);
        let unchecked = spoof::collect_garbage(&config.network, &valid);
        freed.and(unmasqueraded).and(unchecked)
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        let config = BridgeConfig::parse(call)?;
        IpamPlugin::new(call, &config.ipam).map_or(Ok(()), |ipam| ipam.forward("STATUS"))
    }
}

fn owner<'a>(call: &'a Call, config: &'a BridgeConfig) -> masquerade::MasqueradeOwner<'a> {
    masquerade::MasqueradeOwner {
        network: &config.network,
        ifname: &call.ifname,
        container_id: &call.container_id,
    }
}

/// The inputs of an ADD.
#[derive(Clone, Copy)]
struct BridgeAttachment<'a> {
    call: &'a Call,
    config: &'a BridgeConfig,
    netns: &'a File,
}

/// An attachment whose devices exist.
struct AttachedPair<'a> {
    attachment: BridgeAttachment<'a>,
    host: &'a mut Netlink,
    /// A netlink socket in the container's namespace.
    inside: &'a mut Netlink,
    bridge: &'a Link,
    port: &'a Link,
    container: Link,
}

impl BridgeAttachment<'_> {
    /// Makes the devices and passes them to `work`. On failure everything is removed but the
    /// bridge. `inside` is a socket in the container's namespace.
    fn with_pair(
        self,
        inside: &mut Netlink,
        work: impl FnOnce(AttachedPair<'_>) -> Result<CniResult, CniError>,
    ) -> Result<CniResult, CniError> {
        let Self {
            call,
            config,
            netns,
        } = self;
        let telling = call.tell.begin("make pair");
        let mut host = Netlink::open().map_err(|error| CniError::internal(text(&error)))?;
        let bridge = host::ensure_bridge(&mut host, config)?;
        if config.ipam.is_empty() && call.version < Version::V0_3_0 {
            // Such a result can carry addresses only.
            return Err(CniError::internal("cannot convert: no valid IP addresses"));
        }
        let pair = veth::VethPair {
            netns,
            ifname: &call.ifname,
            mtu: config.mtu,
            mac: config.mac()?,
            controller: Some(bridge.index),
        };
        let port = veth::create(&mut host, pair)?;
        let worked = self
            .prepare(&mut host, inside, &port)
            .and_then(|container| {
                telling.end(None);
                work(AttachedPair {
                    attachment: self,
                    host: &mut host,
                    inside,
                    bridge: &bridge,
                    port: &port,
                    container,
                })
            });
        worked.inspect_err(|_| self.undo(&mut host, &port))
    }

    /// Does what needs no addresses. Returns the container's interface, which is still down.
    fn prepare(
        self,
        host: &mut Netlink,
        inside: &mut Netlink,
        port: &Link,
    ) -> Result<Link, CniError> {
        let Self {
            call,
            config,
            netns,
        } = self;
        host::configure_port(host, config, port)?;
        let container = container::find(inside, &call.ifname)?;
        if config.check_mac {
            MacCheck::of(call, config).add(&port.name, &container.mac)?;
        }
        if !config.ipam.is_empty() {
            container::prepare(netns, inside, &container, config.duplicate_detection())?;
        }
        Ok(container)
    }

    fn configure_container(
        self,
        inside: &mut Netlink,
        link: &Link,
        result: &CniResult,
    ) -> Result<(), CniError> {
        if result.ips.is_empty() {
            let up = inside.execute([Request::up(link.index)]);
            return up.map_err(|error| CniError::internal(text(&error)));
        }
        container::inside(self.netns, || {
            container::set_addresses(inside, link, result)
        })?;
        container::add_routes(inside, link.index, result)
    }

    /// Removes the pair and all rules of an ADD that failed.
    fn undo(self, host: &mut Netlink, port: &Link) {
        let Self { call, config, .. } = self;
        veth::delete(host, port.index);
        let tell = |undone: Result<(), CniError>| {
            if let Err(error) = undone {
                veth::note(&error);
            }
        };
        if config.check_mac {
            tell(MacCheck::of(call, config).remove());
        }
        if config.masquerade {
            tell(masquerade::remove(owner(call, config)));
        }
    }
}

impl AttachedPair<'_> {
    /// Sets both ends up, for an IPAM plugin that communicates over them.
    fn set_up(&mut self) -> Result<(), CniError> {
        let up = self.inside.execute([Request::up(self.container.index)]);
        up.map_err(|error| CniError::internal(text(&error)))?;
        host::wait_until_up(self.host, self.port.index).map(drop)
    }

    /// Configures the devices with the addresses, and completes the result.
    fn finish(self, mut result: CniResult) -> Result<CniResult, CniError> {
        let Self {
            attachment,
            host,
            inside,
            bridge,
            port,
            container,
        } = self;
        let BridgeAttachment { call, config, .. } = attachment;
        let telling = call.tell.begin("configure");
        complete(config, &mut result);
        if config.container_interface_up {
            attachment.configure_container(inside, &container, &result)?;
        }
        let mut vlan_gateway = None;
        if config.is_gateway {
            vlan_gateway = host::configure_gateway(host, config, bridge, &result)?;
        }
        if config.masquerades() {
            let backend = config.masquerade_backend()?;
            let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
            masquerade::add(backend, &addresses, owner(call, config))?;
        }
        let port = match config.container_interface_up {
            true => host::wait_until_up(host, port.index)?,
            false => host::find(host, port.index)?,
        };
        // Looked up again: the first port changes the bridge's address, and a gateway pins it.
        let bridge = host::find(host, bridge.index)?;
        result.interfaces = vec![
            container::describe(bridge, ""),
            container::describe(port, ""),
            container::describe(container, &call.netns),
        ];
        let vlan_gateway = vlan_gateway.map(|link| container::describe(link, ""));
        result.interfaces.extend(vlan_gateway);
        if let Some(dns) = &config.dns {
            result.dns = dns.clone();
        }
        telling.end(None);
        Ok(result)
    }
}

/// Fills in the fields that IPAM leaves to the bridge: interface, gateways and default routes.
fn complete(config: &BridgeConfig, result: &mut CniResult) {
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
