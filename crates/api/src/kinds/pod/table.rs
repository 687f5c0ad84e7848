//! The table of pods. The STATUS column follows kubectl's rules, which combine phase, containers
//! and deletion.

use jiff::Timestamp;

use crate::{
    Object as _,
    core::{
        Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition,
    },
    pod_ips,
    table::{Column, NONE, age, always, created, wide},
};

pub(super) const COLUMNS: &[Column] = &[
    always("NAME"),
    always("READY"),
    always("STATUS"),
    always("RESTARTS"),
    always("AGE"),
    wide("IP"),
    wide("NODE"),
    wide("NOMINATED NODE"),
    wide("READINESS GATES"),
];

pub(super) fn cells(pod: &Pod, now: Timestamp) -> Vec<String> {
    let containers = Containers::of(pod);
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    vec![
        pod.name().into(),
        format!("{}/{}", containers.ready, containers.total),
        status(pod, &containers),
        containers.restarts(now),
        created(pod, now),
        ips(pod),
        node.filter(|node| !node.is_empty()).unwrap_or(NONE).into(),
        nominated_node(pod),
        readiness_gates(pod),
    ]
}

fn nominated_node(pod: &Pod) -> String {
    let nominated = pod.status.as_ref();
    let nominated = nominated.and_then(|status| status.nominated_node_name.as_deref());
    nominated
        .filter(|node| !node.is_empty())
        .unwrap_or(NONE)
        .into()
}

/// The number of open readiness gates: `1/2`.
fn readiness_gates(pod: &Pod) -> String {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.readiness_gates.as_deref());
    let Some(gates @ [_, ..]) = gates else {
        return NONE.into();
    };
    let status = pod.status.as_ref();
    let conditions: Vec<_> = status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .collect();
    let is_open = |kind: &str| {
        conditions
            .iter()
            .any(|c| c.type_ == kind && c.status == "True")
    };
    let open = gates
        .iter()
        .filter(|gate| is_open(&gate.condition_type))
        .count();
    format!("{open}/{}", gates.len())
}

/// The pod's addresses, IPv4 and IPv6 together.
pub fn ips(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let all: Vec<_> = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten())
        .map(|ip| ip.ip.as_str())
        .collect();
    let one = status.and_then(|status| status.pod_ip.as_deref());
    match (all.is_empty(), one) {
        (false, _) => all.join(","),
        (true, Some(ip)) if !ip.is_empty() => ip.into(),
        (true, _) => NONE.into(),
    }
}

/// The STATUS cell of `kubectl get pods`.
pub fn shown_status(pod: &Pod) -> String {
    status(pod, &Containers::of(pod))
}

/// The summary of the containers' statuses.
struct Containers {
    total: usize,
    ready: usize,
    restarts: i32,
    last_restart: Option<Timestamp>,
    /// The reason why an init container blocks the pod.
    initializing: Option<String>,
    /// The reason why a container does not run; the first one wins.
    reason: Option<String>,
    any_running: bool,
}

impl Containers {
    fn of(pod: &Pod) -> Self {
        let init = pod
            .spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten());
        let sidecars: Vec<&Container> = init
            .clone()
            .filter(|container| container.restart_policy.as_deref() == Some("Always"))
            .collect();
        let is_sidecar = |name: &str| sidecars.iter().any(|sidecar| sidecar.name == name);
        let mut all = Self {
            total: pod.spec.as_ref().map_or(0, |spec| spec.containers.len()) + sidecars.len(),
            ready: 0,
            restarts: 0,
            last_restart: None,
            initializing: None,
            reason: None,
            any_running: false,
        };
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.init_container_statuses.iter().flatten());
        let init_total = init.count();
        for (index, status) in statuses.enumerate() {
            let sidecar = is_sidecar(&status.name);
            if sidecar {
                all.count(status);
            }
            if all.initializing.is_none() {
                all.initializing = init_reason(status, sidecar).map(|reason| match reason {
                    Some(reason) => format!("Init:{reason}"),
                    None => format!("Init:{index}/{init_total}"),
                });
            }
        }
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        for status in statuses {
            all.count(status);
            let running = status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some());
            all.any_running |= running && status.ready;
            all.reason = all
                .reason
                .or_else(|| stopped_reason(status.state.as_ref()?));
        }
        all
    }

    fn count(&mut self, status: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(status.restart_count);
        let running = status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some());
        self.ready += usize::from(status.ready && running);
        let ended = status
            .last_state
            .as_ref()
            .and_then(|last| last.terminated.as_ref()?.finished_at.as_ref());
        self.last_restart = self.last_restart.max(ended.map(|time| time.0));
    }

    /// The RESTARTS cell: `0`, or `2 (5m ago)`.
    fn restarts(&self, now: Timestamp) -> String {
        match self.last_restart {
            Some(last) if self.restarts > 0 => {
                format!("{} ({} ago)", self.restarts, age::between(last, now))
            }
            _ => self.restarts.to_string(),
        }
    }
}

