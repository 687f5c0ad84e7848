//! The objects that pods and volumes refer to (sources: Kubernetes' `VisitPodSecretNames`,
//! `VisitPodConfigmapNames` and `VisitPVSecretNames`).

use podplane_api::core::{
    EnvFromSource, EnvVar, PersistentVolume, Pod, PodSpec, SecretReference, Volume,
    VolumeProjection,
};

/// The names of the Secrets of a pod, each as often as it is named.
pub(crate) fn secrets(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let pull = spec.image_pull_secrets.iter().flatten();
    let pull = pull.map(|secret| secret.name.as_str());
    let of_environment = environments(spec).flat_map(|(env, from)| {
        let values = env.iter().filter_map(|one| one.value_from.as_ref());
        let keys = values.filter_map(|value| Some(&*value.secret_key_ref.as_ref()?.name));
        keys.chain(
            from.iter()
                .filter_map(|one| Some(&*one.secret_ref.as_ref()?.name)),
        )
    });
    let of_volumes = spec.volumes.iter().flatten().flat_map(|volume| {
        let projected = projections(volume).filter_map(|one| Some(&*one.secret.as_ref()?.name));
        secret_of_volume(volume).into_iter().chain(projected)
    });
    pull.chain(of_environment).chain(of_volumes)
}

fn secret_of_volume(volume: &Volume) -> Option<&str> {
    if let Some(one) = &volume.azure_file {
        return Some(&one.secret_name);
    }
    if let Some(one) = &volume.secret {
        return Some(one.secret_name.as_deref().unwrap_or_default());
    }
    if let Some(one) = &volume.scale_io {
        return Some(&one.secret_ref.name);
    }
    let references = [
        volume
            .cephfs
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        volume
            .cinder
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        volume
            .flex_volume
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        volume.rbd.as_ref().and_then(|one| one.secret_ref.as_ref()),
        volume
            .iscsi
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        volume
            .storageos
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        volume
            .csi
            .as_ref()
            .and_then(|one| one.node_publish_secret_ref.as_ref()),
    ];
    let mut references = references.into_iter().flatten();
    references.next().map(|reference| reference.name.as_str())
}

/// The names of the ConfigMaps of a pod.
pub(crate) fn config_maps(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let of_environment = environments(spec).flat_map(|(env, from)| {
        let values = env.iter().filter_map(|one| one.value_from.as_ref());
        let keys = values.filter_map(|value| Some(&*value.config_map_key_ref.as_ref()?.name));
        let whole = from.iter();
        keys.chain(whole.filter_map(|one| Some(&*one.config_map_ref.as_ref()?.name)))
    });
    let of_volumes = spec.volumes.iter().flatten().flat_map(|volume| {
        let whole = volume.config_map.as_ref().map(|one| one.name.as_str());
        let projected = projections(volume);
        whole
            .into_iter()
            .chain(projected.filter_map(|one| Some(&*one.config_map.as_ref()?.name)))
    });
    of_environment.chain(of_volumes)
}

/// The names of the PersistentVolumeClaims of a pod, those of its ephemeral volumes included.
pub(crate) fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => {
            let is_made = volume.ephemeral.is_some();
            is_made.then(|| format!("{name}-{}", volume.name))
        }
    })
}

/// The names of the ResourceClaims of a pod.
pub(crate) fn resource_claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    let wanted = spec.flat_map(|spec| spec.resource_claims.iter().flatten());
    let status = pod.status.as_ref();
    wanted.filter_map(move |claim| {
        if claim.resource_claim_name.is_some() {
            return claim.resource_claim_name.as_deref();
        }
        // One that is made from a template has its name in the status.
        let mut made = status?.resource_claim_statuses.iter().flatten();
        let made = made.find(|made| made.name == claim.name)?;
        made.resource_claim_name.as_deref()
    })
}

/// The namespaces and names of the Secrets of a volume that its node needs.
pub(crate) fn secrets_of_volume(volume: &PersistentVolume) -> Vec<(String, String)> {
    let Some(spec) = &volume.spec else {
        return Vec::new();
    };
    let claim = spec.claim_ref.as_ref();
    let of_claim = claim.and_then(|claim| claim.namespace.clone());
    let of_claim = of_claim.unwrap_or_default();
    let not_empty = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let named = |reference: &SecretReference| {
        let namespace = not_empty(reference.namespace.as_ref());
        let name = reference.name.clone().unwrap_or_default();
        (namespace.unwrap_or_else(|| of_claim.clone()), name)
    };
    let mut found: Vec<(String, String)> = Vec::new();
    if let Some(one) = &spec.azure_file {
        let namespace = not_empty(one.secret_namespace.as_ref());
        let namespace = namespace.unwrap_or_else(|| of_claim.clone());
        found.push((namespace, one.secret_name.clone()));
    }
    let references = [
        spec.cephfs.as_ref().and_then(|one| one.secret_ref.as_ref()),
        spec.cinder.as_ref().and_then(|one| one.secret_ref.as_ref()),
        spec.flex_volume
            .as_ref()
            .and_then(|one| one.secret_ref.as_ref()),
        spec.rbd.as_ref().and_then(|one| one.secret_ref.as_ref()),
        spec.scale_io.as_ref().map(|one| &one.secret_ref),
        spec.iscsi.as_ref().and_then(|one| one.secret_ref.as_ref()),
    ];
    found.extend(references.into_iter().flatten().map(named));
    if let Some(one) = spec
        .storageos
        .as_ref()
        .and_then(|one| one.secret_ref.as_ref())
    {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        found.push((text(&one.namespace), text(&one.name)));
    }
    if let Some(csi) = &spec.csi {
        let references = [
            &csi.node_publish_secret_ref,
            &csi.node_stage_secret_ref,
            &csi.node_expand_secret_ref,
        ];
        found.extend(references.into_iter().flatten().map(named));
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

/// The variables of all containers, one by one and by whole objects.
fn environments(spec: &PodSpec) -> impl Iterator<Item = (&[EnvVar], &[EnvFromSource])> {
    let init = spec.init_containers.iter().flatten();
    let containers = init.chain(&spec.containers);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let of_containers = containers.map(|one| (one.env.as_deref(), one.env_from.as_deref()));
    let of_ephemeral = ephemeral.map(|one| (one.env.as_deref(), one.env_from.as_deref()));
    of_containers
        .chain(of_ephemeral)
        .map(|(env, from)| (env.unwrap_or_default(), from.unwrap_or_default()))
}

fn projections(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    let projected = volume.projected.iter();
    projected.flat_map(|projected| projected.sources.iter().flatten())
}
