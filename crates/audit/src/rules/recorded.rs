//! Blocks and pools that networks record in objects of their own, and unused podCIDRs.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{
    Family,
    invariants::{self, Violation, World},
};

use super::{JoinedList, blocks::Overlaps, node as node_object};
use crate::{
    dump::Dump,
    expected::ExpectedBlocks,
    finding::{Code, Finding, Severity},
    network::BlockPlace,
    prefixes::Prefixes,
    records::{BlockRecord, System},
};

pub(super) fn findings(dump: &Dump, expected: &ExpectedBlocks) -> Vec<Finding> {
    let mut findings = scoped_overlaps(dump);
    findings.extend(orphans(dump));
    findings.extend(outside_pools(dump));
    findings.extend(overlapping_pools(dump));
    findings.extend(shared_blocks_against_flags(dump, expected));
    findings.extend(differing_copies(dump));
    findings.extend(unused_pod_cidrs(dump));
    findings.extend(invalid(dump));
    findings
}

/// Overlaps among blocks by name of the holder.
fn overlaps_among(nodes: &[invariants::Node]) -> Overlaps {
    let world = World {
        nodes: nodes.to_vec(),
        ..World::default()
    };
    let mut overlaps = Overlaps::default();
    for violation in invariants::check(&world) {
        if let Violation::OverlappingBlocks { wide, narrow } = violation {
            overlaps.add(wide, narrow);
        }
    }
    overlaps
}

fn holder(name: String, pod_cidrs: BTreeSet<IpNet>) -> invariants::Node {
    invariants::Node {
        name,
        uid: String::new(),
        pod_cidrs: pod_cidrs.into_iter().collect(),
        ip_capacity: None,
    }
}

/// Overlaps of blocks that are not the nodes' main ones: Calico's, and those of further networks of
/// OVN-Kubernetes. Such networks are apart from one another, and may have the same addresses.
fn scoped_overlaps(dump: &Dump) -> Vec<Finding> {
    let mut scopes = BTreeMap::<(System, &str), Vec<&BlockRecord>>::new();
    for record in &dump.records.blocks {
        let is_scoped = !record.scope.is_empty();
        let mut ipams = dump.network.ipams();
        let is_shared =
            record.system == System::Calico && ipams.any(|one| one == BlockPlace::SharedBlocks);
        if is_scoped || is_shared {
            let scope = (record.system, record.scope.as_str());
            scopes.entry(scope).or_default().push(record);
        }
    }
    let each = scopes.into_values().flat_map(|records| {
        let mut blocks = BTreeMap::<&str, BTreeSet<IpNet>>::new();
        for record in &records {
            // A block without a node is compared with the others, too.
            let name = record.node.as_deref().unwrap_or("no node");
            blocks.entry(name).or_default().insert(record.block);
        }
        let nodes: Vec<_> = blocks
            .into_iter()
            .map(|(name, blocks)| holder(name.to_owned(), blocks))
            .collect();
        let objects = |name: &str, block: &IpNet| {
            let same = records.iter().filter(|record| {
                record.block == *block && record.node.as_deref().unwrap_or("no node") == name
            });
            same.map(|record| record.object.clone()).collect()
        };
        overlaps_among(&nodes).findings(
            &nodes,
            objects,
            "find out who uses the addresses (calicoctl ipam check), and release the block of the other node",
        )
    });
    each.collect()
}

