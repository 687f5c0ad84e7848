//! The counts of the whole cluster.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::{ServiceRanges, figures::MAX_JSON_INTEGER, free_runs};
use serde::{Serialize, Serializer};

use crate::{
    dump::{Dump, DumpedNode},
    expected::ExpectedBlocks,
    finding::{Finding, Severity},
    network::NetworkKind,
    unread::UnreadResource,
};

/// The counts of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The network, and the evidence for it.
    pub network: NetworkKind,
    /// The number of nodes.
    pub nodes: usize,
    /// The pods, by their use of the network.
    pub pods: PodSummary,
    /// The addresses of all blocks.
    pub addresses: AddressSummary,
    /// The cluster CIDRs, if they are known.
    pub blocks: Vec<BlockSummary>,
    /// The number of findings of each severity.
    pub findings: BTreeMap<&'static str, usize>,
    /// For each code, the state of its check: `on`, `inferred: …`, `incomplete: …` or `off: …`.
    pub checks: BTreeMap<&'static str, String>,
    /// Objects that could not be read, so that the checks which need them are incomplete.
    pub unread: Vec<UnreadResource>,
}

/// The pods, by their use of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSummary {
    /// All of them.
    pub total: usize,
    /// Failed or Succeeded: their addresses are free again.
    pub finished: usize,
    /// On their node's network.
    pub host_network: usize,
    /// On a node, with an address of their own.
    pub with_address: usize,
    /// On a node, without an address yet.
    pub waiting_for_address: usize,
    /// Not on a node yet.
    pub unscheduled: usize,
    /// Unscheduled pods that no node has an address for.
    pub starved: usize,
}

/// The addresses of all blocks, each once: a block that several nodes have is one, and so is an
/// address that several pods have. In JSON a number beyond 2^53-1 is a string of its digits, as
/// `plan` writes it. The counts saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressSummary {
    /// The number of pods that the nodes have addresses for.
    #[serde(serialize_with = "integer")]
    pub capacity: u128,
    /// The number of addresses that live pods have. A pod with one of each family counts once.
    #[serde(serialize_with = "integer")]
    pub used: u128,
    /// The remaining number, without orphaned addresses.
    #[serde(serialize_with = "integer")]
    pub free: u128,
}

/// A cluster CIDR in blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockSummary {
    /// The cluster CIDR.
    pub range: String,
    /// The length of a block.
    pub node_mask: u8,
    /// The number of blocks.
    pub total: u64,
    /// Blocks that overlap a service range.
    pub reserved: u64,
    /// Blocks that overlap a node's block of any size, and no service range.
    pub used: u64,
    /// Blocks that can be assigned.
    pub free: u64,
}

impl Summary {
    pub(crate) fn new(
        dump: &Dump,
        expected: &ExpectedBlocks,
        checks: BTreeMap<&'static str, String>,
    ) -> Self {
        Self {
            network: dump.network.clone(),
            nodes: dump.nodes.len(),
            pods: pods(dump),
            addresses: addresses(dump),
            blocks: blocks(dump, expected),
            findings: BTreeMap::new(),
            checks,
            unread: dump.unread.clone(),
        }
    }

    pub(crate) fn count(&mut self, findings: &[Finding]) {
        let of = |severity| {
            findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count()
        };
        let counted = Severity::ALL.map(|severity| (severity.as_str(), of(severity)));
        self.findings = counted.into();
    }
}

/// A number, or as a string of its digits if readers may round it.
fn integer<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    match u64::try_from(*number) {
        Ok(small) if *number <= MAX_JSON_INTEGER => serializer.serialize_u64(small),
        _ => serializer.collect_str(number),
    }
}

fn pods(dump: &Dump) -> PodSummary {
    let mut pods = PodSummary {
        total: dump.world.pods.len(),
        starved: dump.starved.len(),
        ..PodSummary::default()
    };
    for pod in &dump.world.pods {
        let kind = match pod {
            pod if pod.released => &mut pods.finished,
            pod if pod.host_network => &mut pods.host_network,
            pod if pod.node.is_none() => &mut pods.unscheduled,
            pod if pod.ips.is_empty() => &mut pods.waiting_for_address,
            _ => &mut pods.with_address,
        };
        *kind += 1;
    }
    pods
}

