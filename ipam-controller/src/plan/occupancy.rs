//! The addresses of live pods.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_api::ObjectKey;

/// The fields of a live pod that the allocator uses. Live is a pod that is bound, not finished, and
/// not on its host's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// `spec.nodeName`.
    pub node: String,
    /// `status.podIPs`; empty until the kubelet has reported them.
    pub addresses: Vec<IpAddr>,
}

/// Live pods, by their addresses and nodes. Every query is a look-up, whatever the number of pods.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    pods: BTreeMap<ObjectKey, PodView>,
    /// The number of pods that have each address.
    addresses: BTreeMap<IpAddr, usize>,
    /// The number of pods of each node without a reported address.
    unreported: BTreeMap<String, usize>,
}

impl Occupancy {
    /// Takes in a pod's present state, `None` if it is not live, and returns its former one.
    pub(super) fn update(&mut self, key: ObjectKey, pod: Option<PodView>) -> Option<PodView> {
        if let Some(pod) = &pod {
            for address in &pod.addresses {
                *self.addresses.entry(*address).or_default() += 1;
            }
            if pod.addresses.is_empty() {
                *self.unreported.entry(pod.node.clone()).or_default() += 1;
            }
        }
        let old = match pod {
            Some(pod) => self.pods.insert(key, pod),
            None => self.pods.remove(&key),
        };
        if let Some(old) = &old {
            for address in &old.addresses {
                decrease(&mut self.addresses, address);
            }
            if old.addresses.is_empty() {
                decrease(&mut self.unreported, &old.node);
            }
        }
        old
    }

    /// Returns whether a live pod has an address of the block.
    pub(super) fn any_in(&self, net: &IpNet) -> bool {
        self.addresses
            .range(net.network()..=net.broadcast())
            .next()
            .is_some()
    }

    /// The number of addresses that several live pods have.
    pub(super) fn duplicates(&self) -> usize {
        self.addresses.values().filter(|pods| **pods > 1).count()
    }

    /// Returns whether a live pod of the node may have an address that is not reported yet.
    pub(super) fn any_unreported(&self, node: &str) -> bool {
        self.unreported.contains_key(node)
    }
}

fn decrease<K: Ord + Clone>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_addresses_that_several_live_pods_have() {
        let mut occupancy = Occupancy::default();
        let mut update = |name: &str, addresses: Option<&[&str]>| {
            let pod = addresses.map(|addresses| PodView {
                node: "node".to_owned(),
                addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect(),
            });
            occupancy.update(ObjectKey::new("default", name), pod);
            occupancy.duplicates()
        };
        assert_eq!(update("a", Some(&["10.0.0.2", "fd00::2"])), 0);
        assert_eq!(update("b", Some(&["10.0.0.2"])), 1);
        assert_eq!(update("c", Some(&["10.0.0.2", "fd00::2"])), 2);
        assert_eq!(update("b", Some(&["10.0.0.3"])), 2);
        assert_eq!(update("a", None), 0);
    }
}
