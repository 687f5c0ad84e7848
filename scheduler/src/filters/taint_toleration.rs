//! The pod tolerates the node's taints.

use podplane_api::{core::Taint, taints};

use super::{NodeFilter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `TaintToleration`.
#[derive(Debug)]
pub struct TaintToleration;

impl NodeFilter for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        let forbids = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        let untolerated = taints(node)
            .filter(forbids)
            .find(|taint| !tolerates(pod, taint));
        untolerated.map_or(Ok(()), |taint| {
            let (key, value) = (&taint.key, taint.value.as_deref().unwrap_or_default());
            Err(Objection::unresolvable(format!(
                "node(s) had untolerated taint {{{key}: {value}}}"
            )))
        })
    }

    fn heeds(&self, change: NodeChange) -> bool {
        change == NodeChange::Taints
    }
}

/// The taints of the node.
pub fn taints(node: &NodeInfo) -> impl Iterator<Item = &Taint> {
    let spec = node.node.spec.as_ref();
    spec.and_then(|s| s.taints.as_ref()).into_iter().flatten()
}

/// Returns whether one of the pod's tolerations matches the taint.
pub fn tolerates(pod: &PodInfo, taint: &Taint) -> bool {
    let spec = pod.pod.spec.as_ref();
    let tolerations = spec.and_then(|s| s.tolerations.as_ref());
    let mut tolerations = tolerations.into_iter().flatten();
    tolerations.any(|toleration| taints::tolerates(toleration, taint))
}
