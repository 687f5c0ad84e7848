//! The repair of findings: the new blocks of nodes, and the steps.
//!
//! A block cannot be changed in a live Node, so a node that needs another one is deleted and
//! applied anew. The nodes are chosen so that as few pods as possible are recreated, and the blocks
//! so that nobody has, had or still uses them.

mod conflicts;
mod manifest;
mod residents;
mod runbook;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{
    ClusterRange, Family, free_runs,
    invariants::{Pod, PodKey, pods_by_node},
};
use serde_json::{Map, Value};

use self::residents::Residents;
use crate::{
    dump::{Dump, DumpedNode},
    expected::ExpectedBlocks,
    finding::{Code, Finding, Severity},
    rules::{self, AuditReport},
};

/// The reasons why no repair can be written.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The ranges of blocks are not known.
    #[error("missing --cluster-cidr: a repair chooses blocks of it")]
    NoRange,
    /// The length of a block is not known, or impossible in that range.
    #[error(
        "missing length of blocks in {0}, which a repair chooses: give --node-cidr-mask-size, or -ipv4 and -ipv6"
    )]
    NoMask(IpNet),
    /// The repair would not change the addresses of pods.
    #[error("{0}")]
    Unfit(String),
}

/// The steps of a repair, in order.
#[derive(Debug)]
pub struct Repair {
    /// Nodes that are deleted and applied anew, in the order of their names.
    pub moves: Vec<NodeMove>,
    /// Nodes without a block, which can be given one as they are.
    pub assigned: Vec<NodeMove>,
    /// Nodes that cannot be repaired, with the reason.
    pub left: Vec<(String, String)>,
    /// Pods with wrong addresses on nodes that keep their blocks, as `NAMESPACE/NAME`: they are
    /// deleted, so that their owners create others.
    pub pods: Vec<String>,
}

/// A node and its new blocks.
#[derive(Debug)]
pub struct NodeMove {
    /// Its name.
    pub node: String,
    /// Its present blocks, as written.
    pub from: Vec<String>,
    /// Its new blocks, one for each cluster CIDR and in their order.
    pub to: Vec<IpNet>,
    /// The reasons for moving this node.
    pub why: Vec<String>,
    /// The number of its pods with an address of their own.
    pub pods: u64,
    /// Set if these pods have addresses of the new blocks already.
    pub has_its_pods: bool,
    object: Option<Map<String, Value>>,
}

impl Repair {
    /// Plans a repair of every finding of at least this severity. The dump must have been read with
    /// [`DumpScope::Nodes`](crate::DumpScope::Nodes).
    ///
    /// # Errors
    ///
    /// [`RepairError`] if blocks are needed and their ranges are not known, or if the network does
    /// not take pods' addresses from podCIDRs.
    pub fn new(
        dump: &Dump,
        expected: &ExpectedBlocks,
        report: &AuditReport,
        at_least: Severity,
    ) -> Result<Self, RepairError> {
        if let Some(why) = dump.network.refuses_repair() {
            return Err(RepairError::Unfit(why));
        }
        let mut wrong = wrong_nodes(dump, expected, at_least);
        let counted = |code| {
            let of_code =
                move |finding: &&Finding| finding.code == code && finding.severity >= at_least;
            report.findings.iter().filter(of_code)
        };
        let used = pods_by_node(&dump.world);
        let pods = |node: &str| used.get(node).copied().unwrap_or_default();
        let residents = Residents::new(dump);
        let stays = dump.nodes.iter().flat_map(|node| {
            let blocks = match wrong.contains_key(node.name.as_str()) {
                true => kept_blocks(node, expected),
                false => node.claims(),
            };
            let residents = &residents;
            blocks.into_iter().map(move |block| {
                let holder = conflicts::BlockHolder {
                    pods: residents.inside(&node.name, &block),
                    created: &node.created,
                    name: &node.name,
                };
                (block, holder)
            })
        });
        let mut lost = BTreeSet::new();
        for loss in conflicts::resolve(stays.collect()) {
            wrong.entry(loss.node).or_default().push(loss.why.clone());
            lost.insert((loss.node, loss.block));
        }
        let missing = counted(Code::MissingPodCidr).flat_map(|finding| &finding.objects);
        let missing: BTreeSet<&str> = missing
            .filter_map(|object| object.strip_prefix("Node/"))
            .collect();
        let mut repair = Self {
            moves: Vec::new(),
            assigned: Vec::new(),
            left: Vec::new(),
            pods: Vec::new(),
        };
        if !wrong.is_empty() || !missing.is_empty() {
            let mut free = FreeBlocks::new(dump, expected)?;
            for node in &dump.nodes {
                let name = node.name.as_str();
                let why = match (wrong.remove(name), missing.contains(name)) {
                    (Some(why), _) => why,
                    (None, true) => vec!["it has none".into()],
                    (None, false) => continue,
                };
                let keeps = kept_blocks(node, expected).into_iter();
                let keeps = keeps
                    .filter(|block| !lost.contains(&(name, *block)))
                    .collect();
                let lived_in = residents.free_blocks(node, dump, expected, &free);
                let pods_count = pods(name);
                repair.place(
                    node,
                    &[keeps, lived_in].concat(),
                    why,
                    pods_count,
                    &mut free,
                );
                if let Some(placed) = repair.last_placed(name) {
                    placed.has_its_pods = residents.are_all_in(name, &placed.to);
                }
            }
        }
        repair.pods = repair.wrong_pods(
            dump,
            counted(Code::PodOutsideBlock).chain(counted(Code::DuplicatePodIp)),
        );
        Ok(repair)
    }

