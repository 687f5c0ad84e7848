//! The parameter of a MutatingAdmissionPolicy that adds requests for addresses in the API server: a
//! ConfigMap that says whether every node publishes the resource, which a policy cannot see.
//!
//! The leader keeps it. It is stricter than [`mutation::plan`](crate::mutation::plan): taints and
//! tolerations do not matter, since the parameter is the same for all pods. Without a leader it
//! stays as it is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    core::{ConfigMap, Node},
    meta::ObjectMeta,
    pod_ips::PodIpResource,
};
use podplane_client::{ApiError, Cache, Changes, Client, Permission, answered};
use podplane_error_chain::one_line;
use podplane_host::clock;

use crate::{
    mutation::{is_open, publishes},
    object_name::ObjectName,
};

/// The time between two looks at the ConfigMap, if no node changes.
const LOOK: Duration = Duration::from_secs(10);
/// The time between two tries.
const RETRY: Duration = Duration::from_secs(2);
/// The group and version of policies.
const GROUP: &str = "admissionregistration.k8s.io/v1";
/// The resource of policies.
const POLICIES: &str = "mutatingadmissionpolicies";

/// The key with `true` if pods get the request, else `false`.
const REQUEST: &str = "request";
/// The key with the reason, for people.
const REASON: &str = "reason";

/// The content of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyParams {
    request: bool,
    reason: String,
}

impl PolicyParams {
    /// Pods get the request if there are open nodes, and all of them publish the resource. Of those
    /// that do not, the first by name is the reason.
    fn of(nodes: &[Arc<Node>], resource: &PodIpResource) -> Self {
        let open = || nodes.iter().filter(|node| is_open(node));
        let silent = open().filter(|node| !publishes(node, resource));
        let (request, reason) = match (silent.map(|node| node.name()).min(), open().count()) {
            (Some(node), _) => (false, format!("node {node} does not publish {resource}")),
            (None, 0) => (false, "no node is Ready".to_owned()),
            (None, _) => (true, format!("all nodes publish {resource}")),
        };
        Self { request, reason }
    }

    fn data(&self) -> BTreeMap<String, String> {
        let request = (REQUEST.to_owned(), self.request.to_string());
        [request, (REASON.to_owned(), self.reason.clone())].into()
    }
}

/// The keeper of the ConfigMap.
#[derive(Clone, Debug)]
pub struct PolicySwitch {
    config_map: ObjectKey,
    nodes: Cache<Node>,
    resource: PodIpResource,
}

impl PolicySwitch {
    /// The keeper of this ConfigMap; `None` without one.
    pub fn new(
        config_map: Option<ObjectName>,
        nodes: Cache<Node>,
        resource: PodIpResource,
    ) -> Option<Self> {
        Some(Self {
            config_map: config_map?.0,
            nodes,
            resource,
        })
    }

    /// The permissions that it needs on the ConfigMap.
    pub fn permissions(config_map: &ObjectName) -> Vec<Permission> {
        let ObjectKey { namespace, name } = &config_map.0;
        let maps = |verbs| Permission::on("", "configmaps", verbs).in_namespace(namespace.clone());
        vec![
            maps(&["get", "update"]).named(name.clone()),
            maps(&["create"]),
        ]
    }

    /// Keeps the ConfigMap for ever, as the leader does.
    pub async fn maintain(&self, client: &Client) {
        self.nodes.synced().await;
        let mut changes = self.nodes.subscribe();
        self.look_for_policies(client).await;
        loop {
            let params = PolicyParams::of(&self.nodes.list(), &self.resource);
            if let Err(error) = self.write(client, &params).await {
                let error = one_line(&error);
                tracing::warn!(error, retry_in = ?RETRY, "failed to write the parameter of the policy; trying again");
                clock::sleep(RETRY).await;
                continue;
            }
            // Dropping either loses nothing: all nodes are looked at again.
            tokio::select! {
                () = self.differs(&mut changes, &params) => {}
                () = clock::sleep(LOOK) => {}
            }
        }
    }

    /// Completes when the nodes call for other parameters.
    async fn differs(&self, changes: &mut Changes<Node>, params: &PolicyParams) {
        loop {
            changes.next().await;
            while changes.try_next().is_some() {}
            if PolicyParams::of(&self.nodes.list(), &self.resource) != *params {
                return;
            }
        }
    }

    /// Warns if the server has no such policies, so that nobody waits for requests.
    async fn look_for_policies(&self, client: &Client) {
        match client.kube().list_api_group_resources(GROUP).await {
            Ok(known) if known.resources.iter().all(|one| one.name != POLICIES) => {
                tracing::warn!(
                    "the API server does not serve MutatingAdmissionPolicy: use the webhook for new pods"
                );
            }
            // The next calls tell what is wrong.
            Ok(_) | Err(_) => {}
        }
    }

    async fn write(&self, client: &Client, params: &PolicyParams) -> Result<(), ApiError> {
        let maps = client.namespaced::<ConfigMap>(self.config_map.namespace.as_str());
        let data = Some(params.data());
        match answered(maps.get(&self.config_map.name)).await {
            Ok(map) if map.data == data => return Ok(()),
            Ok(map) => answered(maps.update(&ConfigMap { data, ..map })).await?,
            Err(error) if error.is_not_found() => {
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(self.config_map.name.clone()),
                        namespace: Some(self.config_map.namespace.clone()),
                        ..ObjectMeta::default()
                    },
                    data,
                    ..ConfigMap::default()
                };
                answered(maps.create(&map)).await?
            }
            Err(error) => return Err(error),
        };
        let PolicyParams { request, reason } = params;
        let config_map = &self.config_map;
        tracing::info!(%config_map, request, reason, "changed the parameter of the policy");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, amounts: serde_json::Value, ready: &str) -> Arc<Node> {
        let node = json!({
            "metadata": {"name": name},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn pods_get_the_request_while_all_open_nodes_publish() {
        let publishes = || json!({"podplane.io/pod-ips": "0"});
        let good = node("a", publishes(), "True");
        let silent = |name: &str, ready: &str| node(name, json!({"pods": "110"}), ready);
        for (nodes, request, reason) in [
            (vec![], false, "no node is Ready"),
            (vec![silent("b", "False")], false, "no node is Ready"),
            (
                vec![good.clone(), silent("b", "Unknown")],
                true,
                "all nodes publish podplane.io/pod-ips",
            ),
            (
                vec![silent("c", "True"), good, silent("b", "True")],
                false,
                "node b does not publish podplane.io/pod-ips",
            ),
        ] {
            let params = PolicyParams::of(&nodes, &PodIpResource::default());
            let want = PolicyParams {
                request,
                reason: reason.to_owned(),
            };
            assert_eq!(params, want);
        }
    }
}