fn status(pod: &Pod, containers: &Containers) -> String {
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default();
    let failure = status
        .and_then(|status| status.reason.as_deref())
        .filter(|reason| !reason.is_empty());
    if pod.is_deleting() && failure == Some("NodeLost") {
        return "Unknown".into();
    }
    if pod.is_deleting() && !pod_ips::is_terminal(pod) {
        return "Terminating".into();
    }
    if let Some(initializing) = &containers.initializing
        && !is_true(pod, "Initialized")
    {
        return initializing.clone();
    }
    match containers.reason.as_deref() {
        Some("Completed") if containers.any_running && is_true(pod, "Ready") => "Running".into(),
        Some("Completed") if containers.any_running => "NotReady".into(),
        Some(reason) => reason.into(),
        None => failure.unwrap_or_else(|| of_phase(pod, phase)).into(),
    }
}

/// The phase, unless the pod waits for something more specific.
fn of_phase<'a>(pod: &Pod, phase: &'a str) -> &'a str {
    let gated = condition(pod, "PodScheduled")
        .is_some_and(|scheduled| scheduled.reason.as_deref() == Some("SchedulingGated"));
    let bound = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .is_some_and(|node| !node.is_empty());
    match phase {
        _ if gated => "SchedulingGated",
        // The kubelet reports this itself once it has seen the pod.
        "Pending" | "" if bound => "ContainerCreating",
        "" => "Pending",
        phase => phase,
    }
}

/// `None` if the init container does not block the pod; else the reason, `Some(None)` if it is just
/// its turn.
#[expect(
    clippy::option_option,
    reason = "two independent facts: whether it blocks, and the reason"
)]
fn init_reason(status: &ContainerStatus, sidecar: bool) -> Option<Option<String>> {
    let state = status.state.clone().unwrap_or_default();
    match state {
        ContainerState {
            terminated: Some(ended),
            ..
        } if ended.exit_code == 0 => None,
        _ if sidecar && status.started == Some(true) => None,
        ContainerState {
            terminated: Some(ended),
            ..
        } => Some(Some(ended_reason(&ended))),
        ContainerState {
            waiting: Some(waiting),
            ..
        } => Some(
            waiting
                .reason
                .filter(|reason| !reason.is_empty() && reason != "PodInitializing"),
        ),
        _ => Some(None),
    }
}

fn stopped_reason(state: &ContainerState) -> Option<String> {
    let waiting = state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.reason.clone());
    waiting
        .filter(|reason| !reason.is_empty())
        .or_else(|| state.terminated.as_ref().map(ended_reason))
}

fn ended_reason(ended: &ContainerStateTerminated) -> String {
    match (ended.reason.as_deref(), ended.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.into(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", ended.exit_code),
    }
}

fn condition<'a>(pod: &'a Pod, of_type: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == of_type)
}

