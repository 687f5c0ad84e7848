//! The pod has no field that would need a part of the reference that does not exist here. Such a
//! pod is not placed: on a node it could wait for ever for what the field asks for.

use podplane_api::core::PodSpec;

use crate::{
    framework::{CycleInput, Plugin, PluginEvent, PreFilter},
    pod::PodInfo,
};

/// The plugin `UnsupportedFields`.
#[derive(Debug)]
pub struct UnsupportedFields;

impl Plugin for UnsupportedFields {
    fn name(&self) -> &'static str {
        "UnsupportedFields"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        match &input.pod.needs.unsupported {
            Some(reason) => PreFilter::Reject(reason.clone()),
            None => PreFilter::Skip,
        }
    }

    /// Only a change of the pod helps, and that alone retries it.
    fn heeds(&self, _pod: &PodInfo, _event: &PluginEvent<'_>) -> bool {
        false
    }
}

/// The reason why the pod is not placed, if it has such a field. Volumes that are part of the pod
/// are no constraint on its node. Nothing binds claims, so the claims of volumes are unbound: the
/// reason is Kubernetes', with their names.
pub(crate) fn reason(spec: &PodSpec) -> Option<String> {
    let volumes = || spec.volumes.iter().flatten();
    let claims = volumes().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let claims: Vec<&str> = claims.map(|claim| claim.claim_name.as_str()).collect();
    if !claims.is_empty() {
        let names = claims.join(", ");
        return Some(format!(
            "pod has unbound immediate PersistentVolumeClaims: {names}"
        ));
    }
    let ephemeral = volumes().position(|volume| volume.ephemeral.is_some());
    if let Some(at) = ephemeral {
        return Some(format!("spec.volumes[{at}].ephemeral is not supported"));
    }
    let mut claims = spec.resource_claims.iter().flatten();
    let has_claims = claims.next().is_some();
    has_claims.then(|| "spec.resourceClaims is not supported".to_owned())
}
