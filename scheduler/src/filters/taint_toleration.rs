//! A tainted node takes only pods that tolerate its taints.

use podplane_api::core::{Taint, Toleration};

use super::{Filter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// See the module.
#[derive(Debug)]
pub struct TaintToleration;

impl Filter for TaintToleration {
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

/// Whether one of the pod's tolerations matches the taint.
pub fn tolerates(pod: &PodInfo, taint: &Taint) -> bool {
    let spec = pod.pod.spec.as_ref();
    let tolerations = spec.and_then(|s| s.tolerations.as_ref());
    let mut tolerations = tolerations.into_iter().flatten();
    tolerations.any(|toleration| matches(toleration, taint))
}

/// An empty effect means every effect, an empty key with `Exists` every key.
fn matches(toleration: &Toleration, taint: &Taint) -> bool {
    fn given(text: Option<&String>) -> Option<&str> {
        text.map(String::as_str).filter(|text| !text.is_empty())
    }
    let value = toleration.value.as_deref().unwrap_or_default();
    given(toleration.effect.as_ref()).is_none_or(|effect| effect == taint.effect)
        && given(toleration.key.as_ref()).is_none_or(|key| key == taint.key)
        && match given(toleration.operator.as_ref()) {
            Some("Exists") => true,
            Some("Equal") | None => value == taint.value.as_deref().unwrap_or_default(),
            Some(_) => false,
        }
}
