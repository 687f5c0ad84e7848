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

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, future::ready};
use ipnet::IpNet;
use podplane_api::{
    Object as _, ObjectKey,
    core::{Pod, PodCondition, PodIP, PodSpec, PodStatus},
    pod_ips::holds_address,
};
use podplane_proto::error::ApiError;
use podplane_store::{Item, Key, KeyError, ListQuery, MAX_WRITES, Prefix, StoreError, Txn, Write};
use serde::Deserialize;

use super::{Admission, CommitAdditions, ProposedChange};
use crate::{engine::Engine, error, storage};

const ADDRESSES: &str = "/podplane/addresses/";

/// Maintains the index as pods change.
#[derive(Debug)]
pub(crate) struct PodAddressIndex;

/// An address and the pod that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressHolder {
    pub(super) address: IpAddr,
    pub(super) pod: ObjectKey,
}

impl PodAddressIndex {
    /// Makes the index agree with the pods, in case a version without the index wrote the store.
    pub(crate) async fn open(engine: &Engine) -> Result<Self, StoreError> {
        let mut wanted = BTreeSet::new();
        for item in pods_under(engine, storage::prefix::<Pod>(), None).await? {
            let Some(pod) = StoredPod::read(&item) else {
                continue;
            };
            let keys = held_addresses(&pod)
                .into_iter()
                .map(|ip| key(ip, &pod.key()));
            wanted.extend(keys.filter_map(Result::ok));
        }
        let mut writes = Vec::new();
        for item in pods_under(engine, Prefix::from(ADDRESSES), None).await? {
            if !wanted.remove(&item.key) {
                writes.push(Write::Delete { key: item.key });
            }
        }
        writes.extend(wanted.into_iter().map(put));
        for writes in writes.chunks(MAX_WRITES) {
            let txn = Txn {
                guards: Vec::new(),
                writes: writes.to_vec(),
                reclaims: false,
            };
            engine.commit(txn).await?;
        }
        Ok(Self)
    }
}

impl Admission<Pod> for PodAddressIndex {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Pod>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        let additions = || {
            let mut additions = CommitAdditions::default();
            let Some(pod) = change.new.or(change.old) else {
                return Ok(additions);
            };
            let addresses = |pod: Option<&Pod>| pod.map(held_addresses).unwrap_or_default();
            let (before, after) = (addresses(change.old), addresses(change.new));
            let key = |ip: &IpAddr| key(*ip, &pod.key()).map_err(|error| error::internal(&error));
            for ip in before.difference(&after) {
                additions.writes.push(Write::Delete { key: key(ip)? });
            }
            for ip in after.difference(&before) {
                additions.writes.push(put(key(ip)?));
            }
            Ok(additions)
        };
        ready(additions()).boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, Pod>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // There are no guards.
        ready(Ok(())).boxed()
    }
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
    let found = pods_under(engine, within(net), Some(limit)).await?;
    Ok(found.iter().filter_map(|item| parse(&item.key)).collect())
}

async fn pods_under(
    engine: &Engine,
    prefix: Prefix,
    limit: Option<NonZeroUsize>,
) -> Result<Vec<Item>, StoreError> {
    let query = ListQuery {
        prefix,
        limit,
        ..ListQuery::default()
    };
    Ok(engine.list(query).await?.items)
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

fn put(key: Key) -> Write {
    Write::Put {
        key,
        value: Bytes::new(),
    }
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

/// The fields of a stored pod that the index needs, without decoding the rest.
#[derive(Deserialize)]
struct StoredPod {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpecFields,
    #[serde(default)]
    status: PodStatusFields,
}

#[derive(Deserialize)]
struct PodMetadata {
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecFields {
    node_name: Option<String>,
    host_network: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusFields {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
    conditions: Option<Vec<PodCondition>>,
}

impl StoredPod {
    fn read(item: &Item) -> Option<Pod> {
        let Self {
            metadata,
            spec,
            status,
        } = serde_json::from_slice(&item.value).ok()?;
        let mut pod = Pod::default();
        pod.metadata.name = Some(metadata.name);
        pod.metadata.namespace = Some(metadata.namespace);
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            host_network: spec.host_network,
            ..PodSpec::default()
        });
        pod.status = Some(PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            conditions: status.conditions,
            ..PodStatus::default()
        });
        Some(pod)
    }
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
