//! Waiting until nodes are Ready and pods run, and saying what is missing if they do not.

use std::{collections::BTreeMap, time::Duration};

use podplane_api::{
    ObjectKey,
    core::{Event, Node, Pod},
};
use podplane_client::{Cache, Client, ListParams, reflector};

use super::progress::Progress;

/// Something that is not as it should be, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// `node node-0`, `pod default/web-0`
    pub(crate) what: String,
    pub(crate) why: String,
}

/// What is waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) nodes: Vec<String>,
    pub(crate) pods: Vec<ObjectKey>,
}

impl Wanted {
    /// Waits until everything is there. Returns what is missing when time is up: nothing, if all is well.
    pub(crate) async fn wait(&self, client: &Client, timeout: Duration, progress: &Progress) -> Vec<Missing> {
        let (nodes, node_driver) = reflector(client.all::<Node>(), ListParams::default());
        let (pods, pod_driver) = reflector(client.all::<Pod>(), ListParams::default());
        let watched = async {
            tokio::join!(nodes.synced(), pods.synced());
            let (mut node_changes, mut pod_changes) = (nodes.subscribe(), pods.subscribe());
            loop {
                // Changes are taken before the look, so none between the look and the wait is missed.
                while node_changes.try_next().is_some() || pod_changes.try_next().is_some() {}
                if self.look(&nodes, &pods, progress) {
                    return;
                }
                // Both are cancel safe.
                tokio::select! {
                    _ = node_changes.next() => {}
                    _ = pod_changes.next() => {}
                }
            }
        };
        let in_time = tokio::time::timeout(timeout, watched);
        // The drivers never end, and the other two only wait.
        tokio::select! {
            () = node_driver => {}
            () = pod_driver => {}
            done = in_time => if done.is_ok() { return Vec::new() },
        }
        self.missing(client, &nodes, &pods).await
    }

    /// Whether everything is there.
    fn look(&self, nodes: &Cache<Node>, pods: &Cache<Pod>, progress: &Progress) -> bool {
        let ready = self.nodes.iter().filter(|name| is_ready(nodes, name)).count();
        let running = self.pods.iter().filter(|key| is_running(pods, key)).count();
        let mut text = format!("{ready}/{} nodes Ready", self.nodes.len());
        if !self.pods.is_empty() {
            text = format!("{text}, {running}/{} pods Running", self.pods.len());
        }
        progress.doing(&text);
        ready == self.nodes.len() && running == self.pods.len()
    }

    async fn missing(&self, client: &Client, nodes: &Cache<Node>, pods: &Cache<Pod>) -> Vec<Missing> {
        let nodes = self.nodes.iter().filter(|name| !is_ready(nodes, name)).map(|name| Missing {
            what: format!("node {name}"),
            why: why_not_ready(nodes.get(&ObjectKey::new("", name.as_str())).as_deref()),
        });
        let mut missing: Vec<_> = nodes.collect();
        let unfinished: Vec<_> = self.pods.iter().filter(|key| !is_running(pods, key)).collect();
        if unfinished.is_empty() {
            return missing;
        }
        let warnings = last_warnings(client).await;
        missing.extend(unfinished.into_iter().map(|key| Missing {
            what: format!("pod {key}"),
            why: why_not_running(pods.get(key).as_deref(), warnings.get(key)),
        }));
        missing
    }
}

fn is_ready(nodes: &Cache<Node>, name: &str) -> bool {
    let node = nodes.get(&ObjectKey::new("", name));
    node.is_some_and(|node| condition(&node).is_some_and(|(status, _)| status == "True"))
}

/// Status and message of the node's Ready condition.
fn condition(node: &Node) -> Option<(&str, &str)> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    Some((&ready.status, ready.message.as_deref().unwrap_or_default()))
}

fn is_running(pods: &Cache<Pod>, key: &ObjectKey) -> bool {
    pods.get(key).is_some_and(|pod| phase(&pod) == "Running")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Pending")
}

fn why_not_ready(node: Option<&Node>) -> String {
    let Some(node) = node else {
        return "not registered".into();
    };
    let has_block = node.spec.as_ref().is_some_and(|spec| spec.pod_cidr.is_some());
    match condition(node) {
        _ if !has_block => "it has no podCIDR: is the cluster CIDR used up?".into(),
        Some((_, message)) if !message.is_empty() => message.into(),
        _ => "its kubelet has not said that it is Ready".into(),
    }
}

fn why_not_running(pod: Option<&Pod>, warning: Option<&String>) -> String {
    let Some(pod) = pod else {
        return "deleted".into();
    };
    let status = pod.status.clone().unwrap_or_default();
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let message = unscheduled
        .and_then(|condition| condition.message.clone())
        .or(status.message)
        .or_else(|| warning.cloned());
    match message {
        Some(message) => format!("{}: {message}", phase(pod)),
        None => phase(pod).into(),
    }
}

/// For each object its latest warning. That there are none to be had is no failure of its own.
async fn last_warnings(client: &Client) -> BTreeMap<ObjectKey, String> {
    let params = ListParams {
        field_selector: "type=Warning".into(),
        ..ListParams::default()
    };
    let Ok(events) = client.all::<Event>().list(&params).await else {
        return BTreeMap::new();
    };
    let mut events = events.items;
    events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    let keyed = events.into_iter().filter_map(|event| {
        let name = event.involved_object.name?;
        let key = ObjectKey::new(event.metadata.namespace.unwrap_or_default(), name);
        Some((key, event.message?))
    });
    keyed.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": status})).unwrap()
    }

    #[test]
    fn a_pod_says_what_it_waits_for() {
        let full = "0/3 nodes are available: 3 Insufficient pod IPs.";
        let waiting = pod(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": full}]}));
        assert_eq!(why_not_running(Some(&waiting), None), format!("Pending: {full}"));
        let bound = pod(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
        assert_eq!(why_not_running(Some(&bound), Some(&"no IP".into())), "Pending: no IP");
        let failed = pod(json!({"phase": "Failed", "message": "Node didn't have enough resource: podplane.io/pod-ips"}));
        assert_eq!(
            why_not_running(Some(&failed), Some(&"no IP".into())),
            "Failed: Node didn't have enough resource: podplane.io/pod-ips"
        );
        assert_eq!(why_not_running(None, None), "deleted");
    }

    #[test]
    fn a_node_says_what_it_waits_for() {
        let node = |value| serde_json::from_value::<Node>(value).unwrap();
        assert_eq!(why_not_ready(None), "not registered");
        let blank = node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));
        assert!(why_not_ready(Some(&blank)).starts_with("it has no podCIDR"));
        let status = json!({"conditions": [{"type": "Ready", "status": "False", "message": "cni plugin not initialized"}]});
        let node = node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": status}));
        assert_eq!(why_not_ready(Some(&node)), "cni plugin not initialized");
    }
}
