//! The plugin `loopback`: brings the container's `lo` up.

use std::path::Path;

use ipnet::IpNet;
use podplane_cni::{
    loopback::{LO, result, set_up},
    skel::{Call, Plugin, previous_result, text},
    types::{CniError, CniResult},
};
use podplane_netlink::{Netlink, NetlinkError, Request, netns};

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
        let addresses = Netlink::open_in(Path::new(&call.netns)).and_then(set_up);
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
        Ok(CniResult {
            version: call.version,
            ..result(&call.netns, &addresses)
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
