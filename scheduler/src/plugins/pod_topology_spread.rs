//! Pods that a constraint selects are spread over the domains of a node label.

use std::borrow::Cow;

use super::{
    node_affinity::RequiredMatch,
    node_resources_balanced::{float, truncated},
    taint_toleration::untolerated,
};
use crate::{
    cluster::Cluster,
    columns::{LabelColumn, ValueId},
    constraints::spread::SpreadConstraint,
    framework::{
        CycleInput, MAX_SCORE, NodeFilter, NodeScorer, Plugin, PluginEvent, PreFilter, Refusal,
    },
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `PodTopologySpread`.
#[derive(Debug)]
pub struct PodTopologySpread;

/// The label whose domains are single nodes, which is counted without the inclusion policies when
/// nodes are scored.
const HOSTNAME: &str = "kubernetes.io/hostname";

// The codes of refusals.
const SKEW: u64 = 0;
const MISSING_LABEL: u64 = 1;

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        let constraints = input.pod.needs.spread.iter().filter(|one| one.is_required);
        let counted = CountedDomains::all(input, constraints);
        if counted.is_empty() {
            return PreFilter::Skip;
        }
        let limits = counted.into_iter().map(|domains| {
            let constraint = domains.constraint;
            let found = domains.pods.iter().flatten();
            let least = match found.clone().count() {
                count if count < constraint.min_domains => 0,
                _ => found.min().copied().unwrap_or(0),
            };
            // A domain may have so many pods before the new one.
            let own = i64::from(constraint.selects(&input.pod.labels));
            SpreadLimit {
                most: constraint.max_skew + least - own,
                domains,
            }
        });
        PreFilter::Filter(Box::new(SpreadLimits(limits.collect())))
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let constraints = input.pod.needs.spread.iter().filter(|one| !one.is_required);
        let counted = CountedDomains::all(input, constraints);
        if counted.is_empty() {
            return None;
        }
        let has_all = |node: &&&NodeInfo| counted.iter().all(|one| one.value(node).is_some());
        let scored: Vec<_> = feasible.iter().filter(has_all).copied().collect();
        let weights: Vec<_> = counted
            .iter()
            .map(|domains| float(domains.scored_domains(&scored)) + 2.0)
            .map(f64::ln)
            .collect();
        let preferences = counted.into_iter().zip(weights);
        let preferences = preferences.map(|(domains, weight)| {
            let constraint = domains.constraint;
            let is_per_node = constraint.topology_key == HOSTNAME;
            SpreadPreference {
                on_node: is_per_node.then(|| pods_by_node(input, constraint)),
                domains,
                weight,
            }
        });
        Some(Box::new(SpreadPreferences(preferences.collect())))
    }

    fn weight(&self) -> i64 {
        2
    }

    fn heeds(&self, pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        let concerns = |other: &PodInfo| {
            let selects = |one: &SpreadConstraint| one.selects(&other.labels);
            other.namespace() == pod.namespace() && pod.needs.spread.iter().any(selects)
        };
        match event {
            PluginEvent::NodeChanged(change) => {
                matches!(change, NodeChange::Labels | NodeChange::Taints)
            }
            PluginEvent::PodFreed(other) | PluginEvent::PodPlaced(other) => concerns(other),
            PluginEvent::NamespaceChanged => false,
        }
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// The pods that a constraint counts, by slot.
fn pods_by_node(input: CycleInput<'_>, constraint: &SpreadConstraint) -> Vec<u32> {
    let (pods, slots) = (input.cluster.pods(), input.cluster.slots());
    pods.running_by_node(input.pod.namespace(), constraint.counted(), slots)
}

/// The domains of a constraint with the pods in each.
#[derive(Debug)]
struct CountedDomains<'a> {
    constraint: &'a SpreadConstraint,
    column: Cow<'a, LabelColumn>,
    /// By the number of the label's value; `None` if no node of the domain is included.
    pods: Vec<Option<i64>>,
}

impl<'a> CountedDomains<'a> {
    /// Counts the pods for each constraint. A node is included if it has the labels of all
    /// constraints and the constraint's policies include it.
    fn all(
        input: CycleInput<'a>,
        constraints: impl Iterator<Item = &'a SpreadConstraint>,
    ) -> Vec<Self> {
        let CycleInput { pod, cluster } = input;
        let mut all: Vec<_> = constraints
            .map(|constraint| Self::empty(constraint, cluster))
            .collect();
        if all.is_empty() {
            return all;
        }
        let required = RequiredMatch::new(&pod.needs.required_nodes, cluster);
        let by_node: Vec<_> = all
            .iter()
            .map(|domains| pods_by_node(input, domains.constraint))
            .collect();
        for node in cluster.nodes() {
            if all.iter().any(|domains| domains.value(node).is_none()) {
                continue;
            }
            for (domains, by_node) in all.iter_mut().zip(&by_node) {
                let constraint = domains.constraint;
                if constraint.honors_affinity && !required.selects(node)
                    || constraint.honors_taints
                        && untolerated(&pod.needs.tolerations, node).is_some()
                {
                    continue;
                }
                let pods = by_node.get(node.slot().index()).copied().unwrap_or(0);
                let value = domains.value(node);
                if let Some(known) = value.and_then(|value| domains.pods.get_mut(value.index())) {
                    *known = Some(known.unwrap_or(0) + i64::from(pods));
                }
            }
        }
        all
    }

