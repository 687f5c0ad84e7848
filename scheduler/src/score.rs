//! The choice among the nodes that fit a pod: the best by the plugins' scores.

use std::cmp::Reverse;

use crate::{
    framework::{CycleInput, Framework},
    names::NodeName,
    node::NodeInfo,
};

#[cfg(test)]
mod tests;

/// The score of a node by one plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginScore {
    /// The plugin.
    pub plugin: &'static str,
    /// The plugin's own number.
    pub raw: i64,
    /// That number compared with the other feasible nodes', from 0 to 100.
    pub normalised: i64,
    /// The weight of the normalised score in the total.
    pub weight: i64,
}

/// The score of a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeScore {
    /// The node.
    pub node: NodeName,
    /// The weighted sum of the plugins' normalised scores.
    pub total: i64,
    /// The scores by plugin, in the plugins' order.
    pub plugins: Vec<PluginScore>,
    /// The free pod IPs, without the pod.
    pub free_pod_ips: i64,
    /// The number of pods, without the pod.
    pub pods: usize,
}

/// The scores of one plugin for all feasible nodes.
#[derive(Debug)]
struct ScoreColumn {
    plugin: &'static str,
    weight: i64,
    raw: Vec<i64>,
    normalised: Vec<i64>,
}

/// The scores of the feasible nodes.
#[derive(Debug)]
pub struct ScoreTable<'a> {
    nodes: &'a [&'a NodeInfo],
    columns: Vec<ScoreColumn>,
    totals: Vec<i64>,
}

impl<'a> ScoreTable<'a> {
    /// Scores the nodes by all plugins.
    pub fn new(framework: &'a Framework, input: CycleInput<'a>, nodes: &'a [&'a NodeInfo]) -> Self {
        let mut totals = vec![0_i64; nodes.len()];
        let scorers = framework.pre_score(input, nodes).into_iter();
        let columns = scorers.map(|scorer| {
            let raw: Vec<_> = nodes.iter().map(|node| scorer.state.score(node)).collect();
            let mut normalised = raw.clone();
            scorer.state.normalise(nodes, &mut normalised);
            for (total, score) in totals.iter_mut().zip(&normalised) {
                *total += scorer.weight * score;
            }
            ScoreColumn {
                plugin: scorer.name,
                weight: scorer.weight,
                raw,
                normalised,
            }
        });
        Self {
            columns: columns.collect(),
            nodes,
            totals,
        }
    }

    /// The score of the node with this index.
    pub fn row(&self, index: usize) -> Option<NodeScore> {
        let node = self.nodes.get(index)?;
        let plugins = self.columns.iter().filter_map(|column| {
            Some(PluginScore {
                plugin: column.plugin,
                raw: *column.raw.get(index)?,
                normalised: *column.normalised.get(index)?,
                weight: column.weight,
            })
        });
        Some(NodeScore {
            node: node.name.clone(),
            total: *self.totals.get(index)?,
            plugins: plugins.collect(),
            free_pod_ips: node.free_pod_ips(),
            pods: node.pods().len(),
        })
    }

    /// The indexes of the best nodes, at most `most`, the best first.
    ///
    /// The reference chooses at random among equals. Here the choice is deterministic, and spreads
    /// pods: most free pod IPs, then fewest pods, then the order of the nodes, which begins at
    /// another node each time.
    fn best(&self, most: usize) -> Vec<usize> {
        let mut best = Vec::<((i64, i64, Reverse<usize>), usize)>::with_capacity(most + 1);
        for (index, (total, node)) in self.totals.iter().zip(self.nodes).enumerate() {
            let rank = (*total, node.free_pod_ips(), Reverse(node.pods().len()));
            // Inserted after its equals. Only the best are kept, so that thousands of nodes are not
            // sorted.
            let at = best.partition_point(|(known, _)| *known >= rank);
            if at < most {
                best.insert(at, (rank, index));
                best.truncate(most);
            }
        }
        best.into_iter().map(|(_, index)| index).collect()
    }
}

/// The best of the feasible nodes, at most `most`, the best first; see [`ScoreTable`].
pub fn best(
    framework: &Framework,
    input: CycleInput<'_>,
    feasible: &[&NodeInfo],
    most: usize,
) -> Vec<NodeScore> {
    let table = ScoreTable::new(framework, input, feasible);
    let best = table.best(most).into_iter();
    best.filter_map(|index| table.row(index)).collect()
}
