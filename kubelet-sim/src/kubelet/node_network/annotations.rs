//! The annotations in which nodes publish their networks: names and values are those of flannel's
//! kube subnet manager.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node, pod_ips::POD_RANGES};
use podplane_netlink::{mac_text, parse_mac};
use serde::{Deserialize, Serialize, de::Error as _};

use super::NetworkBackend;
use crate::kubelet::node::pod_cidrs;

/// The annotation whose value is `true` on a node that takes part.
pub const MANAGED: &str = "flannel.alpha.coreos.com/kube-subnet-manager";
/// The backend's name.
pub const BACKEND_TYPE: &str = "flannel.alpha.coreos.com/backend-type";
/// The backend's own data, in JSON; `null` if it has none.
pub const BACKEND_DATA: &str = "flannel.alpha.coreos.com/backend-data";
/// The backend's own data for IPv6.
pub const BACKEND_V6_DATA: &str = "flannel.alpha.coreos.com/backend-v6-data";
/// The address at which other nodes reach it.
pub const PUBLIC_IP: &str = "flannel.alpha.coreos.com/public-ip";
/// The IPv6 address at which other nodes reach it.
pub const PUBLIC_IPV6: &str = "flannel.alpha.coreos.com/public-ipv6";

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VtepMac(pub [u8; 6]);

impl fmt::Display for VtepMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mac_text(&self.0))
    }
}

impl Serialize for VtepMac {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VtepMac {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let mac = parse_mac(&text).map(Self);
        mac.ok_or_else(|| D::Error::custom(format_args!("invalid hardware address {text:?}")))
    }
}

/// A node's end of the tunnels, as [`BACKEND_DATA`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vtep {
    /// The identifier of the network that it is in.
    #[serde(rename = "VNI")]
    pub vni: u32,
    /// The hardware address of its device.
    #[serde(rename = "VtepMAC")]
    pub mac: VtepMac,
}

/// Two values of a kind, one for each address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// The value for the family of an address.
    pub fn of(&self, address: IpAddr) -> &T {
        match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        }
    }
}

/// A node as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The name of its backend; absent on a node that publishes none.
    pub backend: Option<String>,
    /// The addresses at which it is reached.
    pub addresses: PerFamily<Option<IpAddr>>,
    /// Its ends of tunnels.
    pub vteps: PerFamily<Option<Vtep>>,
    /// The ranges of its pods' addresses.
    pub nets: Vec<IpNet>,
}

impl Peer {
    /// The node as its object publishes it. An annotation that cannot be read counts as missing.
    pub fn of(node: &Node) -> Self {
        let annotations = node.metadata.annotations.as_ref();
        let get = |key: &str| annotations?.get(key).map(String::as_str);
        let takes_part = get(MANAGED) == Some("true");
        let published = |key: &str| get(key).filter(|_| takes_part);
        let vtep = |key: &str| serde_json::from_str(published(key)?).ok();
        let public = |key: &str| published(key).and_then(|text| text.parse().ok());
        let internal = internal_ips(node);
        let by_family = |is_ipv4: bool| {
            let mut internal = internal.iter();
            internal.find(|ip| ip.is_ipv4() == is_ipv4).copied()
        };
        let v4 = public(PUBLIC_IP).filter(IpAddr::is_ipv4);
        let v6 = public(PUBLIC_IPV6).filter(IpAddr::is_ipv6);
        Self {
            name: node.name().to_owned(),
            backend: published(BACKEND_TYPE).map(str::to_owned),
            addresses: PerFamily {
                v4: v4.or_else(|| by_family(true)),
                v6: v6.or_else(|| by_family(false)),
            },
            vteps: PerFamily {
                v4: vtep(BACKEND_DATA),
                v6: vtep(BACKEND_V6_DATA),
            },
            nets: pod_nets(node),
        }
    }

    /// Its backend, if podplane has that backend.
    pub fn known_backend(&self) -> Option<NetworkBackend> {
        self.backend.as_deref()?.parse().ok()
    }

    /// The annotations that publish this node; `None` for those without a value.
    pub fn annotations(&self) -> BTreeMap<&'static str, Option<String>> {
        let ip = |address: Option<IpAddr>| address.map(|ip| ip.to_string());
        // As flannel has it: the data of a backend that has none is null.
        let data = |vtep: Option<Vtep>, has_family: bool| match vtep {
            Some(vtep) => serde_json::to_string(&vtep).ok(),
            None => has_family.then(|| "null".to_owned()),
        };
        let PerFamily { v4, v6 } = self.addresses;
        [
            (MANAGED, Some("true".to_owned())),
            (BACKEND_TYPE, self.backend.clone()),
            (BACKEND_DATA, data(self.vteps.v4, v4.is_some())),
            (BACKEND_V6_DATA, data(self.vteps.v6, v6.is_some())),
            (PUBLIC_IP, ip(v4)),
            (PUBLIC_IPV6, ip(v6)),
        ]
        .into()
    }
}