    /// The files of the repair, by name: a manifest for each node that is applied anew, and
    /// `RUNBOOK.md`. `audit` is the command line that made the findings, for the check at the end.
    #[must_use]
    pub fn files(&self, audit: &str) -> Vec<(String, String)> {
        let manifests = self.moves.iter().map(|moved| {
            let object = moved.object.clone().unwrap_or_default();
            (
                manifest::file(&moved.node),
                manifest::text(object, &moved.node, &moved.to),
            )
        });
        let runbook = ("RUNBOOK.md".to_owned(), runbook::text(self, audit));
        manifests.chain([runbook]).collect()
    }

    /// Returns whether there is nothing to repair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            moves,
            assigned,
            left,
            pods,
        } = self;
        moves.is_empty() && assigned.is_empty() && left.is_empty() && pods.is_empty()
    }

    fn place(
        &mut self,
        node: &DumpedNode,
        keeps: &[IpNet],
        why: Vec<String>,
        pods: u64,
        free: &mut FreeBlocks,
    ) {
        if !is_name(&node.name) {
            // The name becomes a file name and an argument of a command.
            let problem = "its name is not valid in Kubernetes".to_owned();
            self.left.push((node.name.clone(), problem));
            return;
        }
        match free.blocks(keeps) {
            Err(range) => {
                let problem = format!(
                    "no block of {range} is free, and the node needs one: {}",
                    why.join("; ")
                );
                self.left.push((node.name.clone(), problem));
            }
            Ok(to) => {
                let from: Vec<String> = node.texts().into_iter().map(str::to_owned).collect();
                let list = if from.is_empty() {
                    &mut self.assigned
                } else {
                    &mut self.moves
                };
                list.push(NodeMove {
                    node: node.name.clone(),
                    from,
                    to,
                    why,
                    pods,
                    has_its_pods: false,
                    object: node.object.clone(),
                });
            }
        }
    }

    fn last_placed(&mut self, node: &str) -> Option<&mut NodeMove> {
        let lists = [self.moves.last_mut(), self.assigned.last_mut()];
        lists.into_iter().flatten().find(|moved| moved.node == node)
    }

    /// The pods of findings that must be deleted: those of drained nodes are replaced anyway, and
    /// of several with one address one may stay.
    fn wrong_pods<'a>(
        &self,
        dump: &Dump,
        findings: impl Iterator<Item = &'a Finding>,
    ) -> Vec<String> {
        let moved: BTreeSet<&str> = self.moves.iter().map(|moved| moved.node.as_str()).collect();
        let mut wrong = BTreeSet::new();
        for finding in findings {
            let pods = finding
                .objects
                .iter()
                .filter_map(|object| object.strip_prefix("Pod/"));
            // Findings come in the order of codes, so pods outside of their blocks are known by
            // now.
            let pods = pods.filter(|pod| !wrong.contains(*pod));
            let pods = pods.filter(|pod| {
                !find(dump, pod)
                    .and_then(|pod| pod.node.as_deref())
                    .is_some_and(|node| moved.contains(node))
            });
            // A node without a block may get the one that the pod's address is in.
            let is_settled = |pod: &Pod| {
                let mut given = self.assigned.iter();
                let given = given.find(|given| pod.node.as_deref() == Some(&given.node));
                let is_given =
                    |ip| given.is_some_and(|given| given.to.iter().any(|to| to.contains(ip)));
                !pod.ips.is_empty() && pod.ips.iter().all(is_given)
            };
            let is_outside = finding.code == Code::PodOutsideBlock;
            let pods = pods.filter(|pod| !(is_outside && find(dump, pod).is_some_and(is_settled)));
            let may_stay = usize::from(finding.code == Code::DuplicatePodIp);
            let pods: Vec<_> = pods
                .skip(may_stay)
                .filter(|pod| pod.split('/').all(is_name))
                .map(str::to_owned)
                .collect();
            wrong.extend(pods);
        }
        wrong.into_iter().collect()
    }
}

