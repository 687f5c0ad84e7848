//! The plugin `loopback`: brings the container's `lo` up.

use std::path::Path;

use ipnet::IpNet;

use crate::{
    netlink::{Netlink, NetlinkError, Request},
    netns,
    skel::{Call, Plugin, previous_result, text},
    types::{CniError, CniResult, Interface, IpConfig},
};

const LO: &str = "lo";

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Loopback;

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    /// Answers the previous result if there is one, since nothing of it has changed.
    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let previous = previous_result(call).map_err(|error| CniError {
            msg: format!("failed to parse prevResult: {}", error.msg),
            ..error
        })?;
        let addresses = set_up(Path::new(&call.netns));
        let addresses = addresses.map_err(|error| CniError::internal(text(&error)))?;
        let is_foreign = |net: &&IpNet| !net.addr().is_loopback();
        if let Some(foreign) = addresses.iter().find(is_foreign) {
            return Err(CniError::internal(format!(
                "loopback interface found with non-loopback address \"{}\"",
                foreign.addr()
            )));
        }
        if let Some(previous) = previous {
            return Ok(previous);
        }
        // The first of each family.
        let first = |v4| addresses.iter().find(|net| net.addr().is_ipv4() == v4);
        let ips = [first(true), first(false)].into_iter().flatten();
        let ips = ips.map(|address| IpConfig {
            interface: Some(0),
            address: *address,
            gateway: None,
        });
        Ok(CniResult {
            version: call.version,
            interfaces: vec![Interface {
                name: LO.to_owned(),
                mac: "00:00:00:00:00:00".to_owned(),
                sandbox: call.netns.clone(),
                ..Interface::default()
            }],
            ips: ips.collect(),
            ..CniResult::default()
        })
    }

    /// A namespace that is gone is success, also when a file is left of it, as after a reboot.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let path = Path::new(&call.netns);
        if call.netns.is_empty() || !netns::is_netns(path) {
            return Ok(());
        }
        let set_down = || {
            let mut netlink = Netlink::open_in(path)?;
            let lo = netlink.link(LO)?;
            netlink.execute(lo.map(|lo| Request::down(lo.index)))
        };
        set_down().map_err(|error: NetlinkError| CniError::internal(text(&error)))
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let lo = || Netlink::open_in(Path::new(&call.netns))?.link(LO);
        let lo = lo().map_err(|error| CniError::internal(text(&error)))?;
        if lo.is_some_and(|lo| lo.is_up) {
            Ok(())
        } else {
            Err(CniError::internal("loopback interface is down"))
        }
    }

    fn gc(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn status(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }
}

/// Sets `lo` up, and tells its addresses.
fn set_up(netns: &Path) -> Result<Vec<IpNet>, NetlinkError> {
    let mut netlink = Netlink::open_in(netns)?;
    let Some(lo) = netlink.link(LO)? else {
        return Ok(Vec::new());
    };
    netlink.execute([Request::up(lo.index)])?;
    let addresses = netlink.addresses(lo.index)?;
    Ok(addresses.into_iter().map(|address| address.net).collect())
}
