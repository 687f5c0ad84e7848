//! The sandboxes that nodes really have: their records, their network namespaces, their leases.
//!
//! The objects in the API server can be right while two sandboxes use one address. A
//! [`NodesObserver`] takes [`NodesSnapshot`]s, and a [`SnapshotChecker`] finds violations in a
//! sequence of them.

mod observer;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;
use podplane_ipam::invariants::{Allocation, Sandbox};

pub use observer::{NamespaceDir, NodesObserver};

/// A sandbox, as its record describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSandbox {
    /// The node and the id.
    pub sandbox: Sandbox,
    /// The pod: `NAMESPACE/NAME`.
    pub pod: String,
    /// True if the record's state is Ready. A sandbox that is being made or taken down is not
    /// ready.
    pub is_ready: bool,
    /// The addresses that it was given. Empty while it is being made, because the result of a
    /// plugin may still be refused and undone.
    pub ips: BTreeSet<IpAddr>,
}

/// The network namespace of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNamespace {
    /// The node and the id.
    pub sandbox: Sandbox,
    /// The addresses of its interfaces, without loopback and link-local ones.
    pub ips: BTreeSet<IpAddr>,
}

/// The sandboxes of all nodes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesSnapshot {
    /// The blocks of nodes, by node, read before anything else here.
    pub blocks: Vec<(String, IpNet)>,
    /// All recorded sandboxes for which plugins may hold resources.
    pub sandboxes: Vec<ObservedSandbox>,
    /// All namespaces of sandboxes. If two have one address, both had it at the same moment.
    pub namespaces: Vec<ObservedNamespace>,
    /// All leases.
    pub leases: Vec<Allocation>,
}

/// An address that does not belong to exactly one live sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeViolation {
    /// The address is on interfaces in several namespaces.
    InTwoNamespaces {
        /// The address.
        ip: IpAddr,
        /// The sandboxes.
        sandboxes: Vec<Sandbox>,
    },
    /// The address is in the records of several sandboxes that are ready.
    InTwoSandboxes {
        /// The address.
        ip: IpAddr,
        /// The sandboxes.
        sandboxes: Vec<Sandbox>,
    },
    /// The address of a sandbox is in a block that was given to another node.
    InBlockOfAnother {
        /// The address.
        ip: IpAddr,
        /// The sandbox that has it.
        sandbox: Sandbox,
        /// The block.
        block: IpNet,
        /// The node to which the block was given.
        owner: String,
    },
    /// The address of a ready sandbox has no lease, so that the plugin may give it to another one.
    WithoutLease {
        /// The address.
        ip: IpAddr,
        /// The sandbox that has it.
        sandbox: Sandbox,
    },
}

/// The times for which something may look wrong: the parts of a snapshot are read at different
/// moments, and repairs take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time until a record is written again. After CNI DEL the address is free, and the record
    /// still has it.
    pub record: Duration,
    /// The time that the lease of a live sandbox may be missing before its node gives a new
    /// address. The node restores leases before each ADD, but an ADD that has begun before the loss
    /// may end after it.
    pub lease: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            record: Duration::from_secs(3),
            lease: Duration::from_secs(8),
        }
    }
}

/// Compares successive snapshots.
#[derive(Clone, Debug, Default)]
pub struct SnapshotChecker {
    patience: Patience,
    /// The sandboxes that were ready in the last snapshot.
    ready: BTreeSet<Sandbox>,
    /// The last time at which each node was seen to have a new ready sandbox with an address.
    allocated: BTreeMap<String, Duration>,
    /// Violations that the last snapshot showed, the time since which they are seen, and true if
    /// they were reported.
    suspicions: BTreeMap<NodeViolation, (Duration, bool)>,
}

impl SnapshotChecker {
    /// Makes a checker with other limits than the default ones.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            ..Self::default()
        }
    }

    /// Checks a snapshot that was taken `now`, measured from a fixed moment. Returns the violations
    /// that are certain and were not returned before, unless they were absent in between.
    pub fn check(&mut self, now: Duration, snapshot: &NodesSnapshot) -> Vec<NodeViolation> {
        let mut certain = Vec::new();
        let sandboxes = snapshot.sandboxes.iter();
        let ready = sandboxes.filter(|seen| seen.is_ready && !seen.ips.is_empty());
        let ready: BTreeSet<_> = ready.map(|seen| seen.sandbox.clone()).collect();
        for new in ready.difference(&self.ready) {
            self.allocated.insert(new.node.clone(), now);
        }
        self.ready = ready;
        let before = std::mem::take(&mut self.suspicions);
        for (violation, patience) in suspicions(snapshot, self.patience) {
            let (since, reported) = before.get(&violation).copied().unwrap_or((now, false));
            let until = match &violation {
                // The lease is restored before the node gives another address, and its absence does
                // no harm until then.
                NodeViolation::WithoutLease { sandbox, .. } => self.allocated.get(&sandbox.node),
                _ => Some(&now),
            };
            let is_certain = until.is_some_and(|until| until.saturating_sub(since) >= patience);
            if is_certain && !reported {
                certain.push(violation.clone());
            }
            self.suspicions.insert(violation, (since, is_certain));
        }
        certain
    }
}

