//! The choice of a node for a pod, or the reasons why there is none.

use crate::{
    cache::Snapshot,
    filters::NodeFilters,
    fit_error::FitError,
    names::NodeName,
    pod::PodInfo,
    score::{self, NodeScore},
};

/// A smaller cluster is always searched completely, and in a larger one the search ends only after
/// this many feasible nodes.
const MIN_FEASIBLE_NODES: usize = 100;
/// The least percentage of the adaptive rule.
const MIN_PERCENTAGE: usize = 5;
/// The number of nodes whose scores are reported.
const REPORTED_SCORES: usize = 5;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The node, or the reasons why none fits.
    pub node: Result<Choice, FitError>,
    /// The start of the next search, so that all nodes get their turn in a cluster too large to be
    /// searched completely.
    pub next_start: usize,
}

/// A node, with the circumstances of its choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The node.
    pub node: NodeName,
    /// The number of nodes.
    pub nodes: usize,
    /// The number of examined nodes.
    pub examined: usize,
    /// The number of those that fit the pod.
    pub feasible: usize,
    /// The best scores of those, the chosen node first.
    pub scores: Vec<NodeScore>,
}

/// Searches nodes that fit the pod, beginning at the node numbered `start`, and chooses the best of
/// them.
pub fn plan(snapshot: &Snapshot, pod: &PodInfo, filters: &NodeFilters, start: usize) -> Decision {
    let nodes = snapshot.nodes();
    let want = feasible_nodes_to_find(nodes.len(), 0);
    let mut failure = FitError {
        nodes: nodes.len(),
        ..FitError::default()
    };
    let start = start.checked_rem(nodes.len()).unwrap_or(0);
    let (before, after) = nodes.split_at(start);
    let mut feasible = Vec::new();
    for node in after.iter().chain(before) {
        if feasible.len() == want {
            break;
        }
        match filters.check(pod, node) {
            Ok(()) => feasible.push(node.as_ref()),
            Err(refusal) => {
                failure.refusals.insert(node.name.clone(), refusal);
            }
        }
    }
    let processed = feasible.len() + failure.refusals.len();
    let scores = score::best(pod, &feasible, REPORTED_SCORES);
    let chosen = scores.first().map(|best| best.node.clone());
    let choice = chosen.map(|node| Choice {
        node,
        nodes: nodes.len(),
        examined: processed,
        feasible: feasible.len(),
        scores,
    });
    Decision {
        node: choice.ok_or(failure),
        next_start: (start + processed).checked_rem(nodes.len()).unwrap_or(0),
    }
}

/// The number of feasible nodes after which the search ends. `percentage` 0 is the adaptive rule:
/// 50 % less 1 % for each 125 nodes, at least 5 %.
pub fn feasible_nodes_to_find(nodes: usize, percentage: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES {
        return nodes;
    }
    let percentage = match percentage {
        0 => 50_usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE),
        given => given,
    };
    (nodes * percentage / 100).clamp(MIN_FEASIBLE_NODES, nodes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::{
        cache::NodeCache,
        config::IpPolicy,
        testing::{AsInfo as _, NodeBuilder, PodBuilder},
    };

    #[test]
    fn searches_as_many_nodes_as_the_reference() {
        let file = include_str!("../tests/data/scheduler_tables.json");
        let file: Value = serde_json::from_str(file).unwrap();
        let rows = file["num_feasible_nodes_to_find"].as_array().unwrap();
        assert_eq!(rows.len(), 21);
        for row in rows {
            let number = |name: &str| usize::try_from(row[name].as_u64().unwrap()).unwrap();
            let found = feasible_nodes_to_find(number("nodes"), number("percentage"));
            assert_eq!(found, number("want"), "{row}");
        }
    }

    #[test]
    fn search_continues_where_the_last_one_ended() {
        let mut cache = NodeCache::default();
        for n in 0..250 {
            let node = NodeBuilder::new(&format!("n{n:03}")).block("10.0.0.0/24", 253);
            cache.apply_node(Arc::new(node.node()));
        }
        let filters = NodeFilters::new(IpPolicy::Resource);
        let pod = PodBuilder::new("p").info();
        let at = |start| {
            let Decision { node, next_start } = plan(&cache.snapshot(), &pod, &filters, start);
            (node.unwrap().node.to_string(), next_start)
        };
        assert_eq!(at(0), ("n000".into(), 120)); // 48 % of 250
        assert_eq!(at(120), ("n120".into(), 240));
        assert_eq!(at(240), ("n240".into(), 110));
        assert_eq!(at(1000), ("n000".into(), 120));
    }
}