fn find<'a>(dump: &'a Dump, key: &str) -> Option<&'a Pod> {
    let (namespace, name) = key.split_once('/')?;
    dump.pod_named(&PodKey {
        namespace: namespace.into(),
        name: name.into(),
    })
}

/// Returns whether the text is a DNS name, as names of objects are.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
}

/// The nodes whose own blocks are wrong, whatever others have, with the reasons.
fn wrong_nodes<'a>(
    dump: &'a Dump,
    expected: &ExpectedBlocks,
    at_least: Severity,
) -> BTreeMap<&'a str, Vec<String>> {
    let severity = rules::severity(dump, expected);
    let of_node = |node: &'a DumpedNode| {
        let findings = rules::of_node(node, dump, expected).into_iter();
        let counted = findings.filter(|finding| {
            severity(finding) >= at_least && finding.code != Code::MissingPodCidr
        });
        let why: Vec<String> = counted.map(|finding| finding.message).collect();
        (!why.is_empty()).then_some((node.name.as_str(), why))
    };
    dump.nodes.iter().filter_map(of_node).collect()
}

/// The valid blocks of a node, at most one of each cluster CIDR.
fn kept_blocks(node: &DumpedNode, expected: &ExpectedBlocks) -> Vec<IpNet> {
    let blocks = node.blocks();
    let of_range = |range: ClusterRange| {
        let fits = |block: &&IpNet| {
            range.cidr().contains(*block)
                && block.prefix_len() == range.node_mask()
                && expected.services.overlapping(block).is_none()
        };
        blocks.iter().find(fits).copied()
    };
    expected.blocks().filter_map(of_range).collect()
}

/// Blocks that nobody uses, has, or had in this dump; each is returned once.
struct FreeBlocks {
    ranges: Vec<(ClusterRange, Box<dyn Iterator<Item = u64>>)>,
    /// Blocks that this repair has assigned.
    given: Vec<IpNet>,
}

impl FreeBlocks {
    fn new(dump: &Dump, expected: &ExpectedBlocks) -> Result<Self, RepairError> {
        let ranges: Vec<_> = expected.blocks().collect();
        let unknown = expected
            .ranges
            .iter()
            .find(|range| !ranges.iter().any(|known| known.cidr() == **range));
        match unknown {
            Some(range) => return Err(RepairError::NoMask(*range)),
            None if ranges.is_empty() => return Err(RepairError::NoRange),
            None => {}
        }
        let claims = dump
            .world
            .nodes
            .iter()
            .flat_map(|node| node.pod_cidrs.iter().copied());
        let draining = dump.world.draining.iter().map(|old| old.block);
        let pods = dump.world.pods.iter().filter(|pod| pod.uses_pod_network());
        let addresses = pods.flat_map(|pod| pod.ips.iter().map(|ip| IpNet::from(*ip)));
        let services = expected.services.as_slice().iter().copied();
        let taken: Vec<IpNet> = claims
            .chain(draining)
            .chain(addresses)
            .chain(services)
            .collect();
        let free = |range: ClusterRange| {
            let runs = free_runs(&range, taken.iter().copied());
            let numbers: Box<dyn Iterator<Item = u64>> = Box::new(runs.into_iter().flatten());
            (range, numbers)
        };
        Ok(Self {
            ranges: ranges.into_iter().map(free).collect(),
            given: Vec::new(),
        })
    }

    /// A block of each range: the kept one, or a free one. Fails with the range that has none.
    fn blocks(&mut self, keeps: &[IpNet]) -> Result<Vec<IpNet>, ClusterRange> {
        let of_range = |(range, numbers): &mut (ClusterRange, Box<dyn Iterator<Item = u64>>)| {
            let kept = keeps
                .iter()
                .find(|block| range.cidr().contains(*block))
                .copied();
            kept.or_else(|| range.block(numbers.next()?)).ok_or(*range)
        };
        let blocks: Vec<IpNet> = self
            .ranges
            .iter_mut()
            .map(of_range)
            .collect::<Result<_, _>>()?;
        self.given.extend(&blocks);
        Ok(blocks)
    }
}

/// The `ip` command's flag for the block's family.
fn family_flag(block: &IpNet) -> &'static str {
    match Family::of(block) {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}
