//! What plugins share that attach a container by a veth pair.

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod veth;

use std::net::IpAddr;

use crate::sysctl::{self, SysctlError};

/// Lets the host forward packets of the families of these addresses.
pub(crate) fn enable_forwarding(
    addresses: impl IntoIterator<Item = IpAddr>,
) -> Result<(), SysctlError> {
    let (mut v4, mut v6) = (false, false);
    for address in addresses {
        v4 |= address.is_ipv4();
        v6 |= address.is_ipv6();
    }
    let keys = [
        (v4, "net/ipv4/ip_forward"),
        (v6, "net/ipv6/conf/all/forwarding"),
    ];
    for (is_needed, key) in keys {
        // To write what is there already costs a walk over all interfaces.
        if is_needed && !sysctl::read(key).is_ok_and(|value| value == "1") {
            sysctl::write(key, "1")?;
        }
    }
    Ok(())
}

/// A bridge and the host's ends of pairs are no routers' clients. A host without IPv6 has no such setting.
pub(crate) fn accept_no_router_advertisements(link: &str) {
    _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_ra"), "0");
}
