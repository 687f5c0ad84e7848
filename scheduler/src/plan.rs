//! The choice of a node for a pod, or the reasons why there is none.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::Cluster,
    fit_error::FitError,
    framework::{ActiveFilters, CycleInput, Framework, PluginRefusal, Rejection},
    names::{NodeName, NodeSlot},
    node::NodeInfo,
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
pub fn plan(cluster: &Cluster, pod: &PodInfo, framework: &Framework, start: usize) -> Decision {
    let input = CycleInput { pod, cluster };
    let nodes = cluster.len();
    let start = start.checked_rem(nodes).unwrap_or(0);
    let filters = match framework.pre_filter(input) {
        Ok(filters) => filters,
        Err(rejection) => {
            return Decision {
                node: Err(rejected(rejection, nodes)),
                next_start: start,
            };
        }
    };
    let found = Search::run(input, &filters, start);
    let processed = found.feasible.len() + found.refused;
    let next_start = (start + processed).checked_rem(nodes).unwrap_or(0);
    if found.feasible.is_empty() {
        return Decision {
            node: Err(found.into_error(cluster, &filters)),
            next_start,
        };
    }
    let scores = score::best(framework, input, &found.feasible, REPORTED_SCORES);
    let chosen = scores.first().map(|best| best.node.clone());
    let choice = chosen.map(|node| Choice {
        node,
        nodes,
        examined: processed,
        feasible: found.feasible.len(),
        scores,
    });
    Decision {
        node: choice.ok_or_else(FitError::default),
        next_start,
    }
}

fn rejected(rejection: Rejection, nodes: usize) -> FitError {
    FitError {
        nodes,
        rejected_by: BTreeSet::from([rejection.by]),
        rejection: Some(rejection),
        ..FitError::default()
    }
}

/// The result of examining nodes. Refusals are only counted, so that a search that finds no node
/// in a large cluster costs little.
#[derive(Debug, Default)]
struct Search<'a> {
    /// The nodes that fit, in the order of the search.
    feasible: Vec<&'a NodeInfo>,
    /// The number of nodes that a filter refused.
    refused: usize,
    /// The number of nodes that were not examined because a plugin named others.
    excluded: usize,
    /// The number of nodes with each refusal, and one of these nodes.
    refusals: BTreeMap<PluginRefusal, (usize, NodeSlot)>,
    /// The refused nodes whose details belong into the message, and the number of those before the
    /// search passed the end of the list.
    detailed: Vec<NodeSlot>,
    detailed_before_wrap: usize,
}

impl<'a> Search<'a> {
    fn run(input: CycleInput<'a>, filters: &ActiveFilters<'_>, start: usize) -> Self {
        let cluster = input.cluster;
        let mut search = Self::default();
        let only: Option<Vec<NodeSlot>> = filters.only.as_ref().map(|only| {
            let nodes = only.names.iter().filter_map(|name| cluster.node(name));
            nodes.map(NodeInfo::slot).collect()
        });
        let slots = only.as_deref().unwrap_or(cluster.order());
        search.excluded = match &only {
            Some(_) => cluster.len() - slots.len(),
            None => 0,
        };
        let want = feasible_nodes_to_find(slots.len(), 0);
        let start = start.checked_rem(slots.len()).unwrap_or(0);
        let (before, after) = slots.split_at(start);
        search.examine(input, filters, after, want);
        search.detailed_before_wrap = search.detailed.len();
        search.examine(input, filters, before, want);
        search
    }

    fn examine(
        &mut self,
        CycleInput { pod, cluster }: CycleInput<'a>,
        filters: &ActiveFilters<'_>,
        slots: &[NodeSlot],
        want: usize,
    ) {
        // Neighbours often have the same refusal.
        let mut last: Option<(PluginRefusal, usize, NodeSlot)> = None;
        for slot in slots {
            if self.feasible.len() == want {
                break;
            }
            let Some(node) = cluster.node_at(*slot) else {
                continue;
            };
            let Err(refusal) = cluster.check_with_nominated(filters, pod, node) else {
                self.feasible.push(node);
                continue;
            };
            self.refused += 1;
            match &mut last {
                Some((known, count, _)) if *known == refusal => *count += 1,
                _ => self.count(last.replace((refusal, 1, *slot))),
            }
            if let Some((_, state)) = filters.refusing(refusal)
                && state.tells_detail(node)
            {
                self.detailed.push(*slot);
            }
        }
        self.count(last);
    }

    fn count(&mut self, refusals: Option<(PluginRefusal, usize, NodeSlot)>) {
        if let Some((refusal, count, slot)) = refusals {
            self.refusals.entry(refusal).or_insert((0, slot)).0 += count;
        }
    }

    fn into_error(self, cluster: &Cluster, filters: &ActiveFilters<'_>) -> FitError {
        let mut error = FitError {
            nodes: cluster.len(),
            detailed: self.detailed.len(),
            ..FitError::default()
        };
        if let Some(only) = &filters.only {
            error.rejected_by.insert(only.by);
            if self.excluded > 0 {
                error.count(vec![only.reason()], self.excluded);
            }
        }
        for (refusal, (count, slot)) in &self.refusals {
            if let Some((by, state)) = filters.refusing(*refusal)
                && let Some(node) = cluster.node_at(*slot)
            {
                error.rejected_by.insert(by);
                error.count(state.reasons(refusal.refusal, node), *count);
            }
        }
        // By name: the search passed the end of the list of nodes once.
        let (later, first) = self.detailed.split_at(self.detailed_before_wrap);
        let shown = first.iter().chain(later).take(FitError::DETAILED);
        let shown = shown.filter_map(|slot| {
            let node = cluster.node_at(*slot)?;
            let refusal = filters.check(node).err()?;
            let (_, state) = filters.refusing(refusal)?;
            Some((node.name.clone(), state.detail(node)?.text))
        });
        error.details = shown.collect();
        error
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
        let framework = Framework::new(IpPolicy::Resource.into());
        let pod = PodBuilder::new("p").info();
        let at = |start| {
            let Decision { node, next_start } = plan(cache.cluster(), &pod, &framework, start);
            (node.unwrap().node.to_string(), next_start)
        };
        assert_eq!(at(0), ("n000".into(), 120)); // 48 % of 250
        assert_eq!(at(120), ("n120".into(), 240));
        assert_eq!(at(240), ("n240".into(), 110));
        assert_eq!(at(1000), ("n000".into(), 120));
    }
}
