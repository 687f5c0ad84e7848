//! CHECK: compares the system with the previous result, with the reference's error texts.

use super::config::BridgeConfig;
use podplane_cni::{
    skel::{Call, previous_result, text},
    types::{CniError, CniResult, Interface},
};
use podplane_netlink::{Link, Netlink, NetlinkError};

use crate::attach::check::find_container_faults;

pub(super) fn check(call: &Call, config: &BridgeConfig) -> Result<(), CniError> {
    let previous =
        previous_result(call)?.ok_or_else(|| CniError::internal("Required prevResult missing"))?;
    find_faults(call, config, &previous)
        .map_err(|error| CniError::internal(text(&error)))?
        .map_or(Ok(()), |fault| Err(CniError::internal(fault)))
}

/// Returns the text of the first difference.
fn find_faults(
    call: &Call,
    config: &BridgeConfig,
    previous: &CniResult,
) -> Result<Option<String>, NetlinkError> {
    let mut host = Netlink::open()?;
    let interfaces = previous.interfaces.as_slice();
    let nothing = Interface::default();
    let named = interfaces.iter().find(|i| i.name == config.bridge);
    let bridge = match find(&mut host, named.unwrap_or(&nothing))? {
        Ok(link) => link,
        Err(fault) => return Ok(Some(fault)),
    };
    if let Some(fault) = find_bridge_faults(config, named.unwrap_or(&nothing), &bridge) {
        return Ok(Some(fault));
    }
    let is_container = |i: &&Interface| i.name == call.ifname && i.sandbox == call.netns;
    let Some(container) = interfaces.iter().find(is_container) else {
        return Ok(Some(format!(
            "Sandbox in prevResult  doesn't match configured netns: {}",
            call.netns
        )));
    };
    let inside = match find_container_faults(call, container, previous)? {
        Ok(link) => link,
        Err(fault) => return Ok(Some(fault)),
    };
    // The port is the link whose peer is the container's interface; other named interfaces need
    // only exist.
    let others = interfaces.iter();
    for other in others.filter(|i| i.name != config.bridge && i.name != call.ifname) {
        let port = match find(&mut host, other)? {
            Ok(link) => link,
            Err(fault) => return Ok(Some(fault)),
        };
        let is_port = port.kind == "veth"
            && port.controller == Some(bridge.index)
            && port.peer == Some(inside.index)
            && inside.peer == Some(port.index);
        if is_port {
            let differs = !other.mac.is_empty() && other.mac != port.mac_text();
            let (name, mac) = (&other.name, &other.mac);
            return Ok(
                differs.then(|| format!("Interface {name} Mac doesn't match: {mac} not found"))
            );
        }
    }
    Ok(Some(format!(
        "CNI veth created for bridge {} was not found",
        config.bridge
    )))
}

/// The host's link that the previous result names, or the text of the fault.
fn find(host: &mut Netlink, named: &Interface) -> Result<Result<Link, String>, NetlinkError> {
    let Interface { name, sandbox, .. } = named;
    if name.is_empty() {
        return Ok(Err("Interface name missing ".to_owned()));
    }
    let Some(link) = host.link(name)? else {
        return Ok(Err(format!("Interface name {name} not found")));
    };
    if !sandbox.is_empty() {
        return Ok(Err(format!("Interface {name} should not be in sandbox")));
    }
    Ok(Ok(link))
}

fn find_bridge_faults(config: &BridgeConfig, named: &Interface, bridge: &Link) -> Option<String> {
    let Interface { name, mac, .. } = named;
    if bridge.kind != "bridge" {
        return Some(format!(
            "Interface {name} does not have link type of bridge"
        ));
    }
    if !mac.is_empty() && *mac != bridge.mac_text() {
        return Some(format!("Bridge interface {name} Mac doesn't match: {mac}"));
    }
    // Promiscuous mode that is not configured is accepted: somebody may be capturing on the bridge.
    // The reference reports it as a fault.
    if config.promiscuous && !bridge.is_promiscuous {
        return Some(format!(
            "Bridge interface {name} configured Promisc Mode true doesn't match current state: false "
        ));
    }
    None
}
