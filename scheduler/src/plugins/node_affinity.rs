//! The node's labels match the pod's `nodeSelector` and the required terms of its node affinity;
//! nodes that match more of the preferred terms are better.

use std::borrow::Cow;

use crate::{
    cluster::Cluster,
    columns::LabelColumn,
    constraints::nodes::{NodeTerm, RequiredNodes, ValueRequirement},
    framework::{
        CycleInput, NodeFilter, NodeScorer, Plugin, PluginEvent, PreFilter, Refusal, scale_to_max,
    },
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `NodeAffinity`.
#[derive(Debug)]
pub struct NodeAffinity;

/// A label with more values is compared per node.
const MAX_VALUES: usize = 256;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        let required = &input.pod.needs.required_nodes;
        if required.is_empty() {
            return PreFilter::Skip;
        }
        let state = Box::new(RequiredMatch::new(required, input.cluster));
        match &required.names {
            Some(names) if names.is_empty() => {
                PreFilter::Reject("pod affinity terms conflict".to_owned())
            }
            Some(names) => PreFilter::Only(names.clone(), state),
            None => PreFilter::Filter(state),
        }
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let preferred = &input.pod.needs.preferred_nodes;
        let terms = preferred
            .iter()
            .map(|(weight, term)| (*weight, TermMatch::new(term, input.cluster)));
        (!preferred.is_empty())
            .then(|| Box::new(PreferredMatch(terms.collect())) as Box<dyn NodeScorer>)
    }

    fn weight(&self) -> i64 {
        2
    }

    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        matches!(event, PluginEvent::NodeChanged(NodeChange::Labels))
    }
}

/// A requirement on a label with its result for each value, if the label's column is cached.
#[derive(Debug)]
struct RequirementMatch<'a> {
    requirement: &'a ValueRequirement,
    by_value: Option<ByValue<'a>>,
}

#[derive(Debug)]
struct ByValue<'a> {
    column: &'a LabelColumn,
    holds: Vec<bool>,
    holds_if_absent: bool,
}

impl<'a> RequirementMatch<'a> {
    fn new(requirement: &'a ValueRequirement, cluster: &'a Cluster) -> Self {
        let column = cluster.cached_column(&requirement.key);
        let column = column.filter(|column| column.values().len() <= MAX_VALUES);
        Self {
            by_value: column.map(|column| ByValue {
                column,
                holds: column
                    .values()
                    .iter()
                    .map(|value| requirement.holds(Some(value)))
                    .collect(),
                holds_if_absent: requirement.holds(None),
            }),
            requirement,
        }
    }

    fn holds(&self, node: &NodeInfo) -> bool {
        let Some(known) = &self.by_value else {
            let key = &self.requirement.key;
            return self.requirement.holds(node.label(key));
        };
        match known.column.value(node.slot()) {
            Some(value) => known.holds.get(value.index()).copied().unwrap_or(false),
            None => known.holds_if_absent,
        }
    }
}

/// A term with the results of its requirements.
#[derive(Debug)]
struct TermMatch<'a> {
    term: &'a NodeTerm,
    labels: Vec<RequirementMatch<'a>>,
}

impl<'a> TermMatch<'a> {
    fn new(term: &'a NodeTerm, cluster: &'a Cluster) -> Self {
        let labels = term.labels.iter();
        Self {
            term,
            labels: labels
                .map(|one| RequirementMatch::new(one, cluster))
                .collect(),
        }
    }

    fn selects(&self, node: &NodeInfo) -> bool {
        !self.term.is_empty()
            && self.labels.iter().all(|one| one.holds(node))
            && self.term.selects_name(node.name.as_str())
    }
}

/// The pod's required nodes, prepared for the nodes of a cluster.
#[derive(Debug)]
pub struct RequiredMatch<'a> {
    selector: Vec<RequirementMatch<'a>>,
    terms: Option<Vec<TermMatch<'a>>>,
}

impl<'a> RequiredMatch<'a> {
    /// Prepares the comparison.
    pub fn new(required: &'a RequiredNodes, cluster: &'a Cluster) -> Self {
        let selector = required.selector.iter();
        let terms = required.terms.as_ref();
        Self {
            selector: selector
                .map(|one| RequirementMatch::new(one, cluster))
                .collect(),
            terms: terms.map(|terms| {
                terms
                    .iter()
                    .map(|one| TermMatch::new(one, cluster))
                    .collect()
            }),
        }
    }

    /// Returns whether the node is one that the pod requires.
    pub fn selects(&self, node: &NodeInfo) -> bool {
        let terms = self.terms.as_ref();
        self.selector.iter().all(|one| one.holds(node))
            && terms.is_none_or(|terms| terms.iter().any(|term| term.selects(node)))
    }
}

impl NodeFilter for RequiredMatch<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match self.selects(node) {
            true => Ok(()),
            false => Err(Refusal::unresolvable(0)),
        }
    }

    fn reasons(&self, _refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        vec!["node(s) didn't match Pod's node affinity/selector".into()]
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let missing = self.selector.iter().filter(|one| !one.holds(node));
        let selector = missing.map(|one| {
            let key = &one.requirement.key;
            Remedy::Pod(format!(
                "remove {key} from nodeSelector or label the node with it"
            ))
        });
        let mut terms = self.terms.iter();
        let is_refused = terms.any(|terms| !terms.iter().any(|term| term.selects(node)));
        let terms = is_refused.then(|| {
            Remedy::Pod("add a term that selects the node to the required node affinity".to_owned())
        });
        selector.chain(terms).collect()
    }
}

/// The preferred terms with their weights.
#[derive(Debug)]
struct PreferredMatch<'a>(Vec<(i64, TermMatch<'a>)>);

impl NodeScorer for PreferredMatch<'_> {
    /// The sum of the weights of the terms that select the node.
    fn score(&self, node: &NodeInfo) -> i64 {
        let selecting = self.0.iter().filter(|(_, term)| term.selects(node));
        selecting.map(|(weight, _)| weight).sum()
    }

    fn normalise(&self, _nodes: &[&NodeInfo], scores: &mut [i64]) {
        scale_to_max(scores);
    }
}
