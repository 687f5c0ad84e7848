//! What is reported of a node: functions from what is known to `Node`.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_api::{
    Quantity,
    core::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo},
    jiff::Timestamp,
    meta::{ObjectMeta, Time},
    pod_ips::POD_IPS,
};

use crate::{NodeName, ipam::Usage};

const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// What does not change while the kubelet runs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The node's name.
    pub name: NodeName,
    /// The node's addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// Processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// `--max-pods`.
    pub max_pods: u32,
    /// The id of its instance at its cloud.
    pub provider_id: Option<String>,
    /// Versions and ids.
    pub info: NodeSystemInfo,
}

/// What is observed of a node's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Why pods cannot have a network now, in the words of the node's condition.
    pub fault: Option<String>,
    /// Whether the node has blocks.
    pub has_pod_cidrs: bool,
    /// The ranges that its pods' addresses come from, where they are not its blocks.
    pub ranges: Option<Vec<IpNet>>,
    /// Its addresses, where the IPAM plugin's books can be read.
    pub usage: Option<Usage>,
}

/// The Node as it is registered: without status, which [`status`] makes.
pub fn object(machine: &Machine) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(machine.name.to_string()),
            labels: Some(labels(machine)),
            ..ObjectMeta::default()
        },
        spec: machine.provider_id.clone().map(|provider_id| NodeSpec {
            provider_id: Some(provider_id),
            ..NodeSpec::default()
        }),
        ..Node::default()
    }
}

