//! What plugins share that attach a container by a veth pair.

pub(crate) mod check;
pub(crate) mod container;
pub(crate) mod veth;

use std::net::IpAddr;

use serde::Deserialize;

use crate::{
    sysctl::{self, SysctlError},
    types::Dns,
};

/// The key `dns` of a configuration. A list that is there counts, also one without entries.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DnsSection {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl DnsSection {
    /// What counts instead of IPAM's, if anything is there.
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
