//! The plugin `portmap`: ports of the host that lead to ports of the container.
//!
//! The contract is the nftables backend of the reference plugin of that name; rules are found again by the
//! container's id, so that the reference's DEL and this one's take each other's rules away. It stands behind
//! a plugin that gives addresses, whose result it passes on.

mod config;
mod rules;

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use self::{config::Config, rules::Owner};
use crate::{
    netlink::{Netlink, NetlinkError, conntrack, nft::Nft},
    skel::{Call, Plugin, network_name, text, valid_attachments},
    sysctl,
    types::{CniError, CniResult, code},
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = Config::parse(call).map_err(|error| CniError {
            msg: format!("failed to parse config: {}", error.msg),
            ..error
        })?;
        let previous = config.previous.clone();
        let previous =
            previous.ok_or_else(|| CniError::internal("must be called as chained plugin"))?;
        if config.mappings.is_empty() || config.addresses.is_empty() {
            return Ok(previous);
        }
        if config.has_mark {
            warn("markMasqBit has no effect: nftables masquerades by address, without a mark");
        }
        let owner = owner(call, &network_name(call)?);
        let mut nft = open()?;
        let forwarded = forward(&mut nft, &config, &owner);
        forwarded.inspect_err(|_| {
            if let Err(error) = rules::unforward(&mut nft, &owner) {
                warn(&text(&error));
            }
        })?;
        forget_flows(&config);
        Ok(previous)
    }

    /// The container's id is enough: rules are deleted also without the mappings, or a previous result.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let network = network_name(call)?;
        let deleted = Nft::open().and_then(|mut nft| {
            rules::unforward(&mut nft, &owner(call, &network))?;
            rules::remove_iptables_chains(&mut nft, &network, &call.container_id)
        });
        match deleted {
            Err(error) if error.is_unknown_family() => {} // No nftables, no rules.
            other => other.map_err(|error| undeleted(&error))?,
        }
        match Config::parse(call) {
            Ok(config) => forget_flows(&config),
            Err(error) => warn(&error.msg), // Such an ADD has made no rules.
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(call)?;
        if config.previous.is_none() {
            return Err(CniError::internal("Required prevResult missing"));
        }
        if config.mappings.is_empty() {
            return Ok(());
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
        rules::collect_garbage(&mut open()?, &network_name(call)?, &valid)
            .map_err(|error| undeleted(&error))
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        Config::parse(call)?;
        let tables = open().and_then(|mut nft| {
            nft.tables(crate::netlink::nft::Family::Ip)
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

fn owner(call: &Call, network: &str) -> Owner {
    Owner::new(network, &call.container_id, &call.ifname)
}

fn undeleted(error: &NetlinkError) -> CniError {
    CniError::internal(format!("error deleting nftables rules: {}", text(error)))
}

fn forward(nft: &mut Nft, config: &Config, owner: &Owner) -> Result<(), CniError> {
    let failed = |why: String| {
        CniError::internal(format!(
            "unable to set up nftables rules for port mappings: {why}"
        ))
    };
    rules::forward(nft, config, owner).map_err(|error| failed(text(&error)))?;
    for address in &config.addresses {
        let conditions = config.conditions(address.is_ipv4());
        if !conditions.is_empty() {
            rules::set_conditions(conditions, address.is_ipv4()).map_err(failed)?;
        }
        if config.snat && address.is_ipv4() {
            route_localnet(*address).map_err(|error| {
                CniError::internal(format!("unable to enable route_localnet: {error}"))
            })?;
        }
    }
    Ok(())
}

/// Lets packets from 127.0.0.1 leave by the link that leads to the container; else the kernel takes them for
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

/// A UDP flow that goes on would keep to where it led before the rules were changed. Failing leaves things
/// as they are, so it is only told.
fn forget_flows(config: &Config) {
    for v4 in [true, false] {
        if let Err(error) = conntrack::forget_udp(v4, &config.udp_ports(v4)) {
            warn(&text(&error));
        }
    }
}
