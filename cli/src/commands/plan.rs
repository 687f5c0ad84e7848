//! `plan`: computes an address plan before there is a cluster, or ranges to add to a live one.

mod html;
mod live;

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use podplane_ipam::{
    RangeFlags, ServiceRanges, cidr_of_flag, cidrs_of_flag,
    figures::{MAX_JSON_INTEGER, readable},
    mask_size_of_flag,
    net::Family,
    planning::{
        Alternative, DEFAULT_MAX_PODS, Growth, Limit, MOST_YEARS, Period, Plan, Question,
        RangePlan, RecommendedRange,
    },
};
use serde_json::{Value, json};

use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
    output::{self, sheet::Sheet},
    report::UsageError,
};

/// The cluster CIDR of a plan without one.
const DEFAULT_CLUSTER_CIDR: &str = "10.244.0.0/16";
/// The largest distance of the shown masks from the one in force; the JSON has all masks.
const NEIGHBOURS: u8 = 4;

/// Calculate an address plan: nodes, pods per node, limits, overlaps and recommendations
///
/// Needs no cluster. With --from, --kubeconfig or --in-cluster, it recommends free ranges to add to
/// those of a live cluster.
///
/// Exit codes: 0 the plan fits; 1 no pod can have an address, or the requested nodes (--nodes, or
/// those at --horizon) or pods per node (--max-pods) do not fit; 2 the IPAM controller would not
/// start with the flags.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("count").args(["nodes", "from", "kubeconfig", "in_cluster"]).multiple(true)),
    after_help = "Examples:\n  podplane plan --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24 --nodes 300\n  podplane plan --cluster-cidr 10.255.0.0/19 --node-cidr-mask-size 29 --service-cidr 10.255.31.0/24 --max-pods 5\n  podplane plan --cluster-cidr 10.0.0.0/14,fd00::/48 --nodes 200 --growth 20%/year --horizon 5 -o json\n  podplane plan --from dump.json --cluster-cidr 10.244.0.0/16 --growth 20%/year --horizon 3\n  podplane plan --kubeconfig ~/.kube/config --growth 20%/year --horizon 3\n  podplane plan --nodes 100 --growth 20%/year --horizon 5 --html plan.html --svg plan.svg"
)]
pub(crate) struct PlanArgs {
    /// Recommend free ranges to add to a live cluster, from this output of `kubectl get nodes,pods
    /// -A`; - for standard input; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = ANY_CLUSTER)]
    from: Vec<PathBuf>,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Assign the nodes' pod CIDRs from this range; for dual stack one IPv4 and one IPv6 range
    /// [default: 10.244.0.0/16]
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = cidrs_of_flag)]
    cluster_cidr: Option<String>,

    /// Assign pod CIDRs of this prefix length in a single-stack cluster [default: 24 for IPv4, 64
    /// for IPv6]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size: Option<u8>,

    /// Assign IPv4 pod CIDRs of this prefix length [default: 24]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size_ipv4: Option<u8>,

    /// Assign IPv6 pod CIDRs of this prefix length [default: 64]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size_ipv6: Option<u8>,

    /// Reserve this range for services: no node is assigned a pod CIDR that overlaps it; for dual
    /// stack one IPv4 and one IPv6 range
    #[arg(
        long,
        value_name = "CIDR[,CIDR]",
        value_parser = cidrs_of_flag,
        visible_alias = "service-cluster-ip-range",
        default_value = "",
        hide_default_value = true
    )]
    service_cidr: String,

    /// Check the range of the nodes' own addresses for overlaps; may be repeated
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = cidr_of_flag)]
    node_network: Vec<IpNet>,

    /// Require room for N nodes [default: not required]
    #[arg(long, value_name = "N", value_parser = number, allow_negative_numbers = true)]
    nodes: Option<u64>,

    /// Require room for N pods per node [default: not required]
    ///
    /// Without it, the kubelet's default of 110 still limits the pods of a node.
    #[arg(long, value_name = "N", value_parser = number, allow_negative_numbers = true)]
    max_pods: Option<u64>,

    /// Grow the number of nodes by RATE: 20%/year (compound) or +50/month (linear); requires
    /// --nodes or a live cluster
    ///
    /// Periods: day, week, month, year.
    #[arg(
        long,
        value_name = "RATE",
        requires = "count",
        allow_hyphen_values = true
    )]
    growth: Option<Growth>,

    /// Plan for growth over COUNT periods of --growth (5 with 20%/year is 5 years); requires
    /// --growth
    #[arg(
        long,
        value_name = "COUNT",
        requires = "growth",
        value_parser = horizon,
        allow_negative_numbers = true
    )]
    horizon: Option<f64>,

    /// Print in this format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: PlanFormat,

    /// Also write the plan to FILE as one HTML page, with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Also write the pictures of the plan to FILE as SVG: addresses given and wasted, and the
    /// growth until the blocks end
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlanFormat {
    /// Text for people
    Table,
    /// One JSON document
    Json,
}

