//! The few fields that the rules need of Nodes, Pods and the objects of networks, decoded
//! leniently: missing and odd values are left out.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{
        IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;

/// An object of any kind.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawObject<'a> {
    #[serde(borrow)]
    pub(crate) api_version: Text<'a>,
    #[serde(borrow)]
    pub(crate) kind: Text<'a>,
    #[serde(borrow)]
    pub(crate) metadata: LenientValue<ItemMetadata<'a>>,
    #[serde(borrow)]
    pub(crate) spec: LenientValue<ItemSpec<'a>>,
    #[serde(borrow)]
    pub(crate) status: LenientValue<ItemStatus<'a>>,
    /// A list within a list.
    #[serde(borrow)]
    pub(crate) items: LenientList<LenientValue<RawObject<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ItemMetadata<'a> {
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
    #[serde(borrow)]
    pub(crate) namespace: Text<'a>,
    #[serde(borrow)]
    pub(crate) creation_timestamp: Text<'a>,
    #[serde(borrow)]
    pub(crate) deletion_timestamp: Text<'a>,
    #[serde(borrow)]
    pub(crate) annotations: LenientValue<Annotations<'a>>,
    #[serde(borrow)]
    pub(crate) labels: LenientValue<NodeTypeLabels<'a>>,
}

/// Annotations in which networks keep blocks and addresses.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations<'a> {
    /// The node's orphaned addresses (podplane).
    #[serde(borrow, rename = "podplane.io/pod-ips-orphaned")]
    pub(crate) pod_ips_orphaned: Text<'a>,
    /// The node's addresses, if a node agent publishes fewer in the status (podplane).
    #[serde(borrow, rename = "podplane.io/pod-ips-total")]
    pub(crate) pod_ips_total: Text<'a>,
    /// The name of the resource of addresses, if it is not the default (podplane).
    #[serde(borrow, rename = "podplane.io/pod-ips-resource")]
    pub(crate) pod_ips_resource: Text<'a>,
    /// The node's blocks by network, as JSON (OVN-Kubernetes).
    #[serde(borrow, rename = "k8s.ovn.org/node-subnets")]
    pub(crate) ovn_node_subnets: Text<'a>,
    /// The block of a node outside of OVN, such as one of Windows (OVN-Kubernetes).
    #[serde(borrow, rename = "k8s.ovn.org/hybrid-overlay-node-subnet")]
    pub(crate) ovn_hybrid_subnet: Text<'a>,
    /// The pod's addresses by network, as JSON (OVN-Kubernetes).
    #[serde(borrow, rename = "k8s.ovn.org/pod-networks")]
    pub(crate) ovn_pod_networks: Text<'a>,
    /// The addresses of all interfaces of a pod, as JSON (Multus).
    #[serde(borrow, rename = "k8s.v1.cni.cncf.io/network-status")]
    pub(crate) network_status: Text<'a>,
    #[serde(borrow, rename = "projectcalico.org/IPv4Address")]
    pub(crate) calico_address: Text<'a>,
    #[serde(borrow, rename = "network.cilium.io/ipv4-cilium-host")]
    pub(crate) cilium_host: Text<'a>,
    #[serde(borrow, rename = "ovn.kubernetes.io/ip_address")]
    pub(crate) kube_ovn_address: Text<'a>,
    #[serde(borrow, rename = "ovn.kubernetes.io/allocated")]
    pub(crate) kube_ovn_allocated: Text<'a>,
    #[serde(borrow, rename = "flannel.alpha.coreos.com/public-ip")]
    pub(crate) flannel_address: Text<'a>,
    /// Ranges, separated by commas, of a podplane node whose pods are not in its podCIDRs.
    #[serde(borrow, rename = "podplane.io/pod-ranges")]
    pub(crate) pod_ranges: Text<'a>,
}

