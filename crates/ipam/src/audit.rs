//! The invariants of the whole system, stated once: the audit command, the simulation and the end-to-end tests all
//! build a [`World`] from what they can see and ask [`check`].

#[cfg(test)]
mod tests;
mod tracker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::net::overlap;
pub use tracker::Tracker;

/// A cluster as it was seen at one moment. Every list may be in any order; what is not known is left empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// All Node objects.
    pub nodes: Vec<Node>,
    /// All Pod objects.
    pub pods: Vec<Pod>,
    /// Blocks that were a node's before, and that its pods may still use.
    pub draining: Vec<DrainingBlock>,
    /// All allocation files of all nodes.
    pub allocations: Vec<Allocation>,
    /// Everything that may rightly own an allocation file.
    pub sandboxes: BTreeSet<Sandbox>,
    /// Writes that the apiserver acknowledged.
    pub acknowledged: Vec<Write>,
    /// What the store has, by the names that `acknowledged` uses.
    pub stored: BTreeSet<String>,
}

/// A Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// How many pods its addresses serve. `None` if nothing limits pods to that number, as with `--ip-policy=off`.
    pub ip_capacity: Option<u64>,
}

/// A Pod object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// `spec.hostNetwork`: its addresses are the node's.
    pub host_network: bool,
    /// It holds no address of a block, whatever `ips` says: it has given its addresses back, or has no node.
    pub released: bool,
    /// It has a deletion timestamp. It holds its addresses until it is gone or has given them back.
    pub deleting: bool,
    /// `status.podIPs`.
    pub ips: Vec<IpAddr>,
}

impl Pod {
    /// Whether the pod takes addresses of its node's block.
    #[must_use]
    pub fn uses_pod_network(&self) -> bool {
        !self.host_network && !self.released
    }

    /// Its name in reports.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A block of a node that was deleted, or that had another block, while pods still have addresses of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainingBlock {
    /// Name of the node.
    pub node: String,
    /// The block.
    pub block: IpNet,
}

/// An allocation file of an IPAM plugin.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allocation {
    /// Name of the node on whose disk it is.
    pub node: String,
    /// The address that it stands for.
    pub ip: IpAddr,
    /// The container ID in it.
    pub owner: String,
}

/// A pod sandbox that exists on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sandbox {
    /// Name of the node.
    pub node: String,
    /// The ID that the plugins get as container ID.
    pub id: String,
}

/// An acknowledged write, after all later ones to the same object are taken into account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// A name of the object, such as `Pod/default/web-0`.
    pub object: String,
    /// What it left behind.
    pub left: Left,
}

/// What a write leaves in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A create or an update.
    Present,
    /// A delete.
    Absent,
}

