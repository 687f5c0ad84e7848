//! The objects that belong to nodes.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

use podplane_api::{
    core::{PersistentVolume, Pod},
    kinds::pod::ROOT_CA_CONFIG_MAP,
    pod_ips,
};

use crate::references;

/// A kind of which a node may read the objects that are related to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RelatedKind {
    /// Named by a pod of the node, or by a volume that one uses.
    Secret,
    /// Named by a pod of the node.
    ConfigMap,
    /// Used by a pod of the node.
    PersistentVolumeClaim,
    /// Bound to a claim that a pod of the node uses.
    PersistentVolume,
    /// Used by a pod of the node.
    ResourceClaim,
    /// A volume's attachment to the node.
    VolumeAttachment,
    /// Describes devices of the node.
    ResourceSlice,
}

/// The facts about other objects that the node authorizer and NodeRestriction ask for. An
/// implementation answers from a cache; what a write depends on is judged again where it is
/// committed.
pub trait Relations {
    /// The pod, if it exists.
    fn pod(&self, namespace: &str, name: &str) -> Option<PodRelation>;

    /// The UID of the Node, if it exists.
    fn node_uid(&self, node: &str) -> Option<String>;

    /// True if a pod of the ServiceAccount is bound to the node. Mirror pods do not count: a node
    /// makes them itself.
    fn runs_service_account(&self, node: &str, namespace: &str, account: &str) -> bool;

    /// True if the object is related to the node. The namespace of cluster-scoped kinds is empty.
    fn is_related(&self, node: &str, kind: RelatedKind, namespace: &str, name: &str) -> bool;

    /// True if the pod exists and is bound to the node.
    fn is_bound(&self, namespace: &str, pod: &str, node: &str) -> bool {
        self.pod(namespace, pod)
            .is_some_and(|pod| pod.is_bound_to(node))
    }
}

/// The part of a pod that its node's rights depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRelation {
    /// The UID.
    pub uid: String,
    /// The node that the pod is bound to; empty for none.
    pub node: String,
    /// The ServiceAccount that the pod runs as; empty for none, and for mirror pods.
    pub service_account: String,
    /// The audiences of the tokens that the pod uses; the empty one is the API server.
    pub audiences: Vec<String>,
}

impl PodRelation {
    /// The relation of a pod.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.clone());
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: spec
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
            service_account: account
                .filter(|_| !pod_ips::is_mirror(pod))
                .unwrap_or_default(),
            audiences: audiences(pod),
        }
    }

    /// True if the pod is bound to the node.
    pub fn is_bound_to(&self, node: &str) -> bool {
        !node.is_empty() && self.node == node
    }
}

/// The audiences of the pod's projected tokens. Admission adds a volume with a token for the API
/// server to a pod that does not opt out.
fn audiences(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let volumes = spec.volumes.iter().flatten();
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    let sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    let tokens = sources.filter_map(|source| source.service_account_token.as_ref());
    let mut audiences: Vec<String> = tokens
        .map(|token| token.audience.clone().unwrap_or_default())
        .collect();
    audiences.sort();
    audiences.dedup();
    audiences
}

/// The name of an object that a pod refers to. Nearly every pod refers to one ConfigMap.
type ReferenceName = Cow<'static, str>;

/// A pod, and the objects in its namespace that it refers to.
#[derive(Clone, Debug)]
struct IndexedPod {
    relation: PodRelation,
    /// None if it is not bound to a node.
    references: Box<[(RelatedKind, ReferenceName)]>,
}

