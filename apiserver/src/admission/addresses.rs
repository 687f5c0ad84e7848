//! An index of the addresses that pods hold.
//!
//! Each address that a pod holds has a key, `/podplane/addresses/v4|v6/<bits>/<namespace>/<name>`,
//! written in the commit of the pod. So "no pod holds an address of this block" is one guard on the
//! key space, and no block is released at the moment at which a pod reports an address of it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroUsize,
};

use ipnet::IpNet;
use podplane_api::{Object as _, ObjectKey, core::Pod, pod_ips::holds_address};
use podplane_store::{Key, KeyError, ListQuery, Prefix, StoreError};

use crate::engine::Engine;

pub(super) const ADDRESSES: &str = "/podplane/addresses/";

/// An address and the pod that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressHolder {
    pub(super) address: IpAddr,
    pub(super) pod: ObjectKey,
}

/// The keys of the addresses that the pod holds.
pub(super) fn keys(pod: &Pod) -> Result<BTreeSet<Key>, KeyError> {
    let addresses = held_addresses(pod);
    addresses
        .into_iter()
        .map(|ip| key(ip, &pod.key()))
        .collect()
}

/// The key prefix of all addresses of a block.
pub(super) fn within(net: &IpNet) -> Prefix {
    let (family, bits) = match net {
        IpNet::V4(net) => ("v4", format!("{:032b}", net.network().to_bits())),
        IpNet::V6(net) => ("v6", format!("{:0128b}", net.network().to_bits())),
    };
    let length = usize::from(net.prefix_len());
    let bits = bits.get(..length).unwrap_or(&bits);
    Prefix::from(format!("{ADDRESSES}{family}/{bits}"))
}

/// The pods that hold an address of the block, by address; at most `limit`.
pub(super) async fn holders(
    engine: &Engine,
    net: &IpNet,
    limit: NonZeroUsize,
) -> Result<Vec<AddressHolder>, StoreError> {
    let query = ListQuery {
        prefix: within(net),
        limit: Some(limit),
        ..ListQuery::default()
    };
    let found = engine.list(query).await?.items;
    Ok(found.iter().filter_map(|item| parse(&item.key)).collect())
}

/// The addresses in the pod's status, if it holds any.
fn held_addresses(pod: &Pod) -> BTreeSet<IpAddr> {
    let status = pod.status.as_ref().filter(|_| holds_address(pod));
    let listed = status.into_iter().flat_map(|status| {
        let several = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
        several.chain(status.pod_ip.as_deref())
    });
    listed.filter_map(|ip| ip.parse().ok()).collect()
}

fn key(address: IpAddr, pod: &ObjectKey) -> Result<Key, KeyError> {
    let (family, bits) = match address {
        IpAddr::V4(ip) => ("v4", format!("{:032b}", ip.to_bits())),
        IpAddr::V6(ip) => ("v6", format!("{:0128b}", ip.to_bits())),
    };
    let ObjectKey { namespace, name } = pod;
    Key::try_from(format!("{ADDRESSES}{family}/{bits}/{namespace}/{name}"))
}

fn parse(key: &Key) -> Option<AddressHolder> {
    let (family, rest) = key.as_str()?.strip_prefix(ADDRESSES)?.split_once('/')?;
    let (bits, pod) = rest.split_once('/')?;
    let (namespace, name) = pod.split_once('/')?;
    let address = match family {
        "v4" => u32::from_str_radix(bits, 2)
            .map(Ipv4Addr::from_bits)
            .map(IpAddr::from),
        _ => u128::from_str_radix(bits, 2)
            .map(Ipv6Addr::from_bits)
            .map(IpAddr::from),
    };
    Some(AddressHolder {
        address: address.ok()?,
        pod: ObjectKey::new(namespace, name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_addresses_only_within_their_block() {
        let pod = ObjectKey::new("default", "a");
        for (address, inside, outside) in [
            ("10.244.1.7", "10.244.1.0/24", "10.244.2.0/24"),
            ("10.244.1.7", "0.0.0.0/0", "10.244.1.0/30"),
            ("fd00:1::7", "fd00:1::/64", "fd00:2::/64"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let key = key(address, &pod).unwrap();
            assert!(within(&inside.parse().unwrap()).contains(&key), "{inside}");
            assert!(
                !within(&outside.parse().unwrap()).contains(&key),
                "{outside}"
            );
            let pod = pod.clone();
            assert_eq!(parse(&key), Some(AddressHolder { address, pod }));
        }
    }
}
