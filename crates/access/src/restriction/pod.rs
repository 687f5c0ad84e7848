//! Writes of pods, and requests for their tokens.

use podplane_api::{
    authentication::TokenRequest,
    core::{Pod, PodSpec},
    meta::OwnerReference,
    pod_ips::{self, CONFIG_MIRROR},
};

use super::{RestrictionError, forbidden};
use crate::{references, relations::Relations};

fn is_on(node: &str, pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
}

/// Admits mirror pods of the node that refer to no other object.
pub(super) fn admit_create(
    node: &str,
    pod: &Pod,
    relations: &impl Relations,
) -> Result<(), RestrictionError> {
    if !pod_ips::is_mirror(pod) {
        return forbidden(format!(
            "pod does not have {CONFIG_MIRROR:?} annotation, node {node:?} can only create mirror \
             pods"
        ));
    }
    if !is_on(node, pod) {
        return forbidden(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    match owners {
        [] => {
            return forbidden(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        [owner] => admit_owner(node, owner, relations)?,
        _ => {
            return forbidden(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    }
    let referenced = pod.spec.as_ref().and_then(referenced_objects);
    if let Some(objects) = referenced {
        return forbidden(format!(
            "node {node:?} can not create pods that reference {objects}"
        ));
    }
    Ok(())
}

fn admit_owner(
    node: &str,
    owner: &OwnerReference,
    relations: &impl Relations,
) -> Result<(), RestrictionError> {
    if owner.api_version != "v1" || owner.kind != "Node" || owner.name != node {
        return forbidden(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner.controller != Some(true) {
        return forbidden(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner.block_owner_deletion == Some(true) {
        return forbidden(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let Some(uid) = relations.node_uid(node) else {
        return Err(RestrictionError::NotFound {
            resource: "nodes",
            name: node.to_owned(),
        });
    };
    if owner.uid != uid {
        return forbidden(format!(
            "node {node} UID mismatch: expected {} got {uid}",
            owner.uid
        ));
    }
    Ok(())
}

/// The objects that a pod refers to, which a node could read by making such a pod.
fn referenced_objects(spec: &PodSpec) -> Option<&'static str> {
    if spec
        .service_account_name
        .as_ref()
        .is_some_and(|name| !name.is_empty())
    {
        return Some("a service account");
    }
    let volumes = || spec.volumes.iter().flatten();
    if references::secrets(spec).next().is_some() {
        return Some("secrets");
    }
    if references::config_maps(spec).next().is_some() {
        return Some("configmaps");
    }
    if volumes().any(|volume| {
        let projected = volume.projected.as_ref();
        let mut sources = projected
            .into_iter()
            .flat_map(|all| all.sources.iter().flatten());
        sources.any(|source| source.cluster_trust_bundle.is_some())
    }) {
        return Some("clustertrustbundles");
    }
    if volumes().any(|volume| volume.persistent_volume_claim.is_some()) {
        return Some("persistentvolumeclaims");
    }
    let claims = spec.resource_claims.as_ref();
    if claims.is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    None
}

pub(super) fn admit_delete(node: &str, pod: &Pod) -> Result<(), RestrictionError> {
    if is_on(node, pod) {
        return Ok(());
    }
    forbidden(format!(
        "node {node:?} can only delete pods with spec.nodeName set to itself"
    ))
}

pub(super) fn admit_eviction(node: &str, pod: &Pod) -> Result<(), RestrictionError> {
    if is_on(node, pod) {
        return Ok(());
    }
    forbidden(format!(
        "node {node} can only evict pods with spec.nodeName set to itself"
    ))
}

pub(super) fn admit_status(node: &str, old: &Pod, new: &Pod) -> Result<(), RestrictionError> {
    if !is_on(node, old) {
        return forbidden(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    if labels(old) != labels(new) {
        return forbidden(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    let claims = |pod: &Pod| {
        let status = pod.status.as_ref();
        let claims = status.and_then(|status| status.resource_claim_statuses.clone());
        claims.unwrap_or_default()
    };
    if claims(old) != claims(new) {
        return forbidden(format!(
            "node {node:?} cannot update resource claim statues"
        ));
    }
    Ok(())
}

/// Admits a token for a pod of the node, with an audience that the pod uses.
pub(super) fn admit_token(
    node: &str,
    namespace: &str,
    request: &TokenRequest,
    relations: &impl Relations,
) -> Result<(), RestrictionError> {
    let spec = request.spec.as_ref();
    let bound = spec.and_then(|spec| spec.bound_object_ref.as_ref());
    let pod_reference = bound.filter(|bound| {
        bound.api_version.as_deref() == Some("v1") && bound.kind.as_deref() == Some("Pod")
    });
    let name = pod_reference.and_then(|bound| bound.name.as_deref());
    let (Some(bound), Some(name)) = (pod_reference, name.filter(|name| !name.is_empty())) else {
        return forbidden("node requested token not bound to a pod");
    };
    let uid = bound.uid.as_deref().unwrap_or_default();
    if uid.is_empty() {
        return forbidden("node requested token with a pod binding without a uid");
    }
    let Some(pod) = relations.pod(namespace, name) else {
        return Err(RestrictionError::NotFound {
            resource: "pods",
            name: name.to_owned(),
        });
    };
    if pod.uid != uid {
        return forbidden(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        ));
    }
    if !pod.is_bound_to(node) {
        return forbidden("node requested token bound to a pod scheduled on a different node");
    }
    let audiences = spec.and_then(|spec| spec.audiences.as_deref());
    let audience = match audiences.unwrap_or_default() {
        [] => "",
        [one] => one,
        _ => return forbidden("node may only request 0 or 1 audiences"),
    };
    if !pod.audiences.iter().any(|own| own == audience) {
        return forbidden(format!(
            "audience {audience:?} not found in pod spec volume"
        ));
    }
    Ok(())
}
