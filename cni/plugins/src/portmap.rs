//! The plugin `portmap`: ports of the host that lead to ports of the container.
//!
//! The contract is the reference plugin of that name. Its iptables backend runs that program, and
//! its nftables backend uses netlink; the default is the reference's. Rules are found again by the
//! container's id, so that each program's DEL removes the other's rules. The plugin is chained
//! behind one that assigns addresses, and returns that plugin's result.

mod config;
mod iptables;
mod rules;

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_cni::{
    skel::{Call, Plugin, network_name, text, valid_attachments},
    types::{CniError, CniResult, code},
};
use podplane_netlink::{Netlink, NetlinkError, conntrack, nft::Nft, sysctl};

use self::{config::PortmapConfig, rules::MappingOwner};
use crate::masquerade::MasqueradeBackend;

/// The plugin `portmap`.
#[derive(Debug, Clone, Copy)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = PortmapConfig::parse(call).map_err(|error| CniError {
            msg: format!("failed to parse config: {}", error.msg),
            ..error
        })?;
        let previous = config.previous.clone();
        let previous =
            previous.ok_or_else(|| CniError::internal("must be called as chained plugin"))?;
        if config.mappings.is_empty() || config.addresses.is_empty() {
            return Ok(previous);
        }
        let backend = config.backend();
        if backend == MasqueradeBackend::Nftables && config.mark_bit.is_some() {
            warn("markMasqBit has no effect: nftables masquerades by address, without a mark");
        }
        let network = network_name(call)?;
        let forwarded = match backend {
            MasqueradeBackend::Nftables => forward(&mut open()?, &config, &owner(call, &network)),
            MasqueradeBackend::Iptables => iptables::forward(&config, &network, &call.container_id),
        };
        let forwarded = forwarded.and_then(|()| let_localhost_out(&config));
        forwarded.inspect_err(|_| {
            if let Err(error) = unforward(call, &network) {
                warn(&error.msg);
            }
        })?;
        forget_flows(&config);
        Ok(previous)
    }

    /// Deletes the rules by the container's id, also without the mappings or a previous result.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        unforward(call, &network_name(call)?)?;
        match PortmapConfig::parse(call) {
            Ok(config) => forget_flows(&config),
            Err(error) => warn(&error.msg), // An ADD with it has made no rules.
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = PortmapConfig::parse(call)?;
        if config.previous.is_none() {
            return Err(CniError::internal("Required prevResult missing"));
        }
        if config.mappings.is_empty() {
            return Ok(());
        }
        if config.backend() == MasqueradeBackend::Iptables {
            return iptables::check(&config, &network_name(call)?, &call.container_id);
        }
        let fault = rules::find_faults(&mut open()?, &config, &owner(call, &network_name(call)?));
        let fault = fault.map_err(|error| CniError::internal(text(&error)))?;
        fault.map_or(Ok(()), |fault| Err(CniError::internal(fault)))
    }

    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let Some(valid) = valid_attachments(&call.stdin)? else {
            return Ok(());
        };
        let valid: Vec<_> = valid
            .into_iter()
            .map(|attachment| (attachment.container_id, attachment.ifname))
            .collect();
        let network = network_name(call)?;
        let collected =
            Nft::open().and_then(|mut nft| rules::collect_garbage(&mut nft, &network, &valid));
        let collected = match collected {
            Err(error) if error.is_unknown_family() => Ok(()), // No nftables, no rules.
            other => other.map_err(|error| undeleted(&error)),
        };
        collected.and(iptables::collect_garbage(&network, &valid))
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        if PortmapConfig::parse(call)?.backend() == MasqueradeBackend::Iptables {
            return iptables::probe();
        }
        let tables = open().and_then(|mut nft| {
            nft.tables(podplane_netlink::nft::Family::Ip)
                .map_err(|error| CniError::internal(text(&error)))
        });
        tables.map(drop).map_err(|error| {
            CniError::new(code::NOT_AVAILABLE, "nftables cannot be used").with_details(error.msg)
        })
    }
}

fn warn(text: &str) {
    _ = writeln!(io::stderr(), "{text}");
}

fn open() -> Result<Nft, CniError> {
    Nft::open().map_err(|error: NetlinkError| CniError::internal(text(&error)))
}

fn owner(call: &Call, network: &str) -> MappingOwner {
    MappingOwner::new(network, &call.container_id, &call.ifname)
}

/// Deletes an attachment's rules, made by either backend.
fn unforward(call: &Call, network: &str) -> Result<(), CniError> {
    let deleted = Nft::open().and_then(|mut nft| {
        rules::unforward(&mut nft, &owner(call, network))?;
        iptables::remove_by_netlink(&mut nft, network, &call.container_id)
    });
    let deleted = match deleted {
        Err(error) if error.is_unknown_family() => Ok(()), // No nftables, no rules.
        other => other.map_err(|error| undeleted(&error)),
    };
    deleted.and(iptables::remove_legacy(network, &call.container_id))
}

fn undeleted(error: &NetlinkError) -> CniError {
    CniError::internal(format!("error deleting nftables rules: {}", text(error)))
}

fn forward(nft: &mut Nft, config: &PortmapConfig, owner: &MappingOwner) -> Result<(), CniError> {
    let failed = |why: String| {
        CniError::internal(format!(
            "unable to set up nftables rules for port mappings: {why}"
        ))
    };
    rules::forward(nft, config, owner).map_err(|error| failed(text(&error)))?;
    for address in config.addresses.iter().map(IpNet::addr) {
        let conditions = config.conditions(address.is_ipv4());
        if !conditions.is_empty() {
            rules::set_conditions(conditions, address.is_ipv4()).map_err(failed)?;
        }
    }
    Ok(())
}

fn let_localhost_out(config: &PortmapConfig) -> Result<(), CniError> {
    let addresses = config.addresses.iter().map(IpNet::addr);
    let mut of_v4 = addresses.filter(|address| config.snat && address.is_ipv4());
    of_v4.try_for_each(|address| {
        route_localnet(address).map_err(|error| {
            CniError::internal(format!("unable to enable route_localnet: {error}"))
        })
    })
}

/// Lets packets from 127.0.0.1 leave by the link to the container; the kernel would drop them as
/// forged.
fn route_localnet(address: IpAddr) -> Result<(), String> {
    let name = || {
        let mut netlink = Netlink::open()?;
        let Some(index) = netlink.link_towards(address)? else {
            return Ok(None);
        };
        netlink.link_by_index(index)
    };
    let Some(link) = name().map_err(|error: NetlinkError| text(&error))? else {
        return Ok(());
    };
    let key = format!("net/ipv4/conf/{}/route_localnet", link.name);
    if sysctl::read(&key).is_ok_and(|value| value == "1") {
        return Ok(());
    }
    sysctl::write(&key, "1").map_err(|error| text(&error))
}

/// Deletes the UDP flows of the mapped ports: a flow that continues would keep its destination from
/// before the change. A failure changes nothing and is only printed.
fn forget_flows(config: &PortmapConfig) {
    for v4 in [true, false] {
        if let Err(error) = conntrack::forget_udp(v4, &config.udp_ports(v4)) {
            warn(&text(&error));
        }
    }
}