/// Objects and blocks of deleted nodes.
fn orphans(dump: &Dump) -> Vec<Finding> {
    if dump.nodes.is_empty() {
        return Vec::new();
    }
    let records = &dump.records;
    let mut gone = BTreeMap::<(&str, System), (BTreeSet<&str>, BTreeSet<IpNet>)>::new();
    for object in &records.node_objects {
        if !dump.has_node(&object.node) {
            let entry = gone.entry((&object.node, object.system)).or_default();
            entry.0.insert(&object.object);
        }
    }
    for record in &records.blocks {
        let node = record.node.as_deref().filter(|node| !dump.has_node(node));
        if let Some(node) = node {
            let entry = gone.entry((node, record.system)).or_default();
            entry.0.insert(&record.object);
            entry.1.insert(record.block);
        }
    }
    let finding = |((node, system), (objects, blocks)): (_, (BTreeSet<&str>, BTreeSet<IpNet>))| {
        let objects: Vec<String> = objects.into_iter().map(str::to_owned).collect();
        let blocks: Vec<_> = blocks.into_iter().collect();
        let what = match blocks.as_slice() {
            [] => String::new(),
            blocks => format!(" with {}", JoinedList(blocks)),
        };
        Finding {
            code: Code::OrphanedBlock,
            severity: Severity::Warning,
            message: format!(
                "node {node} does not exist, and has left {}{what}",
                JoinedList(&objects)
            ),
            prefixes: blocks,
            objects,
            repair: orphan_repair(system).into(),
        }
    };
    gone.into_iter().map(finding).collect()
}

const fn orphan_repair(system: System) -> &'static str {
    match system {
        System::Cilium => {
            "if the machine is gone too, delete the CiliumNode (kubectl delete ciliumnode): its block is free then"
        }
        System::Calico => {
            "if the machine is gone too, release its blocks: calicoctl ipam check, then calicoctl ipam release"
        }
        System::Azure => "if the instance is gone too, delete the NodeNetworkConfig",
        System::Aws => {
            "if the instance is gone too, look for network interfaces that it left behind, and delete the CNINode"
        }
        System::Ovn | System::Whereabouts => "if the machine is gone too, delete the object",
    }
}

/// Blocks outside of all pools, or of the pool that they name.
fn outside_pools(dump: &Dump) -> Vec<Finding> {
    let records = &dump.records;
    let mut by_system = BTreeMap::<System, Vec<IpNet>>::new();
    let mut by_name = BTreeMap::<(System, &str), Vec<IpNet>>::new();
    for pool in &records.pools {
        by_system.entry(pool.system).or_default().push(pool.cidr);
        let name = (pool.system, pool.name.as_str());
        by_name.entry(name).or_default().push(pool.cidr);
    }
    let is_checked = |record: &&BlockRecord| {
        record.scope.is_empty()
            && by_system.contains_key(&record.system)
            && (record.system != System::Cilium || record.pool.is_some())
    };
    let is_outside = |record: &&BlockRecord| {
        let pools = match &record.pool {
            Some(pool) => by_name.get(&(record.system, pool.as_str())),
            None => by_system.get(&record.system),
        };
        let mut ranges = pools.into_iter().flatten();
        !ranges.any(|range| range.contains(&record.block))
    };
    // Calico has two objects for a block.
    let mut outside = BTreeMap::<(IpNet, Option<&str>), BTreeSet<&str>>::new();
    for record in records.blocks.iter().filter(is_checked).filter(is_outside) {
        let key = (record.block, record.pool.as_deref());
        outside.entry(key).or_default().insert(&record.object);
    }
    let finding = |((block, pool), objects): ((IpNet, Option<&str>), BTreeSet<&str>)| {
        let objects: Vec<String> = objects.into_iter().map(str::to_owned).collect();
        let of = JoinedList(&objects);
        let has_pool = |name| records.pools.iter().any(|known| known.name == name);
        let message = match pool {
            None => format!("block {block} of {of} is outside of every pool"),
            Some(pool) if has_pool(pool) => {
                format!("block {block} of {of} is outside of its pool {pool}")
            }
            Some(pool) => {
                format!("block {block} of {of} is cut from pool {pool}, which does not exist")
            }
        };
        Finding {
            prefixes: vec![block],
            code: Code::BlockOutsidePool,
            severity: Severity::Warning,
            message,
            objects,
            repair:
                "add the range to a pool again, or move the pods that have addresses of the block"
                    .into(),
        }
    };
    outside.into_iter().map(finding).collect()
}