impl IndexedPod {
    fn of(pod: &Pod) -> Self {
        let relation = PodRelation::of(pod);
        // A node makes mirror pods itself: they give it no rights.
        let counts = !relation.node.is_empty() && !pod_ips::is_mirror(pod);
        let spec = pod.spec.as_ref().filter(|_| counts);
        let mut all = Vec::new();
        if let Some(spec) = spec {
            let mut add = |kind, name: &str| {
                let name = match name {
                    ROOT_CA_CONFIG_MAP => Cow::Borrowed(ROOT_CA_CONFIG_MAP),
                    name => Cow::Owned(name.to_owned()),
                };
                if !name.is_empty() && !all.contains(&(kind, name.clone())) {
                    all.push((kind, name));
                }
            };
            references::secrets(spec).for_each(|name| add(RelatedKind::Secret, name));
            references::config_maps(spec).for_each(|name| add(RelatedKind::ConfigMap, name));
            for name in references::claims(pod) {
                add(RelatedKind::PersistentVolumeClaim, &name);
            }
            for name in references::resource_claims(pod) {
                add(RelatedKind::ResourceClaim, name);
            }
        }
        Self {
            relation,
            references: all.into(),
        }
    }
}

/// The part of a PersistentVolume that the rights of nodes depend on.
#[derive(Clone, Debug)]
struct VolumeRelation {
    claim_namespace: String,
    claim: String,
    /// Namespaces and names.
    secrets: Vec<(String, String)>,
}

/// The number of references of the pods of a node, by the namespace and the name of the object.
type References = HashMap<String, HashMap<ReferenceName, usize>>;

/// Relations in memory, kept by the events of the objects.
#[derive(Clone, Debug, Default)]
pub struct RelationIndex {
    /// By namespace and name.
    pods: HashMap<String, HashMap<String, IndexedPod>>,
    nodes: HashMap<String, String>,
    /// By node and kind.
    references: HashMap<String, HashMap<RelatedKind, References>>,
    /// PersistentVolumes that are bound to a claim.
    volumes: HashMap<String, VolumeRelation>,
    /// The names of volumes by the namespace and name of a Secret that they need.
    volumes_of_secrets: HashMap<String, HashMap<String, BTreeSet<String>>>,
    /// The nodes of VolumeAttachments.
    attachments: HashMap<String, String>,
    /// The nodes of ResourceSlices.
    slices: HashMap<String, String>,
    /// The number of pods by node, then by the user name of the ServiceAccount.
    accounts: HashMap<String, HashMap<String, usize>>,
}

