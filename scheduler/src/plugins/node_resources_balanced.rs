//! The node whose cpu and memory are used to similar parts is better.

use crate::{
    framework::{CycleInput, MAX_SCORE, NodeScorer, Plugin, PluginEvent},
    node::NodeInfo,
    pod::PodInfo,
    resources::Resources,
};

/// The plugin `NodeResourcesBalancedAllocation`.
#[derive(Debug)]
pub struct BalancedAllocation;

/// The requests of the pod, without defaults for absent ones.
#[derive(Debug)]
struct Balance<'a>(&'a Resources);

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// A pod that requests neither cpu nor memory does not change the balance.
    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let requests = &input.pod.needs.requests;
        let is_best_effort = requests.cpu == 0 && requests.memory == 0;
        (!is_best_effort).then(|| Box::new(Balance(requests)) as Box<dyn NodeScorer>)
    }

    fn weight(&self) -> i64 {
        1
    }

    fn heeds(&self, _pod: &PodInfo, _event: &PluginEvent<'_>) -> bool {
        false
    }
}

impl NodeScorer for Balance<'_> {
    /// 100·(1 − σ), where σ is the standard deviation of the used parts; of two it is half of their
    /// difference. In floating point, as in the reference.
    fn score(&self, node: &NodeInfo) -> i64 {
        let (requested, offered) = (node.pods().requested(), &node.allocatable);
        let cpu = used_part(offered.cpu, requested.cpu + self.0.cpu);
        let memory = used_part(offered.memory, requested.memory + self.0.memory);
        let deviation = match (cpu, memory) {
            (Some(cpu), Some(memory)) => ((cpu - memory) / 2.0).abs(),
            _ => 0.0,
        };
        truncated((1.0 - deviation) * float(MAX_SCORE))
    }
}

/// The used part of a capacity, at most 1; `None` without a capacity.
fn used_part(capacity: i64, requested: i64) -> Option<f64> {
    (capacity != 0).then(|| (float(requested) / float(capacity)).min(1.0))
}

/// The number in floating point. Amounts are below 2^53, so this is exact for single ones.
pub(crate) fn float(number: i64) -> f64 {
    number as f64
}

/// The number without its fraction.
#[expect(clippy::cast_possible_truncation, reason = "the fraction is cut off")]
pub(crate) fn truncated(number: f64) -> i64 {
    number as i64
}