/// The ranges of a node's pods: its blocks, unless its kubelet says that they are elsewhere.
fn pod_nets(node: &Node) -> Vec<IpNet> {
    let annotations = node.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(POD_RANGES)) {
        Some(ranges) => ranges
            .split(',')
            .filter_map(|range| range.parse().ok())
            .collect(),
        None => pod_cidrs(node)
            .iter()
            .flat_map(|cidrs| cidrs.iter().copied())
            .collect(),
    }
}

/// The internal addresses of a node, without loopback addresses. A node whose pods have addresses
/// alone has no other, and no node reaches it there.
fn internal_ips(node: &Node) -> Vec<IpAddr> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP");
    internal
        .filter_map(|address| address.address.parse().ok())
        .filter(|ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified())
        .collect()
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use serde_json::json;

    use super::*;

    fn node(annotations: serde_json::Value) -> Node {
        strict::decode(json!({
            "metadata": {"name": "n", "annotations": annotations},
            "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00:1::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.16.0.2"},
                {"type": "InternalIP", "address": "fd70::2"}]}
        }))
        .unwrap()
    }

    /// The annotations that flannel 0.28 writes on a node of two address families.
    #[test]
    fn reads_the_annotations_of_flannel_and_writes_the_same() {
        let written = json!({
            "flannel.alpha.coreos.com/backend-data": "{\"VNI\":1,\"VtepMAC\":\"82:e0:75:6c:8d:a0\"}",
            "flannel.alpha.coreos.com/backend-type": "vxlan",
            "flannel.alpha.coreos.com/backend-v6-data": "{\"VNI\":1,\"VtepMAC\":\"96:93:6d:16:14:8f\"}",
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/public-ip": "192.0.2.7",
            "flannel.alpha.coreos.com/public-ipv6": "2001:db8::7",
        });
        let peer = Peer::of(&node(written.clone()));
        assert_eq!(peer.known_backend(), Some(NetworkBackend::Vxlan));
        assert_eq!(peer.addresses.v4, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(peer.vteps.v6.unwrap().mac.to_string(), "96:93:6d:16:14:8f");
        assert_eq!(json!(peer.annotations()), written);
    }

    #[test]
    fn host_gw_publishes_null_as_backend_data() {
        let mut peer = Peer::of(&node(json!({})));
        assert_eq!((peer.backend.as_deref(), peer.nets.len()), (None, 2));
        peer.backend = Some("host-gw".to_owned());
        let written = peer.annotations();
        assert_eq!(written[BACKEND_DATA].as_deref(), Some("null"));
        assert_eq!(written[BACKEND_V6_DATA].as_deref(), Some("null"));
        assert_eq!(written[PUBLIC_IPV6].as_deref(), Some("fd70::2"));
        let read = Peer::of(&node(json!(written)));
        assert_eq!(read, peer);
    }

    #[test]
    fn ignores_annotations_that_cannot_be_read() {
        let broken = node(json!({
            MANAGED: "true", BACKEND_TYPE: "vxlan", PUBLIC_IP: "2001:db8::7",
            BACKEND_DATA: "{\"VNI\":1,\"VtepMAC\":\"82:e0\"}", BACKEND_V6_DATA: "{",
        }));
        let peer = Peer::of(&broken);
        assert_eq!(peer.vteps, PerFamily::default());
        // The node's own address, in place of one of the other family.
        assert_eq!(peer.addresses.v4, Some("172.16.0.2".parse().unwrap()));
        let unmanaged = Peer::of(&node(json!({BACKEND_TYPE: "vxlan"})));
        assert_eq!(unmanaged.backend, None);
    }

    #[test]
    fn ignores_loopback_addresses_of_nodes() {
        let mut alone = node(json!({}));
        for address in alone
            .status
            .as_mut()
            .unwrap()
            .addresses
            .iter_mut()
            .flatten()
        {
            address.address = "127.0.0.1".to_owned();
        }
        assert_eq!(Peer::of(&alone).addresses, PerFamily::default());
    }
}
