//! Capacity: the number of further pods of one kind that a cluster has room for.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    cache::NodeCache,
    explain::{NodeRefusal, check, examine},
    framework::{CycleInput, Framework, Rejection},
    names::NodeName,
    node::NodeInfo,
    plan::plan,
    pod::PodInfo,
};

#[cfg(test)]
mod tests;

/// The room for copies of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityReport {
    /// The number of copies that fit; at most the limit.
    pub total: usize,
    /// True if the limit ended the placement, so that more copies may fit.
    pub is_limited: bool,
    /// The rejection of the pod for every node, if there is one; then no node was examined.
    pub rejection: Option<Rejection>,
    /// The nodes, by name.
    pub nodes: Vec<NodeRoom>,
}

/// The room of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRoom {
    /// The node.
    pub node: NodeName,
    /// The number of copies that fit.
    pub fits: usize,
    /// The refusal of one more. `None` if the limit was reached before.
    pub refusal: Option<NodeRefusal>,
}

/// Places copies of the pod as the scheduler does, one after the other, until none fits or there
/// are `limit` of them. The cache has the copies of a pod that depends on other copies afterwards.
///
/// If the place of a copy does not depend on those on other nodes, the nodes are filled one by one:
/// the result is the same, and the work grows with the number of copies and nodes rather than with
/// their product. Each node then counts up to the limit on its own.
pub fn capacity(
    cache: &mut NodeCache,
    framework: &Framework,
    pod: &PodInfo,
    limit: usize,
) -> CapacityReport {
    cache.prepare(pod);
    let input = CycleInput {
        pod,
        cluster: cache.cluster(),
    };
    if let Err(rejection) = framework.pre_filter(input) {
        return CapacityReport {
            total: 0,
            is_limited: false,
            rejection: Some(rejection),
            nodes: Vec::new(),
        };
    }
    let nodes = match pod.needs.depends_on_copies() {
        true => placed_in_turn(cache, framework, pod, limit),
        false => filled(input, framework, limit),
    };
    let sum = nodes
        .iter()
        .map(|room| room.fits)
        .fold(0, usize::saturating_add);
    CapacityReport {
        total: sum.min(limit),
        is_limited: sum > limit || nodes.iter().any(|room| room.refusal.is_none()),
        rejection: None,
        nodes,
    }
}

fn copy(pod: &PodInfo, number: usize) -> Arc<PodInfo> {
    Arc::new(PodInfo {
        uid: format!("capacity-{number}").as_str().into(),
        ..pod.clone()
    })
}

/// Fills each node alone.
fn filled(input: CycleInput<'_>, framework: &Framework, limit: usize) -> Vec<NodeRoom> {
    let Ok(filters) = framework.pre_filter(input) else {
        return Vec::new();
    };
    let mut copies = Vec::<Arc<PodInfo>>::new();
    let fill = |node: &NodeInfo| {
        let mut filled = node.clone();
        let mut fits = 0;
        let refusal = loop {
            match check(&filters, &filled) {
                Err(refusal) => break Some(refusal),
                Ok(()) if fits == limit => break None,
                Ok(()) => {}
            }
            let next = match copies.get(fits) {
                Some(known) => known.clone(),
                None => {
                    copies.push(copy(input.pod, fits));
                    continue;
                }
            };
            filled.add_pod(next);
            fits += 1;
        };
        NodeRoom {
            node: node.name.clone(),
            fits,
            refusal,
        }
    };
    input.cluster.nodes().map(fill).collect()
}

/// Places copies where the scheduler would.
fn placed_in_turn(
    cache: &mut NodeCache,
    framework: &Framework,
    pod: &PodInfo,
    limit: usize,
) -> Vec<NodeRoom> {
    let mut fits = BTreeMap::<NodeName, usize>::new();
    let mut start = 0;
    for number in 0..limit {
        let decision = plan(cache.cluster(), pod, framework, start);
        start = decision.next_start;
        let Ok(choice) = decision.node else { break };
        cache.assume(copy(pod, number), &choice.node);
        *fits.entry(choice.node).or_default() += 1;
    }
    let examined = examine(cache.cluster(), framework, pod);
    let rooms = examined.nodes.into_iter().map(|verdict| NodeRoom {
        fits: fits.get(&verdict.node).copied().unwrap_or(0),
        node: verdict.node,
        refusal: verdict.result.err(),
    });
    rooms.collect()
}