fn horizon(text: &str) -> Result<f64, String> {
    let count = text.parse().ok();
    count
        .filter(|count: &f64| count.is_finite() && *count >= 0.0)
        .ok_or_else(|| "want a number of at least 0, such as 5 or 2.5".into())
}

fn number(text: &str) -> Result<u64, String> {
    let number = text.parse();
    number.map_err(|_| "want a whole number of at least 0".into())
}

impl PlanArgs {
    fn question(&self) -> Question {
        Question {
            flags: RangeFlags {
                cluster_cidr: self
                    .cluster_cidr
                    .clone()
                    .unwrap_or_else(|| DEFAULT_CLUSTER_CIDR.into()),
                node_cidr_mask_size: self.node_cidr_mask_size,
                node_cidr_mask_size_ipv4: self.node_cidr_mask_size_ipv4,
                node_cidr_mask_size_ipv6: self.node_cidr_mask_size_ipv6,
                service_cluster_ip_range: self.service_cidr.clone(),
            },
            node_networks: self.node_network.clone(),
            nodes: self.nodes,
            max_pods: self.max_pods,
            growth: self.growth,
            horizon: self.horizon,
        }
    }
}

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    // The controller would go on without such a range, and the API server would not start.
    let services = args.service_cidr.parse::<ServiceRanges>();
    services.map_err(|error| UsageError(error.to_string()))?;
    output::page::check(args.html.iter().chain(&args.svg))?;
    if !args.from.is_empty() || args.cluster.is_given() {
        return live::run(args);
    }
    let question = args.question();
    let refused = |error| UsageError(question.flags.refusal(&error));
    let plan = question.answer().map_err(refused)?;
    html::write(args, &question, &plan)?;
    output::unless_closed(match args.output {
        PlanFormat::Table => output::line(sheet(&question, &plan)),
        PlanFormat::Json => output::json(&as_json(&question, &plan)),
    })?;
    Ok(if plan.misfits.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The range whose blocks have the fewest addresses for pods.
fn tightest(plan: &Plan) -> Option<&RangePlan> {
    plan.ranges.iter().min_by_key(|range| range.pods_per_node)
}

/// The number of pods that the whole cluster can run.
fn all_pods(plan: &Plan) -> u128 {
    pods_at(plan.max_nodes, plan.pods_per_node, plan.max_pods)
}

fn pods_at(nodes: u64, pods_per_node: u128, max_pods: u64) -> u128 {
    u128::from(nodes) * pods_per_node.min(max_pods.into())
}

/// The name of a limit in JSON.
const fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::ServiceRanges => "serviceRanges",
        Limit::NodeBlocks => "nodeBlocks",
        Limit::PodAddresses => "podAddresses",
        Limit::MaxPods => "maxPods",
    }
}

fn first_limit(plan: &Plan) -> String {
    let Plan {
        max_nodes,
        pods_per_node,
        max_pods,
        ..
    } = plan;
    match plan.first_limit {
        Limit::ServiceRanges => {
            "the overlap of services and cluster CIDR: change --cluster-cidr first".into()
        }
        Limit::NodeBlocks => format!("the blocks, for {max_nodes} nodes"),
        Limit::PodAddresses => format!(
            "the addresses of a block, for {} pods per node",
            readable(*pods_per_node)
        ),
        Limit::MaxPods => format!("the max pods, {max_pods} per node"),
    }
}

/// The answer to the requirements of a plan.
struct Verdict {
    fits: bool,
    /// The numbers for each requirement; those of the ones that are not met, if any is not.
    reasons: Vec<String>,
}

