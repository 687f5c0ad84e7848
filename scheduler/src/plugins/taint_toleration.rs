//! The pod tolerates the node's taints.

use std::borrow::Cow;

use podplane_api::{
    core::{Taint, Toleration},
    taints,
};

use crate::{
    framework::{
        CycleInput, NodeFilter, NodeScorer, Plugin, PluginEvent, PreFilter, Refusal,
        scale_to_max_reversed,
    },
    node::{NodeChange, NodeInfo, NodeTaint},
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `TaintToleration`.
#[derive(Debug)]
pub struct TaintToleration;

/// The tolerations of the pod.
#[derive(Clone, Copy, Debug)]
struct Tolerations<'a>(&'a [Toleration]);

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        PreFilter::Filter(Box::new(Tolerations(&input.pod.needs.tolerations)))
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        Some(Box::new(Tolerations(&input.pod.needs.tolerations)))
    }

    fn weight(&self) -> i64 {
        3
    }

    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        matches!(event, PluginEvent::NodeChanged(NodeChange::Taints))
    }
}

impl NodeFilter for Tolerations<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match untolerated(self.0, node) {
            Some(taint) => Err(Refusal::unresolvable(taint.hash)),
            None => Ok(()),
        }
    }

    /// Names the first untolerated taint only.
    fn reasons(&self, _refusal: Refusal, node: &NodeInfo) -> Vec<Cow<'static, str>> {
        let found = untolerated(self.0, node).map(|taint| {
            let Taint { key, value, .. } = &taint.taint;
            let value = value.as_deref().unwrap_or_default();
            format!("node(s) had untolerated taint {{{key}: {value}}}").into()
        });
        found.into_iter().collect()
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let untolerated = all_untolerated(self.0, node);
        untolerated.map(|taint| remedy(&taint.taint)).collect()
    }
}

/// The remedy of an untolerated taint. The taints of the node's state are not worked around.
fn remedy(taint: &Taint) -> Remedy {
    let Taint { key, value, .. } = taint;
    match key.as_str() {
        "node.kubernetes.io/unschedulable" => Remedy::at_node("uncordon"),
        "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable" => Remedy::Node {
            before: "wait until".to_owned(),
            after: "is ready".to_owned(),
        },
        _ => {
            let value = value.as_deref().unwrap_or_default();
            Remedy::Pod(format!("tolerate {{{key}: {value}}}"))
        }
    }
}

impl NodeScorer for Tolerations<'_> {
    /// The number of untolerated `PreferNoSchedule` taints.
    fn score(&self, node: &NodeInfo) -> i64 {
        let soft = node.taints().iter().map(|taint| &taint.taint);
        let soft = soft.filter(|taint| taint.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerates(self.0, taint))
            .map(|_| 1)
            .sum()
    }

    fn normalise(&self, _nodes: &[&NodeInfo], scores: &mut [i64]) {
        scale_to_max_reversed(scores);
    }
}

/// The first taint of the node that excludes pods and is not tolerated.
pub fn untolerated<'n>(tolerations: &[Toleration], node: &'n NodeInfo) -> Option<&'n NodeTaint> {
    all_untolerated(tolerations, node).next()
}

fn all_untolerated<'n>(
    tolerations: &[Toleration],
    node: &'n NodeInfo,
) -> impl Iterator<Item = &'n NodeTaint> {
    let excluding = node.taints().iter().filter(|taint| taint.excludes);
    excluding.filter(|taint| !tolerates(tolerations, &taint.taint))
}

/// Returns whether one of the tolerations matches the taint.
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|one| taints::tolerates(one, taint))
}
