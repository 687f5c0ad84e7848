//! Pods that a constraint selects are spread over the domains of a node label.

use std::{borrow::Cow, rc::Rc};

use super::{
    node_affinity::RequiredMatch,
    node_resources_balanced::{float, truncated},
    taint_toleration::untolerated,
};
use crate::{
    cluster::Cluster,
    columns::{LabelColumn, ValueId},
    constraints::spread::{HOSTNAME, SpreadConstraint},
    framework::{
        CycleInput, MAX_SCORE, NodeFilter, NodeScorer, Plugin, PluginEvent, PreFilter, Refusal,
    },
    names::NodeSlot,
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `PodTopologySpread`.
#[derive(Debug)]
pub struct PodTopologySpread;

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
        let own = &input.pod.needs.spread;
        let preferences = match own.is_empty() {
            false => {
                let own = own.iter().filter(|one| !one.is_required);
                SpreadPreferences::new(input, feasible, &own.collect::<Vec<_>>(), Labels::All)
            }
            true => {
                let selector = input.cluster.workloads().selector_of(input.pod)?;
                let defaults = SpreadConstraint::defaults(&selector);
                let defaults: Vec<_> = defaults.iter().collect();
                SpreadPreferences::new(input, feasible, &defaults, Labels::Any)
            }
        };
        Some(Box::new(preferences?))
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

/// Returns whether the pods of the node count by the constraint's policies.
fn includes(
    constraint: &SpreadConstraint,
    pod: &PodInfo,
    required: &RequiredMatch<'_>,
    node: &NodeInfo,
) -> bool {
    (!constraint.honors_affinity || required.selects(node))
        && (!constraint.honors_taints || untolerated(&pod.needs.tolerations, node).is_none())
}

/// The domains of a required constraint with the pods in each.
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
                if !includes(constraint, pod, &required, node) {
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

/// The labels that a node needs to be scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labels {
    /// Those of all constraints. A node without them is the last choice.
    All,
    /// None: a constraint whose label the node lacks does not matter to the node. So nodes without
    /// a zone are spread over by the default constraints, too.
    Any,
}

/// The domains of a constraint that only affects scores.
#[derive(Clone, Copy, Debug)]
struct ScoredDomains<'a> {
    column: &'a LabelColumn,
    /// The domain of nodes without the label, if they are scored and the domain has nodes with the
    /// label: that of the empty value.
    of_unlabelled: Option<ValueId>,
}

impl<'a> ScoredDomains<'a> {
    fn new(column: &'a LabelColumn, needed: Labels) -> Self {
        Self {
            column,
            of_unlabelled: match needed {
                Labels::All => None,
                Labels::Any => column.find(""),
            },
        }
    }

    fn of(self, slot: NodeSlot) -> Option<ValueId> {
        self.column.value(slot).or(self.of_unlabelled)
    }

    /// The pods in each domain, by the number of the label's value.
    fn pods(
        self,
        CycleInput { pod, cluster }: CycleInput<'_>,
        constraint: &SpreadConstraint,
        by_node: &[u32],
        is_scored: impl Fn(NodeSlot) -> bool,
    ) -> Vec<i64> {
        let mut domains = vec![0_i64; self.column.values().len()];
        let required = RequiredMatch::new(&pod.needs.required_nodes, cluster);
        // Nodes are in no order in memory, so those without pods are not looked at.
        let restricted = !pod.needs.required_nodes.is_empty() && constraint.honors_affinity
            || constraint.honors_taints;
        let is_included = |slot| {
            let node = cluster.node_at(slot);
            node.is_some_and(|node| includes(constraint, pod, &required, node))
        };
        for (slot, pods) in by_node.iter().enumerate().filter(|(_, pods)| **pods > 0) {
            let slot = NodeSlot::new(slot);
            if is_scored(slot)
                && let Some(domain) = self.of(slot)
                && let Some(sum) = domains.get_mut(domain.index())
                && (!restricted || is_included(slot))
            {
                *sum += i64::from(*pods);
            }
        }
        domains
    }

    /// The number of domains of these nodes.
    fn number(self, nodes: &[NodeSlot]) -> usize {
        let mut found = vec![false; self.column.values().len()];
        let mut lacks_domain = false;
        for slot in nodes {
            match self.of(*slot).and_then(|at| found.get_mut(at.index())) {
                Some(found) => *found = true,
                None => lacks_domain = true,
            }
        }
        found
            .into_iter()
            .chain([lacks_domain])
            .map(usize::from)
            .sum()
    }
}

