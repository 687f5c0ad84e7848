//! The pod has no field that would need a part of the reference that does not exist here. Such a
//! pod is not placed: on a node it could wait for ever for what the field asks for.

use podplane_api::core::{PodSpec, Volume};

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
        match &input.pod.needs.unsupported_field {
            Some(field) => PreFilter::Reject(format!("{field} is not supported")),
            None => PreFilter::Skip,
        }
    }

    /// Only a change of the pod helps, and that alone retries it.
    fn heeds(&self, _pod: &PodInfo, _event: &PluginEvent<'_>) -> bool {
        false
    }
}

/// The path of the first unsupported field. Volumes that are part of the pod are no constraint on
/// its node.
pub(crate) fn first(spec: &PodSpec) -> Option<String> {
    let volumes = spec.volumes.iter().flatten().enumerate();
    let mut claims = volumes.filter_map(|(at, volume)| {
        let field = claim_field(volume)?;
        Some(format!("spec.volumes[{at}].{field}"))
    });
    let has_claims = spec
        .resource_claims
        .as_ref()
        .is_some_and(|list| !list.is_empty());
    claims
        .next()
        .or_else(|| has_claims.then(|| "spec.resourceClaims".to_owned()))
}

fn claim_field(volume: &Volume) -> Option<&'static str> {
    match volume {
        Volume {
            persistent_volume_claim: Some(_),
            ..
        } => Some("persistentVolumeClaim"),
        Volume {
            ephemeral: Some(_), ..
        } => Some("ephemeral"),
        _ => None,
    }
}
