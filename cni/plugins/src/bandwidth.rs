//! The plugin `bandwidth`: limits the traffic to and from a container.
//!
//! The contract is the reference plugin of that name. Traffic to the container is shaped on the
//! host's end of its veth pair. Traffic from the container goes through an `ifb` link of its own,
//! since only outgoing traffic can be queued. The link's name is derived from network and
//! container, as in the reference, so that each of the two programs deletes the other's links. The
//! plugin is chained behind one that makes a veth pair, and returns that plugin's result with the
//! `ifb` link added.

mod bucket;
mod config;

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

use podplane_cni::{
    skel::{Call, Plugin, network_name, text, valid_attachments},
    types::{CniError, CniResult, Interface, Version},
};
use podplane_netlink::{Link, Netlink, NetlinkError, Request, netns, root_qdisc};

use self::config::{BandwidthConfig, RateLimit};
use crate::{attach::container::open, masquerade::hash};

/// The prefix of the names of `ifb` links.
const PREFIX: &str = "bwp";

/// The plugin `bandwidth`.
#[derive(Debug, Clone, Copy)]
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    /// Results before 0.3.0 have no interfaces.
    fn versions(&self) -> &'static [Version] {
        const SINCE_0_3_0: [Version; 5] = [
            Version::V0_3_0,
            Version::V0_3_1,
            Version::V0_4_0,
            Version::V1_0_0,
            Version::V1_1_0,
        ];
        &SINCE_0_3_0
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = BandwidthConfig::parse(call)?;
        let previous = config.previous.clone();
        let mut result =
            previous.ok_or_else(|| CniError::internal("must be called as chained plugin"))?;
        if config.is_unlimited() {
            return Ok(result);
        }
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        let host = host_end(&mut netlink, &container(call)?, call, &result)?;
        let mut undo = Vec::new();
        let shaped = shape(&mut netlink, &host, call, &config, &mut undo);
        let shaped = shaped.inspect_err(|_| {
            for request in undo.into_iter().rev() {
                if let Err(error) = netlink.execute([request]) {
                    warn(&text(&error));
                }
            }
        })?;
        result.interfaces.extend(shaped);
        Ok(result)
    }

    /// Deletes the `ifb` link, for which network and container suffice. The host's end takes its
    /// queue with it.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let name = ifb_name(&network_name(call)?, &call.container_id);
        let delete = || {
            let mut netlink = Netlink::open()?;
            match netlink.link(&name)? {
                Some(link) => delete_link(&mut netlink, &link),
                None => Ok(()),
            }
        };
        delete().map_err(|error| {
            CniError::internal(format!("failed to delete {name:?}: {}", text(&error)))
        })
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = BandwidthConfig::parse(call)?;
        let previous = config.previous.as_ref();
        let previous =
            previous.ok_or_else(|| CniError::internal("must be called as a chained plugin"))?;
        let mut netlink = Netlink::open().map_err(|error| failed(&error))?;
        let host = host_end(&mut netlink, &container(call)?, call, previous)?;
        if let Some(limit) = config.ingress {
            check_bucket(&host, limit)?;
        }
        if let Some(limit) = config.egress {
            let name = ifb_name(&network_name(call)?, &call.container_id);
            let ifb = netlink.link(&name).map_err(|error| failed(&error))?;
            let ifb = ifb.ok_or_else(|| CniError::internal("get ifb device: Link not found"))?;
            check_bucket(&ifb, limit)?;
        }
        Ok(())
    }

    /// Deletes links of the network that belong to no valid attachment. Links made by the reference
    /// do not name their network, and stay.
    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let Some(valid) = valid_attachments(&call.stdin)? else {
            return Ok(());
        };
        let network = network_name(call)?;
        let is_garbage = |link: &Link| {
            let owner = link.alias.split_once('/');
            let id = owner.and_then(|(of, id)| (of == network).then_some(id));
            link.kind == "ifb"
                && link.name.starts_with(PREFIX)
                && id.is_some_and(|id| !valid.iter().any(|valid| valid.container_id == id))
        };
        let collect = || {
            let mut netlink = Netlink::open()?;
            let links = netlink.links()?;
            let mut outcome = Ok(());
            for link in links.iter().filter(|link| is_garbage(link)) {
                outcome = outcome.and(delete_link(&mut netlink, link));
            }
            outcome
        };
        collect().map_err(|error| failed(&error))
    }

    fn status(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }
}

fn warn(text: &str) {
    _ = writeln!(io::stderr(), "{text}");
}

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// An error for a request that the kernel refused, with a hint at the missing module.
fn refused(step: &str, missing: &str, error: &NetlinkError) -> CniError {
    let remedy = if error.is_unknown_kind() {
        format!(": the kernel may lack {missing}; load it with modprobe, or build it in")
    } else {
        String::new()
    };
    CniError::internal(format!("{step}: {}{remedy}", text(error)))
}

/// The name of a container's `ifb` link, as the reference makes it.
fn ifb_name(network: &str, container_id: &str) -> String {
    let digits = hash(&format!("{network}{container_id}"), 12);
    format!("{PREFIX}{digits}")
}

/// The link's alias: its owner, for people and for GC. The reference ignores it. `None` if it would
/// be too long.
fn alias(network: &str, container_id: &str) -> Option<String> {
    const MOST: usize = 255;
    let alias = format!("{network}/{container_id}");
    (alias.len() <= MOST).then_some(alias)
}