/// A constraint that only affects scores.
#[derive(Debug)]
struct SpreadPreference<'a> {
    column: Cow<'a, LabelColumn>,
    /// The selected pods.
    pods: CountedPods,
    /// The weight of a pod: it grows with the number of domains.
    weight: f64,
    max_skew: i64,
}

#[derive(Debug)]
enum CountedPods {
    /// By slot, if each node is a domain.
    OfNodes(Rc<Vec<u32>>),
    /// By the number of the label's value.
    OfDomains(Vec<i64>),
}

impl SpreadPreference<'_> {
    fn has_label(&self, node: &NodeInfo) -> bool {
        self.column.value(node.slot()).is_some()
    }

    /// The share of the constraint in the score of the node, if it has the label.
    fn score(&self, node: &NodeInfo) -> Option<f64> {
        let value = self.column.value(node.slot())?;
        let pods = match &self.pods {
            CountedPods::OfNodes(pods) => pods.get(node.slot().index()).copied().map(i64::from),
            CountedPods::OfDomains(pods) => pods.get(value.index()).copied(),
        };
        Some(float(pods.unwrap_or(0)) * self.weight + float(self.max_skew - 1))
    }
}

#[derive(Debug)]
struct SpreadPreferences<'a> {
    preferences: Vec<SpreadPreference<'a>>,
    needed: Labels,
}

impl<'a> SpreadPreferences<'a> {
    /// Counts the pods for each constraint; `None` without constraints.
    fn new(
        input: CycleInput<'a>,
        feasible: &[&NodeInfo],
        constraints: &[&SpreadConstraint],
        needed: Labels,
    ) -> Option<Self> {
        if constraints.is_empty() {
            return None;
        }
        let columns = constraints.iter().map(|one| &one.topology_key);
        let columns: Vec<_> = columns.map(|key| input.cluster.column(key)).collect();
        let is_scored = |slot: NodeSlot| match needed {
            Labels::All => columns.iter().all(|column| column.value(slot).is_some()),
            Labels::Any => true,
        };
        let scored = feasible.iter().map(|node| node.slot());
        let scored: Vec<_> = scored.filter(|slot| is_scored(*slot)).collect();
        let mut counted = Vec::<(Rc<Vec<u32>>, CountedPods, f64)>::new();
        for (at, (constraint, column)) in constraints.iter().zip(&columns).enumerate() {
            // The default constraints have the same selector.
            let known = at.checked_sub(1).and_then(|at| constraints.get(at));
            let is_known = known.is_some_and(|known| known.selector == constraint.selector);
            let by_node = match counted.last().filter(|_| is_known) {
                Some((by_node, ..)) => by_node.clone(),
                None => Rc::new(pods_by_node(input, constraint)),
            };
            let (pods, domains) = match constraint.topology_key == HOSTNAME {
                // Without the inclusion policies, as in the reference.
                true => (CountedPods::OfNodes(by_node.clone()), scored.len()),
                false => {
                    let domains = ScoredDomains::new(column, needed);
                    let pods = domains.pods(input, constraint, &by_node, is_scored);
                    (CountedPods::OfDomains(pods), domains.number(&scored))
                }
            };
            let domains = i64::try_from(domains).unwrap_or(i64::MAX);
            counted.push((by_node, pods, (float(domains) + 2.0).ln()));
        }
        let preferences = constraints.iter().zip(columns).zip(counted);
        let preferences =
            preferences.map(
                |((constraint, column), (_, pods, weight))| SpreadPreference {
                    column,
                    pods,
                    weight,
                    max_skew: constraint.max_skew,
                },
            );
        Some(Self {
            preferences: preferences.collect(),
            needed,
        })
    }

    /// Returns whether the node lacks a label, and so is the last choice.
    fn ignores(&self, node: &NodeInfo) -> bool {
        let mut preferences = self.preferences.iter();
        self.needed == Labels::All && preferences.any(|one| !one.has_label(node))
    }
}

impl NodeScorer for SpreadPreferences<'_> {
    /// The weighted number of selected pods in the node's domains. Fewer are better.
    fn score(&self, node: &NodeInfo) -> i64 {
        if self.ignores(node) {
            return 0;
        }
        let scores = self.preferences.iter().filter_map(|one| one.score(node));
        truncated(scores.sum::<f64>().round())
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
