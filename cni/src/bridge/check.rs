//! CHECK: is everything as the previous result says.

use super::config::Config;
use crate::{
    attach::check::{differs, find_container_faults},
    netlink::{Netlink, NetlinkError},
    skel::{Call, previous_result, text},
    types::{CniError, CniResult, Interface},
};

pub(super) fn check(call: &Call, config: &Config) -> Result<(), CniError> {
    let previous =
        previous_result(call)?.ok_or_else(|| CniError::internal("Required prevResult missing"))?;
    find_faults(call, config, &previous)
        .map_err(|error| CniError::internal(text(&error)))?
        .map_or(Ok(()), |fault| Err(CniError::internal(fault)))
}

/// The first thing that is not as it should be.
fn find_faults(
    call: &Call,
    config: &Config,
    previous: &CniResult,
) -> Result<Option<String>, NetlinkError> {
    let of_container = |i: &&Interface| i.name == call.ifname && i.sandbox == call.netns;
    let Some(container) = previous.interfaces.iter().find(of_container) else {
        return Ok(Some(format!(
            "prevResult has no interface {} in {}",
            call.ifname, call.netns
        )));
    };
    let mut host = Netlink::open()?;
    let bridge = match host.link(&config.bridge)? {
        Some(link) if link.kind == "bridge" => link,
        Some(_) => return Ok(Some(format!("link {} is not a bridge", config.bridge))),
        None => return Ok(Some(format!("bridge {} not found", config.bridge))),
    };
    if config.promiscuous && !bridge.is_promiscuous {
        return Ok(Some(format!(
            "bridge {} is not in promiscuous mode",
            bridge.name
        )));
    }
    let on_host = previous
        .interfaces
        .iter()
        .filter(|i| i.sandbox.is_empty() && i.name != config.bridge);
    for port in on_host {
        match host.link(&port.name)? {
            Some(link) if link.controller != Some(bridge.index) => {
                return Ok(Some(format!(
                    "link {} is not a port of {}",
                    port.name, bridge.name
                )));
            }
            Some(link) => {
                if let Some(fault) = differs(port, &link) {
                    return Ok(Some(fault));
                }
            }
            None => return Ok(Some(format!("link {} not found", port.name))),
        }
    }
    find_container_faults(call, container, previous)
}