impl RelationIndex {
    /// An index without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a new or changed pod. One without a name or namespace is ignored.
    pub fn apply_pod(&mut self, pod: &Pod) {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
            return;
        };
        let pod = IndexedPod::of(pod);
        self.delete_pod(namespace, name);
        let node = &pod.relation.node;
        if let Some((node, user)) = account_of(namespace, &pod.relation) {
            let users = self.accounts.entry(node.to_owned()).or_default();
            *users.entry(user).or_default() += 1;
        }
        if !pod.references.is_empty() {
            let kinds = self.references.entry(node.clone()).or_default();
            for (kind, name) in &pod.references {
                let names = kinds.entry(*kind).or_default();
                let names = names.entry(namespace.clone()).or_default();
                *names.entry(name.clone()).or_default() += 1;
            }
        }
        let pods = self.pods.entry(namespace.clone()).or_default();
        pods.insert(name.clone(), pod);
    }

    /// Takes the deletion of a pod.
    pub fn delete_pod(&mut self, namespace: &str, name: &str) {
        let Some(pods) = self.pods.get_mut(namespace) else {
            return;
        };
        let pod = pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(namespace);
        }
        if let Some(pod) = &pod {
            self.release(namespace, pod);
        }
        let relation = pod.as_ref().map(|pod| &pod.relation);
        let account = relation.and_then(|pod| account_of(namespace, pod));
        let Some((node, user)) = account else {
            return;
        };
        if let Some(users) = self.accounts.get_mut(node) {
            if let Some(count) = users.get_mut(&user) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    users.remove(&user);
                }
            }
            if users.is_empty() {
                self.accounts.remove(node);
            }
        }
    }

    /// Forgets the references of a pod.
    fn release(&mut self, namespace: &str, pod: &IndexedPod) {
        let node = &pod.relation.node;
        let Some(kinds) = self.references.get_mut(node) else {
            return;
        };
        for (kind, name) in &pod.references {
            let Some(namespaces) = kinds.get_mut(kind) else {
                continue;
            };
            let Some(names) = namespaces.get_mut(namespace) else {
                continue;
            };
            if let Some(count) = names.get_mut(name) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    names.remove(name);
                }
            }
            if names.is_empty() {
                namespaces.remove(namespace);
            }
            if namespaces.is_empty() {
                kinds.remove(kind);
            }
        }
        if kinds.is_empty() {
            self.references.remove(node);
        }
    }

    /// Takes a new or changed PersistentVolume.
    pub fn apply_volume(&mut self, volume: &PersistentVolume) {
        let name = crate::name(&volume.metadata);
        self.delete_volume(name);
        let claim = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref());
        let Some(claim) = claim else {
            return;
        };
        let secrets = references::secrets_of_volume(volume);
        for (namespace, secret) in &secrets {
            let of_namespace = self
                .volumes_of_secrets
                .entry(namespace.clone())
                .or_default();
            let volumes = of_namespace.entry(secret.clone()).or_default();
            volumes.insert(name.to_owned());
        }
        let relation = VolumeRelation {
            claim_namespace: claim.namespace.clone().unwrap_or_default(),
            claim: claim.name.clone().unwrap_or_default(),
            secrets,
        };
        self.volumes.insert(name.to_owned(), relation);
    }

    /// Takes the deletion of a PersistentVolume.
    pub fn delete_volume(&mut self, name: &str) {
        let Some(relation) = self.volumes.remove(name) else {
            return;
        };
        for (namespace, secret) in &relation.secrets {
            let Some(of_namespace) = self.volumes_of_secrets.get_mut(namespace) else {
                continue;
            };
            if let Some(volumes) = of_namespace.get_mut(secret) {
                volumes.remove(name);
                if volumes.is_empty() {
                    of_namespace.remove(secret);
                }
            }
            if of_namespace.is_empty() {
                self.volumes_of_secrets.remove(namespace);
            }
        }
    }

    /// Takes a new or changed VolumeAttachment.
    pub fn apply_attachment(&mut self, name: &str, node: &str) {
        self.attachments.insert(name.to_owned(), node.to_owned());
    }

    /// Takes the deletion of a VolumeAttachment.
    pub fn delete_attachment(&mut self, name: &str) {
        self.attachments.remove(name);
    }

    /// Takes a new or changed ResourceSlice; `None` for one of no single node.
    pub fn apply_slice(&mut self, name: &str, node: Option<&str>) {
        match node.filter(|node| !node.is_empty()) {
            Some(node) => self.slices.insert(name.to_owned(), node.to_owned()),
            None => self.slices.remove(name),
        };
    }

    /// Takes the deletion of a ResourceSlice.
    pub fn delete_slice(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// True if a pod that is bound to the node, and no mirror pod, refers to the object.
    fn refers(&self, node: &str, kind: RelatedKind, namespace: &str, name: &str) -> bool {
        let kinds = self.references.get(node);
        let names = kinds.and_then(|kinds| kinds.get(&kind)?.get(namespace));
        names.is_some_and(|names| names.contains_key(name))
    }

    fn uses_volume(&self, node: &str, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|volume| {
            let (namespace, claim) = (&volume.claim_namespace, &volume.claim);
            self.refers(node, RelatedKind::PersistentVolumeClaim, namespace, claim)
        })
    }

    /// Takes a new or changed Node.
    pub fn apply_node(&mut self, name: &str, uid: &str) {
        self.nodes.insert(name.to_owned(), uid.to_owned());
    }

    /// Takes the deletion of a Node.
    pub fn delete_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }
}

