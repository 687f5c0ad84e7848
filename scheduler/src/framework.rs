//! The framework of the decision: its plugins, and the steps in which they take part.
//!
//! A plugin first computes, once per attempt, a state of its own for the pod (PreFilter, PreScore
//! in the reference), or takes no part. The state then decides about single nodes. While nodes are
//! examined nothing is allocated and no text is written: a refusal is a small number, from which
//! the state makes the reasons when a message or an explanation needs them.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use crate::{
    cluster::Cluster,
    config::PlacementPolicy,
    event::ClusterEvent,
    names::NodeName,
    node::{NodeChange, NodeInfo},
    plugins,
    pod::PodInfo,
    remedy::Remedy,
};

/// The best score of a plugin after normalisation.
pub const MAX_SCORE: i64 = 100;

/// The input of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct CycleInput<'a> {
    /// The pod.
    pub pod: &'a PodInfo,
    /// The nodes with their pods, and the namespaces.
    pub cluster: &'a Cluster,
}

/// A rule of the decision.
pub trait Plugin: fmt::Debug + Send + Sync {
    /// The reference's name for it, or ours if it has none.
    fn name(&self) -> &'static str;

    /// Computes the state with which nodes are filtered for the pod.
    fn pre_filter<'a>(&'a self, _input: CycleInput<'a>) -> PreFilter<'a> {
        PreFilter::Skip
    }

    /// Computes the state with which the feasible nodes are scored for the pod. `None` if the
    /// plugin does not score for it.
    fn pre_score<'a>(
        &'a self,
        _input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        None
    }

    /// The weight of its normalised score.
    fn weight(&self) -> i64 {
        0
    }

    /// Returns whether such an event can remove one of its refusals. A new node always can.
    fn heeds(&self, pod: &PodInfo, event: &PluginEvent<'_>) -> bool;

    /// Returns true if a refusal of a node depends on that node alone, so that an event on it can
    /// be examined at once.
    fn is_local(&self) -> bool {
        true
    }
}

/// An event, as a plugin judges it.
#[derive(Clone, Copy, Debug)]
pub enum PluginEvent<'a> {
    /// This of a node changed.
    NodeChanged(NodeChange),
    /// This pod left its node.
    PodFreed(&'a PodInfo),
    /// This pod was placed on a node.
    PodPlaced(&'a PodInfo),
    /// A namespace is new or has other labels.
    NamespaceChanged,
}

/// The result of a plugin's first step.
#[derive(Debug)]
pub enum PreFilter<'a> {
    /// The plugin accepts every node.
    Skip,
    /// Each node is filtered.
    Filter(Box<dyn NodeFilter + 'a>),
    /// Only these nodes are filtered, and no other is feasible.
    Only(Vec<NodeName>, Box<dyn NodeFilter + 'a>),
    /// No node is feasible, for this reason.
    Reject(String),
}

/// The state of a plugin that filters nodes for one pod.
pub trait NodeFilter: fmt::Debug {
    /// Checks a node.
    ///
    /// # Errors
    ///
    /// The plugin's refusal.
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal>;

    /// The reasons of a refusal of the node, in the reference's words; seldom more than one. Equal
    /// refusals have equal reasons on all nodes.
    fn reasons(&self, refusal: Refusal, node: &NodeInfo) -> Vec<Cow<'static, str>>;

    /// The shortage of the refused node in particular, if the reasons do not state it.
    fn detail(&self, _node: &NodeInfo) -> Option<NodeShortage> {
        None
    }

    /// The changes after which this filter would accept the refused node; all of them are needed.
    /// Empty if the filter knows none.
    fn remedies(&self, _node: &NodeInfo) -> Vec<Remedy> {
        Vec::new()
    }

    /// Returns whether the detail of the refused node belongs into the message.
    fn tells_detail(&self, _node: &NodeInfo) -> bool {
        false
    }
}

/// A node's refusal by a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// A number for the reasons, with a meaning to the plugin's state.
    pub code: u64,
    /// The events that could help.
    pub resolvable: Resolvability,
}

impl Refusal {
    /// A refusal because of other pods.
    pub fn unschedulable(code: u64) -> Self {
        Self {
            code,
            resolvable: Resolvability::ByPreemption,
        }
    }

    /// A refusal because of the node itself.
    pub fn unresolvable(code: u64) -> Self {
        Self {
            code,
            resolvable: Resolvability::Never,
        }
    }
}

/// The possibility that a node fits a pod once other pods have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolvability {
    /// The node may fit.
    ByPreemption,
    /// The node does not fit even if it is empty.
    Never,
}

