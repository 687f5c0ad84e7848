//! The invariants of the whole system. The audit command, the simulation and the end-to-end tests
//! all build a [`World`] from their observations and call [`check`].

#[cfg(test)]
mod tests;
mod tracker;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use ipnet::IpNet;

use crate::net::overlap;
pub use tracker::Tracker;

/// A cluster as observed at one moment. Every list may be in any order; unknown parts stay empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// All Node objects.
    pub nodes: Vec<Node>,
    /// All Pod objects.
    pub pods: Vec<Pod>,
    /// Former blocks of nodes whose addresses pods may still use.
    pub draining: Vec<DrainingBlock>,
    /// All allocation files of all nodes.
    pub allocations: Vec<Allocation>,
    /// All sandboxes that may own an allocation file.
    pub sandboxes: BTreeSet<Sandbox>,
    /// Writes that the apiserver acknowledged.
    pub acknowledged: Vec<Write>,
    /// The objects in the store, by the names that `acknowledged` uses.
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
    /// The number of pods that the node has addresses for. `None` if that number limits nothing, as
    /// with `--ip-policy=off`.
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
    /// True if the pod holds no address of a block, whatever `ips` says: it has released its
    /// addresses, or has no node.
    pub released: bool,
    /// True if the pod has a deletion timestamp. It holds its addresses until it is gone or has
    /// released them.
    pub deleting: bool,
    /// `status.podIPs`.
    pub ips: Vec<IpAddr>,
}

impl Pod {
    /// True if the pod takes addresses of its node's block.
    #[must_use]
    pub fn uses_pod_network(&self) -> bool {
        !self.host_network && !self.released
    }

    /// The name in reports.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// A former block of a node, which was deleted or has another block now, while pods still have
/// addresses of it.
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
    /// The name of the node on whose disk the file is.
    pub node: String,
    /// The allocated address.
    pub ip: IpAddr,
    /// The container ID in the file.
    pub owner: String,
}

/// A pod sandbox that exists on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sandbox {
    /// Name of the node.
    pub node: String,
    /// The ID that the plugins get as the container ID.
    pub id: String,
}

/// An acknowledged write, with later writes to the same object taken into account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// A name of the object, such as `Pod/default/web-0`.
    pub object: String,
    /// The state of the object after the write.
    pub left: ObjectState,
}

/// The state of an object after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// Created or updated.
    Present,
    /// Deleted.
    Absent,
}

/// The name of a pod in a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
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
    /// Two nodes have blocks that share addresses. Each block is reported once, against the widest
    /// block that contains it, and once more against an equal block if that is not the widest.
    OverlappingBlocks {
        /// Node and block.
        wide: (String, IpNet),
        /// Node and block inside `wide`, or equal to it.
        narrow: (String, IpNet),
    },
    /// A node has more live pods than addresses.
    OverCapacity {
        /// The node.
        node: String,
        /// The live pods that need an address.
        pods: u64,
        /// The number of addresses.
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
                write!(f, "address {ip} is used by live pods {}", EnglishList(pods))
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
                    EnglishList(blocks)
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

struct EnglishList<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for EnglishList<'_, T> {
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

/// Finds all violations, sorted; none if all invariants hold.
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

/// A block and its holders: the name of each, and true if the block is only draining there.
type BlockHolders<'a> = (IpNet, Vec<(&'a str, bool)>);

/// Prefixes nest or are disjoint. Sorted by address and length, the earlier blocks that overlap a
/// block are therefore those that contain it, and an earlier block that does not contain the
/// present one contains no later one either.
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
    let mut outer: Vec<BlockHolders<'_>> = Vec::new();
    let mut found = Vec::new();
    for (block, node, drains) in blocks {
        while outer.last().is_some_and(|(wide, _)| !overlap(wide, &block)) {
            outer.pop();
        }
        // A node may get its own former block again, and two draining blocks may overlap.
        let other = |(wide, holders): &BlockHolders<'_>| {
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

/// The number of live pods that need an address, for each node that has any.
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
                (ObjectState::Present, false) => Some(Violation::LostWrite {
                    object: object.clone(),
                }),
                (ObjectState::Absent, true) => Some(Violation::UndoneDelete {
                    object: object.clone(),
                }),
                (ObjectState::Present, true) | (ObjectState::Absent, false) => None,
            },
        )
}
