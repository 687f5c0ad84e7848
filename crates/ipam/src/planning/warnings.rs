//! Warnings about a plan, in words.

use ipnet::{IpNet, Ipv4Net};

use super::{Plan, Question, RangePlan};
use crate::{
    cluster::Notice,
    net::{Family, overlap},
};

/// Blocks twice as large as needed are usual (/24 for 110 pods); blocks four times as large get a
/// warning.
const WASTEFUL_BITS: u8 = 2;
/// The share of blocks in use from which a warning is due.
const NEARLY_FULL_PERCENT: u64 = 80;

/// The warnings: first what does not fit, then overlaps, then possible improvements.
pub(super) fn of(question: &Question, plan: &Plan) -> Vec<String> {
    let mut warnings = plan.misfits.clone();
    // A range without a block is a misfit, and said above.
    let notices = plan.config.notices.iter();
    let notices = notices.filter(|notice| !matches!(notice, Notice::NoBlockLeft { .. }));
    warnings.extend(notices.map(Notice::to_string));
    let networks = &question.node_networks;
    warnings.extend(
        networks
            .iter()
            .filter(|net| net.trunc() != **net)
            .map(|given| {
                let canonical = given.trunc();
                Notice::NotCanonical {
                    given: *given,
                    canonical,
                }
                .to_string()
            }),
    );
    for range in &plan.ranges {
        services(range, plan, &mut warnings);
        node_networks(range, networks, &mut warnings);
        special(range, &mut warnings);
        mask(range, question, plan, &mut warnings);
    }
    for service in &plan.config.service_ranges {
        let nets = networks.iter().filter(|net| overlap(net, service));
        warnings.extend(nets.map(|net| {
            format!(
                "node network {} overlaps service range {service}: nodes with those addresses cannot be reached from pods",
                net.trunc()
            )
        }));
    }
    if let Some(nodes) = question.nodes
        && nodes <= plan.max_nodes
        && nodes.saturating_mul(100) >= plan.max_nodes.saturating_mul(NEARLY_FULL_PERCENT)
    {
        warnings.push(format!(
            "{nodes} of {} blocks will be in use: replacing nodes, and growing, need free ones",
            plan.max_nodes
        ));
    }
    warnings
}

/// Describes a range without a block for any node. Nothing can be in it yet, so that it is the one
/// to change: services keep their addresses.
pub(super) fn covered(range: &RangePlan, plan: &Plan) -> String {
    let cluster = range.range.cidr();
    let services = plan.config.service_ranges.iter();
    let services = services.filter(|service| overlap(service, &cluster));
    let services: Vec<_> = services.map(IpNet::to_string).collect();
    format!(
        "service range {} overlaps all of cluster CIDR {cluster}, so that no node can have a block: change --cluster-cidr",
        services.join(" and ")
    )
}

fn services(range: &RangePlan, plan: &Plan, warnings: &mut Vec<String>) {
    let cluster = range.range.cidr();
    let touching = plan
        .config
        .service_ranges
        .iter()
        .filter(|service| overlap(service, &cluster));
    // Service ranges that take every block are a misfit.
    warnings.extend(
        touching
            .filter(|_| !range.is_covered())
            .map(|service| {
                format!(
                    "service range {service} overlaps cluster CIDR {cluster}: {} of its {} blocks are given to no node",
                    range.reserved_blocks,
                    range.range.blocks()
                )
            }),
    );
}

fn node_networks(range: &RangePlan, networks: &[IpNet], warnings: &mut Vec<String>) {
    let cluster = range.range.cidr();
    let touching = networks.iter().filter(|net| overlap(net, &cluster));
    warnings.extend(touching.filter_map(|net| {
        let (first, last) = range.range.indices(net)?;
        Some(format!(
            "node network {} overlaps cluster CIDR {cluster}: the controller does not know of it and gives its addresses to pods too, with {}",
            net.trunc(),
            count(last - first + 1, "block")
        ))
    }));
}

