//! Remedies: the changes after which a refused pod would fit, computed from the refusals of all
//! filters.
//!
//! Each filter names the changes that its own refusal of a node needs. Nodes that need the same
//! changes are one [`Suggestion`].

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    cluster::Cluster,
    framework::{ActiveFilters, CycleInput, Framework},
    names::NodeName,
    node::NodeInfo,
    pod::PodInfo,
    resources::amount_text,
};

#[cfg(test)]
mod tests;

/// The most suggestions for one pod.
const MAX_SUGGESTIONS: usize = 10;
/// The most nodes that a suggestion names.
const NAMED_NODES: usize = 3;

/// A change after which a filter would accept a node. Phrases are imperative.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// A change of the pod.
    Pod(String),
    /// A change at the node, whose name belongs between the two parts.
    Node {
        /// The part before the name.
        before: String,
        /// The part after the name; may be empty.
        after: String,
    },
    /// A smaller request of the pod, or more of a resource.
    Request {
        /// The resource.
        resource: String,
        /// The pod's request, in the units of [`Resources`](crate::resources::Resources).
        requested: i64,
        /// The free amount of the node; negative if it is over-committed.
        free: i64,
        /// The amount of the node without pods.
        allocatable: i64,
    },
    /// More free addresses.
    Addresses {
        /// The missing number.
        missing: i64,
        /// The number that pods hold.
        held: i64,
        /// The number that no pod owns.
        orphaned: i64,
    },
}

impl Remedy {
    /// A change at the node, whose name follows the text.
    pub fn at_node(before: &str) -> Self {
        Self::Node {
            before: before.to_owned(),
            after: String::new(),
        }
    }

    /// The remedy without the numbers in which nodes of one suggestion may differ.
    fn key(&self) -> Self {
        match self {
            Self::Pod(_) | Self::Node { .. } => self.clone(),
            Self::Request { resource, .. } => Self::Request {
                resource: resource.clone(),
                requested: 0,
                free: 0,
                allocatable: 0,
            },
            Self::Addresses { missing, .. } => Self::Addresses {
                missing: *missing,
                held: 0,
                orphaned: 0,
            },
        }
    }
}

/// Changes after which the pod would fit one of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The nodes that need the changes, by name.
    pub nodes: Vec<NodeName>,
    /// The changes in words: `2 nodes: tolerate {team: red}`.
    pub text: String,
}

