//! The node's status as the agent writes it.
//!
//! The kubelet keeps extended resources in a node's capacity that somebody else has written, and
//! copies them to allocatable with each of its updates (`pkg/kubelet/nodestatus/setters.go`). So the
//! capacity must be the amount that schedulers may add up to. The agent writes both, so that no
//! scheduler sees one without the other. A kubelet that finds no state of its device plugins, as on a
//! new disk, sets all extended resources to zero when it registers; the agent writes them again.

use podplane_api::{
    core::Node,
    pod_ips::{
        self, IPAM, POD_IPS_ORPHANED, POD_IPS_REPORTED, POD_IPS_RESOURCE, POD_IPS_TOTAL,
        PodIpResource,
    },
};
use podplane_client::{Api, ApiError, PatchParams, PatchType};
use serde_json::{Map, Value, json};

use crate::account::NodeAccount;

/// The writer in the node's `metadata.managedFields`.
const FIELD_MANAGER: &str = "podplane-node-agent";

/// The values in a node's status and annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    amount: u64,
    annotations: [(&'static str, Option<String>); 4],
}

impl Publication {
    /// The publication of an account; `ipam` is the name of the IPAM plugin.
    pub fn of(account: &NodeAccount, resource: &PodIpResource, ipam: &str) -> Self {
        let renamed = Some(resource).filter(|name| **name != PodIpResource::default());
        let ipam = Some(ipam).filter(|name| !name.is_empty());
        Self {
            amount: account.published(),
            annotations: [
                (POD_IPS_TOTAL, Some(account.published_total().to_string())),
                (POD_IPS_ORPHANED, Some(account.orphaned.to_string())),
                (POD_IPS_RESOURCE, renamed.map(ToString::to_string)),
                (IPAM, ipam.map(str::to_owned)),
            ],
        }
    }

    /// The amount of the resource.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// The merge patch that brings the node to this state; `None` if it is in it.
    pub fn patch(&self, node: &Node, resource: &PodIpResource) -> Option<Value> {
        let is_annotated = self.annotations.iter().all(|(key, value)| {
            let present = node.metadata.annotations.as_ref();
            present.and_then(|all| all.get(*key)) == value.as_ref()
        });
        let is_published = resource.published(node) == [Some(self.amount); 2];
        if is_annotated && is_published {
            return None;
        }
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(key, value)| ((*key).to_owned(), json!(value)));
        let amount = json!({resource.as_str(): self.amount.to_string()});
        Some(merge(annotations.collect(), &amount))
    }
}

/// The merge patch that removes the resource and the annotations.
pub fn withdrawal(resource: &PodIpResource) -> Value {
    let annotations = [POD_IPS_TOTAL, POD_IPS_ORPHANED, POD_IPS_RESOURCE, IPAM];
    let annotations = annotations.map(|key| (key.to_owned(), Value::Null));
    merge(
        Map::from_iter(annotations),
        &json!({resource.as_str(): null}),
    )
}

fn merge(annotations: Map<String, Value>, amount: &Value) -> Value {
    json!({
        "metadata": {"annotations": annotations},
        "status": {"capacity": amount, "allocatable": amount},
    })
}

/// Returns true if the node's kubelet is one of podplane's, and reports the addresses itself.
pub fn is_reported_by_kubelet(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut reports = conditions
        .flatten()
        .filter(|it| it.type_ == POD_IPS_REPORTED);
    reports.any(|condition| condition.status != "False")
}

/// Returns true if the node has anything that [`withdrawal`] removes.
pub fn is_published(node: &Node, resource: &PodIpResource) -> bool {
    resource.published(node) != [None; 2] || pod_ips::total(node).is_some()
}

/// Patches the node's status. Annotations of nodes can be written with it, as the kubelet does.
///
/// # Errors
///
/// Those of [`Api::patch_status`].
pub async fn apply(nodes: &Api<Node>, name: &str, patch: &Value) -> Result<(), ApiError> {
    let params = PatchParams {
        patch_type: PatchType::Merge,
        patch: patch.to_string(),
        field_manager: FIELD_MANAGER.into(),
        force: false,
    };
    nodes.patch_status(name, &params).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> NodeAccount {
        NodeAccount {
            total: 5,
            held: 3,
            orphaned: 1,
            unrequested: 1,
            requested: 2,
            ending: 0,
        }
    }

    fn node(annotations: Value, amount: &str) -> Node {
        let amounts = json!({"pods": "110", "podplane.io/pod-ips": amount});
        serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": annotations},
            "status": {"capacity": amounts, "allocatable": amounts}}))
        .unwrap()
    }

    #[test]
    fn writes_only_what_differs_from_the_node() {
        let resource = PodIpResource::default();
        let wanted = Publication::of(&account(), &resource, "host-local");
        let annotations = json!({POD_IPS_TOTAL: "5", POD_IPS_ORPHANED: "1", IPAM: "host-local"});
        assert_eq!(
            wanted.patch(&node(annotations.clone(), "3"), &resource),
            None
        );
        let patch = json!({
            "metadata": {"annotations": {POD_IPS_TOTAL: "5", POD_IPS_ORPHANED: "1",
                POD_IPS_RESOURCE: null, IPAM: "host-local"}},
            "status": {"capacity": {"podplane.io/pod-ips": "3"},
                "allocatable": {"podplane.io/pod-ips": "3"}}});
        // A kubelet without the state of its device plugins has reset the amount.
        let reset = node(annotations, "0");
        assert_eq!(wanted.patch(&reset, &resource), Some(patch.clone()));
        assert_eq!(wanted.patch(&node(json!({}), "3"), &resource), Some(patch));
    }

    #[test]
    fn the_withdrawal_removes_all_that_is_published() {
        let resource: PodIpResource = "example.com/ips".parse().unwrap();
        let patch = withdrawal(&resource);
        assert_eq!(
            patch["status"]["capacity"],
            json!({"example.com/ips": null})
        );
        let published = Publication::of(&account(), &resource, "x");
        for (key, _) in published.annotations {
            assert_eq!(
                patch["metadata"]["annotations"].get(key),
                Some(&Value::Null)
            );
        }
    }

    #[test]
    fn a_kubelet_that_reports_is_left_alone() {
        let mut node = node(json!({}), "3");
        assert!(!is_reported_by_kubelet(&node));
        for (status, reports) in [("True", true), ("Unknown", true), ("False", false)] {
            let condition = json!([{"type": POD_IPS_REPORTED, "status": status}]);
            let conditions = serde_json::from_value(condition).unwrap();
            node.status.as_mut().unwrap().conditions = conditions;
            assert_eq!(is_reported_by_kubelet(&node), reports, "{status}");
        }
    }
}
