//! The decision whether a pod can have an address of its node.

use std::collections::BTreeSet;

use super::status::Rejection;

/// The state of a node's addresses on which the admission of a pod depends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pods that the node has addresses for; `None` while it waits for its block.
    pub capacity: Option<i64>,
    /// UIDs of pods with an address.
    pub holders: BTreeSet<String>,
    /// Addresses that no sandbox has.
    pub leaked: i64,
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

/// Decides for the pod `uid`. `pending` are pods that were admitted and may have no address yet;
/// `is_going` returns true for the UID of a pod that is deleted or being deleted.
pub fn decide(
    uid: &str,
    holdings: &Holdings,
    pending: &BTreeSet<String>,
    is_going: impl Fn(&str) -> bool,
) -> AdmissionVerdict {
    let Some(capacity) = holdings.capacity else {
        return AdmissionVerdict::Wait;
    };
    let others = || {
        holdings
            .holders
            .union(pending)
            .filter(|other| *other != uid)
    };
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let used = count(others().count()).saturating_add(holdings.leaked);
    let going = count(others().filter(|other| is_going(other)).count());
    if used < capacity {
        AdmissionVerdict::Admit
    } else if used - going < capacity {
        AdmissionVerdict::Wait
    } else {
        AdmissionVerdict::Reject(Rejection { used, capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn a_pod_is_admitted_while_an_address_is_free() {
        let reject = |used, capacity| AdmissionVerdict::Reject(Rejection { used, capacity });
        let cases = [
            (
                "empty",
                Some(1),
                set(&[]),
                0,
                set(&[]),
                AdmissionVerdict::Admit,
            ),
            ("full", Some(1), set(&["a"]), 0, set(&[]), reject(1, 1)),
            ("promised", Some(1), set(&[]), 0, set(&["a"]), reject(1, 1)),
            (
                "counted once",
                Some(2),
                set(&["a"]),
                0,
                set(&["a"]),
                AdmissionVerdict::Admit,
            ),
            (
                "its own",
                Some(1),
                set(&["me"]),
                0,
                set(&["me"]),
                AdmissionVerdict::Admit,
            ),
            ("leaked", Some(2), set(&["a"]), 1, set(&[]), reject(2, 2)),
            ("none at all", Some(0), set(&[]), 0, set(&[]), reject(0, 0)),
            (
                "soon",
                Some(1),
                set(&["going"]),
                0,
                set(&[]),
                AdmissionVerdict::Wait,
            ),
            (
                "no block yet",
                None,
                set(&[]),
                0,
                set(&[]),
                AdmissionVerdict::Wait,
            ),
        ];
        for (name, capacity, holders, leaked, pending, want) in cases {
            let holdings = Holdings {
                capacity,
                holders,
                leaked,
            };
            let verdict = decide("me", &holdings, &pending, |uid| uid == "going");
            assert_eq!(verdict, want, "{name}");
        }
    }
}
