//! The decision whether a pod can have its addresses of its node.

use std::collections::BTreeMap;

use podplane_ipam::{NodeAddresses, capacity::NodeCapacity};

use super::status::Rejection;

/// The state of a node's addresses on which the admission of a pod depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// The pods that the node has addresses for.
    pub capacity: NodeCapacity,
    /// The addresses of pods that have some, by UID.
    pub holders: BTreeMap<String, u64>,
    /// Addresses that no pod bound to the node owns.
    pub orphaned: u64,
    /// Those of them that are of sandboxes, which are being removed.
    pub ending: u64,
}

/// A pod that wants addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applicant<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// The number of addresses that it needs.
    pub needed: u64,
}

/// The answer to a pod that wants an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// There is one, and it is kept for the pod.
    Admit,
    /// There is none, but a pod that is gone or going still holds one, or the node's block is about
    /// to come: ask again soon.
    Wait,
    /// There is none.
    Reject(Rejection),
}

/// Decides for a pod. `pending` are pods that were admitted and may have no address yet, with what
/// they need; `is_going` returns true for the UID of a pod that is deleted or being deleted.
pub fn decide(
    pod: Applicant<'_>,
    holdings: &Holdings,
    pending: &BTreeMap<String, u64>,
    is_going: impl Fn(&str) -> bool,
) -> AdmissionVerdict {
    if holdings.capacity == NodeCapacity::AwaitsBlock {
        return AdmissionVerdict::Wait;
    }
    let mut others = holdings.holders.clone();
    others.extend(pending.clone());
    others.remove(pod.uid);
    let with = |held, orphaned| NodeAddresses {
        capacity: holdings.capacity,
        held,
        orphaned,
    };
    let now = with(others.values().sum(), holdings.orphaned);
    if now.has_room_for(pod.needed) {
        return AdmissionVerdict::Admit;
    }
    let staying = others.iter().filter(|(uid, _)| !is_going(uid));
    let staying = staying.map(|(_, held)| held).sum();
    let soon = with(staying, holdings.orphaned.saturating_sub(holdings.ending));
    if soon.has_room_for(pod.needed) {
        AdmissionVerdict::Wait
    } else {
        AdmissionVerdict::Reject(Rejection {
            requested: pod.needed,
            used: now.taken(),
            capacity: now.capacity.count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use podplane_ipam::capacity::Basis;

    use super::*;

    const ME: Applicant<'_> = Applicant {
        uid: "me",
        needed: 1,
    };

    fn pods(each: &[(&str, u64)]) -> BTreeMap<String, u64> {
        each.iter()
            .map(|(uid, held)| ((*uid).to_owned(), *held))
            .collect()
    }

    fn node(count: u64, holders: &[(&str, u64)]) -> Holdings {
        Holdings {
            capacity: NodeCapacity::Pods {
                count,
                basis: Basis::Report,
            },
            holders: pods(holders),
            orphaned: 0,
            ending: 0,
        }
    }

    fn verdict(holdings: &Holdings, pending: &[(&str, u64)]) -> AdmissionVerdict {
        decide(ME, holdings, &pods(pending), |uid| uid == "going")
    }

    fn reject(used: u64, capacity: u64) -> AdmissionVerdict {
        AdmissionVerdict::Reject(Rejection {
            requested: 1,
            used,
            capacity,
        })
    }

    #[test]
    fn a_pod_is_admitted_while_an_address_is_free() {
        let (admit, wait) = (AdmissionVerdict::Admit, AdmissionVerdict::Wait);
        let one = ("a", 1);
        for (name, holdings, pending, want) in [
            ("empty", node(1, &[]), &[][..], admit.clone()),
            ("full", node(1, &[one]), &[], reject(1, 1)),
            ("promised", node(1, &[]), &[one], reject(1, 1)),
            ("counted once", node(2, &[one]), &[one], admit.clone()),
            ("its own", node(1, &[("me", 1)]), &[("me", 1)], admit),
            ("two of a pod", node(2, &[("a", 2)]), &[], reject(2, 2)),
            ("none at all", node(0, &[]), &[], reject(0, 0)),
            ("soon", node(1, &[("going", 1)]), &[], wait.clone()),
        ] {
            assert_eq!(verdict(&holdings, pending), want, "{name}");
        }
        let no_block = Holdings {
            capacity: NodeCapacity::AwaitsBlock,
            ..node(0, &[])
        };
        assert_eq!(verdict(&no_block, &[]), wait);
    }

    #[test]
    fn orphaned_addresses_are_not_free_and_those_of_sandboxes_are_waited_for() {
        let with = |orphaned, ending| Holdings {
            orphaned,
            ending,
            ..node(2, &[("a", 1)])
        };
        assert_eq!(verdict(&with(0, 0), &[]), AdmissionVerdict::Admit);
        assert_eq!(verdict(&with(1, 0), &[]), reject(2, 2));
        assert_eq!(verdict(&with(1, 1), &[]), AdmissionVerdict::Wait);
        assert_eq!(verdict(&with(2, 1), &[]), reject(3, 2));
    }

    #[test]
    fn a_pod_that_needs_two_addresses_is_admitted_with_two_free_ones() {
        let pod = Applicant { needed: 2, ..ME };
        let decide = |count| decide(pod, &node(count, &[("a", 1)]), &pods(&[]), |_| false);
        assert_eq!(decide(3), AdmissionVerdict::Admit);
        let rejection = Rejection {
            requested: 2,
            used: 1,
            capacity: 2,
        };
        assert_eq!(decide(2), AdmissionVerdict::Reject(rejection));
    }
}