fn is_true(pod: &Pod, of_type: &str) -> bool {
    condition(pod, of_type).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::strict;

    fn pod(metadata: &Value, spec: &Value, status: &Value) -> Vec<String> {
        let mut pod = json!({"metadata": metadata, "spec": spec, "status": status});
        pod["spec"]["containers"] = json!([{"name": "c"}]);
        cells(
            &strict::decode(pod).unwrap(),
            "2026-01-01T01:00:00Z".parse().unwrap(),
        )
    }

    fn status_of(spec: Value, status: Value) -> String {
        pod(&json!({"name": "a"}), &spec, &status)[2].clone()
    }

    fn running() -> Value {
        json!({"phase": "Running", "podIP": "10.244.0.2", "podIPs": [{"ip": "10.244.0.2"}, {"ip": "fd00::2"}],
            "containerStatuses": [{"name": "c", "ready": true, "restartCount": 2, "image": "", "imageID": "",
                "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:55:00Z"}}}]})
    }

    #[test]
    fn shows_a_running_pod() {
        let metadata = json!({"name": "a", "creationTimestamp": "2026-01-01T00:59:00Z"});
        let row = pod(&metadata, &json!({"nodeName": "node-0"}), &running());
        assert_eq!(
            row,
            [
                "a",
                "1/1",
                "Running",
                "2 (5m ago)",
                "60s",
                "10.244.0.2,fd00::2",
                "node-0",
                "<none>",
                "<none>"
            ]
        );
        assert_eq!(row.len(), COLUMNS.len());
    }

    #[test]
    fn shows_a_pod_without_a_node() {
        let row = pod(
            &json!({"name": "a"}),
            &json!({}),
            &json!({"phase": "Pending"}),
        );
        assert_eq!(
            row,
            [
                "a",
                "0/1",
                "Pending",
                "0",
                "<unknown>",
                "<none>",
                "<none>",
                "<none>",
                "<none>"
            ]
        );
    }

    #[test]
    fn status_shows_why_the_pod_is_blocked() {
        let bound = json!({"nodeName": "node-0"});
        let waiting = |reason: &str| {
            json!({"phase": "Pending", "containerStatuses": [{"name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                "state": {"waiting": {"reason": reason}}}]})
        };
        assert_eq!(
            status_of(bound.clone(), json!({"phase": "Pending"})),
            "ContainerCreating"
        );
        assert_eq!(
            status_of(bound.clone(), waiting("ContainerCreating")),
            "ContainerCreating"
        );
        assert_eq!(
            status_of(bound.clone(), waiting("CrashLoopBackOff")),
            "CrashLoopBackOff"
        );
        assert_eq!(
            status_of(
                bound.clone(),
                json!({"phase": "Failed", "reason": "OutOfpodIPs"})
            ),
            "OutOfpodIPs"
        );
        assert_eq!(status_of(bound, json!({"phase": "Succeeded"})), "Succeeded");
        let gated = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]});
        assert_eq!(status_of(json!({}), gated), "SchedulingGated");
    }

    #[test]
    fn init_containers_come_first() {
        let spec = json!({"nodeName": "node-0", "initContainers": [{"name": "i"}, {"name": "j"}]});
        let init = |state: Value| json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state}]});
        assert_eq!(
            status_of(spec.clone(), init(json!({"running": {}}))),
            "Init:0/2"
        );
        assert_eq!(
            status_of(
                spec.clone(),
                init(json!({"waiting": {"reason": "ErrImagePull"}}))
            ),
            "Init:ErrImagePull"
        );
        assert_eq!(
            status_of(spec, init(json!({"terminated": {"exitCode": 3}}))),
            "Init:ExitCode:3"
        );
    }

    #[test]
    fn shows_pods_in_deletion_as_terminating() {
        let metadata = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:59:00Z"});
        assert_eq!(
            pod(&metadata, &json!({"nodeName": "node-0"}), &running())[2],
            "Terminating"
        );
        assert_eq!(
            pod(
                &metadata,
                &json!({}),
                &json!({"phase": "Failed", "reason": "OutOfpodIPs"})
            )[2],
            "OutOfpodIPs"
        );
    }
}