/// The shortage of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShortage {
    /// The end of a sentence that begins with the node's name.
    pub text: String,
    /// True if the message of the pod's condition and event has it, too.
    pub is_in_message: bool,
}

/// The state of a plugin that scores nodes for one pod.
pub trait NodeScorer: fmt::Debug {
    /// The raw score of a feasible node.
    fn score(&self, node: &NodeInfo) -> i64;

    /// Brings the raw scores of all feasible nodes to 0 to [`MAX_SCORE`].
    fn normalise(&self, _nodes: &[&NodeInfo], _scores: &mut [i64]) {}
}

/// Scales scores so that the best one is [`MAX_SCORE`].
pub fn scale_to_max(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    if max != 0 {
        scores
            .iter_mut()
            .for_each(|score| *score = MAX_SCORE * *score / max);
    }
}

/// Scales scores so that 0 becomes [`MAX_SCORE`] and the largest becomes 0.
pub fn scale_to_max_reversed(scores: &mut [i64]) {
    scale_to_max(scores);
    scores
        .iter_mut()
        .for_each(|score| *score = MAX_SCORE - *score);
}

/// A refusal with the plugin that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginRefusal {
    /// The place of the filter among the active ones.
    pub filter: usize,
    /// The refusal.
    pub refusal: Refusal,
}

/// The filters that take part in an attempt, with their states.
#[derive(Debug, Default)]
pub struct ActiveFilters<'a> {
    filters: Vec<ActiveFilter<'a>>,
    /// The nodes that are filtered, if not all.
    pub only: Option<OnlyNodes>,
}

#[derive(Debug)]
struct ActiveFilter<'a> {
    name: &'static str,
    state: Box<dyn NodeFilter + 'a>,
}

/// The nodes that a plugin restricts the search to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlyNodes {
    /// The plugin.
    pub by: &'static str,
    /// The nodes, sorted. Some may not exist.
    pub names: Vec<NodeName>,
}

impl OnlyNodes {
    /// The reason of all other nodes.
    pub fn reason(&self) -> Cow<'static, str> {
        format!("node(s) didn't satisfy plugin(s) [{}]", self.by).into()
    }
}

impl ActiveFilters<'_> {
    /// Runs the filters until one refuses.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub fn check(&self, node: &NodeInfo) -> Result<(), PluginRefusal> {
        for (at, filter) in self.filters.iter().enumerate() {
            if let Err(refusal) = filter.state.filter(node) {
                return Err(PluginRefusal {
                    filter: at,
                    refusal,
                });
            }
        }
        Ok(())
    }

    /// Runs all filters; returns their refusals in order.
    pub fn refusals(&self, node: &NodeInfo) -> impl Iterator<Item = PluginRefusal> {
        let filters = self.filters.iter().enumerate();
        filters.filter_map(|(at, filter)| {
            let refusal = filter.state.filter(node).err()?;
            Some(PluginRefusal {
                filter: at,
                refusal,
            })
        })
    }

    /// Returns whether the search leaves the node out because a plugin names others.
    pub fn excludes(&self, node: &NodeInfo) -> bool {
        let only = self.only.as_ref();
        only.is_some_and(|only| only.names.binary_search(&node.name).is_err())
    }

    /// The name of the plugin that refused, and its state.
    pub fn refusing(&self, refusal: PluginRefusal) -> Option<(&'static str, &dyn NodeFilter)> {
        let filter = self.filters.get(refusal.filter)?;
        Some((filter.name, &*filter.state))
    }
}

/// A rejection of a pod for every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The plugin.
    pub by: &'static str,
    /// The reason.
    pub reason: String,
}

