//! The veth pair: one end in the calling thread's namespace, the other one in the container's.

use std::{
    collections::hash_map::RandomState,
    fmt::Display,
    fs::File,
    hash::{BuildHasher, Hasher},
    io::{self, Write as _},
    os::fd::AsFd,
};

use podplane_cni::{skel::text, types::CniError};
use podplane_netlink::{Link, Netlink, NetlinkError, Request, Veth};

use super::accept_no_router_advertisements;

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// The parameters of a new pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VethPair<'a> {
    /// The container's namespace.
    pub(crate) netns: &'a File,
    /// The name of the container's end.
    pub(crate) ifname: &'a str,
    /// MTU in bytes of both ends.
    pub(crate) mtu: Option<u32>,
    /// The hardware address of the container's end.
    pub(crate) mac: Option<[u8; 6]>,
    /// The bridge that gets the host's end as a port.
    pub(crate) controller: Option<u32>,
}

/// Makes the pair, sets the host's end up and returns it. The host's end gets a random name.
pub(crate) fn create(netlink: &mut Netlink, pair: VethPair<'_>) -> Result<Link, CniError> {
    const ATTEMPTS: u32 = 10;
    let VethPair {
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
                accept_no_router_advertisements(&link);
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

/// Deletes the host's end, and with it the container's. A failed ADD calls this last, so an error
/// is only printed.
pub(crate) fn delete(netlink: &mut Netlink, index: u32) {
    if let Err(error) = netlink.execute([Request::delete_link(index)]) {
        note(&text(&error));
    }
}

/// Prints a failure that is not returned to anybody.
pub(crate) fn note(what: &dyn Display) {
    _ = writeln!(io::stderr(), "{what}");
}

/// A random unicast hardware address that is locally administered.
pub(crate) fn random_mac() -> [u8; 6] {
    let [first, second] = [random(), random()].map(u32::to_be_bytes);
    let [a, b, c, d] = first;
    [a & !1 | 2, b, c, d, second[0], second[1]]
}

fn random() -> u32 {
    // Each new state has keys from the system's random numbers.
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).unwrap_or_default()
}
