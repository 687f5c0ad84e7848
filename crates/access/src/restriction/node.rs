//! Writes of Nodes.

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::core::{Node, NodeSpec};

use super::{RestrictionError, forbidden};

/// The labels of Kubernetes' domains that a node reports about itself.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// The domains of Kubernetes in which a node may set any label, with their subdomains.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// True for a label that a node may not set, change or remove on its own Node, since it may steer
/// pods to nodes.
pub fn is_restricted_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return false;
    };
    let is_in = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    if is_in("node-restriction.kubernetes.io") || is_in("podplane.io") {
        return true;
    }
    let is_own = OWN_LABELS.contains(&key) || OWN_DOMAINS.iter().any(|own| is_in(own));
    (is_in("kubernetes.io") || is_in("k8s.io")) && !is_own
}

/// The labels that differ and that a node may not touch.
fn restricted_changes(
    old: Option<&BTreeMap<String, String>>,
    new: Option<&BTreeMap<String, String>>,
) -> Vec<String> {
    let value = |labels: Option<&BTreeMap<String, String>>, key: &String| {
        labels.and_then(|labels| labels.get(key).cloned())
    };
    let keys: BTreeSet<&String> = [old, new]
        .into_iter()
        .flatten()
        .flat_map(BTreeMap::keys)
        .collect();
    keys.into_iter()
        .filter(|key| value(old, key) != value(new, key) && is_restricted_label(key))
        .cloned()
        .collect()
}

/// Admits a write of the node's own Node alone. A creation by `generateName` has no name here.
pub(super) fn admit_name(node: &str, name: &str) -> Result<(), RestrictionError> {
    if name == node {
        return Ok(());
    }
    forbidden(format!(
        "node {node:?} is not allowed to modify node {name:?}"
    ))
}

pub(super) fn admit_create(node: &str, new: &Node) -> Result<(), RestrictionError> {
    admit_name(node, crate::name(&new.metadata))?;
    let spec = new.spec.as_ref();
    if spec.is_some_and(|spec| spec.config_source.is_some()) {
        return forbidden(format!(
            "node {node:?} is not allowed to create pods with a non-nil configSource"
        ));
    }
    if !blocks(spec).is_empty() {
        return forbidden(format!("node {node:?} is not allowed to set podCIDRs"));
    }
    let restricted = restricted_changes(None, new.metadata.labels.as_ref());
    if !restricted.is_empty() {
        let labels = restricted.join(", ");
        return forbidden(format!(
            "node {node:?} is not allowed to set the following labels: {labels}"
        ));
    }
    Ok(())
}

pub(super) fn admit_update(node: &str, old: &Node, new: &Node) -> Result<(), RestrictionError> {
    admit_name(node, crate::name(&new.metadata))?;
    let (old_spec, new_spec) = (old.spec.as_ref(), new.spec.as_ref());
    let config_source = |spec: Option<&NodeSpec>| spec.and_then(|spec| spec.config_source.clone());
    // An old kubelet may drop the field.
    if config_source(new_spec).is_some() && config_source(new_spec) != config_source(old_spec) {
        return forbidden(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    let taints = |spec: Option<&NodeSpec>| {
        let taints = spec.and_then(|spec| spec.taints.clone());
        taints.unwrap_or_default()
    };
    if taints(old_spec) != taints(new_spec) {
        return forbidden(format!("node {node:?} is not allowed to modify taints"));
    }
    let owners = |node: &Node| node.metadata.owner_references.clone().unwrap_or_default();
    if owners(old) != owners(new) {
        return forbidden(format!(
            "node {node:?} is not allowed to modify ownerReferences"
        ));
    }
    if blocks(old_spec) != blocks(new_spec) {
        return forbidden(format!("node {node:?} is not allowed to modify podCIDRs"));
    }
    let (old_labels, new_labels) = (&old.metadata.labels, &new.metadata.labels);
    let restricted = restricted_changes(old_labels.as_ref(), new_labels.as_ref());
    if !restricted.is_empty() {
        let labels = restricted.join(", ");
        return forbidden(format!("is not allowed to modify labels: {labels}"));
    }
    Ok(())
}

/// The values of `podCIDR` and `podCIDRs`.
fn blocks(spec: Option<&NodeSpec>) -> Vec<&str> {
    let Some(spec) = spec else {
        return Vec::new();
    };
    let one = spec.pod_cidr.iter();
    let all = one.chain(spec.pod_cidrs.iter().flatten());
    all.map(|cidr| &**cidr)
        .filter(|cidr| !cidr.is_empty())
        .collect()
}