/// A pod in a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A broken invariant; its `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// Two or more live pods have one address.
    DuplicateAddress {
        /// The address.
        ip: IpAddr,
        /// The pods, sorted.
        pods: Vec<PodKey>,
    },
    /// A live pod has an address that is not in its node's block.
    OutsideBlock {
        /// The pod.
        pod: PodKey,
        /// The address.
        ip: IpAddr,
        /// Its node.
        node: String,
        /// The blocks of the node, draining ones included.
        blocks: Vec<IpNet>,
    },
    /// Two nodes have blocks that share addresses. Each block is reported once, against the widest that it lies in, and once more
    /// against an equal one if that is not the widest.
    OverlappingBlocks {
        /// Node and block.
        wide: (String, IpNet),
        /// Node and block inside `wide`, or equal to it.
        narrow: (String, IpNet),
    },
    /// More live pods on a node than it has addresses for.
    OverCapacity {
        /// The node.
        node: String,
        /// Live pods that need an address.
        pods: u64,
        /// Addresses.
        capacity: u64,
    },
    /// An allocation file without a sandbox.
    LeakedAddress(Allocation),
    /// An acknowledged write that the store does not have.
    LostWrite {
        /// The object.
        object: String,
    },
    /// An acknowledged delete that the store has undone.
    UndoneDelete {
        /// The object.
        object: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateAddress { ip, pods } => {
                write!(f, "address {ip} is used by live pods {}", Listed(pods))
            }
            Self::OutsideBlock {
                pod,
                ip,
                node,
                blocks,
            } if blocks.is_empty() => {
                write!(
                    f,
                    "pod {pod} has address {ip}, but its node {node} has no block"
                )
            }
            Self::OutsideBlock {
                pod,
                ip,
                node,
                blocks,
            } => {
                write!(
                    f,
                    "pod {pod} has address {ip}, which is not in {} of its node {node}",
                    Listed(blocks)
                )
            }
            Self::OverlappingBlocks { wide, narrow } => {
                write!(
                    f,
                    "block {} of node {} overlaps block {} of node {}",
                    narrow.1, narrow.0, wide.1, wide.0
                )
            }
            Self::OverCapacity {
                node,
                pods,
                capacity,
            } => {
                write!(
                    f,
                    "node {node} has {pods} live pods that need an address, and addresses for {capacity}"
                )
            }
            Self::LeakedAddress(Allocation { node, ip, owner }) => {
                write!(
                    f,
                    "address {ip} on node {node} is allocated to {owner}, which does not exist"
                )
            }
            Self::LostWrite { object } => write!(
                f,
                "{object} was written and acknowledged, and is not in the store"
            ),
            Self::UndoneDelete { object } => write!(
                f,
                "{object} was deleted and acknowledged, and is in the store again"
            ),
        }
    }
}

struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            let separator = match index {
                0 => "",
                last if last + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with the world, sorted; nothing if all is well.
#[must_use]
pub fn check(world: &World) -> Vec<Violation> {
    let mut violations: Vec<Violation> = duplicate_addresses(world)
        .chain(addresses_outside_blocks(world))
        .chain(overlapping_blocks(world))
        .chain(nodes_over_capacity(world))
        .chain(leaked_addresses(world))
        .chain(store_differences(world))
        .collect();
    violations.sort();
    violations
}

fn pods_on_network(world: &World) -> impl Iterator<Item = &Pod> {
    world.pods.iter().filter(|pod| pod.uses_pod_network())
}

fn duplicate_addresses(world: &World) -> impl Iterator<Item = Violation> {
    let mut users: Vec<(IpAddr, &Pod)> = pods_on_network(world)
        .flat_map(|pod| pod.ips.iter().map(move |ip| (*ip, pod)))
        .collect();
    users.sort_unstable_by_key(|(ip, _)| *ip);
    let shared = users.chunk_by(|(a, _), (b, _)| a == b).filter_map(|users| {
        let pods: BTreeSet<PodKey> = match users {
            [_] => return None,
            _ => users.iter().map(|(_, pod)| pod.key()).collect(),
        };
        let (ip, _) = *users.first()?;
        let pods: Vec<_> = pods.into_iter().collect();
        (pods.len() > 1).then_some(Violation::DuplicateAddress { ip, pods })
    });
    shared.collect::<Vec<_>>().into_iter()
}

fn addresses_outside_blocks(world: &World) -> impl Iterator<Item = Violation> {
    let mut blocks: BTreeMap<&str, Vec<IpNet>> = BTreeMap::new();
    let present = world.nodes.iter().flat_map(|node| {
        node.pod_cidrs
            .iter()
            .map(|cidr| (node.name.as_str(), *cidr))
    });
    for (node, block) in present.chain(
        world
            .draining
            .iter()
            .map(|old| (old.node.as_str(), old.block)),
    ) {
        blocks.entry(node).or_default().push(block);
    }
    pods_on_network(world).flat_map(move |pod| {
        let node = pod.node.as_deref().unwrap_or_default();
        let blocks = blocks.get(node).map(Vec::as_slice).unwrap_or_default();
        let outside = pod
            .ips
            .iter()
            .filter(|ip| !blocks.iter().any(|block| block.contains(*ip)));
        let violation = |ip: &IpAddr| Violation::OutsideBlock {
            pod: pod.key(),
            ip: *ip,
            node: node.to_owned(),
            blocks: blocks.to_vec(),
        };
        outside.map(violation).collect::<Vec<_>>()
    })
}

/// A block, and who holds it: names, and whether it only drains.
type Held<'a> = (IpNet, Vec<(&'a str, bool)>);

