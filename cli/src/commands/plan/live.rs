//! `plan --from`: recommends ranges to add to those of a live cluster.

mod html;

use std::process::ExitCode;

use ipnet::IpNet;
use podplane_audit::{
    ControllerFlags, Dump, DumpCollector, DumpScope, ExpectationSource, ExpectedBlocks, LiveRange,
    LiveRanges,
};
use podplane_ipam::{
    AddressRange, ClusterRange, Family,
    figures::readable,
    free_runs,
    planning::{Addition, DEFAULT_MAX_PODS, additions},
};
use podplane_progress::{PlainLines, Progress};
use serde_json::{Value, json};

use super::{PlanArgs, PlanFormat, integer};
use crate::{
    commands::audit::source::{from_any_cluster, from_file},
    output::{self, sheet::Sheet},
    report::{self, UnusableInput, UsageError},
};

/// The reason to keep the mask.
const KEEP_THE_MASK: &str = "keep the mask of this live cluster: after a change of it, Kubernetes' allocator gives blocks twice (docs/cidr-change.md)";

pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    for ranges in args.cluster_cidr.iter().chain([&args.service_cidr]) {
        report::note_host_bits(ranges);
    }
    let mut flags = ControllerFlags {
        cluster_cidr: args.cluster_cidr.clone(),
        node_cidr_mask_size: args.node_cidr_mask_size,
        node_cidr_mask_size_ipv4: args.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6: args.node_cidr_mask_size_ipv6,
        service_cidr: Some(args.service_cidr.clone()).filter(|range| !range.is_empty()),
        pod_ip_resource: None,
        ipam: None,
    };
    let dump = read(args, &mut flags).map_err(UnusableInput)?;
    let expected =
        ExpectedBlocks::new(&flags, &dump).map_err(|error| UsageError(error.to_string()))?;
    let network = dump.network();
    let Some(live) = dump.live_ranges(&expected) else {
        return Err(UnusableInput(anyhow::anyhow!(
            "this network ({}: {}) has no ranges that blocks are cut from: add subnets where it takes addresses from",
            network.name,
            network.reason
        ))
        .into());
    };
    if live.ranges.is_empty() {
        return Err(UnusableInput(anyhow::anyhow!(
            "no node has a block, and no --cluster-cidr was given: there is no range to add to"
        ))
        .into());
    }
    contradiction(&expected, &live).map_err(UsageError)?;
    let plan = LivePlan::new(args, &live);
    html::write(args, &plan, &dump)?;
    output::unless_closed(match args.output {
        PlanFormat::Table => output::line(plan.sheet(&dump)),
        PlanFormat::Json => output::json(&plan.as_json(&dump)),
    })?;
    Ok(match plan.fits() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Refuses flags that contradict the cluster: the plan would be for another one.
fn contradiction(expected: &ExpectedBlocks, live: &LiveRanges) -> Result<(), String> {
    for family in [Family::V4, Family::V6] {
        let of_family = |net: &&IpNet| Family::of(net) == family;
        let blocks: Vec<_> = live.blocks.iter().filter(of_family).collect();
        let Some(first) = blocks.first() else {
            continue;
        };
        let ranges: Vec<_> = expected.ranges.iter().filter(of_family).collect();
        let is_inside = |block: &&IpNet| ranges.iter().any(|range| range.contains(*block));
        if let Some(range) = ranges.first()
            && !blocks.iter().any(is_inside)
        {
            return Err(format!(
                "--cluster-cidr {range} contains none of the {} {family} blocks of this cluster, such as {first}: give the range that they are cut from, or leave the flag out",
                blocks.len()
            ));
        }
        if let Some((mask, ExpectationSource::Given)) = expected.masks.get(&family)
            && !blocks.iter().any(|block| block.prefix_len() == *mask)
        {
            return Err(format!(
                "the {family} blocks of this cluster are /{}, not /{mask} as the flag says; {KEEP_THE_MASK}",
                first.prefix_len()
            ));
        }
    }
    Ok(())
}

fn read(args: &PlanArgs, flags: &mut ControllerFlags) -> anyhow::Result<Dump> {
    let progress = Progress::with_lines(
        "reading",
        match args.output {
            PlanFormat::Table => PlainLines::IfSlow,
            PlanFormat::Json => PlainLines::Never,
        },
    );
    let mut collector = match args.cluster.is_given() {
        true => from_any_cluster(&args.cluster, flags, DumpScope::Fields, &progress)?,
        false => DumpCollector::new(DumpScope::Fields),
    };
    for file in &args.from {
        from_file(file, &mut collector, &progress)?;
    }
    let dump = collector.finish(flags);
    let (nodes, pods) = dump.counts();
    anyhow::ensure!(
        nodes > 0 && pods > 0,
        "there are {nodes} nodes and {pods} pods in the input: pass what `kubectl get nodes,pods -A -o json` prints"
    );
    Ok(dump)
}

/// A range of the cluster, and its numbers of used and free blocks.
struct RangeUsage {
    range: ClusterRange,
    source: String,
    used: u64,
    free: u64,
}

/// The shortage of one address family, and ranges that would end it.
struct FamilyPlan {
    family: Family,
    /// The average number of blocks of a node, rounded up.
    blocks_per_node: u64,
    shortage: u64,
    additions: Vec<Addition>,
}

struct LivePlan<'a> {
    live: &'a LiveRanges,
    ranges: Vec<RangeUsage>,
    families: Vec<FamilyPlan>,
    /// The number of nodes that need blocks.
    nodes: u64,
    max_pods: u64,
    /// The requested number of pods per node, if its blocks cannot meet it.
    pods_misfit: Option<String>,
}

