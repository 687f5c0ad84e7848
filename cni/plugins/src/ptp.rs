//! The plugin `ptp`: a veth pair between the container and the host, and routes over it.
//!
//! The contract is the reference plugin of that name. The container's subnet is not on the link:
//! everything goes through the gateway, which is the host's end. Only the order differs: an
//! existing interface is refused before any address is allocated or device made, and a failed ADD
//! removes everything it made, the pair included.

use std::{collections::BTreeSet, fs::File, net::IpAddr, path::Path};

use ipnet::IpNet;
use podplane_cni::{
    skel::{Call, IpamPlugin, Plugin, previous_result, text, valid_attachments},
    types::{CniError, CniResult, IpConfig, json},
};
use podplane_netlink::{Link, Netlink, NetlinkError, Request, Route, netns, protocol, sysctl};
use serde::Deserialize;

use crate::{
    attach::{
        DnsSection,
        check::find_container_faults,
        container::{self, DuplicateDetection},
        enable_forwarding, veth,
    },
    masquerade::{self, MasqueradeBackend},
};

/// The plugin `ptp`.
#[derive(Debug, Clone, Copy)]
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = PtpConfig::parse(call)?;
        let backend = MasqueradeBackend::parse(config.ipmasqbackend.as_deref())?;
        let ipam = config.ipam(call)?;
        let path = Path::new(&call.netns);
        let netns = netns::open(path).map_err(|error| {
            CniError::internal(format!("failed to open netns {path:?}: {}", error.source))
        })?;
        let mut inside = container::open(&netns)?;
        container::refuse_existing(&mut inside, &call.ifname)?;
        ipam.add_for(|addresses| {
            let attachment = PtpAttachment {
                call,
                config: &config,
                backend,
                netns: &netns,
            };
            attachment.make(&mut inside, addresses.wait()?)
        })
    }

    /// Deletes the link first, so that no address is reassigned while in use.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = PtpConfig::parse(call)?;
        let deleted = container::delete(Path::new(&call.netns), &call.ifname);
        // Addresses are released even if the link could not be deleted: a DEL is not repeated for
        // ever.
        let released = config.ipam(call).and_then(IpamPlugin::del);
        let unmasqueraded = match config.ipmasq {
            true => masquerade::remove(config.owner(call)),
            false => Ok(()),
        };
        deleted.and(released).and(unmasqueraded)
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = PtpConfig::parse(call)?;
        config.ipam(call)?.forward("CHECK")?;
        let previous = previous_result(call)?
            .ok_or_else(|| CniError::internal("ptp: Required prevResult missing"))?;
        let is_ours = |name: &str, sandbox: &str| name == call.ifname && sandbox == call.netns;
        let mut interfaces = previous.interfaces.iter();
        let container = interfaces.find(|i| is_ours(&i.name, &i.sandbox));
        let container = container.ok_or_else(|| {
            CniError::internal(format!(
                "Sandbox in prevResult  doesn't match configured netns: {}",
                call.netns
            ))
        })?;
        find_container_faults(call, container, &previous)
            .map_err(|error| failed(&error))?
            .map(drop)
            .map_err(CniError::internal)
    }

    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let config = PtpConfig::parse(call)?;
        let freed = config.ipam(call)?.forward("GC");
        let Some(valid) = valid_attachments(&call.stdin)? else {
            return freed; // The valid attachments are not known.
        };
        freed.and(masquerade::collect_garbage(&config.name, &valid))
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        PtpConfig::parse(call)?.ipam(call)?.forward("STATUS")
    }
}

// Keys are folded before decoding, so the names here are lower case.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PtpConfig {
    name: String,
    ipmasq: bool,
    ipmasqbackend: Option<String>,
    mtu: u32,
    ipam: IpamSection,
    dns: DnsSection,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamSection {
    r#type: String,
}

impl PtpConfig {
    fn parse(call: &Call) -> Result<Self, CniError> {
        json::read_folded(&call.stdin)
            .map_err(|error| CniError::internal(format!("failed to load netconf: {error}")))
    }

    fn owner<'a>(&'a self, call: &'a Call) -> masquerade::MasqueradeOwner<'a> {
        masquerade::MasqueradeOwner {
            network: &self.name,
            ifname: &call.ifname,
            container_id: &call.container_id,
        }
    }

    fn ipam<'a>(&'a self, call: &'a Call) -> Result<IpamPlugin<'a>, CniError> {
        IpamPlugin::new(call, &self.ipam.r#type)
            .ok_or_else(|| CniError::internal("no plugin name provided"))
    }
}

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// The inputs of an ADD.
#[derive(Clone, Copy)]
struct PtpAttachment<'a> {
    call: &'a Call,
    config: &'a PtpConfig,
    backend: Option<MasqueradeBackend>,
    netns: &'a File,
}

