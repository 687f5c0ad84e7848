//! The check at the start for pods that this scheduler does not place, for an operator who lets it
//! replace another one that does.

use std::sync::Arc;

use podplane_api::ObjectKey;

use crate::pod::PodInfo;

/// The pods for this scheduler that have volumes or claims which it does not place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnplaceablePods {
    /// Their number, without those that have ended.
    pods: usize,
    /// The number of those that have no node.
    waiting: usize,
    /// One of them; one that waits, if there is one.
    example: ObjectKey,
    /// The reason why that one is not placed.
    reason: String,
}

impl UnplaceablePods {
    /// Finds them among all pods; `None` if there are none.
    pub(crate) fn among(pods: &[Arc<PodInfo>], scheduler_name: &str) -> Option<Self> {
        let found = pods.iter().filter_map(|pod| {
            let reason = pod.needs.unsupported.as_ref()?;
            let is_ours = pod.scheduler_name() == scheduler_name && !pod.is_terminal();
            is_ours.then_some((pod, reason))
        });
        let found: Vec<_> = found.collect();
        let has_node = |pod: &PodInfo| pod.node_name.is_some();
        let (example, reason) = found
            .iter()
            .min_by_key(|(pod, _)| (has_node(pod), &pod.key))?;
        Some(Self {
            pods: found.len(),
            waiting: found.iter().filter(|(pod, _)| !has_node(pod)).count(),
            example: example.key.clone(),
            reason: (*reason).clone(),
        })
    }

    /// Warns of them.
    pub(crate) fn log(&self, scheduler_name: &str) {
        let Self {
            pods,
            waiting,
            example,
            reason,
        } = self;
        tracing::warn!(
            scheduler_name, pods, waiting, %example, reason,
            "pods have volume claims or resource claims; this scheduler does not place such pods"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{AsInfo as _, PodBuilder};

    #[test]
    fn pods_with_claims_are_counted_with_an_example() {
        let pod = |name: &str| PodBuilder::new(name).set("/metadata/uid", json!(name));
        let claims = |name: &str| {
            let claim = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
            pod(name).set("/spec/volumes", claim)
        };
        let devices = json!([{"name": "gpu"}]);
        let other = claims("other").set("/spec/schedulerName", json!("stock"));
        let pods = [
            pod("plain"),
            claims("a-bound").on("n"),
            claims("waits"),
            pod("device").set("/spec/resourceClaims", devices).on("n"),
            claims("ended").on("n").ended("Succeeded", ""),
            other,
        ];
        let pods: Vec<_> = pods.iter().map(|pod| pod.info()).collect();
        let found = UnplaceablePods::among(&pods, "default-scheduler");
        let want = UnplaceablePods {
            pods: 3,
            waiting: 1,
            example: ObjectKey::new("default", "waits"),
            reason: "pod has unbound immediate PersistentVolumeClaims: data".to_owned(),
        };
        assert_eq!(found, Some(want));
        assert_eq!(
            UnplaceablePods::among(&pods[..1], "default-scheduler"),
            None
        );
    }
}
