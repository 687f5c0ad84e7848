//! The pods that wait: for a node, by the reasons that the scheduler gave, or for an address there.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use podplane_api::{
    core::Pod,
    jiff::Timestamp,
    pod_ips::{is_host_network, is_terminal},
};
use serde::Serialize;

/// The most pods that a group names.
pub const MOST_PODS: usize = 50;

/// The reason of a pod that the scheduler has not looked at yet.
const NEW: &str = "Not scheduled yet";

/// The reason of a pod that has a node and no address. Its events say more; they are not among the
/// facts.
const BOUND: &str = "No address on its node yet";

/// A pod that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingPod {
    /// The time since which it waits for this reason; `None` if no time is known.
    pub since: Option<Timestamp>,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The pods that wait for the same reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingGroup {
    /// The reasons, without the numbers of nodes.
    pub reason: String,
    /// The message of the pod that waits longest.
    pub message: String,
    /// The number of pods.
    pub count: usize,
    /// The pods, those that wait longest first, at most [`MOST_PODS`].
    pub pods: Vec<WaitingPod>,
}

/// The reason for which a pod waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingReason {
    /// The reasons without the numbers of nodes, by which pods are grouped.
    pub reason: Arc<str>,
    /// The whole message; may be empty.
    pub message: Box<str>,
    /// The time since which it waits for this; `None` if no time is known.
    pub since: Option<Timestamp>,
}

impl WaitingReason {
    /// The reason of a pod that has no node, or no address there; `None` of any other pod, and of
    /// one that ends or has ended.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        if is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if node.is_some_and(|node| !node.is_empty()) {
            return Self::of_bound(pod);
        }
        let status = pod.status.iter();
        let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
        let scheduled = conditions
            .rfind(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let created = pod.metadata.creation_timestamp.as_ref();
        let Some(scheduled) = scheduled else {
            return Some(Self {
                reason: NEW.into(),
                message: "".into(),
                since: created.map(|time| time.0),
            });
        };
        let message = scheduled.message.as_deref().unwrap_or_default().trim();
        let reason = match reasons(message) {
            found if found.is_empty() => scheduled.reason.as_deref().unwrap_or(NEW).to_owned(),
            found => found.join(", "),
        };
        let changed = scheduled.last_transition_time.as_ref().or(created);
        Some(Self {
            reason: reason.into(),
            message: message.into(),
            since: changed.map(|time| time.0),
        })
    }

    /// The reason of a pod that is bound to a node.
    fn of_bound(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        let ip = status.and_then(|status| status.pod_ip.as_ref());
        let ips = status.and_then(|status| status.pod_ips.as_ref());
        let has_address = ip.is_some() || ips.is_some_and(|ips| !ips.is_empty());
        if has_address || is_host_network(pod) {
            return None;
        }
        let mut conditions = status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let bound = conditions
            .rfind(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
        let bound = bound.and_then(|condition| condition.last_transition_time.as_ref());
        let since = bound.or(pod.metadata.creation_timestamp.as_ref());
        // One text for all pods of the reason, on whichever nodes.
        let message = "bound to a node that has not reported an address; see the events of the pod";
        Some(Self {
            reason: BOUND.into(),
            message: message.into(),
            since: since.map(|time| time.0),
        })
    }
}

/// The reasons in a message of the scheduler, such as "0/3 nodes are available: 1 Too many pods, 2
/// Insufficient pod IPs. n: waits for its podCIDR.", without the numbers of nodes, sorted. Empty if
/// the message is of another form.
fn reasons(message: &str) -> Vec<String> {
    let Some((_, listed)) = message.split_once(" nodes are available: ") else {
        return Vec::new();
    };
    let end = listed.find(". ").unwrap_or(listed.len());
    let listed = listed.get(..end).unwrap_or(listed).trim_end_matches('.');
    let mut found: Vec<String> = Vec::new();
    for entry in listed.split(", ") {
        let counted = entry
            .split_once(' ')
            .filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit()));
        match (counted, found.last_mut()) {
            (Some((_, reason)), _) => found.push(reason.to_owned()),
            // A reason for all nodes, which may name objects behind a colon.
            (None, None) => {
                let general = entry.split_once(": ").map_or(entry, |(general, _)| general);
                found.push(general.to_owned());
            }
            // Names that the first one goes on with.
            (None, Some(_)) => {}
        }
    }
    found.sort();
    found.dedup();
    found.retain(|reason| !reason.is_empty());
    found
}

/// Groups waiting pods, given by `NAMESPACE/NAME`: the largest group first.
pub(crate) fn groups(waiting: &BTreeMap<Arc<str>, WaitingReason>) -> Vec<WaitingGroup> {
    let mut by_reason = BTreeMap::<&str, Vec<(Option<Timestamp>, &str, &str)>>::new();
    for (key, facts) in waiting {
        let pods = by_reason.entry(&facts.reason).or_default();
        pods.push((facts.since, key, &facts.message));
    }
    let mut groups: Vec<WaitingGroup> = by_reason
        .into_iter()
        .map(|(reason, mut pods)| {
            pods.sort_unstable();
            let oldest = pods.first();
            WaitingGroup {
                reason: reason.to_owned(),
                message: oldest
                    .map(|(.., message)| (*message).to_owned())
                    .unwrap_or_default(),
                count: pods.len(),
                pods: pods
                    .iter()
                    .take(MOST_PODS)
                    .map(|(since, key, _)| {
                        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
                        WaitingPod {
                            since: *since,
                            namespace: namespace.to_owned(),
                            name: name.to_owned(),
                        }
                    })
                    .collect(),
            }
        })
        .collect();
    // By name where the numbers are equal: the sort is stable.
    groups.sort_by_key(|group| Reverse(group.count));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_no_numbers_names_or_preemption() {
        for (message, want) in [
            (
                "0/3 nodes are available: 1 Too many pods, 2 Insufficient pod IPs. n: waits for its podCIDR. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod.",
                &["Insufficient pod IPs", "Too many pods"][..],
            ),
            (
                "0/12 nodes are available: 12 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.",
                &["node(s) had untolerated taint {node.kubernetes.io/not-ready: }"],
            ),
            (
                "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims: d, e.",
                &["pod has unbound immediate PersistentVolumeClaims"],
            ),
            ("no nodes available to schedule pods", &[]),
            ("0/0 nodes are available: .", &[]),
            ("", &[]),
        ] {
            assert_eq!(reasons(message), want, "{message}");
        }
    }
}
