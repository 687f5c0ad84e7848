//! Evaluation of an address plan: how many nodes and pods the flags allow, which limit is reached
//! first, overlaps, and better choices.
//!
//! Start at [`Question::answer`]. [`Plan::warnings`] has texts for people, the other fields have
//! numbers.

mod addition;
mod growth;
mod recommend;
mod warnings;

use ipnet::IpNet;

use crate::{
    cluster::{ClusterRange, RangeConfig, RangeConfigError, RangeFlags},
    net::Family,
    pool::AddressRange,
};

pub use addition::{Addition, additions};
pub use growth::{Growth, InvalidGrowth, MOST_YEARS, Period};
pub use recommend::{Alternative, RecommendedRange};

/// The default of the kubelet's `--max-pods`.
pub const DEFAULT_MAX_PODS: u64 = 110;

/// The input of a plan.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The flags of the controller.
    pub flags: RangeFlags,
    /// The networks of the nodes' own addresses.
    pub node_networks: Vec<IpNet>,
    /// The planned number of nodes.
    pub nodes: Option<u64>,
    /// The planned number of pods per node; without it, the kubelet's default is one of the limits,
    /// but need not fit.
    pub max_pods: Option<u64>,
    /// The growth of the number of nodes.
    pub growth: Option<Growth>,
    /// The number of the growth's periods that the blocks must last.
    pub horizon: Option<f64>,
}

/// The evaluated plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The validated flags.
    pub config: RangeConfig,
    /// One plan for each range, in their order.
    pub ranges: Vec<RangePlan>,
    /// The number of nodes that can have a block in every range.
    pub max_nodes: u64,
    /// The number of pods of a node that can have an address, in the family with the fewest.
    pub pods_per_node: u128,
    /// The most pods that a node runs: the planned number or the kubelet's default.
    pub max_pods: u64,
    /// The limit that is reached first.
    pub first_limit: Limit,
    /// The time that the blocks last, in periods of the growth; 0 if they do not suffice even now.
    pub exhausted_after: Option<f64>,
    /// The number of nodes at the horizon, or now if there is none; `None` if no number was given.
    pub nodes_to_serve: Option<u64>,
    /// The smallest ranges that serve the given numbers, in the order of the ranges.
    pub recommended: Vec<RecommendedRange>,
    /// Warnings for people, worst first.
    pub warnings: Vec<String>,
    /// The danger of the recommendation for a live cluster; `None` if that keeps its mask.
    pub live_cluster: Option<String>,
    /// The requirements that the plan does not meet. Empty if everything fits.
    pub misfits: Vec<String>,
}

/// One cluster CIDR.
#[derive(Clone, Debug)]
pub struct RangePlan {
    /// The range and its blocks.
    pub range: ClusterRange,
    /// The number of blocks that service ranges take.
    pub reserved_blocks: u64,
    /// The number of addresses of a block.
    pub addresses_per_node: u128,
    /// The number of them that pods can have: `bridge` and `host-local` keep some.
    pub pods_per_node: u128,
    /// The same range in blocks of other lengths.
    pub alternatives: Vec<Alternative>,
}

impl RangePlan {
    /// The number of nodes that can have a block.
    #[must_use]
    pub fn max_nodes(&self) -> u64 {
        self.range.blocks() - self.reserved_blocks
    }

    /// True if service ranges take every block.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.max_nodes() == 0
    }
}

/// A limit to the growth of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Service ranges take every block of a cluster CIDR.
    ServiceRanges,
    /// No block is left for another node.
    NodeBlocks,
    /// No address of a node's block is left for another pod.
    PodAddresses,
    /// The kubelet takes no more pods.
    MaxPods,
}

impl Question {
    /// Evaluates the plan.
    ///
    /// # Errors
    ///
    /// [`RangeConfigError`] if the controller would not start with the flags.
    pub fn answer(&self) -> Result<Plan, RangeConfigError> {
        let config = self.flags.validate()?;
        let max_pods = self.max_pods.unwrap_or(DEFAULT_MAX_PODS);
        let need = Demand {
            max_pods,
            nodes: self.nodes_to_serve(),
            asked_pods: self.max_pods,
        };
        let ranges: Vec<_> = config
            .ranges
            .iter()
            .map(|range| RangePlan {
                range: *range,
                reserved_blocks: config.reserved_blocks(range),
                addresses_per_node: addresses(range.family(), range.node_mask()),
                pods_per_node: pods(range.cidr(), range.node_mask()),
                alternatives: recommend::alternatives(range, &config, need),
            })
            .collect();
        let recommended = config
            .ranges
            .iter()
            .map(|range| recommend::smallest(range, &config, &self.node_networks, need))
            .collect();
        let max_nodes = config.max_nodes();
        let fewest = ranges.iter().map(|range| range.pods_per_node).min();
        let mut plan = Plan {
            max_nodes,
            pods_per_node: fewest.unwrap_or(0),
            max_pods,
            first_limit: Limit::MaxPods,
            exhausted_after: self.exhausted_after(max_nodes),
            nodes_to_serve: need.nodes,
            recommended,
            warnings: Vec::new(),
            live_cluster: None,
            misfits: Vec::new(),
            config,
            ranges,
        };
        plan.first_limit = self.first_limit(&plan);
        plan.misfits = self.misfits(&plan);
        plan.warnings = warnings::of(self, &plan);
        plan.live_cluster = warnings::live_cluster(&plan);
        Ok(plan)
    }