/// Prefixes nest or are apart. So, sorted by address and length, the earlier blocks that overlap one are those
/// that contain it, and what no longer contains the present block contains no later one either.
fn overlapping_blocks(world: &World) -> impl Iterator<Item = Violation> {
    let present = world.nodes.iter().flat_map(|node| {
        node.pod_cidrs
            .iter()
            .map(|cidr| (cidr.trunc(), node.name.as_str(), false))
    });
    let draining = world
        .draining
        .iter()
        .map(|old| (old.block.trunc(), old.node.as_str(), true));
    let mut blocks: Vec<_> = present.chain(draining).collect();
    blocks.sort_unstable();
    // From the widest to the narrowest; each contains the next.
    let mut outer: Vec<Held<'_>> = Vec::new();
    let mut found = Vec::new();
    for (block, node, drains) in blocks {
        while outer.last().is_some_and(|(wide, _)| !overlap(wide, &block)) {
            outer.pop();
        }
        // A node may have its own old block again, and two old blocks hurt nobody.
        let other = |(wide, holders): &Held<'_>| {
            let other = holders
                .iter()
                .find(|(holder, old)| *holder != node && !(*old && drains));
            other.map(|(holder, _)| (*wide, (*holder).to_owned()))
        };
        let widest = outer.iter().find_map(other);
        let equal = outer
            .last()
            .filter(|(wide, _)| *wide == block)
            .and_then(other);
        let both = widest
            .iter()
            .chain(equal.iter().filter(|_| widest != equal));
        found.extend(both.map(|(wide, holder)| Violation::OverlappingBlocks {
            wide: (holder.clone(), *wide),
            narrow: (node.to_owned(), block),
        }));
        match outer.last_mut() {
            Some((wide, holders)) if *wide == block => holders.push((node, drains)),
            _ => outer.push((block, vec![(node, drains)])),
        }
    }
    found.into_iter()
}

/// How many live pods need an address of each node that has any.
#[must_use]
pub fn pods_by_node(world: &World) -> BTreeMap<&str, u64> {
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    for node in pods_on_network(world).filter_map(|pod| pod.node.as_deref()) {
        *used.entry(node).or_default() += 1;
    }
    used
}

fn nodes_over_capacity(world: &World) -> impl Iterator<Item = Violation> {
    let used = pods_by_node(world);
    world.nodes.iter().filter_map(move |node| {
        let pods = used.get(node.name.as_str()).copied().unwrap_or(0);
        let capacity = node.ip_capacity?;
        (pods > capacity).then(|| Violation::OverCapacity {
            node: node.name.clone(),
            pods,
            capacity,
        })
    })
}

fn leaked_addresses(world: &World) -> impl Iterator<Item = Violation> {
    let owned = |file: &Allocation| {
        world.sandboxes.contains(&Sandbox {
            node: file.node.clone(),
            id: file.owner.clone(),
        })
    };
    world
        .allocations
        .iter()
        .filter(move |file| !owned(file))
        .cloned()
        .map(Violation::LeakedAddress)
}

fn store_differences(world: &World) -> impl Iterator<Item = Violation> {
    world
        .acknowledged
        .iter()
        .filter_map(
            |Write { object, left }| match (left, world.stored.contains(object)) {
                (Left::Present, false) => Some(Violation::LostWrite {
                    object: object.clone(),
                }),
                (Left::Absent, true) => Some(Violation::UndoneDelete {
                    object: object.clone(),
                }),
                (Left::Present, true) | (Left::Absent, false) => None,
            },
        )
}
