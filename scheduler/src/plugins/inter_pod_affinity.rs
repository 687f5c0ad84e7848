//! Pods are placed near to, or away from, other pods.

use std::{borrow::Cow, collections::BTreeMap};

use super::node_resources_balanced::{float, truncated};
use crate::{
    cluster::Cluster,
    columns::LabelColumn,
    constraints::affinity::{AffinityEffect, AffinityTerm},
    framework::{
        CycleInput, MAX_SCORE, NodeFilter, NodeScorer, Plugin, PluginEvent, PreFilter, Refusal,
    },
    names::NodeSlot,
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    pod_index::NodeCount,
    remedy::Remedy,
};

/// The plugin `InterPodAffinity`.
#[derive(Debug)]
pub struct InterPodAffinity;

/// The weight in scores of an existing pod's required affinity (`hardPodAffinityWeight`).
const REQUIRED_WEIGHT: i64 = 1;

// The codes of refusals.
const AFFINITY: u64 = 0;
const ANTI_AFFINITY: u64 = 1;
const EXISTING_ANTI_AFFINITY: u64 = 2;

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        let pod = input.pod;
        let mut existing = DomainSums::default();
        for (rule, owners) in rules_on(input) {
            if rule == AffinityEffect::Forbidden {
                existing.add(input.cluster, owners.key, owners.counts, 1);
            }
        }
        let terms: Vec<_> = pod.needs.affinity_terms(AffinityEffect::Required).collect();
        let mut near = DomainSums::default();
        if !terms.is_empty() {
            for namespace in input.cluster.pods().namespaces() {
                if !terms
                    .iter()
                    .all(|term| selects_namespace(term, namespace, input.cluster))
                {
                    continue;
                }
                let selects = |labels: &_| terms.iter().all(|term| term.selects_labels(labels));
                let counts: Vec<_> = input.cluster.pods().selected(namespace, selects).collect();
                for term in &terms {
                    let key = term.topology_key.as_str();
                    near.add(input.cluster, key, counts.iter().copied(), 1);
                }
            }
        }
        let mut apart = DomainSums::default();
        let forbidden: Vec<_> = pod
            .needs
            .affinity_terms(AffinityEffect::Forbidden)
            .collect();
        for term in &forbidden {
            apart.add_selected(input.cluster, term, 1);
        }
        if existing.is_empty() && terms.is_empty() && forbidden.is_empty() {
            return PreFilter::Skip;
        }
        let labels = &pod.labels;
        let selects_itself = |term: &&AffinityTerm| {
            selects_namespace(term, pod.namespace(), input.cluster) && term.selects_labels(labels)
        };
        PreFilter::Filter(Box::new(AffinityFilter {
            keys: terms
                .iter()
                .map(|term| input.cluster.column(&term.topology_key))
                .collect(),
            // The first of a group that wants to be together finds none of the others.
            is_first: near.is_empty() && terms.iter().all(selects_itself),
            near,
            apart,
            existing,
        }))
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let mut sums = DomainSums::default();
        for rule in &input.pod.needs.affinity {
            if let AffinityEffect::Preferred(weight) = rule.effect {
                sums.add_selected(input.cluster, &rule.term, weight);
            }
        }
        for (effect, owners) in rules_on(input) {
            let weight = match effect {
                AffinityEffect::Required => REQUIRED_WEIGHT,
                AffinityEffect::Preferred(weight) => weight,
                AffinityEffect::Forbidden => continue,
            };
            sums.add(input.cluster, owners.key, owners.counts, weight);
        }
        (!sums.is_empty()).then(|| Box::new(sums) as Box<dyn NodeScorer>)
    }

    fn weight(&self) -> i64 {
        2
    }

    fn heeds(&self, pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        let selects = |pod: &PodInfo, effect, other: &PodInfo| {
            let mut terms = pod.needs.affinity_terms(effect);
            terms.any(|term| term.selects_labels(&other.labels))
        };
        match event {
            PluginEvent::NodeChanged(change) => *change == NodeChange::Labels,
            PluginEvent::PodPlaced(placed) => selects(pod, AffinityEffect::Required, placed),
            PluginEvent::PodFreed(freed) => {
                selects(pod, AffinityEffect::Forbidden, freed)
                    || selects(freed, AffinityEffect::Forbidden, pod)
                    // Without it, the pod may be the first of its group.
                    || selects(pod, AffinityEffect::Required, freed)
            }
            PluginEvent::NamespaceChanged => true,
        }
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// Returns whether the term of the pod to be scheduled selects pods of the namespace.
fn selects_namespace(term: &AffinityTerm, namespace: &str, cluster: &Cluster) -> bool {
    term.selects_namespace(namespace, cluster.namespace(namespace))
}

/// The pods that have a rule, and the label of its domains.
struct RuleOwners<'a, I> {
    key: &'a str,
    counts: I,
}

/// The rules of existing pods that select the pod.
fn rules_on<'a>(
    input: CycleInput<'a>,
) -> impl Iterator<
    Item = (
        AffinityEffect,
        RuleOwners<'a, impl Iterator<Item = &'a NodeCount>>,
    ),
> {
    let CycleInput { pod, cluster } = input;
    let namespace = pod.namespace();
    let labels = cluster.namespace(namespace);
    let rules = cluster.pods().rules_for(namespace);
    let selecting = rules.filter(move |existing| {
        let term = &existing.rule.term;
        term.selects_namespace_of_new_pod(namespace, labels) && term.selects_labels(&pod.labels)
    });
    selecting.map(|existing| {
        let owners = RuleOwners {
            key: existing.rule.term.topology_key.as_str(),
            counts: existing.owners.iter(),
        };
        (existing.rule.effect, owners)
    })
}