    fn empty(constraint: &'a SpreadConstraint, cluster: &'a Cluster) -> Self {
        let column = cluster.column(&constraint.topology_key);
        Self {
            constraint,
            pods: vec![None; column.values().len()],
            column,
        }
    }

    fn value(&self, node: &NodeInfo) -> Option<ValueId> {
        self.column.value(node.slot())
    }

    /// The pods in the node's domain, which counts as empty if it is not included.
    fn pods_near(&self, node: &NodeInfo) -> Option<i64> {
        let value = self.value(node)?;
        Some(self.pods.get(value.index()).copied().flatten().unwrap_or(0))
    }

    /// The number of domains of the nodes.
    fn scored_domains(&self, nodes: &[&NodeInfo]) -> i64 {
        if self.constraint.topology_key == HOSTNAME {
            return i64::try_from(nodes.len()).unwrap_or(i64::MAX);
        }
        let mut found = vec![false; self.column.values().len()];
        for node in nodes {
            let value = self.value(node);
            if let Some(found) = value.and_then(|value| found.get_mut(value.index())) {
                *found = true;
            }
        }
        found.into_iter().map(i64::from).sum()
    }
}

/// A required constraint: no domain may have more pods than `most` before the new one.
#[derive(Debug)]
struct SpreadLimit<'a> {
    domains: CountedDomains<'a>,
    most: i64,
}

#[derive(Debug)]
struct SpreadLimits<'a>(Vec<SpreadLimit<'a>>);

impl NodeFilter for SpreadLimits<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        for limit in &self.0 {
            match limit.domains.pods_near(node) {
                None => return Err(Refusal::unresolvable(MISSING_LABEL)),
                Some(pods) if pods > limit.most => return Err(Refusal::unschedulable(SKEW)),
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn reasons(&self, refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        let reason = match refusal.code {
            MISSING_LABEL => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            _ => "node(s) didn't match pod topology spread constraints",
        };
        vec![reason.into()]
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let remedy = |limit: &SpreadLimit<'_>| {
            let SpreadConstraint {
                topology_key: key,
                max_skew,
                ..
            } = limit.domains.constraint;
            match limit.domains.pods_near(node) {
                None => Some(Remedy::Node {
                    before: "label".to_owned(),
                    after: format!("with {key}"),
                }),
                Some(pods) if pods > limit.most => {
                    let needed = max_skew + pods - limit.most;
                    let text = format!("raise maxSkew for {key} from {max_skew} to {needed}");
                    Some(Remedy::Pod(text))
                }
                Some(_) => None,
            }
        };
        self.0.iter().filter_map(remedy).collect()
    }
}

/// A constraint that only affects scores.
#[derive(Debug)]
struct SpreadPreference<'a> {
    domains: CountedDomains<'a>,
    /// The weight of a pod: it grows with the number of domains.
    weight: f64,
    /// The pods on each node, if each node is a domain.
    on_node: Option<Vec<u32>>,
}

#[derive(Debug)]
struct SpreadPreferences<'a>(Vec<SpreadPreference<'a>>);

impl SpreadPreferences<'_> {
    /// Returns whether the node lacks a label, and so is the last choice.
    fn ignores(&self, node: &NodeInfo) -> bool {
        let mut preferences = self.0.iter();
        preferences.any(|preference| preference.domains.value(node).is_none())
    }
}

impl NodeScorer for SpreadPreferences<'_> {
    /// The weighted number of selected pods in the node's domains. Fewer are better.
    fn score(&self, node: &NodeInfo) -> i64 {
        if self.ignores(node) {
            return 0;
        }
        let pods = |preference: &SpreadPreference<'_>| match &preference.on_node {
            Some(on_node) => on_node
                .get(node.slot().index())
                .copied()
                .map_or(0, i64::from),
            None => preference.domains.pods_near(node).unwrap_or(0),
        };
        let of = |preference: &SpreadPreference<'_>| {
            let slack = preference.domains.constraint.max_skew - 1;
            float(pods(preference)) * preference.weight + float(slack)
        };
        truncated(self.0.iter().map(of).sum::<f64>().round())
    }

    fn normalise(&self, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let counted = nodes.iter().zip(&*scores);
        let counted = counted.filter(|(node, _)| !self.ignores(node));
        let counted = counted.map(|(_, score)| *score);
        let (least, most) = counted.fold((i64::MAX, 0), |(least, most), score| {
            (score.min(least), score.max(most))
        });
        for (node, score) in nodes.iter().zip(scores) {
            *score = match most {
                _ if self.ignores(node) => 0,
                0 => MAX_SCORE,
                most => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }
}