impl<'a> LivePlan<'a> {
    fn new(args: &PlanArgs, live: &'a LiveRanges) -> Self {
        let now = args.nodes.unwrap_or(live.nodes);
        let nodes = match (args.growth, args.horizon) {
            (Some(growth), Some(horizon)) => growth.after(now, horizon),
            _ => now,
        };
        let taken: Vec<IpNet> = live
            .blocks
            .iter()
            .chain(&live.taken)
            .chain(live.ranges.iter().map(|range| &range.cidr))
            .chain(&args.node_network)
            .map(IpNet::trunc)
            .collect();
        let usages = live.ranges.iter().filter_map(|range| usage(range, live));
        let ranges: Vec<RangeUsage> = usages.collect();
        let of_family = |family: Family| {
            let own: Vec<_> = ranges
                .iter()
                .filter(|one| one.range.family() == family)
                .collect();
            let used = live
                .blocks
                .iter()
                .filter(|block| Family::of(block) == family)
                .count() as u64;
            let blocks_per_node = used.div_ceil(live.nodes.max(1)).max(1);
            let free = own
                .iter()
                .fold(0_u64, |sum, one| sum.saturating_add(one.free));
            let required = nodes.saturating_mul(blocks_per_node);
            let shortage = required.saturating_sub(used.saturating_add(free));
            let first = &own.first()?.range;
            // Without a shortage, ranges as large as the existing one.
            let wanted = match shortage {
                0 => first.blocks(),
                lacking => lacking.max(blocks_per_node),
            };
            Some(FamilyPlan {
                family,
                blocks_per_node,
                shortage,
                additions: additions(first, &taken, wanted),
            })
        };
        let families: Vec<FamilyPlan> = [Family::V4, Family::V6]
            .into_iter()
            .filter_map(of_family)
            .collect();
        let pods_misfit = match args.max_pods {
            Some(0) => Some("no pod can run: nodes are to have 0 pods each".into()),
            Some(asked) if !live.grows => pods_misfit(asked, &ranges, &families),
            _ => None,
        };
        Self {
            pods_misfit,
            live,
            ranges,
            families,
            nodes,
            max_pods: args.max_pods.unwrap_or(DEFAULT_MAX_PODS),
        }
    }

    fn fits(&self) -> bool {
        self.shortages().next().is_none() && self.pods_misfit.is_none()
    }

    fn warnings(&self) -> Vec<String> {
        let misfit = self.pods_misfit.iter().cloned();
        misfit.chain([KEEP_THE_MASK.to_owned()]).collect()
    }

    fn shortages(&self) -> impl Iterator<Item = &FamilyPlan> {
        self.families.iter().filter(|family| family.shortage > 0)
    }

    /// The nodes of an added range, their pods each, and their pods in all.
    fn pods(&self, family: &FamilyPlan, addition: &Addition) -> (u64, u128, u128) {
        let nodes = addition.nodes / family.blocks_per_node;
        let per_node = addition
            .pods_per_node
            .saturating_mul(family.blocks_per_node.into());
        let pods = u128::from(nodes).saturating_mul(per_node.min(self.max_pods.into()));
        (nodes, per_node, pods)
    }

    /// The reasons for which the ranges are enough, or are not.
    fn verdict(&self) -> Vec<String> {
        let nodes = self.nodes;
        let lacks = self.shortages().map(|one| match one.shortage {
            1 => format!("1 {} block is missing for {nodes} nodes", one.family),
            count => format!(
                "{count} {} blocks are missing for {nodes} nodes",
                one.family
            ),
        });
        let mut reasons: Vec<String> = lacks.chain(self.pods_misfit.iter().cloned()).collect();
        if reasons.is_empty() {
            reasons.push(format!("no block is missing for {nodes} nodes"));
        }
        reasons
    }

    fn sheet(&self, dump: &Dump) -> Sheet {
        let mut sheet = Sheet::default();
        self.details(dump, &mut sheet);
        let word = if self.fits() { "yes" } else { "no" };
        let reasons = self.verdict().into_iter();
        sheet.fields("Enough", reasons.map(|reason| format!("{word}: {reason}")));
        sheet
    }