impl Verdict {
    fn of(question: &Question, plan: &Plan) -> Self {
        if !plan.misfits.is_empty() {
            return Self {
                fits: false,
                reasons: plan.misfits.clone(),
            };
        }
        let nodes = plan
            .nodes_to_serve
            .map(|nodes| format!("blocks for {} nodes, {nodes} needed", plan.max_nodes));
        let pods = question.max_pods.map(|pods| {
            let there = readable(plan.pods_per_node);
            format!("addresses for {there} pods per node, {pods} needed")
        });
        Self {
            fits: true,
            reasons: nodes.into_iter().chain(pods).collect(),
        }
    }

    /// The answer for a page.
    fn text(&self) -> String {
        let reasons = self.reasons.join("; ");
        match (self.fits, reasons.is_empty()) {
            (true, true) => {
                "Nodes can have blocks, and pods addresses; no number was given.".into()
            }
            (true, false) => format!("The plan is enough: {reasons}."),
            (false, _) => format!("The plan is not enough: {reasons}."),
        }
    }
}

/// The time at which the blocks are used up.
fn used_up(period: Period, after: f64) -> String {
    if after <= 0.0 {
        return "now".into();
    }
    if !after.is_finite() {
        return "never".into();
    }
    let duration = format!("in {}", period.duration(after));
    match month(period.years(after)) {
        Some(month) => format!("{duration}, about {month}"),
        None => duration,
    }
}

/// The month of a time from now, such as `February 2032`.
fn month(years: f64) -> Option<String> {
    const SECONDS_OF_YEAR: f64 = 365.25 * 86_400.0;
    if years > MOST_YEARS {
        return None;
    }
    let after = SignedDuration::try_from_secs_f64(years * SECONDS_OF_YEAR).ok()?;
    let at = Timestamp::now().checked_add(after).ok()?;
    Some(at.strftime("%B %Y").to_string())
}

fn as_json(question: &Question, plan: &Plan) -> Value {
    let alternative = |other: &Alternative| {
        json!({
            "nodeCIDRMaskSize": other.node_mask,
            "maxNodes": other.max_nodes,
            "podsPerNode": integer(other.pods_per_node),
            "addressesWasted": integer(other.addresses_wasted),
            "fits": other.fits,
        })
    };
    let range = |range: &RangePlan| {
        json!({
            "family": range.range.family().to_string(),
            "clusterCIDR": range.range.cidr(),
            "nodeCIDRMaskSize": range.range.node_mask(),
            "blocks": range.range.blocks(),
            "reservedBlocks": range.reserved_blocks,
            "maxNodes": range.max_nodes(),
            "addressesPerNode": integer(range.addresses_per_node),
            "podsPerNode": integer(range.pods_per_node),
            "alternatives": range.alternatives.iter().map(alternative).collect::<Vec<_>>(),
        })
    };
    let recommended = |recommended: &RecommendedRange| {
        json!({
            "family": recommended.family.to_string(),
            "clusterCIDR": recommended.cidr,
            "nodeCIDRMaskSize": recommended.node_mask,
            "maxNodes": recommended.max_nodes,
            "podsPerNode": integer(recommended.pods_per_node),
        })
    };
    let growth = question.growth.map(|growth| {
        json!({
            "rate": growth.to_string(),
            "period": growth.period().name(),
            "horizon": question.horizon,
            "nodesAtHorizon": question.horizon.and(plan.nodes_to_serve),
            "exhaustedAfter": plan.exhausted_after.filter(|after| after.is_finite()),
        })
    });
    json!({
        "maxNodes": plan.max_nodes,
        "podsPerNode": integer(plan.pods_per_node),
        "addressesPerNode": integer(tightest(plan).map_or(0, |range| range.addresses_per_node)),
        "warnings": plan.warnings,
        "fits": plan.misfits.is_empty(),
        "nodes": question.nodes,
        "kubeletMaxPods": plan.max_pods,
        "maxPods": integer(all_pods(plan)),
        "firstLimit": limit_name(plan.first_limit),
        "growth": growth,
        "ranges": plan.ranges.iter().map(range).collect::<Vec<_>>(),
        "serviceCIDRs": plan.config.service_ranges,
        "nodeNetworks": question.node_networks.iter().map(IpNet::trunc).collect::<Vec<_>>(),
        "liveCluster": plan.live_cluster,
        "recommended": plan.recommended.iter().map(recommended).collect::<Vec<_>>(),
    })
}

/// A number; as a string of its digits if not every reader keeps it exactly.
fn integer(number: u128) -> Value {
    match u64::try_from(number) {
        Ok(small) if number <= MAX_JSON_INTEGER => small.into(),
        _ => number.to_string().into(),
    }
}