/// Pools of one network that share addresses.
fn overlapping_pools(dump: &Dump) -> Vec<Finding> {
    let mut by_object = BTreeMap::<System, BTreeMap<&str, BTreeSet<IpNet>>>::new();
    for pool in &dump.records.pools {
        let of_system = by_object.entry(pool.system).or_default();
        of_system.entry(&pool.object).or_default().insert(pool.cidr);
    }
    let each = by_object.into_values().flat_map(|pools| {
        let pools: Vec<_> = pools
            .into_iter()
            .map(|(name, cidrs)| holder(name.to_owned(), cidrs))
            .collect();
        let overlaps = overlaps_among(&pools);
        let repair = "take the range out of one of the pools, once no block is cut from it there";
        let mut findings = overlaps.findings(&pools, |name, _| vec![name.to_owned()], repair);
        for finding in &mut findings {
            // All overlaps of pools have one code, and their own noun.
            finding.code = Code::OverlappingPodCidr;
            finding.message = finding
                .message
                .replace("block ", "range ")
                .replace(" nodes: ", " pools: ");
        }
        findings
    });
    each.collect()
}

/// Compares Calico's blocks with the ranges of the flags; those of nodes are compared in `blocks`.
fn shared_blocks_against_flags(dump: &Dump, expected: &ExpectedBlocks) -> Vec<Finding> {
    if dump.network.ipam != BlockPlace::SharedBlocks {
        return Vec::new();
    }
    // Calico has two objects for a block.
    let mut blocks = BTreeMap::<IpNet, BTreeSet<&str>>::new();
    let records = dump.records.blocks.iter();
    for record in records.filter(|one| one.system == System::Calico) {
        let objects = blocks.entry(record.block).or_default();
        objects.insert(&record.object);
    }
    let ranges = Prefixes::from_iter(expected.ranges.iter().copied());
    let is_foreign = |block: &IpNet| {
        let mut ranges_of_family = expected.ranges.iter();
        ranges_of_family.any(|range| Family::of(range) == Family::of(block))
            && !ranges.has_block(block)
    };
    let foreign = blocks.iter().filter(|(block, _)| is_foreign(block));
    let foreign = foreign.map(|(block, objects)| {
        let message = format!("is outside of {}", JoinedList(&expected.ranges));
        (block, objects, message)
    });
    let mut findings = against_a_flag(
        Code::ForeignPodCidr,
        Severity::Warning,
        foreign.collect(),
        blocks.len(),
    );
    let overlapping = blocks.iter().filter_map(|(block, objects)| {
        let services = expected.services.overlapping(block)?;
        let message = format!("overlaps the service range {services}");
        Some((block, objects, message))
    });
    findings.extend(against_a_flag(
        Code::ServiceRangeOverlap,
        Severity::Error,
        overlapping.collect(),
        blocks.len(),
    ));
    findings
}

/// Blocks that contradict a flag; one line for information if all blocks do, since then the flag is
/// more likely wrong.
fn against_a_flag(
    code: Code,
    severity: Severity,
    blocks: Vec<(&IpNet, &BTreeSet<&str>, String)>,
    total: usize,
) -> Vec<Finding> {
    let first = blocks.first();
    if let Some((block, _, message)) = first.filter(|_| total > 1 && blocks.len() == total) {
        let objects = blocks.iter().flat_map(|(_, objects, _)| objects.iter());
        let objects: BTreeSet<String> = objects.map(|object| (*object).to_owned()).collect();
        return vec![Finding {
            prefixes: blocks.iter().map(|(block, ..)| **block).collect(),
            code,
            severity: Severity::Info,
            message: format!("all {total} blocks of Calico: block {block} {message}"),
            objects: objects.into_iter().collect(),
            repair:
                "see whether the flag is right; if it is, move the pods to a pool with other ranges"
                    .into(),
        }];
    }
    let finding = |(block, objects, message): (&IpNet, &BTreeSet<&str>, String)| {
        let objects: Vec<String> = objects.iter().map(|object| (*object).to_owned()).collect();
        Finding {
            prefixes: vec![*block],
            code,
            severity,
            message: format!("block {block} of {} {message}", JoinedList(&objects)),
            objects,
            repair: "move the pods to a pool with other ranges, then remove this one".into(),
        }
    };
    blocks.into_iter().map(finding).collect()
}

