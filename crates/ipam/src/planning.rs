//! What an address plan comes to: how many nodes and pods the flags give, which limit is met first, what overlaps, and what would be better.
//!
//! Everything follows from [`Question::answer`]; texts for people are in [`Plan::warnings`], numbers in the rest.

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
pub use growth::{Growth, InvalidGrowth, Period};
pub use recommend::{Alternative, Recommended};

/// The kubelet's `--max-pods` where nothing else is said.
pub const DEFAULT_MAX_PODS: u64 = 110;

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The flags of the controller.
    pub flags: RangeFlags,
    /// Where nodes have their own addresses.
    pub node_networks: Vec<IpNet>,
    /// How many nodes there are to be.
    pub nodes: Option<u64>,
    /// How many pods a node is to run; without it, the kubelet's default is a limit like others, and nothing that has to fit.
    pub max_pods: Option<u64>,
    /// How the number of nodes grows.
    pub growth: Option<Growth>,
    /// How many of the growth's periods the blocks have to last.
    pub horizon: Option<f64>,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The flags, understood.
    pub config: RangeConfig,
    /// One for each range, in their order.
    pub ranges: Vec<RangePlan>,
    /// How many nodes can have a block in every range.
    pub max_nodes: u64,
    /// Of the family with fewest: how many pods of a node can have an address.
    pub pods_per_node: u128,
    /// How many pods a node runs at most, as asked or as the kubelet's default has it.
    pub max_pods: u64,
    /// Which limit is met first.
    pub first_limit: Limit,
    /// How long the blocks last, in periods of the growth that was asked about; 0 if they never did.
    pub exhausted_after: Option<f64>,
    /// How many nodes there are at the horizon, or now if none was asked about; absent if no number was given.
    pub nodes_to_serve: Option<u64>,
    /// What would serve the numbers that were given with fewest addresses; in the order of the ranges.
    pub recommended: Vec<Recommended>,
    /// What people should be told, worst first.
    pub warnings: Vec<String>,
    /// The danger of the recommendation for a live cluster; absent if that keeps its mask.
    pub live_cluster: Option<String>,
    /// What was asked for and is not there. Empty: everything fits.
    pub misfits: Vec<String>,
}

/// One cluster CIDR.
#[derive(Clone, Debug)]
pub struct RangePlan {
    /// The range and its blocks.
    pub range: ClusterRange,
    /// How many blocks service ranges take.
    pub reserved_blocks: u64,
    /// How many addresses a block has.
    pub addresses_per_node: u128,
    /// How many of them pods can have: `bridge` and `host-local` keep some.
    pub pods_per_node: u128,
    /// The same range in blocks of other lengths.
    pub alternatives: Vec<Alternative>,
}

impl RangePlan {
    /// How many nodes can have a block.
    #[must_use]
    pub fn max_nodes(&self) -> u64 {
        self.range.blocks() - self.reserved_blocks
    }
}

/// What stops a cluster from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No block is left for another node.
    NodeBlocks,
    /// No address of a node's block is left for another pod.
    PodAddresses,
    /// The kubelet takes no more pods.
    MaxPods,
}

impl Question {
    /// Works out the plan.
    ///
    /// # Errors
    ///
    /// Where the controller would not start with the flags.
    pub fn answer(&self) -> Result<Plan, RangeConfigError> {
        let config = self.flags.validate()?;
        let max_pods = self.max_pods.unwrap_or(DEFAULT_MAX_PODS);
        let need = Need {
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

    /// The nodes that need a block: those of the horizon, if there is one.
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

    /// What is too small for the numbers comes first. Where nothing is, a node's pods meet the kubelet's limit, unless the nodes grow: then
    /// it is the blocks that end the growth, for more nodes have room for more pods.
    fn first_limit(&self, plan: &Plan) -> Limit {
        if plan.pods_per_node < u128::from(plan.max_pods) {
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
        if max_nodes == 0 {
            misfits.push("no node can have a block".to_owned());
        }
        if let Some(nodes) = self.nodes.filter(|nodes| *nodes > max_nodes) {
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

/// What a plan has to serve.
#[derive(Clone, Copy, Debug)]
struct Need {
    nodes: Option<u64>,
    max_pods: u64,
    /// The pods of a node that have to fit; the kubelet's default does not.
    asked_pods: Option<u64>,
}

impl Need {
    /// True if blocks serve what was asked for: at least one node, and one pod on each.
    fn is_met_by(&self, max_nodes: u64, pods_per_node: u128) -> bool {
        self.max_pods > 0
            && max_nodes >= self.nodes.unwrap_or(1).max(1)
            && pods_per_node >= self.asked_pods.unwrap_or(1).max(1).into()
    }
}

/// The addresses of a block; saturates for the whole of IPv6.
fn addresses(family: Family, mask: u8) -> u128 {
    let host_bits = u32::from(family.bits() - mask);
    1u128.checked_shl(host_bits).unwrap_or(u128::MAX)
}

/// The pods that a block of the range serves; none if it is too small for a gateway.
fn pods(cidr: IpNet, mask: u8) -> u128 {
    let block = IpNet::new(cidr.addr(), mask).map(|block| block.trunc());
    let served = block.ok().and_then(AddressRange::of_block);
    served.map_or(0, |range| range.capacity())
}

#[cfg(test)]
mod tests;