fn sheet(question: &Question, plan: &Plan) -> Sheet {
    let mut sheet = Sheet::default();
    details(question, plan, &mut sheet);
    // Last, where it is seen on a small terminal, too.
    let Verdict { fits, reasons } = Verdict::of(question, plan);
    if !reasons.is_empty() {
        let word = if fits { "yes" } else { "no" };
        let lines = reasons.iter().map(|reason| format!("{word}: {reason}"));
        sheet.fields("Enough", lines);
    }
    sheet
}

/// All but the verdict.
fn details(question: &Question, plan: &Plan, sheet: &mut Sheet) {
    let cidrs = |nets: &[IpNet]| -> Vec<String> {
        nets.iter().map(|net| net.trunc().to_string()).collect()
    };
    let ranges = plan.ranges.iter().map(|range| range.range.to_string());
    sheet.fields("Cluster CIDR", ranges);
    sheet.fields("Services", cidrs(&plan.config.service_ranges));
    sheet.fields("Node networks", cidrs(&question.node_networks));
    sheet.field("Nodes", nodes(question, plan));
    sheet.fields("Pods per node", plan.ranges.iter().map(pods_of_node));
    sheet.field(
        "Max pods per node",
        match question.max_pods {
            Some(pods) => pods.to_string(),
            None => format!("{DEFAULT_MAX_PODS} (the kubelet's default)"),
        },
    );
    sheet.field("Total pods", readable(all_pods(plan)));
    sheet.field("First limit", first_limit(plan));
    if let (Some(growth), Some(after)) = (question.growth, plan.exhausted_after) {
        let when = used_up(growth.period(), after);
        sheet.field("Blocks used up", format!("{when}, at {growth}"));
    }
    sheet.fields("Recommended", plan.recommended.iter().map(recommendation));
    if let Some(danger) = &plan.live_cluster {
        sheet.field("On a live cluster", danger.clone());
    }
    for range in &plan.ranges {
        sheet.table(
            &format!("{} in other blocks (of a new cluster)", range.range.cidr()),
            &[
                "",
                "MASK",
                "NODES",
                "PODS-PER-NODE",
                "PODS",
                "WASTED",
                "FITS",
            ],
            alternatives(range, plan),
        );
    }
    // What does not fit is in the verdict.
    let warnings = plan.warnings.iter().skip(plan.misfits.len());
    sheet.fields("Warnings", warnings.cloned());
}

fn nodes(question: &Question, plan: &Plan) -> String {
    let max = plan.max_nodes;
    match (question.nodes, plan.nodes_to_serve) {
        (Some(now), Some(then)) if then != now => {
            format!("{max} at most; {now} now, {then} at the horizon")
        }
        (Some(now), _) => format!("{max} at most; {now} requested"),
        (None, _) => format!("{max} at most"),
    }
}

fn pods_of_node(range: &RangePlan) -> String {
    let kept = match range.range.family() {
        _ if range.pods_per_node == 0 => "too few for a gateway and a pod",
        Family::V4 => "without network, gateway and broadcast address",
        Family::V6 => "without network and gateway",
    };
    format!(
        "{} of {} addresses, {kept}",
        readable(range.pods_per_node),
        readable(range.addresses_per_node)
    )
}

const fn plural(count: u128) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn recommendation(recommended: &RecommendedRange) -> String {
    let RecommendedRange {
        family,
        node_mask,
        cidr,
        max_nodes,
        pods_per_node,
    } = recommended;
    match (cidr, node_mask) {
        (Some(cidr), Some(mask)) => format!(
            "{cidr} in blocks of /{mask}: {max_nodes} node{}, {} pod{} each",
            plural((*max_nodes).into()),
            readable(*pods_per_node),
            plural(*pods_per_node)
        ),
        (None, Some(_)) => format!("no {family} range has so many blocks"),
        (_, None) => format!("no {family} block has so many addresses"),
    }
}

/// The masks near that of the range, and the best one.
fn shown_alternatives<'a>(
    range: &'a RangePlan,
    plan: &Plan,
) -> impl Iterator<Item = &'a Alternative> + use<'a> {
    let own = range.range.node_mask();
    let best = plan
        .recommended
        .iter()
        .find(|recommended| recommended.family == range.range.family())
        .and_then(|recommended| recommended.node_mask);
    range.alternatives.iter().filter(move |other| {
        other.node_mask.abs_diff(own) <= NEIGHBOURS || Some(other.node_mask) == best
    })
}

