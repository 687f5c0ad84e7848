//! Which addresses live pods have.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use podplane_api::ObjectKey;

/// What of a live pod matters here: one that is bound, not finished, and not on the network of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// `spec.nodeName`.
    pub node: String,
    /// `status.podIPs`; empty until the kubelet has reported them.
    pub addresses: Vec<IpAddr>,
}

/// The live pods, by what they use. Every question is a look-up, whatever the number of pods.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    pods: BTreeMap<ObjectKey, PodView>,
    /// How many pods have each address.
    addresses: BTreeMap<IpAddr, usize>,
    /// How many pods of each node may have addresses that nobody knows yet.
    unreported: BTreeMap<String, usize>,
}

impl Occupancy {
    /// Takes in what a pod is now, `None` if it is no live one, and returns what it was.
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

    /// Whether a live pod has an address of the block.
    pub(super) fn any_in(&self, net: &IpNet) -> bool {
        self.addresses
            .range(net.network()..=net.broadcast())
            .next()
            .is_some()
    }

    /// Whether a live pod of the node may have an address that nobody knows yet.
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