/// Labels that identify kinds of nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeTypeLabels<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(borrow, rename = "eks.amazonaws.com/compute-type")]
    pub(crate) eks_compute: Text<'a>,
    #[serde(borrow, rename = "liqo.io/type")]
    pub(crate) liqo: Text<'a>,
    #[serde(borrow, rename = "virtual-node.interlink/type")]
    pub(crate) interlink: Text<'a>,
    #[serde(borrow, rename = "cloud.google.com/gke-nodepool")]
    pub(crate) gke_nodepool: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ItemSpec<'a> {
    #[serde(borrow, rename = "podCIDR")]
    pub(crate) pod_cidr: Text<'a>,
    #[serde(borrow, rename = "podCIDRs")]
    pub(crate) pod_cidrs: LenientList<Text<'a>>,
    #[serde(borrow)]
    pub(crate) node_name: Text<'a>,
    #[serde(borrow)]
    pub(crate) host_network: Text<'a>,
    #[serde(borrow, rename = "providerID")]
    pub(crate) provider_id: Text<'a>,
    #[serde(borrow)]
    pub(crate) taints: LenientList<LenientValue<Taint<'a>>>,
    /// `Service`.
    #[serde(borrow, rename = "clusterIP")]
    pub(crate) cluster_ip: Text<'a>,
    /// `Service`.
    #[serde(borrow, rename = "clusterIPs")]
    pub(crate) cluster_ips: LenientList<Text<'a>>,
    /// `ServiceCIDR`.
    #[serde(borrow)]
    pub(crate) cidrs: LenientList<Text<'a>>,
    /// `CiliumNode`.
    pub(crate) ipam: Value,
    /// `CiliumNode`.
    pub(crate) addresses: Value,
    /// `CiliumNode`.
    pub(crate) health: Value,
    /// `CiliumPodIPPool`.
    pub(crate) ipv4: Value,
    /// `CiliumPodIPPool`.
    pub(crate) ipv6: Value,
    /// Calico's objects.
    #[serde(borrow)]
    pub(crate) cidr: Text<'a>,
    /// Calico's `IPPool`.
    #[serde(borrow)]
    pub(crate) block_size: Text<'a>,
    /// Calico's `IPAMBlock`; the field of that name in a pod is an object, and is left out.
    #[serde(borrow)]
    pub(crate) affinity: Text<'a>,
    /// Calico's `IPAMBlock` (a list), Whereabouts' `IPPool` (by offset).
    pub(crate) allocations: Value,
    /// Calico's `IPAMBlock`.
    pub(crate) attributes: Value,
    /// Calico's `BlockAffinity`.
    #[serde(borrow)]
    pub(crate) node: Text<'a>,
    /// Calico's `BlockAffinity`.
    #[serde(borrow)]
    pub(crate) state: Text<'a>,
    /// Calico's `BlockAffinity`.
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Text<'a>,
    /// Calico's objects.
    #[serde(borrow)]
    pub(crate) deleted: Text<'a>,
    /// Whereabouts' `IPPool`.
    #[serde(borrow)]
    pub(crate) range: Text<'a>,
    /// Whereabouts' `OverlappingRangeIPReservation`.
    #[serde(borrow)]
    pub(crate) podref: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint<'a> {
    #[serde(borrow)]
    pub(crate) key: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ItemStatus<'a> {
    #[serde(borrow)]
    pub(crate) phase: Text<'a>,
    #[serde(borrow, rename = "podIP")]
    pub(crate) pod_ip: Text<'a>,
    #[serde(borrow, rename = "podIPs")]
    pub(crate) pod_ips: LenientList<LenientValue<PodIp<'a>>>,
    #[serde(borrow)]
    pub(crate) conditions: LenientList<LenientValue<Condition<'a>>>,
    #[serde(borrow)]
    pub(crate) capacity: LenientValue<Amounts<'a>>,
    #[serde(borrow)]
    pub(crate) allocatable: LenientValue<Amounts<'a>>,
    #[serde(borrow)]
    pub(crate) addresses: LenientList<LenientValue<NodeAddress<'a>>>,
    #[serde(borrow)]
    pub(crate) node_info: LenientValue<NodeInfo<'a>>,
    /// `CiliumNode`.
    pub(crate) ipam: Value,
    /// `CiliumEndpoint`.
    pub(crate) networking: Value,
    /// `NodeNetworkConfig`.
    pub(crate) network_containers: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(borrow)]
    pub(crate) address: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeInfo<'a> {
    #[serde(borrow)]
    pub(crate) kubelet_version: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp<'a> {
    #[serde(borrow)]
    pub(crate) ip: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(borrow)]
    pub(crate) status: Text<'a>,
    #[serde(borrow)]
    pub(crate) message: Text<'a>,
}