fn alternatives(range: &RangePlan, plan: &Plan) -> Vec<Vec<String>> {
    let own = range.range.node_mask();
    let row = |other: &Alternative| {
        vec![
            if other.node_mask == own { "*" } else { "" }.to_owned(),
            format!("/{}", other.node_mask),
            other.max_nodes.to_string(),
            readable(other.pods_per_node),
            readable(pods_at(other.max_nodes, other.pods_per_node, plan.max_pods)),
            readable(other.addresses_wasted),
            if other.fits { "yes" } else { "no" }.to_owned(),
        ]
    };
    shown_alternatives(range, plan).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parse_args;

    fn question(line: &str) -> Question {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        parse_args::<PlanArgs>(words).unwrap().question()
    }

    fn json_of(line: &str) -> Value {
        let question = question(line);
        as_json(&question, &question.answer().unwrap())
    }

    #[test]
    fn json_has_the_documented_top_level_keys() {
        let json = json_of("--cluster-cidr 10.244.0.0/12 --node-cidr-mask-size 24 --nodes 5000");
        assert_eq!(json["maxNodes"], 4096);
        assert_eq!(json["podsPerNode"], 253);
        assert_eq!(json["addressesPerNode"], 256);
        assert_eq!(json["fits"], false);
        assert_eq!(
            json["warnings"],
            json!([
                "5000 nodes need a block each, and there are 4096: 904 nodes would have no podCIDR",
                "10.244.0.0/12 has host bits set; the range is 10.240.0.0/12"
            ])
        );
        assert_eq!(json["ranges"][0]["clusterCIDR"], "10.240.0.0/12");
        assert_eq!(json["growth"], Value::Null);
    }

    #[test]
    fn writes_numbers_beyond_a_double_as_strings() {
        assert_eq!(integer((1 << 53) - 1), json!(9_007_199_254_740_991_u64));
        assert_eq!(integer(1 << 53), json!("9007199254740992"));
        let json = json_of("--cluster-cidr fd00::/48");
        assert_eq!(json["podsPerNode"], "18446744073709551614");
        assert_eq!(json["maxNodes"], 65_536);
        assert_eq!(json["maxPods"], 65_536 * 110);
    }

    #[test]
    fn rejects_invalid_and_incomplete_flags() {
        for line in [
            "plan --growth 20%/year",
            "plan --nodes 3 --horizon 2",
            "plan --nodes 3 --growth much",
            "plan --nodes 3 --growth 2%/year --horizon -1",
            "plan --node-network here",
        ] {
            let error = parse_args::<PlanArgs>(line.split(' ')).err();
            assert_eq!(error.unwrap().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn errors_name_the_flag_the_value_and_what_is_allowed() {
        let whole = "want a whole number of at least 0";
        let bits = "want a prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6";
        for (line, flag, value, allowed) in [
            ("plan --nodes -3", "--nodes", "-3", whole),
            ("plan --nodes 2.5", "--nodes", "2.5", whole),
            ("plan --max-pods -1", "--max-pods", "-1", whole),
            (
                "plan --node-cidr-mask-size -1",
                "--node-cidr-mask-size",
                "-1",
                bits,
            ),
            (
                "plan --node-cidr-mask-size 129",
                "--node-cidr-mask-size",
                "129",
                bits,
            ),
            (
                "plan --nodes 3 --growth -5%/year",
                "--growth",
                "-5%/year",
                "the amount more than 0",
            ),
            (
                "plan --nodes 3 --growth 5%/year --horizon -1",
                "--horizon",
                "-1",
                "want a number of at least 0",
            ),
        ] {
            let error = parse_args::<PlanArgs>(line.split(' ')).unwrap_err();
            let text = error.to_string();
            let begin = format!("invalid value '{value}' for '{flag} <");
            assert!(text.contains(&begin) && text.contains(allowed), "{text}");
        }
    }

    #[test]
    fn forecasts_have_a_month() {
        let in_a_year = used_up(Period::Month, 12.0);
        assert!(in_a_year.starts_with("in 12 months, about "), "{in_a_year}");
        assert_eq!(used_up(Period::Year, 0.0), "now");
        assert_eq!(used_up(Period::Year, f64::INFINITY), "never");
        assert_eq!(used_up(Period::Year, 1e6), "in more than 1000 years");
    }
}
