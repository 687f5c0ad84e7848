//! The decision in full: each node's refusal in words, or its score by every plugin.
//!
//! It runs the same plugins as [`plan`](crate::plan::plan), but examines and scores all nodes.

use std::borrow::Cow;

use podplane_api::core::{Namespace, Node, Pod};

use crate::{
    cache::NodeCache,
    cluster::Cluster,
    config::PlacementPolicy,
    framework::{ActiveFilters, CycleInput, Framework, NodeShortage, Rejection, Resolvability},
    names::NodeName,
    node::NodeInfo,
    pod::{PodInfo, PodReader},
    score::{NodeScore, ScoreTable},
};

#[cfg(test)]
pub(crate) mod tests;

/// The results of all nodes for one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// The rejection of the pod for every node, if there is one; then no node was examined.
    pub rejection: Option<Rejection>,
    /// The nodes in the order of their names.
    pub nodes: Vec<NodeVerdict>,
}

/// The result of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// The node.
    pub node: NodeName,
    /// Its score, or its refusal.
    pub result: Result<NodeScore, NodeRefusal>,
}

/// The refusal of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRefusal {
    /// The plugin.
    pub by: &'static str,
    /// The reasons in the reference's words; seldom more than one.
    pub reasons: Vec<Cow<'static, str>>,
    /// The events that could help.
    pub resolvable: Resolvability,
    /// The shortage of this node in particular, if the reasons do not state it.
    pub detail: Option<NodeShortage>,
}

impl Examination {
    /// The refused nodes.
    pub fn refusals(&self) -> impl Iterator<Item = (&NodeName, &NodeRefusal)> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|verdict| Some((&verdict.node, verdict.result.as_ref().err()?)))
    }

    /// The feasible nodes.
    pub fn scores(&self) -> impl Iterator<Item = &NodeScore> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|verdict| verdict.result.as_ref().ok())
    }
}

/// Examines all nodes for the pod.
pub fn examine(cluster: &Cluster, framework: &Framework, pod: &PodInfo) -> Examination {
    let input = CycleInput { pod, cluster };
    let filters = match framework.pre_filter(input) {
        Ok(filters) => filters,
        Err(rejection) => {
            return Examination {
                rejection: Some(rejection),
                nodes: Vec::new(),
            };
        }
    };
    let checked = cluster.nodes().map(|node| (node, check(&filters, node)));
    verdicts(framework, input, checked.collect())
}

/// Examines one node for the pod. The node's score is that of the only feasible node. `None` if
/// there is no such node, or if the pod is rejected for every node.
pub fn examine_node(
    cluster: &Cluster,
    framework: &Framework,
    pod: &PodInfo,
    node: &NodeName,
) -> Option<NodeVerdict> {
    let input = CycleInput { pod, cluster };
    let filters = framework.pre_filter(input).ok()?;
    let node = cluster.node(node)?;
    let examined = verdicts(framework, input, vec![(node, check(&filters, node))]);
    examined.nodes.into_iter().next()
}

/// Checks a node by all filters until one refuses.
pub(crate) fn check(filters: &ActiveFilters<'_>, node: &NodeInfo) -> Result<(), NodeRefusal> {
    if let Some(only) = &filters.only
        && filters.excludes(node)
    {
        return Err(NodeRefusal {
            by: only.by,
            reasons: vec![only.reason()],
            resolvable: Resolvability::Never,
            detail: None,
        });
    }
    filters.check(node).map_err(|refusal| {
        let by = filters.refusing(refusal);
        NodeRefusal {
            by: by.map(|(by, _)| by).unwrap_or_default(),
            reasons: by
                .map(|(_, state)| state.reasons(refusal.refusal, node))
                .unwrap_or_default(),
            resolvable: refusal.refusal.resolvable,
            detail: by.and_then(|(_, state)| state.detail(node)),
        }
    })
}

/// The results of checked nodes, with the scores of the feasible ones.
fn verdicts(
    framework: &Framework,
    input: CycleInput<'_>,
    checked: Vec<(&NodeInfo, Result<(), NodeRefusal>)>,
) -> Examination {
    let fitting = checked.iter().filter(|(_, result)| result.is_ok());
    let feasible: Vec<_> = fitting.map(|(node, _)| *node).collect();
    let table = ScoreTable::new(framework, input, &feasible);
    let mut scores = (0..feasible.len()).filter_map(|index| table.row(index));
    let verdicts = checked.into_iter().filter_map(|(node, result)| {
        Some(NodeVerdict {
            node: node.name.clone(),
            result: match result {
                Ok(()) => Ok(scores.next()?),
                Err(refusal) => Err(refusal),
            },
        })
    });
    Examination {
        rejection: None,
        nodes: verdicts.collect(),
    }
}

/// Examines the pod in a cluster of these objects. Pods are on the node that their spec names;
/// released ones (see [`PodInfo::is_released`]) do not count.
pub fn examine_objects(
    nodes: &[Node],
    pods: &[Pod],
    namespaces: &[Namespace],
    policy: PlacementPolicy,
    pod: &Pod,
) -> Examination {
    let resource = &policy.pod_ip_resource;
    let mut reader = PodReader::new(resource.clone());
    let pods = pods.iter().map(|pod| reader.read(pod));
    let mut cache = NodeCache::of(nodes.iter().cloned(), pods, namespaces, resource);
    examine_cached(&mut cache, policy, pod)
}

/// Examines the pod in the cluster of the cache.
pub fn examine_cached(cache: &mut NodeCache, policy: PlacementPolicy, pod: &Pod) -> Examination {
    let pod = PodInfo::new(pod, &policy.pod_ip_resource);
    cache.prepare(&pod);
    examine(cache.cluster(), &Framework::new(policy), &pod)
}