/// The node of the pod and the user name of its ServiceAccount, if the pod has both.
fn account_of<'a>(namespace: &str, pod: &'a PodRelation) -> Option<(&'a str, String)> {
    let has_both = !pod.node.is_empty() && !pod.service_account.is_empty();
    has_both.then(|| {
        let user = crate::identity::service_account_user(namespace, &pod.service_account);
        (&*pod.node, user)
    })
}

impl Relations for RelationIndex {
    fn pod(&self, namespace: &str, name: &str) -> Option<PodRelation> {
        let pod = self.pods.get(namespace)?.get(name)?;
        Some(pod.relation.clone())
    }

    fn node_uid(&self, node: &str) -> Option<String> {
        self.nodes.get(node).cloned()
    }

    fn runs_service_account(&self, node: &str, namespace: &str, account: &str) -> bool {
        let user = crate::identity::service_account_user(namespace, account);
        self.accounts
            .get(node)
            .is_some_and(|users| users.contains_key(&user))
    }

    fn is_bound(&self, namespace: &str, pod: &str, node: &str) -> bool {
        let pods = self.pods.get(namespace);
        pods.and_then(|pods| pods.get(pod))
            .is_some_and(|pod| pod.relation.is_bound_to(node))
    }

    fn is_related(&self, node: &str, kind: RelatedKind, namespace: &str, name: &str) -> bool {
        match kind {
            RelatedKind::Secret => {
                let volumes = self.volumes_of_secrets.get(namespace);
                let mut volumes = volumes.and_then(|all| all.get(name)).into_iter().flatten();
                self.refers(node, kind, namespace, name)
                    || volumes.any(|volume| self.uses_volume(node, volume))
            }
            RelatedKind::ConfigMap
            | RelatedKind::PersistentVolumeClaim
            | RelatedKind::ResourceClaim => self.refers(node, kind, namespace, name),
            RelatedKind::PersistentVolume => self.uses_volume(node, name),
            RelatedKind::VolumeAttachment => {
                self.attachments.get(name).is_some_and(|one| one == node)
            }
            RelatedKind::ResourceSlice => self.slices.get(name).is_some_and(|one| one == node),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str, account: &str, annotations: Value) -> Pod {
        let metadata = json!({
            "name": name, "namespace": "prod", "uid": "u", "annotations": annotations,
        });
        let spec = json!({"nodeName": node, "serviceAccountName": account, "containers": []});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn an_account_is_related_while_a_pod_of_it_is_on_the_node() {
        let mut index = RelationIndex::new();
        index.apply_pod(&pod("a", "n1", "ci", json!({})));
        index.apply_pod(&pod("b", "n1", "ci", json!({})));
        assert!(index.runs_service_account("n1", "prod", "ci"));
        assert!(!index.runs_service_account("n2", "prod", "ci"));
        assert!(!index.runs_service_account("n1", "test", "ci"));
        index.apply_pod(&pod("a", "n1", "ci", json!({})));
        index.delete_pod("prod", "a");
        assert!(index.runs_service_account("n1", "prod", "ci"));
        assert!(index.is_bound("prod", "b", "n1") && !index.is_bound("prod", "a", "n1"));
        index.delete_pod("prod", "b");
        index.delete_pod("prod", "b");
        assert!(!index.runs_service_account("n1", "prod", "ci"));
        assert!(index.accounts.is_empty() && index.pods.is_empty());
    }

    #[test]
    fn a_mirror_pod_relates_no_account() {
        let mut index = RelationIndex::new();
        index.apply_pod(&pod(
            "m",
            "n1",
            "ci",
            json!({pod_ips::CONFIG_MIRROR: "hash"}),
        ));
        assert!(!index.runs_service_account("n1", "prod", "ci"));
        assert!(index.is_bound("prod", "m", "n1"));
    }

    #[test]
    fn an_unbound_pod_is_on_no_node() {
        let mut index = RelationIndex::new();
        index.apply_pod(&pod("a", "", "ci", json!({})));
        assert!(!index.is_bound("prod", "a", ""));
        assert!(!index.runs_service_account("", "prod", "ci"));
    }
}
