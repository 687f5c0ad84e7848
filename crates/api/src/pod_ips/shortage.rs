//! The text of a refusal to place a pod on a node that has no address for it.

use std::fmt;

use podplane_ipam::addresses::NodeAddresses;

use crate::ObjectKey;

/// The number of pods that a refusal names.
const NAMED: usize = 3;

/// The addresses that a pod does not find on a node. Its `Display` is a phrase such as
/// "0 of 5 IPs free: 5 pods, 0 orphaned (held by default/a, default/b, default/c and 2 more)".
#[derive(Clone, Copy, Debug)]
pub struct AddressShortage<'a> {
    /// The addresses of the node.
    pub counts: NodeAddresses,
    /// The number of addresses that the pod needs.
    pub needed: u64,
    /// The pods that hold addresses of the node.
    pub holders: &'a [ObjectKey],
}

impl fmt::Display for AddressShortage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.fmt(f)?;
        if self.needed > 1 {
            write!(f, ", and the pod needs {}", self.needed)?;
        }
        let named: Vec<_> = self
            .holders
            .iter()
            .take(NAMED)
            .map(ToString::to_string)
            .collect();
        let named = named.join(", ");
        match self.holders.len().checked_sub(NAMED) {
            Some(more @ 1..) => write!(f, " (held by {named} and {more} more)"),
            _ if named.is_empty() => Ok(()),
            _ => write!(f, " (held by {named})"),
        }
    }
}

/// The refusal of a placement on a node, with its reason.
#[must_use]
pub fn no_address_on(node: &str, why: &str) -> String {
    format!("node {node} has no address for the pod: {why}")
}

#[cfg(test)]
mod tests {
    use podplane_ipam::capacity::{Basis, NodeCapacity};

    use super::*;

    #[test]
    fn names_three_holders_and_counts_the_others() {
        let counts = NodeAddresses {
            capacity: NodeCapacity::Pods {
                count: 5,
                basis: Basis::Report,
            },
            held: 4,
            orphaned: 1,
        };
        let all: Vec<_> = ["a", "b", "c", "d"]
            .map(|name| ObjectKey::new("n", name))
            .into();
        for (needed, holders, end) in [
            (1, 0, ""),
            (1, 1, " (held by n/a)"),
            (2, 3, ", and the pod needs 2 (held by n/a, n/b, n/c)"),
            (1, 4, " (held by n/a, n/b, n/c and 1 more)"),
        ] {
            let shortage = AddressShortage {
                counts,
                needed,
                holders: &all[..holders],
            };
            let want = format!("0 of 5 IPs free: 4 pods, 1 orphaned{end}");
            assert_eq!(shortage.to_string(), want);
        }
    }
}
