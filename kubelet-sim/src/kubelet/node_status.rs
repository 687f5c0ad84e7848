//! The status of a node, computed from what is observed.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use podplane_api::{
    Quantity,
    core::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo},
    jiff::Timestamp,
    meta::{ObjectMeta, Time},
    pod_ips::{POD_IPS, POD_IPS_REPORTED, PodIpResource},
};
use podplane_client::events::EventType;

use crate::{NodeName, ipam::AddressUsage};

/// The message of the condition Ready of a node whose pods have no containers.
const SANDBOXES_ONLY: &str =
    "kubelet is posting ready status; pods are sandboxes, and no container runs";
const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
/// Reasons of [`POD_IPS_REPORTED`]: no report at all, and an old one.
const REPORT_FAILED: &str = "IPAMReportFailed";
const REPORT_STALE: &str = "IPAMReportStale";

/// The properties of a node that do not change while the kubelet runs.
#[derive(Clone, Debug)]
pub struct NodeMachine {
    /// The node's name.
    pub name: NodeName,
    /// The node's addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// The number of processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// `--max-pods`.
    pub max_pods: u32,
    /// `--pod-ip-resource`.
    pub pod_ips: PodIpResource,
    /// True if the runtime makes the containers of pods; else pods are sandboxes alone.
    pub runs_containers: bool,
    /// The id of its instance at its cloud.
    pub provider_id: Option<String>,
    /// Versions and ids.
    pub info: NodeSystemInfo,
}

impl NodeMachine {
    /// The name of the runtime, the scheme of containers' ids.
    pub fn runtime_name(&self) -> &str {
        let version = self.info.container_runtime_version.as_str();
        version.split_once("://").map_or(version, |(name, _)| name)
    }
}

/// The observed state of a node's network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNetwork {
    /// The reason why pods cannot have a network now, in the words of the node's condition.
    pub fault: Option<String>,
    /// True if the node has blocks.
    pub has_pod_cidrs: bool,
    /// True if its network is configured without blocks.
    pub needs_no_pod_cidr: bool,
    /// The ranges of its pods' addresses, if those are not its blocks.
    pub ranges: Option<Vec<IpNet>>,
    /// Its addresses, once it has a network.
    pub usage: Option<AddressUsage>,
    /// The IPAM plugin; empty without a configuration.
    pub ipam: String,
    /// The failure of the IPAM plugin's last report, or its reason to refuse the configuration.
    pub report_fault: Option<String>,
    /// The time of the IPAM plugin's report that the usage comes from.
    pub reported_at: Option<Timestamp>,
}

/// The Node as it is registered, without the status, which [`status`] computes.
pub fn object(machine: &NodeMachine) -> Node {
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
pub fn labels(machine: &NodeMachine) -> BTreeMap<String, String> {
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

/// The status of a node. Entries of others in `old` are kept.
pub fn status(
    machine: &NodeMachine,
    network: &ObservedNetwork,
    old: Option<&NodeStatus>,
    now: Timestamp,
) -> NodeStatus {
    let old = old.cloned().unwrap_or_default();
    let internal = machine.ips.iter().map(|ip| address("InternalIP", ip));
    let addresses = internal.chain([address("Hostname", &machine.name)]);
    let pod_ips = match network.usage {
        Some(usage) if usage.capacity.is_some() => {
            let quantity = |count: Option<i64>| Some(Quantity(count?.to_string()));
            [quantity(usage.capacity), quantity(usage.allocatable())]
        }
        _ => pod_ips_of_others(&machine.pod_ips, &old),
    };
    let [total, allocatable] = pod_ips;
    let mut conditions = old.conditions.clone().unwrap_or_default();
    for wanted in wanted_conditions(machine, network) {
        if !is_said_by_others(&conditions, &wanted) {
            set_condition(&mut conditions, wanted, now);
        }
    }
    let others = resources_of_others(&machine.pod_ips, &old);
    NodeStatus {
        addresses: Some(addresses.collect()),
        capacity: Some(resources(machine, total, &others)),
        allocatable: Some(resources(machine, allocatable, &others)),
        conditions: Some(conditions),
        node_info: Some(machine.info.clone()),
        ..old
    }
}

/// Returns true if two statuses are equal, apart from their heartbeats.
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

/// The reason of the event that a node became ready.
pub const NODE_READY: &str = "NodeReady";

/// The reason of the event if the node became ready, or is not any more.
pub fn turn(old: Option<&NodeStatus>, new: &NodeStatus) -> Option<&'static str> {
    let ready = |status: &NodeStatus| {
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready")?;
        Some(ready.status == "True")
    };
    let (was, is) = (old.and_then(ready)?, ready(new)?);
    (was != is).then_some(if is { NODE_READY } else { "NodeNotReady" })
}

/// The event if the IPAM plugin's reports have begun to fail, or work again.
pub fn report_turn(
    old: Option<&NodeStatus>,
    new: &NodeStatus,
) -> Option<(EventType, &'static str, String)> {
    let of = |status: &NodeStatus| {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|condition| condition.type_ == POD_IPS_REPORTED)?;
        Some((found.reason.clone()?, found.message.clone()?))
    };
    let is_bad = |reason: &str| [REPORT_FAILED, REPORT_STALE].contains(&reason);
    let was_bad = old.and_then(of).is_some_and(|(reason, _)| is_bad(&reason));
    let (reason, message) = of(new)?;
    match (was_bad, is_bad(&reason)) {
        (false, true) => Some((EventType::Warning, "IPAMReportFailed", message)),
        (true, false) => Some((EventType::Normal, "IPAMReported", message)),
        _ => None,
    }
}

