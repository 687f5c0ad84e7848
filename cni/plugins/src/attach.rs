//! Code shared by the plugins that attach a container by a veth pair.

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod veth;

use std::net::IpAddr;

use podplane_cni::types::Dns;
use podplane_netlink::{
    Link,
    sysctl::{self, SysctlError},
};
use serde::Deserialize;

/// The key `dns` of a configuration. A list counts as set even if it is empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DnsSection {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsSection {
    /// The configured DNS settings, which replace IPAM's; `None` if the key sets nothing.
    pub(crate) fn given(self) -> Option<Dns> {
        let Self {
            nameservers,
            domain,
            search,
            options,
        } = self;
        let has_list = [&nameservers, &search, &options]
            .iter()
            .any(|list| list.is_some());
        (has_list || !domain.is_empty()).then(|| Dns {
            nameservers: nameservers.unwrap_or_default(),
            domain,
            search: search.unwrap_or_default(),
            options: options.unwrap_or_default(),
        })
    }
}

/// Enables forwarding on the host for the address families of `addresses`.
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
        // Writing the same value again would cost a walk over all interfaces.
        if is_needed && !sysctl::read(key).is_ok_and(|value| value == "1") {
            sysctl::write(key, "1")?;
        }
    }
    Ok(())
}

/// Makes a bridge, or the host's end of a pair, ignore router advertisements. A host without IPv6
/// has no such setting.
pub(crate) fn accept_no_router_advertisements(link: &Link) {
    if link.ipv6.is_none_or(|ipv6| ipv6.accept_ra != 0) {
        _ = sysctl::write(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0");
    }
}