/// Returns all possible violations, with the time for which each is tolerated.
fn suspicions(snapshot: &NodesSnapshot, patience: Patience) -> BTreeMap<NodeViolation, Duration> {
    let ready = || snapshot.sandboxes.iter().filter(|seen| seen.is_ready);
    let in_records = holders(ready().map(|seen| (&seen.sandbox, &seen.ips)));
    let in_namespaces = in_namespaces(snapshot);
    let mut found = BTreeMap::new();
    for (ip, sandboxes) in several(&in_namespaces) {
        let violation = NodeViolation::InTwoNamespaces { ip, sandboxes };
        found.insert(violation, Duration::ZERO);
    }
    for (ip, sandboxes) in several(&in_records) {
        let violation = NodeViolation::InTwoSandboxes { ip, sandboxes };
        found.insert(violation, patience.record);
    }
    for (seen, patience) in [
        (&in_records, patience.record),
        (&in_namespaces, Duration::ZERO),
    ] {
        for (ip, sandboxes) in seen {
            for violation in given_away(snapshot, *ip, sandboxes) {
                found.insert(violation, patience);
            }
        }
    }
    let leases: BTreeSet<_> = snapshot.leases.iter().collect();
    for seen in ready() {
        for ip in &seen.ips {
            let lease = Allocation {
                node: seen.sandbox.node.clone(),
                ip: *ip,
                owner: seen.sandbox.id.clone(),
            };
            if !leases.contains(&lease) {
                let violation = NodeViolation::WithoutLease {
                    ip: *ip,
                    sandbox: seen.sandbox.clone(),
                };
                found.insert(violation, patience.lease);
            }
        }
    }
    found
}

/// Returns the sandboxes that have each address in their namespaces and in their records.
fn in_namespaces(snapshot: &NodesSnapshot) -> Holders<'_> {
    let recorded = snapshot.sandboxes.iter();
    let recorded = holders(recorded.map(|seen| (&seen.sandbox, &seen.ips)));
    let mut found = holders(
        snapshot
            .namespaces
            .iter()
            .map(|seen| (&seen.sandbox, &seen.ips)),
    );
    for (ip, sandboxes) in &mut found {
        let recorded = recorded.get(ip);
        sandboxes.retain(|sandbox| recorded.is_some_and(|all| all.contains(sandbox)));
    }
    found
}

type Holders<'a> = BTreeMap<IpAddr, BTreeSet<&'a Sandbox>>;

fn holders<'a>(seen: impl Iterator<Item = (&'a Sandbox, &'a BTreeSet<IpAddr>)>) -> Holders<'a> {
    let mut holders = Holders::new();
    for (sandbox, ips) in seen {
        for ip in ips {
            holders.entry(*ip).or_default().insert(sandbox);
        }
    }
    holders
}

/// Returns the addresses with several holders.
fn several(holders: &Holders<'_>) -> impl Iterator<Item = (IpAddr, Vec<Sandbox>)> {
    let several = holders.iter().filter(|(_, sandboxes)| sandboxes.len() > 1);
    several.map(|(ip, sandboxes)| (*ip, sandboxes.iter().copied().cloned().collect()))
}

fn given_away(
    snapshot: &NodesSnapshot,
    ip: IpAddr,
    sandboxes: &BTreeSet<&Sandbox>,
) -> impl Iterator<Item = NodeViolation> {
    let blocks = snapshot
        .blocks
        .iter()
        .filter(move |(_, block)| block.contains(&ip));
    blocks.flat_map(move |(owner, block)| {
        let others = sandboxes
            .iter()
            .filter(move |sandbox| sandbox.node != *owner);
        others.map(move |sandbox| NodeViolation::InBlockOfAnother {
            ip,
            sandbox: (*sandbox).clone(),
            block: *block,
            owner: owner.clone(),
        })
    })
}

/// Formats a sandbox with enough of its id to find it in logs.
fn named(sandbox: &Sandbox) -> String {
    let id = sandbox.id.get(..13).unwrap_or(&sandbox.id);
    format!("{id} of {}", sandbox.node)
}

impl fmt::Display for NodeViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |sandboxes: &[Sandbox]| {
            let names: Vec<_> = sandboxes.iter().map(named).collect();
            names.join(", ")
        };
        match self {
            Self::InTwoNamespaces { ip, sandboxes } => {
                write!(
                    f,
                    "{ip} is in the network namespaces of sandboxes {}",
                    all(sandboxes)
                )
            }
            Self::InTwoSandboxes { ip, sandboxes } => {
                write!(
                    f,
                    "{ip} is the address of ready sandboxes {}",
                    all(sandboxes)
                )
            }
            Self::InBlockOfAnother {
                ip,
                sandbox,
                block,
                owner,
            } => write!(
                f,
                "sandbox {} has {ip}, which is in block {block} of node {owner}",
                named(sandbox)
            ),
            Self::WithoutLease { ip, sandbox } => {
                write!(f, "sandbox {} has {ip} without a lease", named(sandbox))
            }
        }
    }
}
