//! The decision which pods must leave a node so that a pod of higher priority fits
//! (DefaultPreemption of the reference).
//!
//! The scheduler keeps the nomination of the node; [`evict()`] carries out the decision.

use std::{cmp::Reverse, collections::BTreeSet, fmt, sync::Arc};

use podplane_api::{
    Object as _, jiff::Timestamp, policy::PodDisruptionBudget, selector::LabelSelector,
};

use crate::{
    cluster::Cluster,
    framework::{CycleInput, Framework, Resolvability},
    names::{NodeName, NodeSlot},
    node::NodeInfo,
    pod::PodInfo,
};

mod evict;
#[cfg(test)]
mod tests;

pub use evict::evict;

/// The search ends after this many nodes on which preemption helps, or
/// [`CANDIDATES_PERCENTAGE`] of all nodes if that is more.
const MIN_CANDIDATES: usize = 100;
/// See [`MIN_CANDIDATES`].
const CANDIDATES_PERCENTAGE: usize = 10;

/// The room that a PodDisruptionBudget leaves.
#[derive(Clone, Debug)]
pub struct DisruptionBudget {
    /// The namespace of the budget and its pods.
    pub namespace: String,
    /// The pods. As in the reference an empty selector selects none.
    pub selector: LabelSelector,
    /// `status.disruptionsAllowed`.
    pub allowed: i32,
    /// The names in `status.disruptedPods`: pods that already count as evicted.
    pub disrupted: BTreeSet<String>,
}

impl From<&PodDisruptionBudget> for DisruptionBudget {
    fn from(budget: &PodDisruptionBudget) -> Self {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Self {
            namespace: budget.namespace().to_owned(),
            selector: selector.map(LabelSelector::from).unwrap_or_default(),
            allowed: status
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or_default(),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
        }
    }
}

/// A preemption that makes room for the pod.
#[derive(Clone, Debug)]
pub struct Preemption {
    /// The node to nominate.
    pub node: NodeName,
    /// The pods to evict, the most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// The number of victims whose budgets do not allow it.
    pub violations: usize,
    /// The pods of lower priority that were nominated for the node. They may no longer fit there,
    /// so their nominations end (getLowerPriorityNominatedPods of the reference).
    pub displaced: Vec<Arc<PodInfo>>,
}

/// The reason why there is no preemption. Displayed as the reference adds it to the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPreemption {
    /// `spec.preemptionPolicy` is Never.
    Never,
    /// The victims of an earlier preemption have not left their node yet.
    VictimsRemain,
    /// No node helps: the number of nodes, of those that do not fit even without pods, and of those
    /// without pods of lower priority or with too few of them.
    NoVictims {
        /// All nodes.
        nodes: usize,
        /// Those that preemption cannot help.
        unresolvable: usize,
    },
}

impl fmt::Display for NoPreemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("preemption: not eligible due to preemptionPolicy=Never."),
            Self::VictimsRemain => f.write_str(
                "preemption: not eligible due to a terminating pod on the nominated node.",
            ),
            Self::NoVictims {
                nodes,
                unresolvable,
            } => {
                let counts = [
                    (*unresolvable, "Preemption is not helpful for scheduling"),
                    (
                        nodes - unresolvable,
                        "No preemption victims found for incoming pod",
                    ),
                ];
                let counts = counts.into_iter().filter(|(count, _)| *count > 0);
                let mut entries: Vec<_> = counts
                    .map(|(count, reason)| format!("{count} {reason}"))
                    .collect();
                entries.sort_unstable();
                let entries = entries.join(", ");
                write!(f, "preemption: 0/{nodes} nodes are available: {entries}.")
            }
        }
    }
}

/// Chooses node and victims for a pod that fits no node. `offset` is the place in the list of
/// possible nodes at which the search starts, any number.
///
/// Pods are taken from the cluster's nodes to see whether the pod fits without them, and put back.
///
/// # Errors
///
/// [`NoPreemption`], if no set of victims helps.
pub fn preempt(
    cluster: &mut Cluster,
    framework: &Framework,
    pod: &PodInfo,
    budgets: &[DisruptionBudget],
    offset: usize,
) -> Result<Preemption, NoPreemption> {
    if pod.needs.never_preempts {
        return Err(NoPreemption::Never);
    }
    let nodes = cluster.len();
    let possible = possible_nodes(cluster, framework, pod);
    let unresolvable = nodes - possible.len();
    let start = offset.checked_rem(possible.len()).unwrap_or(0);
    let (before, after) = possible.split_at(start);
    let want = MIN_CANDIDATES.max(nodes * CANDIDATES_PERCENTAGE / 100);
    let mut found = Vec::<Preemption>::new();
    for slot in after.iter().chain(before) {
        // A node without a violated budget is always better, so the search goes on until there is
        // one.
        let is_enough = found.len() >= want && found.iter().any(|one| one.violations == 0);
        if is_enough {
            break;
        }
        found.extend(victims_on(cluster, framework, pod, budgets, *slot));
    }
    let best = found.into_iter().min_by_key(cost);
    let mut best = best.ok_or(NoPreemption::NoVictims {
        nodes,
        unresolvable,
    })?;
    best.displaced = cluster.nominated_below(pod.priority(), &best.node);
    Ok(best)
}

