//! Cilium: the `CiliumNode` object of the node (`cilium.io/v2`).
//!
//! With cluster-pool and Kubernetes' host scope, `spec.ipam.podCIDRs` has the node's blocks; with
//! multi-pool, `spec.ipam.pools.allocated` has those of each pool; with ENI, Azure and Alibaba Cloud,
//! `spec.ipam.pool` has the addresses one by one, and `status.ipam.used` says who has which. In the
//! last two the operator gives the node more addresses as it uses them, some ahead of the use.
//!
//! Cilium takes addresses of the node for itself: the router, health checks and the ingress. They are
//! in `spec.addresses`, `spec.health` and `spec.ingress`, and in `status.ipam.used` by these names.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_ipam::{Family, parse_cidr};
use serde::Deserialize;
use serde_json::Value;

use super::{AllocatedAddress, NodeIpam, SourceError};

/// The bits of addresses that Cilium's allocator uses of an IPv6 block: 65,536 addresses.
const MOST_IPV6_BITS: u8 = 16;

/// The parts of a `CiliumNode` that say which addresses its pods can have. Unknown fields are
/// ignored.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct CiliumNode {
    spec: CiliumNodeSpec,
    status: CiliumNodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct CiliumNodeSpec {
    addresses: Vec<CiliumAddress>,
    health: FamilyAddresses,
    ingress: FamilyAddresses,
    ipam: IpamSpec,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct CiliumAddress {
    r#type: String,
    ip: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct FamilyAddresses {
    ipv4: String,
    ipv6: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
struct IpamSpec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    pools: Pools,
    pool: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Pools {
    allocated: Vec<PoolAllocation>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct PoolAllocation {
    pool: String,
    cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct CiliumNodeStatus {
    ipam: IpamStatus,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct IpamStatus {
    used: BTreeMap<String, UsedAddress>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct UsedAddress {
    owner: String,
}

impl CiliumNode {
    /// Reads the object.
    ///
    /// # Errors
    ///
    /// [`SourceError::Object`] if a field has another type.
    pub fn parse(name: &str, object: &Value) -> Result<Self, SourceError> {
        Self::deserialize(object).map_err(|error| invalid(name, error.to_string()))
    }

    /// The addresses of the node; those of multi-pool of the pool of this name.
    ///
    /// # Errors
    ///
    /// [`SourceError::Object`] for an invalid address or block, [`SourceError::Missing`] while the
    /// operator has given the node none.
    pub fn addresses(&self, name: &str, pool: &str) -> Result<NodeIpam, SourceError> {
        let pools = self.spec.ipam.pools.allocated.iter();
        let of_pool = pools.filter(|allocation| allocation.pool == pool);
        let blocks = of_pool.flat_map(|allocation| &allocation.cidrs);
        let blocks: Vec<_> = blocks.chain(&self.spec.ipam.pod_cidrs).collect();
        let mut ipam = if !self.spec.ipam.pool.is_empty() {
            self.single_addresses(name)?
        } else if blocks.is_empty() {
            let missing = format!("CiliumNode {name:?} has no addresses yet");
            return Err(SourceError::Missing(missing));
        } else {
            of_blocks(name, &blocks)?
        };
        for own in self.own_addresses(name)? {
            if ipam.ranges.iter().any(|range| range.contains(&own)) {
                ipam.capacity.take_one(own);
            }
        }
        Ok(ipam)
    }

    /// The addresses of `spec.ipam.pool`, with those that pods use.
    fn single_addresses(&self, name: &str) -> Result<NodeIpam, SourceError> {
        let mut ipam = NodeIpam::default();
        for text in self.spec.ipam.pool.keys() {
            let range = IpNet::from(address(name, "spec.ipam.pool", text)?);
            ipam.capacity.add(&range, 1);
            ipam.ranges.push(range);
        }
        let mut allocated = Vec::new();
        for (text, used) in &self.status.ipam.used {
            // The other owners are Cilium's own: router, health, ingress.
            if let Some((namespace, pod)) = used.owner.split_once('/') {
                allocated.push(AllocatedAddress {
                    address: address(name, "status.ipam.used", text)?,
                    pod: Some(ObjectKey {
                        namespace: namespace.into(),
                        name: pod.into(),
                    }),
                    allocation: used.owner.clone(),
                });
            }
        }
        ipam.allocated = Some(allocated);
        Ok(ipam)
    }

    /// The addresses that Cilium uses itself.
    fn own_addresses(&self, name: &str) -> Result<BTreeSet<IpAddr>, SourceError> {
        let CiliumNodeSpec {
            addresses,
            health,
            ingress,
            ipam: _,
        } = &self.spec;
        let routers = addresses.iter();
        let routers = routers.filter(|address| address.r#type == "CiliumInternalIP");
        let routers = routers.map(|address| ("spec.addresses", &address.ip));
        let others = [
            ("spec.health", &health.ipv4),
            ("spec.health", &health.ipv6),
            ("spec.ingress", &ingress.ipv4),
            ("spec.ingress", &ingress.ipv6),
        ];
        let used = self.status.ipam.used.iter();
        let used = used.filter(|(_, used)| !used.owner.contains('/'));
        let used = used.map(|(address, _)| ("status.ipam.used", address));
        let all = routers.chain(others).chain(used);
        let all = all.filter(|(_, text)| !text.is_empty());
        all.map(|(field, text)| address(name, field, text))
            .collect()
    }
}

/// The addresses of blocks, as Cilium's allocator counts: without the first and the last of a block
/// of more than two.
fn of_blocks(name: &str, blocks: &[&String]) -> Result<NodeIpam, SourceError> {
    let mut ipam = NodeIpam::default();
    for text in blocks {
        let block = parse_cidr(text)
            .map_err(|error| invalid(name, format!("block {text:?} of spec.ipam: {error}")))?;
        let bits = Family::of(&block).bits() - block.prefix_len();
        let bits = match block {
            IpNet::V4(_) => bits,
            IpNet::V6(_) => bits.min(MOST_IPV6_BITS),
        };
        let all = 1_u64 << bits;
        ipam.capacity
            .add(&block, if all > 2 { all - 2 } else { all });
        ipam.ranges.push(block);
    }
    Ok(ipam)
}

fn address(name: &str, field: &str, text: &str) -> Result<IpAddr, SourceError> {
    let parsed = text.parse();
    parsed.map_err(|_| invalid(name, format!("{field}: invalid address {text:?}")))
}

fn invalid(name: &str, reason: String) -> SourceError {
    SourceError::Object {
        kind: "CiliumNode",
        name: name.into(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(object: &Value) -> Result<NodeIpam, String> {
        let node = CiliumNode::parse("n", object).map_err(|error| error.to_string())?;
        let addresses = node.addresses("n", "default");
        addresses.map_err(|error| error.to_string())
    }

    fn own() -> Value {
        json!([{"type": "InternalIP", "ip": "172.18.0.3"},
            {"type": "CiliumInternalIP", "ip": "10.0.1.91"},
            {"type": "CiliumInternalIP", "ip": "fd00:10::1"}])
    }

    #[test]
    fn cluster_pool_gives_its_blocks_without_ciliums_own_addresses() {
        let node = json!({"spec": {
            "addresses": own(), "health": {"ipv4": "10.0.1.17", "ipv6": "fd00:10::2"},
            "ingress": {}, "ipam": {"podCIDRs": ["10.0.1.0/24", "fd00:10::/112"], "pools": {}}}});
        let ipam = of(&node).unwrap();
        assert_eq!(
            (ipam.capacity.ipv4, ipam.capacity.ipv6),
            (Some(252), Some(65_532))
        );
        assert_eq!(ipam.allocated, None);
        // The smallest block that Cilium recommends, without health checks.
        let node = json!({"spec": {"addresses": own(), "ipam": {"podCIDRs": ["10.0.1.88/29"]}}});
        assert_eq!(of(&node).unwrap().capacity.pods(), 5);
    }

    #[test]
    fn multi_pool_gives_the_blocks_of_one_pool() {
        let node = json!({"spec": {"addresses": own(), "ipam": {"pools": {
            "requested": [{"pool": "default", "needed": {"ipv4-addrs": 16}}],
            "allocated": [{"pool": "default", "cidrs": ["10.0.1.64/27", "10.0.2.0/27"]},
                {"pool": "mars", "cidrs": ["10.20.0.0/27"]}]}}}});
        let ipam = of(&node).unwrap();
        assert_eq!(ipam.capacity.pods(), 59);
        assert!(!ipam.gives("10.20.0.3".parse().unwrap()));
    }

    #[test]
    fn single_addresses_are_counted_and_their_owners_known() {
        let node = json!({
            "spec": {"addresses": own(), "eni": {"instance-type": "m5.large"}, "ipam": {"pool": {
                "10.0.1.91": {"resource": "eni-1"}, "10.0.1.92": {"resource": "eni-1"},
                "10.0.1.93": {"resource": "eni-1"}, "10.0.1.94": {"resource": "eni-1"}}}},
            "status": {"ipam": {"operator-status": {}, "used": {
                "10.0.1.91": {"owner": "router", "resource": "eni-1"},
                "10.0.1.92": {"owner": "kube-system/coredns-1", "resource": "eni-1"},
                "10.0.1.94": {"owner": "health", "resource": "eni-1"}}}}});
        let ipam = of(&node).unwrap();
        assert_eq!(ipam.capacity.pods(), 2);
        let allocated = ipam.allocated.unwrap();
        assert_eq!(allocated.len(), 1);
        let pod = allocated[0].pod.as_ref().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("kube-system", "coredns-1"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let missing = of(&json!({"spec": {"ipam": {}}})).unwrap_err();
        assert_eq!(missing, "CiliumNode \"n\" has no addresses yet");
        let block = of(&json!({"spec": {"ipam": {"podCIDRs": ["10.0.0.0/33"]}}})).unwrap_err();
        assert!(
            block.starts_with("invalid CiliumNode \"n\": block \"10.0.0.0/33\" of spec.ipam: ")
        );
        let of_type = of(&json!({"spec": {"ipam": {"podCIDRs": "10.0.0.0/24"}}})).unwrap_err();
        assert!(of_type.contains("expected a sequence"), "{of_type}");
    }
}
