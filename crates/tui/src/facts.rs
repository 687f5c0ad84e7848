//! The facts that the views need of each object. The objects themselves are not kept: 150,000 pods
//! fit in memory this way.

use std::net::IpAddr;

use podplane_api::{
    Object, ObjectKey,
    core::{Event, Node, Pod, PodCondition},
    jiff::Timestamp,
    kinds::{event, node, pod},
    meta::Time,
    pod_ips::{self, POD_READY_TO_START_CONTAINERS, PodIpResource},
};
use podplane_ipam::{NodeAddresses, addresses::AddressReport};
use podplane_summary::{ControlPlane, WaitingReason};

/// The facts of an object that are kept.
pub(crate) trait Fact {
    /// The namespace and name of the object.
    fn key(&self) -> &ObjectKey;
}

macro_rules! fact {
    ($($kind:ident),*) => {
        $(impl Fact for $kind {
            fn key(&self) -> &ObjectKey {
                &self.key
            }
        })*
    };
}

fact!(NodeFact, PodFact, EventFact);

/// The facts of a node that are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFact {
    pub(crate) key: ObjectKey,
    /// As `get nodes` shows it.
    pub(crate) status: String,
    pub(crate) is_ready: bool,
    /// `spec.podCIDRs`.
    pub(crate) blocks: Vec<String>,
    report: AddressReport,
    pub(crate) created: Option<Timestamp>,
}

impl NodeFact {
    /// The addresses of the node whose pods hold `held`.
    pub(crate) fn addresses(&self, held: u64) -> NodeAddresses {
        NodeAddresses::of(&self.report, held)
    }
}

impl From<&Node> for NodeFact {
    fn from(node: &Node) -> Self {
        let status = node::shown_status(node);
        Self {
            key: node.key(),
            is_ready: status == "Ready",
            status,
            blocks: pod_ips::pod_cidrs(node).to_vec(),
            report: PodIpResource::of_node(node).report(node),
            created: created(node),
        }
    }
}

/// The facts of a pod that are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFact {
    pub(crate) key: ObjectKey,
    /// As `get pods` shows it.
    pub(crate) status: String,
    /// The node that it is bound to.
    pub(crate) node: Option<String>,
    pub(crate) ips: Vec<IpAddr>,
    /// The addresses of its node that it holds.
    pub(crate) held: u64,
    pub(crate) is_terminal: bool,
    pub(crate) created: Option<Timestamp>,
    pub(crate) way: Way,
    /// The reason for which it is not bound, while it is not.
    pub(crate) waits: Option<WaitingReason>,
}

/// The steps of a pod to Running, with their times as far as conditions have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) scheduled: PodStep,
    pub(crate) sandbox: PodStep,
    pub(crate) address: PodStep,
    pub(crate) running: PodStep,
}

/// A step of a pod's way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PodStep {
    /// It is not known to be done.
    #[default]
    Open,
    /// It is done.
    Done {
        /// The time, if it is known.
        at: Option<Timestamp>,
    },
}

impl PodStep {
    pub(crate) fn is_done(self) -> bool {
        self != Self::Open
    }

    fn known(is_done: bool) -> Self {
        match is_done {
            true => Self::Done { at: None },
            false => Self::Open,
        }
    }
}

impl PodFact {
    /// `resource` is the resource by which pods request addresses.
    pub(crate) fn new(pod: &Pod, resource: &PodIpResource, control_plane: ControlPlane) -> Self {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let node = node.filter(|node| !node.is_empty());
        let status = pod.status.as_ref();
        let ips = status.and_then(|status| status.pod_ips.as_deref());
        let ips = ips.unwrap_or_default().iter();
        let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
        Self {
            key: pod.key(),
            status: pod::shown_status(pod),
            held: control_plane.addresses_held(pod, resource),
            is_terminal: pod_ips::is_terminal(pod),
            created: created(pod),
            way: Way::of(pod, node.is_some(), !ips.is_empty()),
            waits: WaitingReason::of(pod),
            node,
            ips,
        }
    }
}

impl Way {
    fn of(pod: &Pod, is_bound: bool, has_address: bool) -> Self {
        let by_condition = |kind: &str| match condition(pod, kind) {
            Some(found) if found.status == "True" => PodStep::Done {
                at: found.last_transition_time.as_ref().map(|Time(time)| *time),
            },
            _ => PodStep::Open,
        };
        let or = |step: PodStep, is_done: bool| match step {
            PodStep::Open => PodStep::known(is_done),
            done => done,
        };
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        Self {
            scheduled: or(by_condition("PodScheduled"), is_bound),
            // An address comes with a sandbox.
            sandbox: or(by_condition(POD_READY_TO_START_CONTAINERS), has_address),
            address: PodStep::known(has_address),
            running: or(
                by_condition("Ready"),
                matches!(phase, Some("Running" | "Succeeded")),
            ),
        }
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

fn created<K: Object>(object: &K) -> Option<Timestamp> {
    let Time(time) = object.metadata().creation_timestamp.as_ref()?;
    Some(*time)
}

/// The facts of an event that are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct EventFact {
    pub(crate) key: ObjectKey,
    pub(crate) last_seen: Option<Timestamp>,
    pub(crate) count: i32,
    pub(crate) kind: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The kind of the object that it is about, such as `Pod`.
    pub(crate) object_kind: String,
    pub(crate) object: ObjectKey,
}

impl From<&Event> for EventFact {
    fn from(event: &Event) -> Self {
        let text = |text: Option<&String>| text.cloned().unwrap_or_default();
        let about = &event.involved_object;
        Self {
            key: event.key(),
            last_seen: event::last_seen(event),
            count: event::event_count(event),
            kind: text(event.type_.as_ref()),
            reason: text(event.reason.as_ref()),
            message: text(event.message.as_ref()).trim().to_owned(),
            object_kind: text(about.kind.as_ref()),
            object: ObjectKey::new(text(about.namespace.as_ref()), text(about.name.as_ref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use serde_json::json;

    use super::*;

    fn fact(pod: serde_json::Value) -> PodFact {
        let pod: Pod = strict::decode(pod).unwrap();
        PodFact::new(&pod, &PodIpResource::default(), ControlPlane::Podplane)
    }

    #[test]
    fn a_waiting_pod_has_the_reason_of_its_scheduler() {
        let waiting = fact(json!({"metadata": {"namespace": "default", "name": "a"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient pod IPs.\n"}]}}));
        let waits = waiting.waits.unwrap();
        assert_eq!(&*waits.reason, "Insufficient pod IPs");
        assert_eq!(
            &*waits.message,
            "0/3 nodes are available: 3 Insufficient pod IPs."
        );
        assert_eq!(waiting.way, Way::default());
    }

    #[test]
    fn a_running_pod_has_gone_its_way() {
        let running = fact(json!({"metadata": {"namespace": "default", "name": "a"},
            "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}],
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]}}));
        assert_eq!(running.waits, None);
        assert_eq!((running.held, running.ips.len()), (1, 2));
        let Way {
            scheduled,
            sandbox,
            address,
            running,
        } = running.way;
        let at = "2026-01-01T00:00:05Z".parse().unwrap();
        assert_eq!(scheduled, PodStep::Done { at: Some(at) });
        let unknown = PodStep::Done { at: None };
        assert_eq!([sandbox, address, running], [unknown; 3]);
    }
}
