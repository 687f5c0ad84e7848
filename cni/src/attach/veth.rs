//! The veth pair: one end here, the other one in the container.

use std::{
    collections::hash_map::RandomState,
    fmt::Display,
    fs::File,
    hash::{BuildHasher, Hasher},
    io::{self, Write as _},
    os::fd::AsFd,
};

use super::accept_no_router_advertisements;
use crate::{
    netlink::{Link, Netlink, NetlinkError, Request, Veth},
    skel::text,
    types::CniError,
};

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// A pair to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair<'a> {
    /// The container's namespace.
    pub(crate) netns: &'a File,
    /// The name of the container's end.
    pub(crate) ifname: &'a str,
    /// MTU in bytes of both ends.
    pub(crate) mtu: Option<u32>,
    /// The hardware address of the container's end.
    pub(crate) mac: Option<[u8; 6]>,
    /// The bridge that the end here becomes a port of.
    pub(crate) controller: Option<u32>,
}

/// Makes the pair with a random name for the end here, which is set up. Returns that end.
pub(crate) fn create(netlink: &mut Netlink, pair: Pair<'_>) -> Result<Link, CniError> {
    const ATTEMPTS: u32 = 10;
    let Pair {
        netns,
        ifname,
        mtu,
        mac,
        controller,
    } = pair;
    let mut outcome = Err(CniError::internal("failed to find a unique veth name"));
    for _ in 0..ATTEMPTS {
        let name = format!("veth{:08x}", random());
        let veth = Veth {
            name: &name,
            peer_name: ifname,
            peer_netns: Some(netns.as_fd()),
            mtu,
            mac: None,
            peer_mac: mac,
            controller,
            up: true,
        };
        let created = netlink
            .execute([Request::create_veth(&veth)])
            .and_then(|()| netlink.link(&name));
        match created {
            Ok(Some(link)) => {
                accept_no_router_advertisements(&name);
                return Ok(link);
            }
            Ok(None) => {
                outcome = Err(CniError::internal(format!(
                    "failed to lookup {name:?}: Link not found"
                )))
            }
            Err(error) => {
                outcome = Err(failed(&error));
                if !error.is_exists() {
                    break;
                }
            }
        }
    }
    outcome
}

/// Deletes this end, and with it the other one. It is the last act of an ADD that has failed already.
pub(crate) fn delete(netlink: &mut Netlink, index: u32) {
    if let Err(error) = netlink.execute([Request::delete_link(index)]) {
        note(&text(&error));
    }
}

/// Tells of a failure of which nobody else is told.
pub(crate) fn note(what: &dyn Display) {
    _ = writeln!(io::stderr(), "{what}");
}

/// A hardware address that nobody has given out: for one device, and locally administered.
pub(crate) fn random_mac() -> [u8; 6] {
    let [first, second] = [random(), random()].map(u32::to_be_bytes);
    let [a, b, c, d] = first;
    [a & !1 | 2, b, c, d, second[0], second[1]]
}

fn random() -> u32 {
    // Keyed by the system's random numbers, anew for each state.
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).unwrap_or_default()
}