/// The addresses that nodes share because they have the same blocks.
#[derive(Default)]
struct SharedAddresses {
    capacity: u128,
    orphaned: u64,
    used: Vec<IpAddr>,
}

fn addresses(dump: &Dump) -> AddressSummary {
    let mut owners = BTreeMap::new();
    for node in &dump.nodes {
        for block in node.blocks() {
            owners.entry(block).or_insert(node.name.as_str());
        }
    }
    let mut shared = BTreeMap::<&str, SharedAddresses>::new();
    let mut owner_of = BTreeMap::new();
    for node in &dump.nodes {
        let owner = owner(node, &owners);
        owner_of.insert(node.name.as_str(), owner);
        let of_node = shared.entry(owner).or_default();
        let capacity = dump.capacity(node).unwrap_or_default();
        of_node.capacity = of_node.capacity.max(capacity);
        of_node.orphaned = of_node.orphaned.saturating_add(node.orphaned);
    }
    let mut used = Vec::new();
    for pod in dump.world.pods.iter().filter(|pod| pod.uses_pod_network()) {
        let (Some(name), Some(ip)) = (&pod.node, pod.ips.first()) else {
            continue;
        };
        used.push(*ip);
        let owner = owner_of.get(name.as_str());
        if let Some(of_node) = owner.and_then(|owner| shared.get_mut(owner)) {
            of_node.used.push(*ip);
        }
    }
    let mut sum = AddressSummary {
        used: distinct(used),
        ..AddressSummary::default()
    };
    for SharedAddresses {
        capacity,
        orphaned,
        used,
    } in shared.into_values()
    {
        let taken = distinct(used).saturating_add(orphaned.into());
        sum.capacity = sum.capacity.saturating_add(capacity);
        sum.free = sum.free.saturating_add(capacity.saturating_sub(taken));
    }
    sum
}

fn distinct(mut addresses: Vec<IpAddr>) -> u128 {
    addresses.sort_unstable();
    addresses.dedup();
    addresses.len() as u128
}

/// The first node with the widest block around the node's first one, if all of the node's blocks
/// are other nodes' too; else the node itself.
fn owner<'a>(node: &'a DumpedNode, owners: &BTreeMap<IpNet, &'a str>) -> &'a str {
    let name = node.name.as_str();
    let widest = |block: &IpNet| {
        let lengths = 0..=block.prefix_len();
        let around = lengths.filter_map(|length| IpNet::new(block.addr(), length).ok());
        let mut owners = around.filter_map(|around| owners.get(&around.trunc()).copied());
        owners.next().filter(|owner| *owner != name)
    };
    let others: Option<Vec<&str>> = node.blocks().iter().map(widest).collect();
    others
        .and_then(|others| others.first().copied())
        .unwrap_or(name)
}

fn blocks(dump: &Dump, expected: &ExpectedBlocks) -> Vec<BlockSummary> {
    let services = || ServiceRanges::as_slice(&expected.services).iter().copied();
    let claims = || {
        dump.world
            .nodes
            .iter()
            .flat_map(|node| node.pod_cidrs.iter().copied())
    };
    let count = |runs: Vec<std::ops::RangeInclusive<u64>>| {
        runs.iter()
            .map(|run| run.end() - run.start() + 1)
            .sum::<u64>()
    };
    let of_range = |range: podplane_ipam::ClusterRange| {
        let total = range.blocks();
        let unreserved = count(free_runs(&range, services()));
        let free = count(free_runs(&range, services().chain(claims())));
        BlockSummary {
            range: range.cidr().to_string(),
            node_mask: range.node_mask(),
            total,
            reserved: total - unreserved,
            used: unreserved - free,
            free,
        }
    };
    expected.blocks().map(of_range).collect()
}
