//! The names, volumes and claims of a StatefulSet's pods.

use podplane_api::{
    Object as _, ObjectKey,
    apps::StatefulSet,
    core::{
        PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, PodTemplateSpec,
        Volume,
    },
    meta::{ObjectMeta, OwnerReference},
};

use crate::{
    history::{HASH_LABEL, hash},
    owner::controller_reference,
    pod_control::pod_of,
};

/// The label with the pod's name.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// The label with its ordinal.
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The first ordinal.
pub(super) fn start(set: &StatefulSet) -> i32 {
    let spec = set.spec.as_ref();
    let ordinals = spec.and_then(|spec| spec.ordinals.as_ref());
    ordinals
        .and_then(|ordinals| ordinals.start)
        .unwrap_or_default()
}

/// The ordinal of a pod of the StatefulSet, from its name.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let number = pod.name().strip_prefix(set.name())?.strip_prefix('-')?;
    let ordinal: i32 = number.parse().ok()?;
    // `-01` and `-+1` are other names.
    (ordinal >= 0 && ordinal.to_string() == number).then_some(ordinal)
}

/// The name of the revision that the pod is made from.
pub(super) fn revision(pod: &Pod) -> &str {
    hash(pod, HASH_LABEL)
}

/// The pod of that ordinal, from the template of a revision.
pub(super) fn pod(
    set: &StatefulSet,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod_of(set, template);
    let name = format!("{}-{ordinal}", set.name());
    pod.metadata.name = Some(name.clone());
    pod.metadata.generate_name = Some(format!("{}-", set.name()));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    let set_spec = set.spec.as_ref();
    spec.subdomain = set_spec
        .and_then(|spec| spec.service_name.clone())
        .filter(|name| !name.is_empty());
    mount_claims(set, spec, ordinal);
    identify(set, &mut pod);
    pod
}

/// Gives a new pod the volumes of the claims of its ordinal.
fn mount_claims(set: &StatefulSet, spec: &mut PodSpec, ordinal: i32) {
    for template in templates(set) {
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|volume| volume.name != template.name());
        volumes.push(Volume {
            name: template.name().to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(set, template, ordinal),
                ..PersistentVolumeClaimVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
}

/// Sets the labels of the pod's name. Volumes of a stored pod cannot change.
pub(super) fn identify(set: &StatefulSet, pod: &mut Pod) {
    let (name, ordinal) = (pod.name().to_owned(), ordinal(set, pod));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name);
    if let Some(ordinal) = ordinal {
        labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    }
}

/// Returns whether the pod has the labels of its name.
pub(super) fn is_identified(set: &StatefulSet, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let label = |key: &str| {
        labels
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let index = ordinal(set, pod).map(|ordinal| ordinal.to_string());
    label(POD_NAME) == Some(pod.name()) && label(POD_INDEX) == index.as_deref()
}

fn templates(set: &StatefulSet) -> impl Iterator<Item = &PersistentVolumeClaim> {
    let spec = set.spec.as_ref();
    spec.into_iter()
        .flat_map(|spec| spec.volume_claim_templates.iter().flatten())
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name(), set.name())
}

/// The keys of the claims of the pod of that ordinal.
pub(super) fn claim_keys(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = ObjectKey> {
    let key = move |template| ObjectKey::new(set.namespace(), claim_name(set, template, ordinal));
    templates(set).map(key)
}

/// The claims of the pod of that ordinal. Nobody binds them.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let spec = set.spec.as_ref();
    let selected = spec.and_then(|spec| spec.selector.match_labels.clone());
    let selected = selected.unwrap_or_default();
    let claim = |template: &PersistentVolumeClaim| {
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.extend(selected.clone());
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name(set, template, ordinal)),
                namespace: set.metadata.namespace.clone(),
                labels: Some(labels),
                annotations: template.metadata.annotations.clone(),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    };
    templates(set).map(claim).collect()
}

/// Sets the owners of a claim by the StatefulSet's policy of retention. `condemned` is the claim's
/// pod if that is to go for good. Returns whether they changed.
pub(super) fn own_claim(
    set: &StatefulSet,
    condemned: Option<&Pod>,
    claim: &mut PersistentVolumeClaim,
) -> bool {
    let policy = set.spec.as_ref();
    let policy = policy.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |when: Option<&String>| when.map(String::as_str) == Some("Delete");
    let on_deletion = deletes(policy.and_then(|policy| policy.when_deleted.as_ref()));
    let on_scaling = deletes(policy.and_then(|policy| policy.when_scaled.as_ref()));
    let before = claim.metadata.owner_references.clone();
    let name = format!("{}-", set.name());
    let owners = claim.metadata.owner_references.get_or_insert_default();
    owners.retain(|owner| {
        let is_set = owner.kind == "StatefulSet" && owner.name == set.name();
        let is_pod = owner.kind == "Pod" && owner.name.starts_with(&name);
        !is_set && !is_pod
    });
    let owner: Option<OwnerReference> = match condemned {
        Some(pod) if on_scaling => Some(controller_reference(pod)),
        _ if on_deletion => Some(controller_reference(set)),
        _ => None,
    };
    owners.extend(owner);
    claim
        .metadata
        .owner_references
        .take_if(|owners| owners.is_empty());
    before != claim.metadata.owner_references
}