/// The danger of another mask on a live cluster, if one is recommended.
pub(super) fn live_cluster(plan: &Plan) -> Option<String> {
    let differs = plan.ranges.iter().any(|range| {
        let mut recommended = plan.recommended.iter();
        let same = recommended.find(|one| one.family == range.range.family());
        let mask = same.and_then(|one| one.node_mask);
        mask.is_some_and(|mask| mask != range.range.node_mask())
    });
    differs.then(|| {
        "keep its mask: after a change, Kubernetes' allocator gives blocks twice (docs/cidr-change.md); plan --from DUMP recommends ranges to add instead"
            .to_owned()
    })
}

/// Warns of ranges that hosts do not route, or that belong to others on the Internet.
fn special(range: &RangePlan, warnings: &mut Vec<String>) {
    let cluster = range.range.cidr();
    let IpNet::V4(v4) = cluster else { return };
    let within = |net: (u8, u8, u8, u8), length| {
        let net = Ipv4Net::new_assert(std::net::Ipv4Addr::new(net.0, net.1, net.2, net.3), length);
        overlap(&IpNet::V4(net), &cluster)
    };
    let unusable = [
        ("this network", within((0, 0, 0, 0), 8)),
        ("loopback", within((127, 0, 0, 0), 8)),
        ("link-local", within((169, 254, 0, 0), 16)),
        ("multicast and reserved", within((224, 0, 0, 0), 3)),
    ];
    let kinds: Vec<_> = unusable
        .iter()
        .filter(|(_, touches)| *touches)
        .map(|(kind, _)| *kind)
        .collect();
    if !kinds.is_empty() {
        warnings.push(format!(
            "cluster CIDR {cluster} has {} addresses, which pods cannot use",
            kinds.join(", ")
        ));
    } else if !is_private(v4) {
        warnings.push(format!(
            "cluster CIDR {cluster} is not private: what has those addresses on the Internet cannot be reached from nodes and pods"
        ));
    }
}

fn is_private(net: Ipv4Net) -> bool {
    // 100.64.0.0/10 is shared address space, and 198.18.0.0/15 is for benchmarks: neither is
    // routed.
    let shared = |address: std::net::Ipv4Addr| matches!(address.octets(), [100, 64..=127, ..]);
    let measured = |address: std::net::Ipv4Addr| matches!(address.octets(), [198, 18 | 19, ..]);
    let ends = [net.network(), net.broadcast()];
    let all = |is: fn(&std::net::Ipv4Addr) -> bool| ends.iter().all(is);
    // A prefix whose ends are in different private networks is wider than both.
    net.prefix_len() >= 8
        && (all(std::net::Ipv4Addr::is_private)
            || ends.into_iter().all(shared)
            || ends.into_iter().all(measured))
}

fn mask(range: &RangePlan, question: &Question, plan: &Plan, warnings: &mut Vec<String>) {
    let mask = range.range.node_mask();
    let family = range.range.family();
    if range.pods_per_node == 0 {
        warnings.push(format!(
            "a block of /{mask} has no address for a pod: bridge and host-local need a network and a gateway beside it{}",
            if family == Family::V4 { ", and a broadcast address" } else { "" }
        ));
    } else if question.max_pods.is_none() && range.pods_per_node < plan.max_pods.into() {
        warnings.push(format!(
            "a block of /{mask} has addresses for {} of the {} that a kubelet takes by default: lower its --max-pods, or schedule by addresses",
            count_of(range.pods_per_node, "pod"),
            plan.max_pods
        ));
    }
    if range.range.blocks() == 1 {
        warnings.push(format!(
            "one block is the whole of cluster CIDR {}: there can be one node",
            range.range.cidr()
        ));
    }
    let best = plan
        .recommended
        .iter()
        .find(|recommended| recommended.family == family)
        .and_then(|recommended| recommended.node_mask);
    let longer = best.filter(|best| family == Family::V4 && *best >= mask + WASTEFUL_BITS);
    let better = longer.and_then(|longer| {
        range
            .alternatives
            .iter()
            .find(|alternative| alternative.node_mask == longer)
    });
    if let Some(better) = better {
        warnings.push(format!(
            "blocks of /{mask} waste addresses: a node runs {} at most, for which /{} is enough, and the range has room for {} of those instead of {}",
            count(plan.max_pods, "pod"),
            better.node_mask,
            better.max_nodes,
            range.max_nodes()
        ));
    }
}

pub(super) fn count(number: u64, what: &str) -> String {
    count_of(number.into(), what)
}

fn count_of(number: u128, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