/// The value of [`POD_IPS_ALLOCATED`](podplane_api::pod_ips::POD_IPS_ALLOCATED); no annotation if
/// the addresses cannot be read.
pub fn allocated(network: &ObservedNetwork) -> Option<String> {
    network.usage.map(|usage| usage.allocated.to_string())
}

/// The value of [`POD_IPS_ORPHANED`](podplane_api::pod_ips::POD_IPS_ORPHANED); no annotation if the
/// addresses cannot be read.
pub fn orphaned(network: &ObservedNetwork) -> Option<String> {
    network.usage.map(|usage| usage.orphaned.to_string())
}

/// The value of [`POD_RANGES`](podplane_api::pod_ips::POD_RANGES); no annotation if they are the
/// node's blocks.
pub fn ranges(network: &ObservedNetwork) -> Option<String> {
    let each = network.ranges.as_ref()?.iter().map(ToString::to_string);
    Some(each.collect::<Vec<_>>().join(","))
}

fn address(kind: &str, address: &impl ToString) -> NodeAddress {
    NodeAddress {
        type_: kind.into(),
        address: address.to_string(),
    }
}

/// Capacity and allocatable pod IPs that somebody else has set. As with extended resources of
/// others, a capacity alone is allocatable, too. Values left by an earlier report of the IPAM
/// plugin do not count.
fn pod_ips_of_others(resource: &PodIpResource, old: &NodeStatus) -> [Option<Quantity>; 2] {
    let mut conditions = old.conditions.iter().flatten();
    let is_ours = conditions
        .any(|condition| condition.type_ == POD_IPS_REPORTED && condition.status != "False");
    if is_ours {
        return [None, None];
    }
    let of = |list: &Option<BTreeMap<String, Quantity>>| {
        let list = list.as_ref()?;
        list.get(resource.as_str()).cloned()
    };
    let total = of(&old.capacity);
    let allocatable = of(&old.allocatable).or_else(|| total.clone());
    [total, allocatable]
}

