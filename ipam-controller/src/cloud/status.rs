//! The node's status with the cloud's ranges, and the decision when a node must be reconciled.
//! Pure.

use std::collections::BTreeMap;

use podplane_api::{
    Quantity,
    core::{Node, NodeCondition, NodeStatus},
    jiff::Timestamp,
    meta::Time,
    pod_ips,
};

use super::ranges::NETWORK_RESOURCE;

const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
const TAINT: &str = "node.kubernetes.io/network-unavailable";
/// The reference's words.
const REASON: &str = "RouteCreated";
const MESSAGE: &str = "NodeController create implicit route";

/// Returns whether a change of a node, or its first appearance, is a reason to ask the cloud.
pub(super) fn is_due(old: Option<&Node>, new: &Node) -> bool {
    let Some(old) = old else { return true };
    pod_ips::pod_cidrs(new).is_empty()
        || is_unavailable(new)
        || networks(old.status.as_ref()) != networks(new.status.as_ref())
}

fn is_unavailable(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let available = conditions
        .flatten()
        .any(|condition| condition.type_ == NETWORK_UNAVAILABLE && condition.status == "False");
    let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    !available || taints.into_iter().any(|taint| taint.key == TAINT)
}

fn networks(status: Option<&NodeStatus>) -> BTreeMap<&String, &Quantity> {
    let capacity = status.and_then(|status| status.capacity.as_ref());
    let of_networks = |(name, _): &(&String, &Quantity)| name.starts_with(NETWORK_RESOURCE);
    capacity.into_iter().flatten().filter(of_networks).collect()
}

/// The status with an available network and these resources; `None` if it needs no change.
pub(super) fn with_ranges(
    status: Option<&NodeStatus>,
    resources: &BTreeMap<String, u64>,
    now: Timestamp,
) -> Option<NodeStatus> {
    let old = status.cloned().unwrap_or_default();
    let mut new = old.clone();
    let capacity = new.capacity.get_or_insert_default();
    capacity.retain(|name, _| !name.starts_with(NETWORK_RESOURCE));
    let wanted = resources.iter();
    capacity.extend(wanted.map(|(name, count)| (name.clone(), Quantity(count.to_string()))));
    if capacity.is_empty() {
        new.capacity.clone_from(&old.capacity);
    }
    make_available(new.conditions.get_or_insert_default(), now);
    (new != old).then_some(new)
}

/// The times change only with the fields that they belong to, so an unchanged condition is not
/// written.
fn make_available(conditions: &mut Vec<NodeCondition>, now: Timestamp) {
    let found = conditions
        .iter_mut()
        .find(|condition| condition.type_ == NETWORK_UNAVAILABLE);
    let condition = NodeCondition {
        type_: NETWORK_UNAVAILABLE.to_owned(),
        status: "False".to_owned(),
        reason: Some(REASON.to_owned()),
        message: Some(MESSAGE.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let Some(old) = found else {
        conditions.push(condition);
        return;
    };
    let says_so = old.reason == condition.reason && old.message == condition.message;
    if old.status == condition.status {
        if says_so {
            return;
        }
        let since = old.last_transition_time.clone();
        *old = NodeCondition {
            last_transition_time: since,
            ..condition
        };
    } else {
        *old = condition;
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::core::{NodeSpec, Taint};

    use super::*;

    fn condition(status: &str, reason: &str) -> NodeCondition {
        NodeCondition {
            type_: NETWORK_UNAVAILABLE.into(),
            status: status.into(),
            reason: Some(reason.into()),
            last_transition_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..NodeCondition::default()
        }
    }

    fn node(cidr: &str, condition: Option<NodeCondition>, network: Option<&str>) -> Node {
        let resource = |name: &str| {
            let name = format!("{NETWORK_RESOURCE}{name}.IP");
            BTreeMap::from([(name, Quantity("8".into()))])
        };
        Node {
            spec: Some(NodeSpec {
                pod_cidr: Some(cidr.into()).filter(|_| !cidr.is_empty()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: condition.map(|condition| vec![condition]),
                capacity: network.map(resource),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn node_is_due_if_something_is_missing_or_its_networks_changed() {
        let available = || Some(condition("False", REASON));
        let settled = node("10.0.0.0/24", available(), Some("red"));
        let mut tainted = settled.clone();
        tainted.spec.as_mut().unwrap().taints = Some(vec![Taint {
            key: TAINT.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        }]);
        let unavailable = node(
            "10.0.0.0/24",
            Some(condition("True", "NoRoute")),
            Some("red"),
        );
        let cases = [
            ("new", None, &settled, true),
            ("settled", Some(&settled), &settled, false),
            (
                "bare",
                Some(&settled),
                &node("", available(), Some("red")),
                true,
            ),
            ("unavailable", Some(&settled), &unavailable, true),
            (
                "no condition",
                Some(&settled),
                &node("10.0.0.0/24", None, Some("red")),
                true,
            ),
            ("tainted", Some(&settled), &tainted, true),
            (
                "other networks",
                Some(&settled),
                &node("10.0.0.0/24", available(), None),
                true,
            ),
        ];
        for (name, old, new, want) in cases {
            assert_eq!(is_due(old, new), want, "{name}");
        }
    }

    #[test]
    fn sets_the_network_available_and_its_resources() {
        let wanted = BTreeMap::from([(format!("{NETWORK_RESOURCE}blue.IP"), 64)]);
        let old = node(
            "10.0.0.0/24",
            Some(condition("True", "NoPodCIDR")),
            Some("red"),
        );
        let now = Timestamp::from_second(60).unwrap();
        let new = with_ranges(old.status.as_ref(), &wanted, now).unwrap();
        let capacity = new.capacity.clone().unwrap();
        assert_eq!(capacity.len(), 1);
        assert_eq!(capacity["networking.gke.io.networks/blue.IP"].0, "64");
        let condition = &new.conditions.as_ref().unwrap()[0];
        assert_eq!(condition.status, "False");
        assert_eq!(condition.reason.as_deref(), Some("RouteCreated"));
        let message = "NodeController create implicit route";
        assert_eq!(condition.message.as_deref(), Some(message));
        assert_eq!(condition.last_transition_time, Some(Time(now)));
        assert_eq!(
            with_ranges(Some(&new), &wanted, Timestamp::UNIX_EPOCH),
            None
        );
        assert!(
            with_ranges(None, &BTreeMap::new(), now)
                .unwrap()
                .capacity
                .is_none()
        );
    }

    #[test]
    fn condition_with_another_reason_keeps_its_transition_time() {
        let old = node(
            "10.0.0.0/24",
            Some(condition("False", "PodCIDRAssigned")),
            None,
        );
        let now = Timestamp::from_second(60).unwrap();
        let new = with_ranges(old.status.as_ref(), &BTreeMap::new(), now).unwrap();
        let condition = &new.conditions.unwrap()[0];
        assert_eq!(condition.reason.as_deref(), Some(REASON));
        let epoch = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(condition.last_transition_time, epoch);
    }
}
