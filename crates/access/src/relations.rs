//! The objects that belong to nodes.

use std::collections::HashMap;

use podplane_api::{core::Pod, pod_ips};

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

/// The audiences of the pod's projected tokens. The reference's admission adds a volume with a
/// token for the API server to a pod that does not opt out; no volume is added here, but the token
/// may be requested all the same.
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
    if spec.automount_service_account_token != Some(false) {
        audiences.push(String::new());
    }
    audiences.sort();
    audiences.dedup();
    audiences
}

/// Relations in memory, kept by the events of Pods and Nodes.
#[derive(Clone, Debug, Default)]
pub struct RelationIndex {
    /// By namespace and name.
    pods: HashMap<String, HashMap<String, PodRelation>>,
    nodes: HashMap<String, String>,
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
        let relation = PodRelation::of(pod);
        self.delete_pod(namespace, name);
        if let Some((node, user)) = account_of(namespace, &relation) {
            let users = self.accounts.entry(node.to_owned()).or_default();
            *users.entry(user).or_default() += 1;
        }
        let pods = self.pods.entry(namespace.clone()).or_default();
        pods.insert(name.clone(), relation);
    }

    /// Takes the deletion of a pod.
    pub fn delete_pod(&mut self, namespace: &str, name: &str) {
        let Some(pods) = self.pods.get_mut(namespace) else {
            return;
        };
        let relation = pods.remove(name);
        if pods.is_empty() {
            self.pods.remove(namespace);
        }
        let account = relation.as_ref().and_then(|pod| account_of(namespace, pod));
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
        self.pods.get(namespace)?.get(name).cloned()
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
            .is_some_and(|pod| pod.is_bound_to(node))
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
