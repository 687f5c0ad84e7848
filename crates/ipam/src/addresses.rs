//! The rule of pod addresses: which pods hold one, how many a node has, and how many of them are
//! free (ADR 0041).
//!
//! The API server, the scheduler, the kubelet's admission, the audit and the tables of `get nodes`
//! all use it. [`capacity`](crate::capacity) has the part about the size of a node.

use std::fmt;

use crate::capacity::NodeCapacity;

/// The facts that determine the addresses of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// True if the pod is bound to a node.
    pub is_bound: bool,
    /// True if the pod shares its node's network.
    pub is_host_network: bool,
    /// True if the pod has ended: it Succeeded or Failed.
    pub is_terminal: bool,
    /// True if the kubelet reports that the pod has no sandbox with a network.
    pub has_no_sandbox: bool,
    /// The pod's request for the resource of pod addresses, 0 if it has none.
    pub requested: u64,
}

impl PodFacts {
    /// The number of addresses that the pod needs on its node: none on the node's network, else its
    /// request, and at least one. A request and the need for an address are the same address.
    #[must_use]
    pub fn needed(&self) -> u64 {
        match self.is_host_network {
            true => 0,
            false => self.requested.max(1),
        }
    }

    /// The number of addresses that the pod holds: those that it needs, from its binding until it
    /// has ended and its kubelet reports that the sandbox is gone (ADR 0019).
    #[must_use]
    pub fn held(&self) -> u64 {
        let is_released = self.is_terminal && self.has_no_sandbox;
        match self.is_bound && !is_released {
            true => self.needed(),
            false => 0,
        }
    }
}

/// The addresses in use that a node's kubelet reports. Each is `None` if it does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageReport {
    /// Addresses that are not free and that no pod bound to the node owns.
    pub orphaned: Option<u64>,
    /// Addresses of sandboxes.
    pub allocated: Option<u64>,
}

/// The addresses of a node and their use. Its `Display` is a phrase such as
/// "0 of 5 IPs free: 4 pods, 1 orphaned".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The number of pods that the node has addresses for if none is in use.
    pub capacity: NodeCapacity,
    /// The sum of the addresses that the pods of the node hold.
    pub held: u64,
    /// The number of addresses that are not free and that no pod of the node owns: of a sandbox
    /// whose pod is gone, leaked, or cooling down in the IPAM plugin.
    pub orphaned: u64,
}

impl NodeAddresses {
    /// The addresses of a node whose pods hold `held`, with what its kubelet reports.
    ///
    /// At least as many addresses are orphaned as sandboxes have more of them than pods hold. That
    /// covers the time until the kubelet reports that a pod is gone whose sandbox is not, and a
    /// kubelet that does not report orphaned addresses: there, the larger of the pods' and the
    /// sandboxes' addresses is taken.
    #[must_use]
    pub fn of(capacity: NodeCapacity, held: u64, report: UsageReport) -> Self {
        let surplus = report.allocated.unwrap_or(0).saturating_sub(held);
        Self {
            capacity,
            held,
            orphaned: report.orphaned.unwrap_or(0).max(surplus),
        }
    }

    /// The number of addresses that no further pod can have.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.held.saturating_add(self.orphaned)
    }

    /// The number of addresses that further pods can have; 0 while the node waits for its block.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity.count().saturating_sub(self.taken())
    }

    /// Returns true if a pod that needs `needed` addresses can have them.
    #[must_use]
    pub fn has_room_for(&self, needed: u64) -> bool {
        needed <= self.free()
    }
}

impl fmt::Display for NodeAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeCapacity::Pods { count, .. } = self.capacity else {
            return f.write_str("waits for its podCIDR");
        };
        let free = self.free();
        let ips = if count == 1 { "IP" } else { "IPs" };
        let pods = if self.held == 1 { "pod" } else { "pods" };
        let Self { held, orphaned, .. } = self;
        write!(
            f,
            "{free} of {count} {ips} free: {held} {pods}, {orphaned} orphaned"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Basis;

    fn five() -> NodeCapacity {
        NodeCapacity::Pods {
            count: 5,
            basis: Basis::Report,
        }
    }

    fn report(orphaned: Option<u64>, allocated: Option<u64>) -> UsageReport {
        UsageReport {
            orphaned,
            allocated,
        }
    }

    #[test]
    fn a_pod_needs_its_request_and_at_least_one_address() {
        for (requested, is_host_network, needed) in
            [(0, false, 1), (1, false, 1), (2, false, 2), (2, true, 0)]
        {
            let pod = PodFacts {
                is_host_network,
                requested,
                ..PodFacts::default()
            };
            assert_eq!(pod.needed(), needed, "{pod:?}");
            assert_eq!(pod.held(), 0, "not bound: {pod:?}");
            let pod = PodFacts {
                is_bound: true,
                ..pod
            };
            assert_eq!(pod.held(), needed, "{pod:?}");
        }
    }

    #[test]
    fn a_pod_holds_its_addresses_until_it_has_ended_without_a_sandbox() {
        for (is_terminal, has_no_sandbox, held) in [
            (false, false, 1),
            (false, true, 1),
            (true, false, 1),
            (true, true, 0),
        ] {
            let pod = PodFacts {
                is_bound: true,
                is_terminal,
                has_no_sandbox,
                ..PodFacts::default()
            };
            assert_eq!(pod.held(), held, "{pod:?}");
        }
    }

    #[test]
    fn orphaned_addresses_are_taken_in_addition_to_those_of_pods() {
        let node = |held| NodeAddresses::of(five(), held, report(Some(4), Some(4)));
        assert_eq!((node(0).taken(), node(0).free()), (4, 1));
        assert_eq!((node(1).taken(), node(1).free()), (5, 0));
        assert_eq!(node(1).to_string(), "0 of 5 IPs free: 1 pod, 4 orphaned");
        assert!(node(0).has_room_for(1) && !node(0).has_room_for(2));
        assert!(node(1).has_room_for(0) && !node(1).has_room_for(1));
    }

    #[test]
    fn addresses_of_sandboxes_that_no_pod_holds_are_orphaned_before_they_are_reported() {
        for (held, orphaned, allocated, want) in [
            // An object was deleted, and the kubelet has not reported since.
            (4, Some(0), Some(5), 1),
            // Now it has.
            (4, Some(1), Some(5), 1),
            // Pods that are bound and have no sandbox yet do not hide orphaned addresses.
            (4, Some(1), Some(2), 1),
            // A kubelet that reports only the addresses of sandboxes, or nothing.
            (2, None, Some(3), 1),
            (3, None, Some(2), 0),
            (3, None, None, 0),
        ] {
            let node = NodeAddresses::of(five(), held, report(orphaned, allocated));
            assert_eq!(node.orphaned, want, "{held} {orphaned:?} {allocated:?}");
        }
    }

    #[test]
    fn more_taken_than_there_are_leaves_none_free() {
        let node = NodeAddresses::of(five(), u64::MAX, report(Some(7), None));
        assert_eq!((node.taken(), node.free()), (u64::MAX, 0));
        let waiting = NodeAddresses::of(NodeCapacity::AwaitsBlock, 0, UsageReport::default());
        assert_eq!(waiting.free(), 0);
        assert_eq!(waiting.to_string(), "waits for its podCIDR");
    }
}
