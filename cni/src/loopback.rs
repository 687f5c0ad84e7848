//! The plugin `loopback`: brings the container's `lo` up.

use std::path::Path;

use crate::{
    netlink::{Netlink, NetlinkError, Request},
    skel::{Call, Plugin, text},
    types::{CniError, CniResult, Interface, IpConfig, json},
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
        let addresses =
            set_up(Path::new(&call.netns)).map_err(|error| CniError::internal(text(&error)))?;
        let config = json::parse_folded(&call.stdin).map_err(CniError::internal)?;
        if let Some(previous) = config.get("prevresult").filter(|value| value.is_object()) {
            return CniResult::from_value(previous, call.version.as_str())
                .map_err(CniError::internal);
        }
        let ips = addresses.into_iter().map(|address| IpConfig {
            interface: Some(0),
            address,
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

    fn del(&self, call: &Call) -> Result<(), CniError> {
        let path = Path::new(&call.netns);
        if call.netns.is_empty() || !path.exists() {
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
fn set_up(netns: &Path) -> Result<Vec<ipnet::IpNet>, NetlinkError> {
    let mut netlink = Netlink::open_in(netns)?;
    let Some(lo) = netlink.link(LO)? else {
        return Ok(Vec::new());
    };
    netlink.execute([Request::up(lo.index)])?;
    let addresses = netlink.addresses(lo.index)?;
    Ok(addresses.into_iter().map(|address| address.net).collect())
}