/// The nodes whose refusal may be resolved by the leave of other pods, in the order of their names.
fn possible_nodes(cluster: &Cluster, framework: &Framework, pod: &PodInfo) -> Vec<NodeSlot> {
    let Ok(filters) = framework.pre_filter(CycleInput { pod, cluster }) else {
        return Vec::new();
    };
    let is_possible = |node: &&NodeInfo| {
        let only = filters.only.as_ref();
        only.is_none_or(|only| only.names.binary_search(&node.name).is_ok())
            && cluster
                .check_with_nominated(&filters, pod, node)
                .is_err_and(|refusal| refusal.refusal.resolvable == Resolvability::ByPreemption)
    };
    let possible = cluster.nodes().filter(is_possible);
    possible.map(NodeInfo::slot).collect()
}

/// The victims on a node, if their leave helps: of all pods of lower priority those that do not fit
/// beside the pod. Those whose budget does not allow an eviction are kept first, then the most
/// important ones.
fn victims_on(
    cluster: &mut Cluster,
    framework: &Framework,
    pod: &PodInfo,
    budgets: &[DisruptionBudget],
    slot: NodeSlot,
) -> Option<Preemption> {
    let info = cluster.node_at(slot)?;
    let name = info.name.clone();
    // Nodes without pods of lower priority are passed over without a look at each pod.
    if info.pods().lowest_priority()? >= pod.priority() {
        return None;
    }
    let pods = info.pods().iter();
    let lower = pods.filter(|other| other.priority() < pod.priority());
    let mut lower: Vec<_> = lower.cloned().collect();
    lower.sort_by_key(importance);
    for other in &lower {
        cluster.remove_pod(&name, &other.uid);
    }
    let fits = |cluster: &Cluster| {
        let filters = framework.pre_filter(CycleInput { pod, cluster });
        let node = cluster.node_at(slot);
        node.zip(filters.ok()).is_some_and(|(node, filters)| {
            cluster.check_with_nominated(&filters, pod, node).is_ok()
        })
    };
    let is_candidate = fits(cluster);
    let (protected, other) = by_budgets(&lower, budgets);
    let mut victims = Vec::new();
    let mut violations = 0;
    let protected = protected.into_iter().map(|one| (one, true));
    for (other, is_protected) in protected.chain(other.into_iter().map(|one| (one, false))) {
        cluster.add_pod(&name, other.clone());
        if is_candidate && !fits(cluster) {
            cluster.remove_pod(&name, &other.uid);
            violations += usize::from(is_protected);
            victims.push(other);
        }
    }
    for victim in &victims {
        cluster.add_pod(&name, victim.clone());
    }
    victims.sort_by_key(importance);
    is_candidate.then_some(Preemption {
        node: name,
        victims,
        violations,
        displaced: Vec::new(),
    })
}

/// Splits the pods, in their order, into those whose eviction violates a budget and the others.
fn by_budgets(
    pods: &[Arc<PodInfo>],
    budgets: &[DisruptionBudget],
) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let mut allowed: Vec<_> = budgets.iter().map(|budget| budget.allowed).collect();
    let violates = |pod: &Arc<PodInfo>| {
        let mut is_violation = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let concerns = !&pod.labels.is_empty()
                && budget.namespace == pod.namespace()
                && !budget.selector.is_empty()
                && budget.selector.matches(&pod.labels)
                && !budget.disrupted.contains(&pod.key.name);
            if concerns {
                *allowed -= 1;
                is_violation |= *allowed < 0;
            }
        }
        is_violation
    };
    pods.iter().cloned().partition(violates)
}

/// The sort key of pods, the most important first: by priority, then the longest running.
fn importance(pod: &Arc<PodInfo>) -> (Reverse<i32>, Timestamp) {
    (Reverse(pod.priority()), start_time(pod))
}

/// The start of the pod. One that has not started is the newest.
fn start_time(pod: &PodInfo) -> Timestamp {
    pod.start_time.unwrap_or(Timestamp::MAX)
}

/// The sort key of preemptions, the cheapest first: fewest violated budgets, the lowest highest
/// priority, the lowest sum of priorities, fewest victims, and the latest start of the oldest of
/// the most important victims.
fn cost(preemption: &Preemption) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
    let victims = &preemption.victims;
    let highest = victims.first().map_or(i32::MIN, |pod| pod.priority());
    // Moved to positive numbers, as in the reference, so that more victims never cost less.
    let priorities = victims.iter().map(|pod| i64::from(pod.priority()));
    let sum = priorities
        .map(|priority| priority - i64::from(i32::MIN))
        .sum();
    let start = victims
        .first()
        .map_or(Timestamp::MAX, |pod| start_time(pod));
    let count = victims.len();
    (preemption.violations, highest, sum, count, Reverse(start))
}