fn delete_link(netlink: &mut Netlink, link: &Link) -> Result<(), NetlinkError> {
    match netlink.execute([Request::delete_link(link.index)]) {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

fn container(call: &Call) -> Result<File, CniError> {
    netns::open(Path::new(&call.netns)).map_err(|error| {
        let netns = &call.netns;
        CniError::internal(format!("failed to open netns {netns:?}: {}", text(&error)))
    })
}

/// Finds the host's end of the container's interface, which must be among the interfaces of the
/// previous result.
fn host_end(
    netlink: &mut Netlink,
    netns: &File,
    call: &Call,
    previous: &CniResult,
) -> Result<Link, CniError> {
    if previous.interfaces.is_empty() {
        return Err(CniError::internal("no interfaces provided"));
    }
    let name = &call.ifname;
    let no_peer = |why: String| {
        CniError::internal(format!(
            "container interface {name} has no veth peer: {why}"
        ))
    };
    let inside = open(netns)?.link(name).map_err(|error| failed(&error))?;
    let Some(inside) = inside else {
        return Err(no_peer(format!(
            "could not look up {name:?}: Link not found"
        )));
    };
    let Some(peer) = inside.peer.filter(|_| inside.kind == "veth") else {
        return Err(no_peer(format!(
            "interface {name:?} was not a veth interface"
        )));
    };
    let host = netlink.link_by_index(peer);
    let host = host.map_err(|error| failed(&error))?.ok_or_else(|| {
        CniError::internal(format!("veth peer with index {peer} is not in host ns"))
    })?;
    let is_host =
        |interface: &Interface| interface.sandbox.is_empty() && interface.name == host.name;
    if previous.interfaces.iter().any(is_host) {
        Ok(host)
    } else {
        Err(CniError::internal(
            "no veth peer of container interface found in host ns",
        ))
    }
}

/// Sets the limits, and returns the `ifb` link if one was made. Pushes onto `undo` the requests
/// that revert each step.
fn shape(
    netlink: &mut Netlink,
    host: &Link,
    call: &Call,
    config: &BandwidthConfig,
    undo: &mut Vec<Request>,
) -> Result<Option<Interface>, CniError> {
    if let Some(limit) = config.ingress {
        limit_link(netlink, host.index, limit)?;
        undo.push(Request::delete_token_bucket(host.index));
    }
    let Some(limit) = config.egress else {
        return Ok(None);
    };
    let ifb = create_ifb(netlink, host.mtu, call)?;
    undo.push(Request::delete_link(ifb.index));
    netlink
        .execute([Request::create_ingress(host.index)])
        .map_err(|error| refused("create ingress qdisc", "sch_ingress", &error))?;
    undo.push(Request::delete_ingress(host.index));
    netlink
        .execute([Request::redirect_ingress(host.index, ifb.index)])
        .map_err(|error| refused("add filter", "cls_u32 or act_mirred", &error))?;
    limit_link(netlink, ifb.index, limit).map_err(|error| CniError {
        msg: format!("create ifb qdisc: {}", error.msg),
        ..error
    })?;
    Ok(Some(Interface {
        mac: ifb.mac_text(),
        name: ifb.name,
        ..Interface::default()
    }))
}

fn limit_link(netlink: &mut Netlink, index: u32, limit: RateLimit) -> Result<(), CniError> {
    let bucket = bucket::token_bucket(limit);
    let RateLimit { rate, burst } = limit;
    // The kernel would say only "Invalid argument".
    let fault = if bucket.rate == 0 {
        Some(format!("invalid rate {rate} bit/s: it must be 8 or more"))
    } else if bucket.buffer == 0 {
        Some(format!(
            "invalid burst {burst} bit: it must be more for {rate} bit/s"
        ))
    } else {
        None
    };
    if let Some(fault) = fault {
        return Err(CniError::internal(fault));
    }
    netlink
        .execute([Request::create_token_bucket(index, bucket)])
        .map_err(|error| refused("create qdisc", "sch_tbf", &error))
}

fn create_ifb(netlink: &mut Netlink, mtu: u32, call: &Call) -> Result<Link, CniError> {
    let network = network_name(call)?;
    let name = ifb_name(&network, &call.container_id);
    let create = Request::create_ifb(&name, mtu);
    // The alias is set in one step with the link: GC would not recognise a link without it.
    let alias = alias(&network, &call.container_id);
    let alias = alias.map(|alias| Request::alias(&name, &alias));
    netlink
        .execute([create].into_iter().chain(alias))
        .map_err(|error| refused("adding link", "ifb", &error))?;
    let link = netlink.link(&name).map_err(|error| failed(&error))?;
    link.ok_or_else(|| CniError::internal(format!("failed to lookup {name:?}: Link not found")))
}

/// Compares the link's bucket with the limit, with the reference's error texts.
fn check_bucket(link: &Link, limit: RateLimit) -> Result<(), CniError> {
    let root = root_qdisc(link.index).map_err(|error| failed(&error))?;
    let Some(current) = root.and_then(|qdisc| qdisc.bucket) else {
        return Err(CniError::internal("Failed to find qdisc"));
    };
    let wanted = bucket::token_bucket(limit);
    let fault = if current.rate != wanted.rate {
        "Rate doesn't match"
    } else if current.limit != wanted.limit {
        "Limit doesn't match"
    } else if current.buffer != wanted.buffer {
        "Buffer doesn't match"
    } else {
        return Ok(());
    };
    Err(CniError::internal(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected digits are from `sha512sum`.
    #[test]
    fn ifb_name_equals_that_of_the_reference() {
        let name = ifb_name("mynet", "c1");
        assert_eq!(name.len(), 15);
        assert_eq!(name, "bwpf0bca4ac77cd");
    }
}