impl PtpAttachment<'_> {
    /// Makes the pair for allocated addresses; leaves nothing behind on failure. `inside` is a
    /// socket in the container's namespace.
    fn make(self, inside: &mut Netlink, mut result: CniResult) -> Result<CniResult, CniError> {
        let Self {
            call,
            config,
            netns,
            ..
        } = self;
        let ends = ends(&result.ips)?;
        enable_forwarding(result.ips.iter().map(|ip| ip.address.addr())).map_err(|error| {
            CniError::internal(format!("Could not enable IP forwarding: {}", text(&error)))
        })?;
        let mut host = Netlink::open().map_err(|error| failed(&error))?;
        let pair = veth::VethPair {
            netns,
            ifname: &call.ifname,
            mtu: Some(config.mtu).filter(|mtu| *mtu != 0),
            mac: None,
            controller: None,
        };
        let host_end = veth::create(&mut host, pair)?;
        for ip in &mut result.ips {
            ip.interface = Some(1);
        }
        match self.configure(&mut host, inside, &host_end, &ends, &result) {
            Ok(container) => {
                result.interfaces = vec![
                    container::describe(host_end, ""),
                    container::describe(container, &call.netns),
                ];
                if let Some(dns) = config.dns.clone().given() {
                    result.dns = dns;
                }
                Ok(result)
            }
            Err(error) => {
                veth::delete(&mut host, host_end.index);
                Err(error)
            }
        }
    }

    /// Configures both ends, and returns the container's.
    fn configure(
        self,
        host: &mut Netlink,
        inside: &mut Netlink,
        host_end: &Link,
        ends: &[LinkEnds],
        result: &CniResult,
    ) -> Result<Link, CniError> {
        let Self {
            call,
            config,
            backend,
            netns,
        } = self;
        // Duplicate detection for the host's link-local address takes a second or two, in which
        // packets forwarded to the container find no neighbour. A host without IPv6 has no such
        // setting.
        _ = sysctl::write(&format!("net/ipv6/conf/{}/accept_dad", host_end.name), "0");
        let container = container::find(inside, &call.ifname)?;
        configure_container(netns, inside, &container, ends, result)?;
        configure_host(host, host_end.index, ends)?;
        if config.ipmasq {
            let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
            let owner = config.owner(call);
            masquerade::add(backend, &addresses, owner).inspect_err(|_| {
                _ = masquerade::remove(owner); // The first error is returned.
            })?;
        }
        Ok(container)
    }
}

/// An address of the container, and the address of the host's end that is its gateway.
struct LinkEnds {
    container: IpNet,
    gateway: IpAddr,
}

fn ends(ips: &[IpConfig]) -> Result<Vec<LinkEnds>, CniError> {
    let end = |ip: &IpConfig| match ip.gateway {
        Some(gateway) if gateway.is_ipv4() == ip.address.addr().is_ipv4() => Ok(LinkEnds {
            container: ip.address,
            gateway,
        }),
        _ => Err(CniError::internal(format!(
            "address {} has no gateway of its family from the IPAM plugin, and ptp needs one",
            ip.address
        ))),
    };
    ips.iter().map(end).collect()
}

/// Configures the container's end. In place of the route that comes with each address, it gets a
/// route to the gateway on the link, and one to the subnet through the gateway.
fn configure_container(
    netns: &File,
    netlink: &mut Netlink,
    link: &Link,
    ends: &[LinkEnds],
    result: &CniResult,
) -> Result<(), CniError> {
    let index = link.index;
    container::prepare(netns, netlink, link, DuplicateDetection::Disabled)?;
    container::inside(netns, || {
        container::set_addresses(netlink, link, result)?;
        let route = |destination, source| Route {
            protocol: protocol::BOOT,
            source: Some(source),
            ..Route::on_link(destination, index)
        };
        let add = |netlink: &mut Netlink, route: &Route| {
            match netlink.execute([Request::add_route(route)]) {
                // Two addresses may share a gateway or a subnet; the first route stays.
                Err(error) if error.is_exists() => Ok(()),
                other => other.map_err(|error| failed(&error)),
            }
        };
        for LinkEnds { container, gateway } in ends {
            add(netlink, &route(IpNet::from(*gateway), container.addr()))?;
        }
        // IPAM's routes may go through other hosts of the subnet, which is on the link only until
        // the next step.
        container::add_routes(netlink, index, result)?;
        for LinkEnds { container, gateway } in ends {
            if container.prefix_len() == container.max_prefix_len() {
                continue; // This address brought no route.
            }
            let brought = Route {
                protocol: protocol::KERNEL,
                ..Route::on_link(*container, index)
            };
            match netlink.execute([Request::delete_route(&brought)]) {
                Err(error) if error.is_not_found() => {}
                other => other.map_err(|error| failed(&error))?,
            }
            let through = Route {
                gateway: Some(*gateway),
                ..route(*container, container.addr())
            };
            add(netlink, &through)?;
        }
        Ok(())
    })
}

/// Adds the gateways' addresses to the host's end, and a route to each address of the container.
fn configure_host(netlink: &mut Netlink, index: u32, ends: &[LinkEnds]) -> Result<(), CniError> {
    let gateways: BTreeSet<_> = ends.iter().map(|end| end.gateway).collect();
    // The pair is new: no other host on it can have the address.
    let addresses = gateways
        .into_iter()
        .map(|gateway| Request::add_address_unasked(index, IpNet::from(gateway)));
    netlink.execute(addresses).map_err(|error| {
        CniError::internal(format!("failed to add IP addr to veth: {}", text(&error)))
    })?;
    for LinkEnds { container, .. } in ends {
        let route = Route {
            protocol: protocol::BOOT,
            scope: container.addr().is_ipv4().then_some(Route::SCOPE_HOST),
            ..Route::on_link(IpNet::from(container.addr()), index)
        };
        match netlink.execute([Request::add_route(&route)]) {
            Err(error) if error.is_exists() => {}
            other => other.map_err(|error| {
                CniError::internal(format!("failed to add route on host: {}", text(&error)))
            })?,
        }
    }
    Ok(())
}