/// Amounts of resources, by name.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Amounts<'a>(#[serde(borrow)] pub(crate) BTreeMap<String, Text<'a>>);

/// A string; empty if absent. A number or a boolean is converted to text.
#[derive(Debug, Default)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_set(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A value of type `T`, or the default for input of another type.
#[derive(Debug, Default)]
pub(crate) struct LenientValue<T>(pub(crate) T);

/// A list; empty for input of another type, or with one element for a single text.
#[derive(Debug)]
pub(crate) struct LenientList<T>(pub(crate) Vec<T>);

impl<T> Default for LenientList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Visits of other types by a visitor that expects an object or a list.
macro_rules! otherwise {
    ($default:expr; $($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Self::Value, E> {
            Ok($default)
        })+

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok($default)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($default)
        }

        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
            inner.deserialize_any(self)
        }
    };
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            otherwise!(Text::default(); visit_bytes: &[u8]);

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(if value { "true" } else { "false" })))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(value.to_string())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Text<'de>, A::Error> {
                drained(seq)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Text<'de>, A::Error> {
                IgnoredAny.visit_map(map)?;
                Ok(Text::default())
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for LenientValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for ObjectVisitor<T> {
            type Value = LenientValue<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            otherwise!(LenientValue::default(); visit_bytes: &[u8], visit_str: &str, visit_bool: bool, visit_i64: i64, visit_u64: u64,
                visit_i128: i128, visit_u128: u128, visit_f64: f64);

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<LenientValue<T>, A::Error> {
                drained(seq)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LenientValue<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(LenientValue)
            }
        }

        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LenientList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = LenientList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            otherwise!(LenientList::default(); visit_bytes: &[u8], visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128,
                visit_u128: u128, visit_f64: f64);

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<LenientList<T>, E> {
                let deserializer = serde::de::value::StringDeserializer::new(text.to_owned());
                Ok(LenientList(vec![T::deserialize(deserializer)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<LenientList<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(LenientList)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LenientList<T>, A::Error> {
                IgnoredAny.visit_map(map)?;
                Ok(LenientList::default())
            }
        }

        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

fn drained<'de, T: Default, A: SeqAccess<'de>>(seq: A) -> Result<T, A::Error> {
    IgnoredAny.visit_seq(seq)?;
    Ok(T::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(json: &str) -> LenientValue<RawObject<'_>> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn ignores_odd_values() {
        for json in [
            "null",
            "7",
            "\"x\"",
            "[]",
            "{}",
            r#"{"kind": {}, "metadata": null, "spec": [1, {}], "status": -1.5e300}"#,
            r#"{"kind": [], "spec": {"podCIDR": {}, "podCIDRs": {"a": 1}, "nodeName": null}, "status": {"podIPs": [null, 3, "x", {"ip": [7]}]}}"#,
        ] {
            let LenientValue(item) = item(json);
            assert!(!item.kind.is_set(), "{json}");
            assert!(!item.spec.0.pod_cidr.is_set(), "{json}");
            assert!(
                item.status.0.pod_ips.0.iter().all(|ip| !ip.0.ip.is_set()),
                "{json}"
            );
        }
    }

    #[test]
    fn reads_scalars_as_text_and_a_text_as_a_list() {
        let LenientValue(item) = item(
            r#"{"metadata": {"name": 7, "namespace": true}, "spec": {"podCIDRs": "10.0.0.0/24"}}"#,
        );
        assert_eq!(item.metadata.0.name.as_str(), "7");
        assert_eq!(item.metadata.0.namespace.as_str(), "true");
        let [only] = &item.spec.0.pod_cidrs.0[..] else {
            panic!("{item:?}")
        };
        assert_eq!(only.as_str(), "10.0.0.0/24");
    }
}