/// Extended resources that a controller has given the node: all with a domain, except for that of
/// pod addresses under its present name and its default.
fn resources_of_others(resource: &PodIpResource, old: &NodeStatus) -> BTreeMap<String, Quantity> {
    let capacity = old.capacity.iter().flatten();
    let is_own = |name: &str| name == resource.as_str() || name == POD_IPS;
    let of_others = capacity.filter(|(name, _)| name.contains('/') && !is_own(name));
    of_others
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

fn resources(
    machine: &NodeMachine,
    pod_ips: Option<Quantity>,
    others: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Quantity> {
    let known = [
        ("cpu", machine.cpus.to_string()),
        ("memory", format!("{}Ki", machine.memory / 1024)),
        ("pods", machine.max_pods.to_string()),
    ];
    let known = known.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
    let pod_ips = pod_ips.map(|amount| (machine.pod_ips.to_string(), amount));
    let own = known.into_iter().chain(pod_ips);
    own.chain(others.clone()).collect()
}

/// A condition: type, status, reason and message.
type WantedCondition = (&'static str, &'static str, &'static str, String);

fn wanted_conditions(machine: &NodeMachine, network: &ObservedNetwork) -> [WantedCondition; 6] {
    let has_none = |kind, reason, message: &str| (kind, "False", reason, message.to_owned());
    let ready = match &network.fault {
        None => (
            "Ready",
            "True",
            "KubeletReady",
            match machine.runs_containers {
                true => "kubelet is posting ready status".to_owned(),
                false => SANDBOXES_ONLY.to_owned(),
            },
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
            NETWORK_UNAVAILABLE,
            "PodRangesConfigured",
            "the node's network has ranges of its own and needs no podCIDR",
        )
    } else if network.needs_no_pod_cidr {
        has_none(
            NETWORK_UNAVAILABLE,
            "PodCIDRNotNeeded",
            "the node's network is configured without a podCIDR",
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
        reported(&machine.pod_ips, network),
    ]
}

/// The condition [`POD_IPS_REPORTED`].
fn reported(resource: &PodIpResource, network: &ObservedNetwork) -> WantedCondition {
    let ipam = &network.ipam;
    let of = |status, reason, message| (POD_IPS_REPORTED, status, reason, message);
    let capacity = network.usage.and_then(|usage| usage.capacity);
    match (capacity, &network.report_fault, network.reported_at) {
        (Some(_), Some(fault), Some(at)) => {
            let message = format!("IPAM {ipam}: the report of {at} stands: {fault}");
            of("Unknown", REPORT_STALE, message)
        }
        (Some(capacity), fault, _) => {
            let fault = fault.as_ref().map(|fault| format!(": {fault}"));
            let fault = fault.unwrap_or_default();
            let message = format!("IPAM {ipam} has {capacity} pod IPs{fault}");
            of("True", "IPAMReports", message)
        }
        (None, Some(fault), _) => of("False", REPORT_FAILED, format!("IPAM {ipam}: {fault}")),
        (None, None, _) if network.usage.is_none() => {
            let message = "the node has no pod network yet".to_owned();
            of("False", "NoNetwork", message)
        }
        (None, None, _) => of(
            "False",
            "NoIPAMReport",
            format!(
                "IPAM {ipam} reports no capacity: allocatable {resource} counts if it is set, else what the podCIDR holds"
            ),
        ),
    }
}

/// Returns true if a controller that made the node's network has set the condition in its own
/// words.
fn is_said_by_others(conditions: &[NodeCondition], (kind, value, ..): &WantedCondition) -> bool {
    let says = |condition: &NodeCondition| condition.type_ == *kind && condition.status == *value;
    *kind == NETWORK_UNAVAILABLE && *value == "False" && conditions.iter().any(says)
}

/// Sets a condition; its transition time changes only with its status.
fn set_condition(conditions: &mut Vec<NodeCondition>, wanted: WantedCondition, now: Timestamp) {
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

    fn machine() -> NodeMachine {
        NodeMachine {
            name: "n1".parse().unwrap(),
            ips: vec!["172.16.0.1".parse().unwrap()],
            cpus: 2,
            memory: 4 << 30,
            max_pods: 110,
            pod_ips: PodIpResource::default(),
            runs_containers: true,
            provider_id: None,
            info: NodeSystemInfo {
                operating_system: "linux".into(),
                architecture: "amd64".into(),
                ..NodeSystemInfo::default()
            },
        }
    }

    fn ready(allocated: i64, orphaned: i64) -> ObservedNetwork {
        ObservedNetwork {
            has_pod_cidrs: true,
            usage: Some(AddressUsage {
                capacity: Some(253),
                allocated,
                leaked: 0,
                orphaned,
            }),
            ipam: "host-local".into(),
            ..ObservedNetwork::default()
        }
    }

    fn silent() -> ObservedNetwork {
        let mut network = ready(0, 0);
        network.ipam = "x".into();
        network.usage.as_mut().unwrap().capacity = None;
        network
    }

    /// Capacity and allocatable pod IPs.
    fn pod_ips(status: &NodeStatus) -> [Option<&str>; 2] {
        [&status.capacity, &status.allocatable]
            .map(|list| Some(list.as_ref()?.get(POD_IPS)?.0.as_str()))
    }

    #[test]
    fn keeps_foreign_pod_ips_without_an_ipam_report() {
        let next = |network: &ObservedNetwork, old: &NodeStatus| {
            status(&machine(), network, Some(old), Timestamp::UNIX_EPOCH)
        };
        let mut node = status(&machine(), &silent(), None, Timestamp::UNIX_EPOCH);
        assert_eq!(pod_ips(&node), [None, None]);
        assert_eq!(condition(&node, POD_IPS_REPORTED).status, "False");
        let set = node.allocatable.as_mut().unwrap();
        set.insert(POD_IPS.into(), Quantity("2".into()));
        let node = next(&silent(), &node);
        assert_eq!(pod_ips(&node), [None, Some("2")]);
        // A plugin that reports decides, and what it reported goes with its reports.
        let node = next(&ready(0, 3), &node);
        assert_eq!(pod_ips(&node), [Some("253"), Some("250")]);
        assert_eq!(condition(&node, POD_IPS_REPORTED).status, "True");
        let mut node = next(&silent(), &node);
        assert_eq!(pod_ips(&node), [None, None]);
        // As with extended resources of others, the capacity is enough.
        let set = node.capacity.as_mut().unwrap();
        set.insert(POD_IPS.into(), Quantity("4".into()));
        assert_eq!(pod_ips(&next(&silent(), &node)), [Some("4"), Some("4")]);
    }

    #[test]
    fn emits_an_event_only_when_reports_fail_or_recover() {
        let of =
            |network: &ObservedNetwork| status(&machine(), network, None, Timestamp::UNIX_EPOCH);
        let mut network = ready(0, 0);
        network.ipam = "x".into();
        network.reported_at = Some(Timestamp::UNIX_EPOCH);
        let good = of(&network);
        network.report_fault = Some("exit status 1".into());
        let stale = of(&network);
        let told = condition(&stale, POD_IPS_REPORTED);
        assert_eq!(told.status, "Unknown");
        assert_eq!(
            told.message.as_deref(),
            Some("IPAM x: the report of 1970-01-01T00:00:00Z stands: exit status 1")
        );
        let reason = |old, new| report_turn(old, new).map(|(_, reason, _)| reason);
        assert_eq!(reason(Some(&good), &stale), Some("IPAMReportFailed"));
        assert_eq!(reason(Some(&stale), &stale), None);
        assert_eq!(reason(Some(&stale), &good), Some("IPAMReported"));
        assert_eq!(reason(None, &good), None);
        let failed = ObservedNetwork {
            report_fault: Some("none".into()),
            ..silent()
        };
        assert_eq!(condition(&of(&failed), POD_IPS_REPORTED).status, "False");
        assert_eq!(reason(None, &of(&failed)), Some("IPAMReportFailed"));
    }

    fn condition<'a>(status: &'a NodeStatus, kind: &str) -> &'a NodeCondition {
        let conditions = status.conditions.as_ref().unwrap();
        conditions.iter().find(|c| c.type_ == kind).unwrap()
    }

    #[test]
    fn allocatable_addresses_exclude_orphaned_ones() {
        let status = status(&machine(), &ready(5, 2), None, Timestamp::UNIX_EPOCH);
        let of =
            |list: &Option<BTreeMap<String, Quantity>>| list.as_ref().unwrap()[POD_IPS].0.clone();
        assert_eq!(of(&status.capacity), "253");
        assert_eq!(of(&status.allocatable), "251");
        assert_eq!(allocated(&ready(5, 2)).as_deref(), Some("5"));
        assert_eq!(orphaned(&ready(5, 2)).as_deref(), Some("2"));
        assert_eq!(status.capacity.unwrap()["memory"].0, "4194304Ki");
    }

    #[test]
    fn addresses_are_reported_under_the_name_of_the_resource() {
        let name = "vpc.amazonaws.com/PrivateIPv4Address";
        let vpc = NodeMachine {
            pod_ips: name.parse().unwrap(),
            ..machine()
        };
        let of = |machine: &NodeMachine, network: &ObservedNetwork, old: &NodeStatus| {
            let status = status(machine, network, Some(old), Timestamp::UNIX_EPOCH);
            let of = |name: &str| {
                [&status.capacity, &status.allocatable]
                    .map(|list| list.as_ref()?.get(name).map(|amount| amount.0.clone()))
            };
            (of(name), of(POD_IPS))
        };
        let amounts = |total: &str, rest: &str| [Some(total.to_owned()), Some(rest.to_owned())];
        let none = [None, None];
        // The amount under the default name is of an earlier process.
        let earlier = status(&machine(), &ready(0, 0), None, Timestamp::UNIX_EPOCH);
        let reported = of(&vpc, &ready(0, 3), &earlier);
        assert_eq!(reported, (amounts("253", "250"), none.clone()));
        // A plugin that reports nothing leaves the amounts of a device plugin as they are.
        let mut set = status(&vpc, &silent(), None, Timestamp::UNIX_EPOCH);
        let set_capacity = set.capacity.as_mut().unwrap();
        set_capacity.insert(name.into(), Quantity("14".into()));
        assert_eq!(of(&vpc, &silent(), &set), (amounts("14", "14"), none));
    }

    #[test]
    fn a_node_is_ready_once_its_network_is_ready() {
        let mut network = ObservedNetwork {
            fault: Some("not yet".into()),
            ..ObservedNetwork::default()
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
    fn keeps_the_network_status_set_by_a_controller() {
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
            &ObservedNetwork::default(),
            Some(&new),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(condition(&without, "NetworkUnavailable").status, "True");
    }

    #[test]
    fn a_heartbeat_does_not_change_the_status() {
        let first = status(&machine(), &ready(0, 0), None, Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(60).unwrap();
        let second = status(&machine(), &ready(0, 0), Some(&first), later);
        assert_ne!(first, second);
        assert!(is_same(&first, &second));
        let third = status(&machine(), &ready(0, 1), Some(&first), later);
        assert!(!is_same(&first, &third));
    }
}