    /// The number of nodes that need a block: those at the horizon, if there is one.
    fn nodes_to_serve(&self) -> Option<u64> {
        let nodes = self.nodes?;
        Some(match (self.growth, self.horizon) {
            (Some(growth), Some(horizon)) => growth.after(nodes, horizon),
            _ => nodes,
        })
    }

    fn exhausted_after(&self, max_nodes: u64) -> Option<f64> {
        Some(self.growth?.reaches(self.nodes?, max_nodes))
    }

    /// Insufficient capacities come first. If there are none, a node's pods reach the kubelet's
    /// limit, unless the number of nodes grows: then the blocks end the growth, since more nodes
    /// have room for more pods.
    fn first_limit(&self, plan: &Plan) -> Limit {
        if plan.ranges.iter().any(RangePlan::is_covered) {
            Limit::ServiceRanges
        } else if plan.pods_per_node < u128::from(plan.max_pods) {
            Limit::PodAddresses
        } else if self.nodes.is_some_and(|nodes| nodes >= plan.max_nodes) || self.growth.is_some() {
            Limit::NodeBlocks
        } else {
            Limit::MaxPods
        }
    }

    fn misfits(&self, plan: &Plan) -> Vec<String> {
        let max_nodes = plan.max_nodes;
        let mut misfits = Vec::new();
        let covered = plan.ranges.iter().filter(|range| range.is_covered());
        misfits.extend(covered.map(|range| warnings::covered(range, plan)));
        if max_nodes == 0 {
            // Any number of nodes is too many.
        } else if let Some(nodes) = self.nodes.filter(|nodes| *nodes > max_nodes) {
            misfits.push(format!(
                "{} a block each, and there {}: {} would have no podCIDR",
                if nodes == 1 {
                    "1 node needs".into()
                } else {
                    format!("{nodes} nodes need")
                },
                if max_nodes == 1 {
                    "is 1".into()
                } else {
                    format!("are {max_nodes}")
                },
                warnings::count(nodes - max_nodes, "node")
            ));
        } else if let (Some(nodes), Some(growth), Some(horizon)) =
            (plan.nodes_to_serve, self.growth, self.horizon)
            && nodes > max_nodes
        {
            misfits.push(format!(
                "in {} there are {nodes} nodes at {growth}, and blocks for {max_nodes}",
                growth.period().amount(horizon),
            ));
        }
        if self.max_pods == Some(0) {
            misfits.push("no pod can run: nodes are to have 0 pods each".to_owned());
        } else if plan.pods_per_node == 0 {
            misfits.push("no pod can have an address".to_owned());
        } else if let Some(asked) = self.max_pods
            && plan.pods_per_node < u128::from(asked)
        {
            misfits.push(format!(
                "{asked} pods of a node need an address each, and there {} {}",
                if plan.pods_per_node == 1 { "is" } else { "are" },
                plan.pods_per_node
            ));
        }
        misfits
    }
}

/// The numbers that a plan must serve.
#[derive(Clone, Copy, Debug)]
struct Demand {
    nodes: Option<u64>,
    max_pods: u64,
    /// The number of pods of a node that must fit; the kubelet's default need not.
    asked_pods: Option<u64>,
}

impl Demand {
    /// True if blocks serve what was asked for: at least one node, and one pod on each.
    fn is_met_by(&self, max_nodes: u64, pods_per_node: u128) -> bool {
        self.max_pods > 0
            && max_nodes >= self.nodes.unwrap_or(1).max(1)
            && pods_per_node >= self.asked_pods.unwrap_or(1).max(1).into()
    }
}

/// The number of addresses of a block; saturates for the whole of IPv6.
fn addresses(family: Family, mask: u8) -> u128 {
    let host_bits = u32::from(family.bits() - mask);
    1u128.checked_shl(host_bits).unwrap_or(u128::MAX)
}

/// The number of pods that a block of the range serves; 0 if it is too small for a gateway.
fn pods(cidr: IpNet, mask: u8) -> u128 {
    let block = IpNet::new(cidr.addr(), mask).map(|block| block.trunc());
    let served = block.ok().and_then(AddressRange::of_block);
    served.map_or(0, |range| range.capacity())
}

#[cfg(test)]
mod tests;
