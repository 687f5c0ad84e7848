//! Waits until nodes are Ready and pods run, and reports those that are not.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::Lease,
    core::{Event, Node, Pod},
    jiff::Timestamp,
    node::LEASE_NAMESPACE,
    pod_ips,
};
use podplane_client::{Cache, Client, ListParams, reflector};

use podplane_cluster::data_dir::DataDir;

use podplane_progress::Progress;

use crate::pods;

/// The interval of checks for sandboxes, once all else is as wanted.
const LOOK: Duration = Duration::from_millis(20);
/// The pause between checks, for each node and pod: a hundred times the duration of checking one.
const EACH: Duration = Duration::from_micros(50);

/// An object that is not in the wanted state, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadyObject {
    /// `node node-0`, `pod default/web-0`
    pub(crate) what: String,
    pub(crate) why: String,
}

/// Lists objects with their reasons, one a line, after a text.
pub(crate) fn listed(missing: &[UnreadyObject]) -> String {
    let each = missing.iter();
    let each = each.map(|missing| format!("\n  {}: {}", missing.what, missing.why));
    each.collect()
}

/// The wanted state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadinessGoal {
    pub(crate) nodes: Vec<String>,
    /// The number of nodes that can be Ready; `None` for all.
    pub(crate) enough: Option<usize>,
    pub(crate) pods: Vec<ObjectKey>,
    /// Further checks for a cluster that has just been started.
    pub(crate) start: Option<ClusterStart>,
}

/// Distinguishes present state from state that the store has kept since the cluster's last run.
#[derive(Clone, Debug)]
pub(crate) struct ClusterStart {
    pub(crate) dir: DataDir,
    /// The time of the start. Leases renewed since then belong to running kubelets.
    pub(crate) time: Timestamp,
}

/// The observed state of the cluster.
struct ClusterView {
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    leases: Cache<Lease>,
}

impl ReadinessGoal {
    /// Waits until everything is as wanted. Returns the objects that are not when time is up.
    pub(crate) async fn wait(
        &self,
        client: &Client,
        timeout: Duration,
        progress: &Progress,
    ) -> Vec<UnreadyObject> {
        let (nodes, node_driver) = reflector(client.all::<Node>(), ListParams::default());
        let (pods, pod_driver) = reflector(client.all::<Pod>(), ListParams::default());
        let (leases, lease_driver) = reflector(
            client.namespaced::<Lease>(LEASE_NAMESPACE),
            ListParams::default(),
        );
        let view = ClusterView {
            nodes,
            pods,
            leases,
        };
        let watched = async {
            tokio::join!(
                view.nodes.synced(),
                view.pods.synced(),
                view.leases.synced()
            );
            let (mut nodes, mut pods, mut leases) = (
                view.nodes.subscribe(),
                view.pods.subscribe(),
                view.leases.subscribe(),
            );
            loop {
                // Changes are taken before the check, so none between the check and the wait is
                // missed.
                while nodes.try_next().is_some()
                    || pods.try_next().is_some()
                    || leases.try_next().is_some()
                {}
                let (all_is_said, text) = self.describe(&view);
                progress.doing(&text);
                if all_is_said && self.is_true(&view) {
                    return;
                }
                // All are cancel safe. Sandboxes are files, whose changes are not notified.
                tokio::select! {
                    _ = nodes.next() => {}
                    _ = pods.next() => {}
                    _ = leases.next() => {}
                    () = tokio::time::sleep(LOOK), if all_is_said => {}
                }
                // A check goes through everything, so it is not made for each single change.
                let objects = u32::try_from(self.nodes.len() + self.pods.len());
                tokio::time::sleep(EACH * objects.unwrap_or(u32::MAX)).await;
            }
        };
        let in_time = tokio::time::timeout(timeout, watched);
        // The drivers never end, and the other arm only waits.
        tokio::select! {
            () = node_driver => {}
            () = pod_driver => {}
            () = lease_driver => {}
            done = in_time => if done.is_ok() {
                progress.done(&self.describe(&view).1);
                return Vec::new();
            },
        }
        self.missing(client, &view).await
    }

    /// Returns true if everything is reported as wanted, and the progress for people.
    fn describe(&self, view: &ClusterView) -> (bool, String) {
        let ready = self
            .nodes
            .iter()
            .filter(|name| self.is_ready(view, name))
            .count();
        let running = self
            .pods
            .iter()
            .filter(|key| is_running(&view.pods, key))
            .count();
        let mut text = format!("{ready}/{} nodes Ready", self.nodes.len());
        if !self.pods.is_empty() {
            text = format!("{text}, {running}/{} pods Running", self.pods.len());
        }
        (
            ready >= self.enough.unwrap_or(usize::MAX).min(self.nodes.len())
                && running == self.pods.len()
                && self.is_counted(view),
            text,
        )
    }

    /// Returns true if the nodes' reports count the addresses of the pods, so that both agree. A
    /// kubelet reports just after the pod.
    fn is_counted(&self, view: &ClusterView) -> bool {
        let placed: Vec<_> = self
            .pods
            .iter()
            .filter_map(|key| view.pods.get(key))
            .collect();
        view.nodes.list().iter().all(|node| {
            let takes_address = |pod: &&Arc<Pod>| {
                let spec = pod.spec.as_ref();
                let is_here = spec.is_some_and(|s| s.node_name.as_deref() == Some(node.name()));
                is_here && pod_ips::holds_address(pod)
            };
            let pods = placed.iter().filter(takes_address).count();
            pod_ips::allocated(node).is_none_or(|allocated| allocated >= pods as u64)
        })
    }

