//! Comparison of pod templates, and the hash that names a ReplicaSet or ControllerRevision after
//! its template.

use podplane_api::{
    Quantity,
    core::{PodTemplateSpec, ResourceRequirements},
    names, quantity,
};
use sha2::{Digest as _, Sha256};

/// The label that tells apart the pods of a Deployment's ReplicaSets.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";

/// Returns whether the templates make the same pods, [`HASH_LABEL`] aside.
pub(crate) fn same(one: &PodTemplateSpec, other: &PodTemplateSpec) -> bool {
    canonical(one) == canonical(other)
}

/// The hash of a template: the same for ever, in every version of podplane, for templates that are
/// [`same`]. It is not the number that Kubernetes computes from the memory of its Go structs, which
/// only its own code can compute; it has the same form. `collisions` makes it another one.
///
/// # Errors
///
/// serde's, for a value that JSON cannot hold.
pub(crate) fn hash(
    template: &PodTemplateSpec,
    collisions: Option<i32>,
) -> Result<String, serde_json::Error> {
    // Serialised through a JSON document, whose keys are sorted: the order of fields in the types
    // may change.
    let document = serde_json::to_value(canonical(template))?;
    let mut digest = Sha256::new();
    digest.update(serde_json::to_vec(&document)?);
    if let Some(collisions) = collisions {
        digest.update(collisions.to_le_bytes());
    }
    let [a, b, c, d, ..] = <[u8; 32]>::from(digest.finalize());
    let number = u32::from_be_bytes([a, b, c, d]);
    Ok(names::safe(number.to_string().as_bytes()))
}

/// The template without its hash, and with quantities in one form.
fn canonical(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(metadata) = &mut template.metadata {
        if let Some(labels) = &mut metadata.labels {
            labels.remove(HASH_LABEL);
        }
        metadata.labels.take_if(|labels| labels.is_empty());
        metadata
            .annotations
            .take_if(|annotations| annotations.is_empty());
        // This is set by the server.
        metadata.creation_timestamp = None;
    }
    if let Some(spec) = &mut template.spec {
        let containers = spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten());
        let resources = containers
            .filter_map(|container| container.resources.as_mut())
            .chain(&mut spec.resources);
        resources.for_each(canonical_resources);
    }
    template
}

fn canonical_resources(resources: &mut ResourceRequirements) {
    let ResourceRequirements {
        claims: _,
        limits,
        requests,
    } = resources;
    for quantity in [limits, requests]
        .into_iter()
        .flatten()
        .flat_map(|map| map.values_mut())
    {
        // A quantity too large for thousandths stays as it was written.
        if let Ok(millis) = quantity::millis(quantity) {
            *quantity = Quantity(format!("{millis}m"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn template(cpu: &str, labels: Value) -> PodTemplateSpec {
        let resources = json!({"requests": {"cpu": cpu}});
        let container = json!({"name": "c", "image": "i", "resources": resources});
        serde_json::from_value(
            json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}}),
        )
        .unwrap()
    }

    #[test]
    fn ignores_the_hash_and_the_form_of_quantities() {
        let one = template("1", json!({"app": "web"}));
        let other = template("1000m", json!({"app": "web", "pod-template-hash": "x"}));
        assert!(same(&one, &other));
        assert_eq!(hash(&one, None).unwrap(), hash(&other, None).unwrap());
        for different in [
            template("2", json!({"app": "web"})),
            template("1", json!({"app": "db"})),
        ] {
            assert!(!same(&one, &different));
            assert_ne!(hash(&one, None).unwrap(), hash(&different, None).unwrap());
        }
    }

    /// If this fails, every Deployment of every cluster would get a second ReplicaSet name for its
    /// template after an upgrade.
    #[test]
    fn hash_never_changes() {
        let template = template("1", json!({"app": "web"}));
        assert_eq!(hash(&template, None).unwrap(), "64cc95545d");
        assert_eq!(hash(&template, Some(1)).unwrap(), "86949d8c6b");
    }
}