/// The labels that a kubelet puts on its Node.
pub fn labels(machine: &Machine) -> BTreeMap<String, String> {
    let info = &machine.info;
    BTreeMap::from(
        [
            ("kubernetes.io/hostname", machine.name.as_str()),
            ("kubernetes.io/os", info.operating_system.as_str()),
            ("kubernetes.io/arch", info.architecture.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    )
}

/// The status of a node; what others put into `old` stays.
pub fn status(
    machine: &Machine,
    network: &Network,
    old: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let old = old.cloned().unwrap_or_default();
    let internal = machine.ips.iter().map(|ip| address("InternalIP", ip));
    let addresses = internal.chain([address("Hostname", &machine.name)]);
    let usage = network.usage.unwrap_or_default();
    let mut conditions = old.conditions.clone().unwrap_or_default();
    for wanted in wanted_conditions(network) {
        if !is_said_by_others(&conditions, &wanted) {
            set_condition(&mut conditions, wanted, now);
        }
    }
    let others = resources_of_others(&old);
    NodeStatus {
        addresses: Some(addresses.collect()),
        capacity: Some(resources(
            machine,
            network.usage.map(|_| usage.capacity),
            &others,
        )),
        allocatable: Some(resources(
            machine,
            network.usage.map(|_| usage.allocatable()),
            &others,
        )),
        conditions: Some(conditions),
        node_info: Some(machine.info.clone()),
        ..old
    }
}

/// Whether two statuses say the same, their heartbeats aside.
pub fn is_same(a: &NodeStatus, b: &NodeStatus) -> bool {
    let without_heartbeats = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    without_heartbeats(a) == without_heartbeats(b)
}

/// The reason of the event, if the node became ready or ceased to be.
pub fn turn(old: Option<&NodeStatus>, new: &NodeStatus) -> Option<&'static str> {
    let ready = |status: &NodeStatus| {
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready")?;
        Some(ready.status == "True")
    };
    let (was, is) = (old.and_then(ready)?, ready(new)?);
    (was != is).then_some(if is { "NodeReady" } else { "NodeNotReady" })
}

/// The value of [`POD_IPS_ALLOCATED`](podplane_api::pod_ips::POD_IPS_ALLOCATED); no annotation where the books cannot be read.
pub fn allocated(network: &Network) -> Option<String> {
    network.usage.map(|usage| usage.allocated.to_string())
}

/// The value of [`POD_RANGES`](podplane_api::pod_ips::POD_RANGES); no annotation where they are the node's blocks.
pub fn ranges(network: &Network) -> Option<String> {
    let each = network.ranges.as_ref()?.iter().map(ToString::to_string);
    Some(each.collect::<Vec<_>>().join(","))
}

fn address(kind: &str, address: &impl ToString) -> NodeAddress {
    NodeAddress {
        type_: kind.into(),
        address: address.to_string(),
    }
}

/// Extended resources that a controller has given the node: those with a domain, but for our own.
fn resources_of_others(old: &NodeStatus) -> BTreeMap<String, Quantity> {
    let capacity = old.capacity.iter().flatten();
    let of_others = capacity.filter(|(name, _)| name.contains('/') && *name != POD_IPS);
    of_others
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

fn resources(
    machine: &Machine,
    pod_ips: Option<i64>,
    others: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Quantity> {
    let known = [
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory / 1024)),
        ("pods", machine.max_pods.to_string()),
    ];
    let pod_ips = pod_ips.map(|count| (POD_IPS, count.to_string()));
    let own = known.into_iter().chain(pod_ips);
    let own = own.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
    own.chain(others.clone()).collect()
}

/// Type, status, reason and message.
type Wanted = (&'static str, &'static str, &'static str, String);

fn wanted_conditions(network: &Network) -> [Wanted; 5] {
    let has_none = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    let ready = match &network.fault {
        None => (
            "Ready",
            "True",
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
        ),
        Some(fault) => ("Ready", "False", "KubeletNotReady", fault.clone()),
    };
    let unavailable = if network.has_pod_cidrs {
        has_none(
            NETWORK_UNAVAILABLE,
            "PodCIDRAssigned",
            "the node has a podCIDR",
        )
    } else if network.ranges.is_some() {
        has_none(
            "NetworkUnavailable",
            "PodRangesConfigured",
            "the node's network has ranges of its own and needs no podCIDR",
        )
    } else {
        let message = "the node has no podCIDR".to_owned();
        (NETWORK_UNAVAILABLE, "True", "NoPodCIDR", message)
    };
    [
        has_none(
            "MemoryPressure",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        has_none(
            "DiskPressure",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        has_none(
            "PIDPressure",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        ready,
        unavailable,
    ]
}

/// A controller that made the node's network says so in its own words.
fn is_said_by_others(conditions: &[NodeCondition], (kind, value, ..): &Wanted) -> bool {
    let says = |condition: &NodeCondition| condition.type_ == *kind && condition.status == *value;
    *kind == NETWORK_UNAVAILABLE && *value == "False" && conditions.iter().any(says)
}

/// Sets a condition; its time of transition moves only with its status.
fn set_condition(conditions: &mut Vec<NodeCondition>, wanted: Wanted, now: Timestamp) {
    let (kind, value, reason, message) = wanted;
    let position = conditions
        .iter()
        .position(|condition| condition.type_ == kind);
    let old = position.map(|at| conditions.remove(at));
    let since = old
        .filter(|old| old.status == value)
        .and_then(|old| old.last_transition_time);
    let condition = NodeCondition {
        type_: kind.into(),
        status: value.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: since.or(Some(Time(now))),
    };
    conditions.insert(position.unwrap_or(conditions.len()), condition);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            name: "n1".parse().unwrap(),
            ips: vec!["172.16.0.1".parse().unwrap()],
            cpus: 2,
            memory: 4 << 30,
            max_pods: 110,
            provider_id: None,
            info: NodeSystemInfo {
                operating_system: "linux".into(),
                architecture: "amd64".into(),
                ..NodeSystemInfo::default()
            },
        }
    }

    fn ready(allocated: i64, leaked: i64) -> Network {
        Network {
            fault: None,
            has_pod_cidrs: true,
            ranges: None,
            usage: Some(Usage {
                capacity: 253,
                allocated,
                leaked,
            }),
        }
    }

    fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a NodeCondition {
        let conditions = status.conditions.as_ref().unwrap();
        conditions.iter().find(|c| c.type_ == kind).unwrap()
    }

    #[test]
    fn addresses_are_a_resource_less_what_is_leaked() {
        let status = status(&machine(), &ready(5, 2), None, Timestamp::UNIX_EPOCH);
        let of =
            |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().unwrap()[POD_IPS].0.clone();
        assert_eq!(of(&status.capacity), "253");
        assert_eq!(of(&status.allocatable), "251");
        assert_eq!(allocated(&ready(5, 2)).as_deref(), Some("5"));
        assert_eq!(status.capacity.unwrap()["memory"].0, "4194304Ki");
    }

    #[test]
    fn a_node_is_ready_when_its_network_is() {
        let mut network = Network {
            fault: Some("not yet".into()),
            ..Network::default()
        };
        let before = status(&machine(), &network, None, Timestamp::UNIX_EPOCH);
        assert_eq!(
            condition(&before, "Ready").message.as_deref(),
            Some("not yet")
        );
        assert_eq!(condition(&before, "NetworkUnavailable").status, "True");
        assert!(!before.capacity.as_ref().unwrap().contains_key(POD_IPS));

        network = ready(0, 0);
        let later = Timestamp::from_second(60).unwrap();
        let after = status(&machine(), &network, Some(&before), later);
        assert_eq!(condition(&after, "Ready").status, "True");
        assert_eq!(
            condition(&after, "Ready").last_transition_time,
            Some(Time(later))
        );
        let turns = [
            (None, &after),
            (Some(&before), &after),
            (Some(&after), &before),
        ];
        assert_eq!(
            turns.map(|(old, new)| turn(old, new)),
            [None, Some("NodeReady"), Some("NodeNotReady")]
        );
        let unmoved = condition(&after, "DiskPressure")
            .last_transition_time
            .clone();
        assert_eq!(unmoved, Some(Time(Timestamp::UNIX_EPOCH)));
    }

    #[test]
    fn what_a_controller_said_of_the_network_stays() {
        let mut old = status(&machine(), &ready(0, 0), None, Timestamp::UNIX_EPOCH);
        let name = "networking.gke.io.networks/red.IP";
        let capacity = old.capacity.as_mut().unwrap();
        capacity.insert(name.into(), Quantity("64".into()));
        for condition in old.conditions.iter_mut().flatten() {
            if condition.type_ == "NetworkUnavailable" {
                condition.reason = Some("RouteCreated".into());
            }
        }
        let new = status(&machine(), &ready(1, 0), Some(&old), Timestamp::UNIX_EPOCH);
        let network = condition(&new, "NetworkUnavailable");
        assert_eq!(network.reason.as_deref(), Some("RouteCreated"));
        assert_eq!(new.capacity.as_ref().unwrap()[name].0, "64");
        assert_eq!(new.allocatable.as_ref().unwrap()[name].0, "64");
        let without = status(
            &machine(),
            &Network::default(),
            Some(&new),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(condition(&without, "NetworkUnavailable").status, "True");
    }

    #[test]
    fn a_heartbeat_alone_is_no_change() {
        let first = status(&machine(), &ready(0, 0), None, Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(60).unwrap();
        let second = status(&machine(), &ready(0, 0), Some(&first), later);
        assert_ne!(first, second);
        assert!(is_same(&first, &second));
        let third = status(&machine(), &ready(0, 1), Some(&first), later);
        assert!(!is_same(&first, &third));
    }
}