/// Sums over the pods in each domain of several labels.
#[derive(Debug, Default)]
struct DomainSums<'a>(BTreeMap<&'a str, DomainSum<'a>>);

/// Sums over the pods in each domain of one label.
#[derive(Debug)]
struct DomainSum<'a> {
    column: Cow<'a, LabelColumn>,
    by_value: Vec<i64>,
    has_pods: bool,
}

impl<'a> DomainSums<'a> {
    /// Adds `weight` for each pod to the sum of its node's domain.
    fn add<'c>(
        &mut self,
        cluster: &'a Cluster,
        key: &'a str,
        pods: impl Iterator<Item = &'c NodeCount>,
        weight: i64,
    ) {
        let sum = self.0.entry(key).or_insert_with(|| {
            let column = cluster.column(key);
            DomainSum {
                by_value: vec![0; column.values().len()],
                column,
                has_pods: false,
            }
        });
        for count in pods {
            if let Some(value) = sum.column.value(count.slot)
                && let Some(total) = sum.by_value.get_mut(value.index())
            {
                *total += weight * i64::from(count.pods);
                sum.has_pods = true;
            }
        }
    }

    /// Adds `weight` for each pod that the term of the pod to be scheduled selects.
    fn add_selected(&mut self, cluster: &'a Cluster, term: &'a AffinityTerm, weight: i64) {
        for namespace in cluster.pods().namespaces() {
            if selects_namespace(term, namespace, cluster) {
                let selects = |labels: &_| term.selects_labels(labels);
                let pods = cluster.pods().selected(namespace, selects);
                self.add(cluster, &term.topology_key, pods, weight);
            }
        }
    }

    /// Returns true if no domain has a pod.
    fn is_empty(&self) -> bool {
        !self.0.values().any(|sum| sum.has_pods)
    }

    /// The sum of the node's domain of a label.
    fn of(&self, key: &str, slot: NodeSlot) -> i64 {
        self.0.get(key).map_or(0, |sum| sum.of(slot))
    }

    /// Returns whether a domain of the node has a pod.
    fn has_any(&self, slot: NodeSlot) -> bool {
        self.0.values().any(|sum| sum.of(slot) > 0)
    }
}

impl DomainSum<'_> {
    fn of(&self, slot: NodeSlot) -> i64 {
        let value = self.column.value(slot);
        value
            .and_then(|value| self.by_value.get(value.index()).copied())
            .unwrap_or(0)
    }
}

#[derive(Debug)]
struct AffinityFilter<'a> {
    /// The labels of the required terms.
    keys: Vec<Cow<'a, LabelColumn>>,
    /// The pods that all required terms select.
    near: DomainSums<'a>,
    /// The pods that the anti-affinity terms select.
    apart: DomainSums<'a>,
    /// The existing pods whose anti-affinity selects the pod.
    existing: DomainSums<'a>,
    /// The pod selects itself and no other pod is selected.
    is_first: bool,
}

impl NodeFilter for AffinityFilter<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let slot = node.slot();
        let has_label = |column: &Cow<'_, LabelColumn>| column.value(slot).is_some();
        let is_near = |column: &Cow<'_, LabelColumn>| self.near.of(column.key(), slot) > 0;
        if !self.keys.iter().all(has_label) || !self.is_first && !self.keys.iter().all(is_near) {
            return Err(Refusal::unresolvable(AFFINITY));
        }
        if self.apart.has_any(slot) {
            return Err(Refusal::unschedulable(ANTI_AFFINITY));
        }
        if self.existing.has_any(slot) {
            return Err(Refusal::unschedulable(EXISTING_ANTI_AFFINITY));
        }
        Ok(())
    }

    fn reasons(&self, refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        let reason = match refusal.code {
            AFFINITY => "node(s) didn't match pod affinity rules",
            ANTI_AFFINITY => "node(s) didn't match pod anti-affinity rules",
            _ => "node(s) didn't satisfy existing pods anti-affinity rules",
        };
        vec![reason.into()]
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let slot = node.slot();
        let mut remedies = Vec::new();
        for key in &self.keys {
            if key.value(slot).is_none() {
                remedies.push(Remedy::Node {
                    before: "label".to_owned(),
                    after: format!("with {}", key.key()),
                });
            } else if !self.is_first && self.near.of(key.key(), slot) == 0 {
                let text = "place a pod that the pod affinity selects in the";
                remedies.push(Remedy::at_node(&format!("{text} {} of", key.key())));
            }
        }
        let others = [
            (
                &self.apart,
                "delete the pods that the anti-affinity selects, in the",
            ),
            (
                &self.existing,
                "delete the pods whose anti-affinity selects this pod, in the",
            ),
        ];
        for (sums, text) in others {
            let crowded = sums.0.iter().filter(|(_, sum)| sum.of(slot) > 0);
            let crowded = crowded.map(|(key, _)| Remedy::at_node(&format!("{text} {key} of")));
            remedies.extend(crowded);
        }
        remedies
    }
}

impl NodeScorer for DomainSums<'_> {
    fn score(&self, node: &NodeInfo) -> i64 {
        self.0.values().map(|sum| sum.of(node.slot())).sum()
    }

    /// Scales the range between the worst and the best node, in floating point as in the reference.
    fn normalise(&self, _nodes: &[&NodeInfo], scores: &mut [i64]) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let most = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = match most - least {
                0 => 0,
                range => truncated(float(MAX_SCORE) * (float(*score - least) / float(range))),
            };
        }
    }
}