    /// All but the verdict.
    fn details(&self, dump: &Dump, sheet: &mut Sheet) {
        let network = dump.network();
        sheet.field("Network", format!("{}: {}", network.name, network.reason));
        let ranges = self.ranges.iter().map(|one| {
            let RangeUsage {
                range,
                source,
                used,
                free,
            } = one;
            format!("{range}: {used} used, {free} free ({source})")
        });
        sheet.fields("Ranges", ranges);
        let nodes = match self.nodes == self.live.nodes {
            true => format!("{} now", self.nodes),
            false => format!("{} now, {} required", self.live.nodes, self.nodes),
        };
        sheet.field("Nodes", nodes);
        sheet.field(
            "Pods per node",
            format!("at most {} now", self.live.most_pods),
        );
        for family in &self.families {
            let has_halves = family.additions.iter().any(|one| one.together.is_some());
            let rows = family.additions.iter().map(|one| {
                let (nodes, per_node, pods) = self.pods(family, one);
                let mut row = vec![
                    String::new(),
                    one.cidr.to_string(),
                    format!("/{}", one.node_mask),
                    one.nodes.to_string(),
                    nodes.to_string(),
                    readable(per_node),
                    readable(pods),
                ];
                if has_halves {
                    row.push(
                        one.together
                            .map_or_else(|| "-".into(), |net| net.to_string()),
                    );
                }
                row
            });
            let mut columns = vec![
                "",
                "RANGE",
                "MASK",
                "BLOCKS",
                "NODES",
                "PODS-PER-NODE",
                "PODS",
            ];
            if has_halves {
                columns.push("TOGETHER");
            }
            let heading = format!("{} ranges to add", family.family);
            sheet.table(&heading, &columns, rows.collect());
        }
        sheet.field("How to add one", self.live.how.clone());
        sheet.field("Warnings", KEEP_THE_MASK);
    }

    fn as_json(&self, dump: &Dump) -> Value {
        let ranges = self.ranges.iter().map(|one| {
            json!({
                "clusterCIDR": one.range.cidr(),
                "nodeCIDRMaskSize": one.range.node_mask(),
                "blocks": one.range.blocks(),
                "used": one.used,
                "free": one.free,
                "source": one.source,
            })
        });
        let families = self.families.iter().map(|family| {
            let additions = family.additions.iter().map(|one| {
                let (nodes, per_node, pods) = self.pods(family, one);
                json!({
                    "cidr": one.cidr,
                    "nodeCIDRMaskSize": one.node_mask,
                    "blocks": one.nodes,
                    "nodes": nodes,
                    "podsPerNode": integer(per_node),
                    "pods": integer(pods),
                    "together": one.together,
                })
            });
            json!({
                "family": family.family.to_string(),
                "blocksPerNode": family.blocks_per_node,
                "shortage": family.shortage,
                "additions": additions.collect::<Vec<_>>(),
            })
        });
        json!({
            "network": dump.network(),
            "nodes": self.live.nodes,
            "nodesToServe": self.nodes,
            "mostPodsOfANode": self.live.most_pods,
            "fits": self.fits(),
            "ranges": ranges.collect::<Vec<_>>(),
            "families": families.collect::<Vec<_>>(),
            "how": self.live.how,
            "warnings": self.warnings(),
        })
    }
}

/// Describes a request for more pods than the blocks of a node have addresses for.
fn pods_misfit(asked: u64, ranges: &[RangeUsage], families: &[FamilyPlan]) -> Option<String> {
    let capacity = |family: &FamilyPlan| {
        let mut own = ranges.iter().map(|one| &one.range);
        let range = own.find(|range| range.family() == family.family)?;
        let block = AddressRange::of_block(range.block(0)?)?;
        Some(
            block
                .capacity()
                .saturating_mul(family.blocks_per_node.into()),
        )
    };
    let capacity = families.iter().filter_map(capacity).min()?;
    (capacity < u128::from(asked)).then(|| {
        format!(
            "{asked} pods of a node need an address each, and its blocks have {}: larger ones are for a new cluster",
            readable(capacity)
        )
    })
}

/// The usage of a range; `None` if no such range can be cut into such blocks.
fn usage(live_range: &LiveRange, live: &LiveRanges) -> Option<RangeUsage> {
    let range = ClusterRange::new(live_range.cidr, live_range.node_mask).ok()?;
    let free_of = |taken: &mut dyn Iterator<Item = IpNet>| {
        let runs = free_runs(&range, taken);
        runs.iter()
            .map(|run| run.end() - run.start() + 1)
            .sum::<u64>()
    };
    // Other networks in the range, such as services, are neither used by nodes nor free.
    let others = live.taken.iter().filter(|net| !net.contains(&range.cidr()));
    let not_used = free_of(&mut live.blocks.iter().copied());
    let free = free_of(&mut live.blocks.iter().chain(others).copied());
    Some(RangeUsage {
        range,
        source: live_range.source.clone(),
        used: range.blocks() - not_used,
        free,
    })
}