/// The changes that help the pod, those that need the fewest changes for the most nodes first.
/// Empty if a node is feasible, if no node can be, and if the refusing filters know no remedy.
pub fn suggest(cluster: &Cluster, framework: &Framework, pod: &PodInfo) -> Vec<Suggestion> {
    let input = CycleInput { pod, cluster };
    let Ok(filters) = framework.pre_filter(input) else {
        return Vec::new();
    };
    let mut groups = BTreeMap::<Vec<Remedy>, Vec<RefusedNode<'_>>>::new();
    for node in cluster.nodes() {
        match remedies(&filters, node) {
            NodeRemedies::Fits => return Vec::new(),
            NodeRemedies::Unknown => {}
            NodeRemedies::Known(remedies) => {
                let key = remedies.iter().map(Remedy::key).collect();
                let name = &node.name;
                let refused = RefusedNode { name, remedies };
                groups.entry(key).or_default().push(refused);
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(key, nodes)| (key.len(), Reverse(nodes.len())));
    let groups = groups.into_iter().take(MAX_SUGGESTIONS);
    groups.map(|(_, nodes)| suggestion(&nodes)).collect()
}

#[derive(Debug)]
struct RefusedNode<'a> {
    name: &'a NodeName,
    /// Sorted by [`Remedy::key`], without duplicates.
    remedies: Vec<Remedy>,
}

#[derive(Debug)]
enum NodeRemedies {
    Fits,
    /// A refusing filter knows no remedy.
    Unknown,
    Known(Vec<Remedy>),
}

fn remedies(filters: &ActiveFilters<'_>, node: &NodeInfo) -> NodeRemedies {
    let mut all = BTreeSet::new();
    let is_excluded = filters.excludes(node);
    if is_excluded {
        let text = "remove the names of nodes from the required node affinity";
        all.insert(Remedy::Pod(text.to_owned()));
    }
    for refusal in filters.refusals(node) {
        // A node that the pod does not name is refused by the same plugin for its name.
        let found = filters.refusing(refusal).map(|(by, state)| {
            let is_known = is_excluded && filters.only.as_ref().is_some_and(|only| only.by == by);
            (is_known, state.remedies(node))
        });
        match found {
            Some((true, _)) => {}
            Some((false, remedies)) if !remedies.is_empty() => all.extend(remedies),
            Some(_) | None => return NodeRemedies::Unknown,
        }
    }
    match all.is_empty() {
        true => NodeRemedies::Fits,
        false => NodeRemedies::Known(all.into_iter().collect()),
    }
}

fn suggestion(nodes: &[RefusedNode<'_>]) -> Suggestion {
    let free = |node: &&RefusedNode<'_>| {
        let free = node.remedies.iter().filter_map(|remedy| match remedy {
            Remedy::Request { free, .. } => Some(*free),
            Remedy::Pod(_) | Remedy::Node { .. } | Remedy::Addresses { .. } => None,
        });
        free.collect::<Vec<_>>()
    };
    // The first of equals, by name.
    let best = nodes.iter().rev().max_by_key(free);
    let remedies = best.map(|best| best.remedies.as_slice());
    let remedies = remedies.unwrap_or_default().iter().enumerate();
    let parts = remedies.map(|(at, remedy)| match remedy {
        Remedy::Pod(text) => text.clone(),
        Remedy::Node { before, after } => {
            let names = names(nodes.iter().map(|node| node.name));
            format!("{before} {names} {after}").trim_end().to_owned()
        }
        Remedy::Request { .. } => {
            let name = best.map(|best| best.name).filter(|_| nodes.len() > 1);
            request(remedy, name)
        }
        Remedy::Addresses { missing, .. } => addresses(*missing, nodes, at),
    });
    let parts: Vec<_> = parts.collect();
    let count = nodes.len();
    let s = if count == 1 { "" } else { "s" };
    Suggestion {
        nodes: nodes.iter().map(|node| node.name.clone()).collect(),
        text: format!("{count} node{s}: {}", parts.join("; and ")),
    }
}

/// The phrase for a request. `node` is the node with the most free, if there are others.
fn request(remedy: &Remedy, node: Option<&NodeName>) -> String {
    let Remedy::Request {
        resource,
        requested,
        free,
        allocatable,
    } = remedy
    else {
        return String::new();
    };
    let text = |amount: i64| amount_text(resource, amount);
    let at = node.map_or_else(String::new, |node| format!(" on {node}"));
    let lower = |to: i64| {
        let (from, to) = (text(*requested), text(to));
        format!("lower the {resource} request from {from} to {to} or less")
    };
    let missing = text(requested.saturating_sub(*free));
    match (*free > 0, requested <= allocatable) {
        (true, true) => format!("{}, or free {missing} of {resource}{at}", lower(*free)),
        (true, false) => match node {
            Some(node) => format!("{} (for {node})", lower(*free)),
            None => lower(*free),
        },
        (false, true) => format!("free {missing} of {resource}{at}"),
        (false, false) if *allocatable > 0 => {
            format!("{} and free as much{at}", lower(*allocatable))
        }
        (false, false) => format!("offer {resource}{at}"),
    }
}

/// The phrase for missing addresses, which each node has as the remedy `at`.
fn addresses(missing: i64, nodes: &[RefusedNode<'_>], at: usize) -> String {
    let with = |enough: fn(i64, i64, i64) -> bool| {
        let nodes = nodes
            .iter()
            .filter(move |node| match node.remedies.get(at) {
                Some(Remedy::Addresses { held, orphaned, .. }) => enough(missing, *held, *orphaned),
                Some(_) | None => false,
            });
        nodes.map(|node| node.name).collect::<Vec<_>>()
    };
    let s = if missing == 1 { "" } else { "es" };
    let pods = if missing == 1 { "a pod" } else { "pods" };
    let held = with(|missing, held, _| held >= missing);
    let orphaned = with(|missing, _, orphaned| orphaned >= missing);
    let both = with(|missing, held, orphaned| held < missing && orphaned < missing);
    let mut ways = Vec::new();
    if !held.is_empty() {
        let names = names(held);
        let count = match missing {
            1 => "an".to_owned(),
            count => count.to_string(),
        };
        ways.push(format!(
            "free {count} address{s} (delete {pods} on {names})"
        ));
    }
    if !orphaned.is_empty() {
        let names = names(orphaned);
        ways.push(format!("release {missing} orphaned address{s} on {names}"));
    }
    if !both.is_empty() {
        let names = names(both);
        ways.push(format!(
            "free {missing} address{s} of pods and orphaned ones on {names}"
        ));
    }
    ways.join(", or ")
}

/// `a, b or c`, `a, b, c or 4 others`.
fn names<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> String {
    let mut named: Vec<_> = names.into_iter().map(ToString::to_string).collect();
    let others = named.len().saturating_sub(NAMED_NODES);
    let last = match others {
        0 | 1 => named.pop(),
        others => {
            named.truncate(NAMED_NODES);
            Some(format!("{others} others"))
        }
    };
    match (named.is_empty(), last) {
        (true, last) => last.unwrap_or_default(),
        (false, last) => format!("{} or {}", named.join(", "), last.unwrap_or_default()),
    }
}
