//! The choice among the nodes that fit a pod: the least loaded one.

use std::cmp::Reverse;

use crate::{
    filters::taint_toleration::{taints, tolerates},
    names::NodeName,
    node::NodeInfo,
    pod::PodInfo,
    resources::{Amount, Resources},
};

/// The best score of one scorer.
const MAX: Amount = 100;
/// The reference's weights.
const LEAST_ALLOCATED_WEIGHT: Amount = 1;
const TAINT_WEIGHT: Amount = 3;

/// The free part of the node with the pod on it: the mean over cpu and memory of the free
/// percentage, each division an integer one as in the reference. A resource that the node does not
/// have is left out; an over-committed one counts 0.
pub fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> Amount {
    let of = |pick: fn(&Resources) -> Amount| {
        let capacity = pick(&node.allocatable);
        let requested = pick(node.pods.scoring_requested()) + pick(&pod.scoring_requests);
        match capacity {
            0 => None,
            _ if requested > capacity => Some(0),
            _ => Some((capacity - requested) * MAX / capacity),
        }
    };
    let scores = [of(|r| r.cpu), of(|r| r.memory)].into_iter().flatten();
    let (sum, count) = scores.fold((0, 0), |(sum, count), score| (sum + score, count + 1));
    if count == 0 { 0 } else { sum / count }
}

/// The number of the node's untolerated `PreferNoSchedule` taints.
pub fn unwelcoming_taints(pod: &PodInfo, node: &NodeInfo) -> Amount {
    let unwelcoming = taints(node)
        .filter(|taint| taint.effect == "PreferNoSchedule")
        .filter(|taint| !tolerates(pod, taint));
    unwelcoming.map(|_| 1).sum()
}

/// The score of a node for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeScore {
    /// The node.
    pub node: NodeName,
    /// The weighted sum of the other scores.
    pub total: Amount,
    /// See [`least_allocated`].
    pub least_allocated: Amount,
    /// 0 for the node with most [`unwelcoming_taints`], 100 for one without.
    pub taint_toleration: Amount,
    /// The free pod IPs, without the pod.
    pub free_pod_ips: Amount,
    /// The number of pods, without the pod.
    pub pods: usize,
}

impl NodeScore {
    /// The sort key. The reference chooses at random among equals. Here the choice is
    /// deterministic, and spreads pods: most free pod IPs, then fewest pods.
    fn rank(&self) -> (Amount, Amount, Reverse<usize>) {
        (self.total, self.free_pod_ips, Reverse(self.pods))
    }
}

/// The best of the feasible nodes, at most `most`, the best first. Of equals the first in the order
/// of `feasible` is better, which begins at another node each time.
pub fn best(pod: &PodInfo, feasible: &[&NodeInfo], most: usize) -> Vec<NodeScore> {
    let taints: Vec<_> = feasible
        .iter()
        .map(|node| unwelcoming_taints(pod, node))
        .collect();
    let most_taints = taints.iter().copied().max().unwrap_or(0);
    let mut best = Vec::<NodeScore>::with_capacity(most + 1);
    for (node, taints) in feasible.iter().zip(taints) {
        // Normalised as in the reference: the node with most such taints has 0, one without has
        // 100.
        let taint_toleration = match most_taints {
            0 => MAX,
            most => MAX - taints * MAX / most,
        };
        let least_allocated = least_allocated(pod, node);
        let score = NodeScore {
            total: LEAST_ALLOCATED_WEIGHT * least_allocated + TAINT_WEIGHT * taint_toleration,
            least_allocated,
            taint_toleration,
            free_pod_ips: node.free_pod_ips(),
            pods: node.pods.len(),
            node: node.name.clone(),
        };
        // Inserted after its equals. Only the best are kept, so that thousands of nodes are not
        // sorted.
        let at = best.partition_point(|known| known.rank() >= score.rank());
        if at < most {
            best.insert(at, score);
            best.truncate(most);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{AsInfo as _, NodeBuilder, PodBuilder};

    fn scored(node: NodeBuilder, pods: &[PodBuilder]) -> Amount {
        let mut node = node.info();
        for pod in pods {
            node.pods.insert(pod.info());
        }
        least_allocated(&PodBuilder::new("p").info(), &node)
    }

    #[test]
    fn least_allocated_matches_the_reference() {
        // Empty 4 CPU/32 Gi node: (4000-100)*100/4000 = 97, (32Gi-200Mi)*100/32Gi = 99; their mean
        // is 98.
        let node = || {
            NodeBuilder::new("n")
                .offer("cpu", "4")
                .offer("memory", "32Gi")
        };
        assert_eq!(scored(node(), &[]), 98);
        let big = PodBuilder::new("big").ask("cpu", "4").ask("memory", "16Gi");
        assert_eq!(scored(node(), &[big]), 24); // (0 + 49) / 2
        let no_memory = NodeBuilder::new("n").offer("cpu", "1").offer("memory", "0");
        assert_eq!(scored(no_memory, &[]), 90);
        let nothing = NodeBuilder::new("n").offer("cpu", "0").offer("memory", "0");
        assert_eq!(scored(nothing, &[]), 0);
    }

    #[test]
    fn breaks_ties_by_free_ips_then_pods_then_order() {
        let pod = PodBuilder::new("p").info();
        let a = NodeBuilder::new("a").block("10.0.0.0/29", 5).info();
        let b = NodeBuilder::new("b").block("10.0.1.0/29", 5).info();
        let mut c = NodeBuilder::new("c").block("10.0.2.0/28", 13).info();
        let best = |nodes: &[&NodeInfo]| best(&pod, nodes, 1)[0].node.to_string();
        assert_eq!(best(&[&a, &b]), "a");
        assert_eq!(best(&[&b, &a]), "b");
        assert_eq!(best(&[&a, &b, &c]), "c");
        c.pods.insert(
            PodBuilder::new("q")
                .host_network()
                .ask("cpu", "0")
                .ask("memory", "0")
                .info(),
        );
        let d = NodeBuilder::new("d").block("10.0.3.0/28", 13).info();
        assert_eq!(best(&[&a, &c, &d]), "d");
    }

    #[test]
    fn node_with_untolerated_soft_taint_comes_last() {
        let pod = PodBuilder::new("p").info();
        let a = NodeBuilder::new("a")
            .block("10.0.0.0/24", 253)
            .taint("k", "v", "PreferNoSchedule")
            .info();
        let b = NodeBuilder::new("b").block("10.0.1.0/30", 1).info();
        assert_eq!(best(&pod, &[&a, &b], 1)[0].node.as_str(), "b");
        let tolerant = PodBuilder::new("p").tolerate("k").info();
        let ranked = best(&tolerant, &[&b, &a], 5);
        let names: Vec<_> = ranked.iter().map(|score| score.node.as_str()).collect();
        assert_eq!(names, ["a", "b"], "both tolerate, and a has more addresses");
    }
}