/// CiliumNodes that repeat podCIDRs, but one of which has other blocks than its Node.
fn differing_copies(dump: &Dump) -> Vec<Finding> {
    // Otherwise they belong to another network, as in a migration.
    if !dump.network.uses_pod_cidr() || !dump.network.has_copies {
        return Vec::new();
    }
    let mut copies = BTreeMap::<&str, BTreeSet<IpNet>>::new();
    for record in &dump.records.blocks {
        let node = record
            .node
            .as_deref()
            .filter(|_| record.system == System::Cilium);
        copies
            .entry(node.unwrap_or_default())
            .or_default()
            .insert(record.block);
    }
    let differs = |(node, blocks): (&str, BTreeSet<IpNet>)| {
        let node = dump.node_named(node)?;
        let claims = node.pod_cidr_claims();
        if claims.is_empty() || blocks.iter().all(|block| claims.contains(block)) {
            return None;
        }
        let blocks: Vec<_> = blocks.into_iter().collect();
        let name = &node.name;
        Some(Finding {
            code: Code::PodCidrMismatch,
            severity: Severity::Error,
            objects: vec![format!("CiliumNode/{name}"), node_object(name)],
            message: format!(
                "CiliumNode {name} has {}, and node {name} has {}",
                JoinedList(&blocks),
                JoinedList(&claims)
            ),
            prefixes: blocks.into_iter().chain(claims).collect(),
            repair: "restart the Cilium agent of the node, so that it takes the podCIDRs of the Node, and delete the node's pods".into(),
        })
    };
    copies.into_iter().filter_map(differs).collect()
}

/// podCIDRs that overlap while the network does not use them, which breaks nothing.
fn unused_pod_cidrs(dump: &Dump) -> Option<Finding> {
    if dump.network.uses_pod_cidr() {
        return None;
    }
    let nodes: Vec<invariants::Node> = dump
        .nodes
        .iter()
        .filter(|node| node.ipam != BlockPlace::PodCidr)
        .map(|node| {
            holder(
                node.name.clone(),
                node.pod_cidr_claims().into_iter().collect(),
            )
        })
        .collect();
    let overlaps = overlaps_among(&nodes).findings(&nodes, |node, _| vec![node_object(node)], "");
    let prefixes = overlaps.iter().flat_map(|one| one.prefixes.clone());
    let prefixes = prefixes.collect();
    let objects: BTreeSet<String> = overlaps.into_iter().flat_map(|one| one.objects).collect();
    (!objects.is_empty()).then(|| Finding {
        prefixes,
        code: Code::DuplicatePodCidr,
        severity: Severity::Info,
        message: format!(
            "podCIDRs of {} nodes overlap, and the network ({}) does not use them",
            objects.len(),
            dump.network.name
        ),
        objects: objects.into_iter().collect(),
        repair: "nothing, unless the network is to be replaced by one that uses podCIDRs".into(),
    })
}

/// Values in objects of networks that are neither addresses nor CIDRs.
fn invalid(dump: &Dump) -> impl Iterator<Item = Finding> {
    dump.records.invalid.iter().map(|(object, text)| Finding {
        prefixes: Vec::new(),
        code: Code::ForeignPodCidr,
        severity: Severity::Warning,
        objects: vec![object.clone()],
        message: format!("{object} has {text:?}, which is neither an address nor a block"),
        repair: "correct the object".into(),
    })
}
