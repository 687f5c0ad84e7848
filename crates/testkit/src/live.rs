//! The sandboxes that nodes really have: their records, their network namespaces, their leases.
//!
//! What the API server has can be right while two sandboxes use one address. A [`NodesObserver`]
//! takes [`NodesSnapshot`]s, and a [`SnapshotChecker`] finds what is wrong in a sequence of them.

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
use podplane_ipam::audit::{Allocation, Sandbox};

pub use observer::{NamespaceDir, NodesObserver};

/// A sandbox by its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSandbox {
    /// Its node and id.
    pub sandbox: Sandbox,
    /// Its pod: namespace and name.
    pub pod: String,
    /// Its record says that it is ready. One that is being made or taken down is not.
    pub is_ready: bool,
    /// The addresses that it was given. None while it is being made: what a plugin answers may yet be
    /// refused, and taken back.
    pub ips: BTreeSet<IpAddr>,
}

/// A network namespace of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNamespace {
    /// Its node and id.
    pub sandbox: Sandbox,
    /// The addresses that its interfaces have, without loopback and link-local ones.
    pub ips: BTreeSet<IpAddr>,
}

/// The sandboxes of all nodes at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesSnapshot {
    /// The blocks that nodes had before anything else here was read.
    pub blocks: Vec<(String, IpNet)>,
    /// All records of sandboxes that plugins may hold something for.
    pub sandboxes: Vec<ObservedSandbox>,
    /// All namespaces of sandboxes. If two have one address, both had it at one moment.
    pub namespaces: Vec<ObservedNamespace>,
    /// All leases.
    pub leases: Vec<Allocation>,
}

/// An address that is not a live sandbox's alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeViolation {
    /// An address is on interfaces of several namespaces.
    InTwoNamespaces {
        /// The address.
        ip: IpAddr,
        /// The sandboxes.
        sandboxes: Vec<Sandbox>,
    },
    /// Several sandboxes that are ready have one address, by their records.
    InTwoSandboxes {
        /// The address.
        ip: IpAddr,
        /// The sandboxes.
        sandboxes: Vec<Sandbox>,
    },
    /// A sandbox has an address of a block that was given to another node.
    InBlockOfAnother {
        /// The address.
        ip: IpAddr,
        /// Who has it.
        sandbox: Sandbox,
        /// The block.
        block: IpNet,
        /// The node that has the block.
        owner: String,
    },
    /// A sandbox is ready, and no lease keeps its address from others.
    WithoutLease {
        /// The address.
        ip: IpAddr,
        /// Who has it.
        sandbox: Sandbox,
    },
}

/// Limits of what may look wrong for a while: a snapshot is not all of one moment, and repair takes
/// its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// A record says what was until it is written again: after CNI DEL the address is free, and its
    /// record still has it.
    pub record: Duration,
    /// The lease of a live sandbox is missing until it is restored, which is before its node gives an
    /// address that it begins to give later than this.
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

/// Compares snapshots that are taken one after the other.
#[derive(Clone, Debug, Default)]
pub struct SnapshotChecker {
    patience: Patience,
    /// The sandboxes that were ready in the last snapshot.
    ready: BTreeSet<Sandbox>,
    /// When each node was last seen to have a sandbox with an address that it had not before.
    allocated: BTreeMap<String, Duration>,
    /// What looked wrong in the last snapshot, since when, and whether it was reported.
    suspicions: BTreeMap<NodeViolation, (Duration, bool)>,
}

impl SnapshotChecker {
    /// With other limits than the default ones.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            ..Self::default()
        }
    }

    /// Takes in a snapshot that was made `now` after some fixed moment. Returns what is certainly
    /// wrong and was not returned before, unless it was right in between.
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
                // It is repaired before the node gives another address, and hurts nobody until then.
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

/// Everything that looks wrong, and how long it may.
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

/// Who has which address in a namespace, of those that have it by their records, too.
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

/// The addresses that several have.
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

/// Enough of an id to find it in logs.
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