    /// Returns true if a node is Ready and, if the cluster has just been started, has a running
    /// kubelet.
    fn is_ready(&self, view: &ClusterView, name: &str) -> bool {
        let node = view.nodes.get(&ObjectKey::new("", name));
        let is_said =
            node.is_some_and(|node| condition(&node).is_some_and(|(status, _)| status == "True"));
        is_said
            && self
                .start
                .as_ref()
                .is_none_or(|start| start.is_renewed(&view.leases, name))
    }

    /// Returns true if running pods have sandboxes, if the cluster has just been started: earlier
    /// ones are gone with its processes.
    fn is_true(&self, view: &ClusterView) -> bool {
        let Some(ClusterStart { dir, .. }) = &self.start else {
            return true;
        };
        let mut sandboxes = BTreeMap::new();
        self.pods
            .iter()
            .filter_map(|key| view.pods.get(key))
            .all(|pod| {
                let node = pod
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.node_name.clone())
                    .unwrap_or_default();
                let sandboxes = sandboxes.entry(node).or_insert_with_key(|node| {
                    pods::ready_sandboxes(dir, node)
                        .ok()
                        .flatten()
                        .unwrap_or_default()
                });
                let status = pod.status.as_ref();
                let said: Vec<IpAddr> = status
                    .iter()
                    .flat_map(|status| status.pod_ips.iter().flatten())
                    .filter_map(|ip| ip.ip.parse().ok())
                    .collect();
                sandboxes.iter().any(|sandbox| {
                    let is_own = sandbox.metadata.uid == pod.uid();
                    // A pod without its own network has its node's address.
                    is_own
                        && sandbox
                            .network
                            .as_ref()
                            .is_none_or(|network| network.ips == said)
                })
            })
    }

    async fn missing(&self, client: &Client, view: &ClusterView) -> Vec<UnreadyObject> {
        let nodes = self
            .nodes
            .iter()
            .filter(|name| !self.is_ready(view, name))
            .map(|name| UnreadyObject {
                what: format!("node {name}"),
                why: why_not_ready(
                    view.nodes
                        .get(&ObjectKey::new("", name.as_str()))
                        .as_deref(),
                ),
            });
        let mut missing: Vec<_> = nodes.collect();
        let unfinished: Vec<_> = self
            .pods
            .iter()
            .filter(|key| !is_running(&view.pods, key))
            .collect();
        if unfinished.is_empty() {
            return missing;
        }
        let warnings = last_warnings(client).await;
        missing.extend(unfinished.into_iter().map(|key| UnreadyObject {
            what: format!("pod {key}"),
            why: why_not_running(view.pods.get(key).as_deref(), warnings.get(key)),
        }));
        missing
    }
}

impl ClusterStart {
    fn is_renewed(&self, leases: &Cache<Lease>, node: &str) -> bool {
        let lease = leases.get(&ObjectKey::new(LEASE_NAMESPACE, node));
        let renewed =
            lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0));
        renewed.is_some_and(|renewed| renewed >= self.time)
    }
}

/// The status and message of the node's Ready condition.
fn condition(node: &Node) -> Option<(&str, &str)> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    Some((&ready.status, ready.message.as_deref().unwrap_or_default()))
}

fn is_running(pods: &Cache<Pod>, key: &ObjectKey) -> bool {
    pods.get(key).is_some_and(|pod| phase(&pod) == "Running")
}

fn phase(pod: &Pod) -> &str {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Pending")
}

fn why_not_ready(node: Option<&Node>) -> String {
    let Some(node) = node else {
        return "not registered".into();
    };
    let has_block = node
        .spec
        .as_ref()
        .is_some_and(|spec| spec.pod_cidr.is_some());
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

/// The latest warning about each object; empty if events cannot be listed.
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
        serde_json::from_value(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn explains_why_a_pod_is_not_running() {
        let full = "0/3 nodes are available: 3 Insufficient pod IPs.";
        let waiting = pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": full}]}),
        );
        assert_eq!(
            why_not_running(Some(&waiting), None),
            format!("Pending: {full}")
        );
        let bound = pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}),
        );
        assert_eq!(
            why_not_running(Some(&bound), Some(&"no IP".into())),
            "Pending: no IP"
        );
        let failed = pod(
            json!({"phase": "Failed", "message": "Node didn't have enough resource: podplane.io/pod-ips"}),
        );
        assert_eq!(
            why_not_running(Some(&failed), Some(&"no IP".into())),
            "Failed: Node didn't have enough resource: podplane.io/pod-ips"
        );
        assert_eq!(why_not_running(None, None), "deleted");
    }

    #[test]
    fn explains_why_a_node_is_not_ready() {
        let node = |value| serde_json::from_value::<Node>(value).unwrap();
        assert_eq!(why_not_ready(None), "not registered");
        let blank = node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}));
        assert!(why_not_ready(Some(&blank)).starts_with("it has no podCIDR"));
        let status = json!({"conditions": [{"type": "Ready", "status": "False", "message": "cni plugin not initialized"}]});
        let node = node(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": status}),
        );
        assert_eq!(why_not_ready(Some(&node)), "cni plugin not initialized");
    }
}