/// A plugin that scores in an attempt.
#[derive(Debug)]
pub struct ActiveScorer<'a> {
    /// The plugin's name.
    pub name: &'static str,
    /// The plugin's weight.
    pub weight: i64,
    /// Its state.
    pub state: Box<dyn NodeScorer + 'a>,
}

/// The plugins, in order. The first refusal counts for a node, as in the reference, so that
/// messages have the reference's counts.
#[derive(Debug)]
pub struct Framework(Vec<Box<dyn Plugin>>);

impl Framework {
    /// The reference's plugins in the reference's order, and ours if the policy has them.
    pub fn new(policy: PlacementPolicy) -> Self {
        Self(plugins::all(policy))
    }

    /// Prepares the filters for the pod.
    ///
    /// # Errors
    ///
    /// The rejection by a plugin, if no node can be feasible.
    pub fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> Result<ActiveFilters<'a>, Rejection> {
        let mut active = ActiveFilters::default();
        for plugin in &self.0 {
            let name = plugin.name();
            let state = match plugin.pre_filter(input) {
                PreFilter::Skip => continue,
                PreFilter::Filter(state) => state,
                PreFilter::Only(names, state) => {
                    active.only = Some(OnlyNodes { by: name, names });
                    state
                }
                PreFilter::Reject(reason) => return Err(Rejection { by: name, reason }),
            };
            active.filters.push(ActiveFilter { name, state });
        }
        Ok(active)
    }

    /// Prepares the scores of the feasible nodes for the pod.
    pub fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        feasible: &[&'a NodeInfo],
    ) -> Vec<ActiveScorer<'a>> {
        let plugins = self.0.iter().filter(|plugin| plugin.weight() != 0);
        let active = plugins.filter_map(|plugin| {
            Some(ActiveScorer {
                name: plugin.name(),
                weight: plugin.weight(),
                state: plugin.pre_score(input, feasible)?,
            })
        });
        active.collect()
    }

    /// Returns whether the event can help a pod that was rejected by these plugins: one of them
    /// heeds the event and, if only the event's node matters, now accepts that node.
    pub fn may_unblock(
        &self,
        input: CycleInput<'_>,
        rejected_by: &BTreeSet<&'static str>,
        event: &ClusterEvent<'_>,
    ) -> bool {
        let is_new = event.is_new_node();
        // A pod without refusals found no nodes at all.
        if rejected_by.is_empty() {
            return is_new;
        }
        let rejecting = self.0.iter().filter(|f| rejected_by.contains(f.name()));
        rejecting
            .filter(|plugin| is_new || event.parts().any(|part| plugin.heeds(input.pod, &part)))
            .any(|plugin| match event.node() {
                Some(node) if plugin.is_local() => match plugin.pre_filter(input) {
                    PreFilter::Filter(state) | PreFilter::Only(_, state) => {
                        state.filter(node).is_ok()
                    }
                    PreFilter::Skip => true,
                    PreFilter::Reject(_) => false,
                },
                _ => true,
            })
    }

    /// Returns whether the node fits the pod by all plugins whose refusal depends on the node alone.
    /// The node may differ from the one of that name in the cluster.
    pub fn fits_locally(&self, input: CycleInput<'_>, node: &NodeInfo) -> bool {
        let mut local = self.0.iter().filter(|plugin| plugin.is_local());
        local.all(|plugin| match plugin.pre_filter(input) {
            PreFilter::Skip => true,
            PreFilter::Filter(state) => state.filter(node).is_ok(),
            PreFilter::Only(names, state) => {
                names.contains(&node.name) && state.filter(node).is_ok()
            }
            PreFilter::Reject(_) => false,
        })
    }

    /// Returns true if a pod that was rejected by these plugins may wait for another pod to be
    /// placed.
    pub fn waits_for_pods(&self, rejected_by: &BTreeSet<&'static str>) -> bool {
        let mut plugins = self.0.iter().filter(|plugin| !plugin.is_local());
        plugins.any(|plugin| rejected_by.contains(plugin.name()))
    }
}
