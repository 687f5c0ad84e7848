//! The status of a pod, computed from what is observed.

use std::net::IpAddr;

use podplane_api::{
    core::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec,
        PodStatus,
    },
    jiff::Timestamp,
    meta::Time,
    pod_exit::container_exit,
    pod_ips::{
        OUT_OF_POD_IPS, POD_READY_TO_START_CONTAINERS, PodIpResource, has_no_sandbox,
        is_host_network, is_terminal,
    },
};

/// A sandbox that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadySandbox {
    /// Its addresses, the primary one first; none if it is on its node's network.
    pub ips: Vec<IpAddr>,
    /// The time at which it was made.
    pub created: Timestamp,
}

/// The last start of a pod's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerStart {
    /// Its time.
    pub at: Timestamp,
    /// The number of restarts, this one included.
    pub restarts: i32,
}

/// The refusal of a pod for want of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Addresses that the pod needs.
    pub requested: u64,
    /// Addresses taken.
    pub used: u64,
    /// Addresses in all.
    pub capacity: u64,
}

/// The status of a pod that runs: its sandbox is ready, and each container counts as running since
/// `start`.
pub fn running(
    pod: &Pod,
    sandbox: &ReadySandbox,
    start: ContainerStart,
    host: &[IpAddr],
    now: Timestamp,
) -> PodStatus {
    let mut status = begun(pod, host, now);
    let ips = if is_host_network(pod) {
        host
    } else {
        &sandbox.ips
    };
    status.phase = Some("Running".into());
    status.reason = None;
    status.message = None;
    status.pod_ip = ips.first().map(ToString::to_string);
    status.pod_ips = non_empty(ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
    let since = Time(sandbox.created);
    let spec = pod.spec.as_ref();
    let state = ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(start.at)),
        }),
        ..ContainerState::default()
    };
    let former = status.container_statuses.take();
    let mut containers = spec.map(|spec| each(&spec.containers, &state));
    for container in containers.iter_mut().flatten() {
        container.restart_count = start.restarts;
        container.last_state = last_exit(former.as_deref(), &container.name);
    }
    status.container_statuses = containers;
    status.init_container_statuses = spec.and_then(|spec| init_statuses(spec, &state, &since));
    for kind in [
        POD_READY_TO_START_CONTAINERS,
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        set_condition(&mut status, kind, "True", None, now);
    }
    status
}

/// The status of a pod whose sandbox is not made yet.
pub fn creating(pod: &Pod, host: &[IpAddr], now: Timestamp) -> PodStatus {
    let mut status = begun(pod, host, now);
    status.phase = Some("Pending".into());
    status.pod_ip = None;
    status.pod_ips = None;
    let spec = pod.spec.as_ref();
    let waiting = |reason: &str| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.into()),
            message: None,
        }),
        ..ContainerState::default()
    };
    let inits = spec.and_then(|spec| spec.init_containers.as_ref());
    let has_inits = inits.is_some_and(|inits| !inits.is_empty());
    let reason = if has_inits {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let containers = spec
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default();
    let former = status.container_statuses.take();
    let mut statuses = each(containers, &waiting(reason));
    for container in &mut statuses {
        let old = find(former.as_deref(), &container.name);
        container.restart_count = old.map_or(0, |old| old.restart_count);
        container.last_state = last_exit(former.as_deref(), &container.name);
    }
    status.container_statuses = Some(statuses);
    status.init_container_statuses = inits
        .filter(|_| has_inits)
        .map(|inits| each(inits, &waiting("PodInitializing")));
    set_condition(
        &mut status,
        POD_READY_TO_START_CONTAINERS,
        "False",
        None,
        now,
    );
    if has_inits {
        let init_names: Vec<_> = inits
            .into_iter()
            .flatten()
            .map(|c| c.name.as_str())
            .collect();
        let message = format!(
            "containers with incomplete status: [{}]",
            init_names.join(" ")
        );
        let incomplete = Some(("ContainersNotInitialized", message.as_str()));
        set_condition(&mut status, "Initialized", "False", incomplete, now);
    } else {
        set_condition(&mut status, "Initialized", "True", None, now);
    }
    set_unready(&mut status, pod, now);
    set_condition(&mut status, "PodScheduled", "True", None, now);
    status
}

/// Reports that the pod's containers do not run.
pub fn set_unready(status: &mut PodStatus, pod: &Pod, now: Timestamp) {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let names: Vec<_> = containers.map(|c| c.name.as_str()).collect();
    let message = format!("containers with unready status: [{}]", names.join(" "));
    let unready = Some(("ContainersNotReady", message.as_str()));
    set_condition(status, "Ready", "False", unready, now);
    set_condition(status, "ContainersReady", "False", unready, now);
}

fn find<'a>(statuses: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|status| status.name == name)
}

/// The last exit of the container of that name, which is its last state after a restart.
fn last_exit(former: Option<&[ContainerStatus]>, name: &str) -> Option<ContainerState> {
    let old = find(former, name)?;
    let is_ended = old
        .state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some());
    if is_ended {
        old.state.clone()
    } else {
        old.last_state.clone()
    }
}

/// The remains of an ended pod on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRemains {
    /// A sandbox, which may hold an address.
    Sandbox,
    /// Nothing.
    Nothing,
}

/// The exit code of a container that is ended by SIGTERM.
const KILLED: i32 = 143;

/// The status of a pod that has ended, as with Kubernetes' kubelet: one that ran has succeeded, one
/// that never ran has failed, and so has one that was to end by itself later ([`super::exits`]).
/// Its addresses stay as a record.
pub fn ended(pod: &Pod, remains: PodRemains, now: Timestamp) -> PodStatus {
    let mut status = pod.status.clone().unwrap_or_default();
    let code = match container_exit(pod) {
        Some(_) => KILLED,
        None => 0,
    };
    for container in [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    {
        end_container(container, code, now);
    }
    // Killed containers of a pod that was to end by itself have not done their work.
    let has_run = status.phase.as_deref() == Some("Running") && code == 0;
    let phase = match status.phase.take() {
        Some(phase) if is_terminal(pod) => phase,
        _ if has_run => "Succeeded".to_owned(),
        _ => "Failed".to_owned(),
    };
    let reason = match phase.as_str() {
        "Succeeded" => "PodCompleted",
        _ => "PodFailed",
    };
    status.phase = Some(phase);
    let sandbox = match remains {
        PodRemains::Nothing => "False",
        PodRemains::Sandbox if has_no_sandbox(pod) => "Unknown",
        PodRemains::Sandbox => "True",
    };
    set_condition(
        &mut status,
        POD_READY_TO_START_CONTAINERS,
        sandbox,
        None,
        now,
    );
    for kind in ["Ready", "ContainersReady"] {
        set_condition(&mut status, kind, "False", Some((reason, "")), now);
    }
    status
}

fn end_container(container: &mut ContainerStatus, code: i32, now: Timestamp) {
    let state = container.state.get_or_insert_default();
    if let Some(running) = state.running.take() {
        container.ready = false;
        container.started = Some(false);
        state.terminated = Some(ContainerStateTerminated {
            exit_code: code,
            reason: Some(if code == 0 { "Completed" } else { "Error" }.into()),
            started_at: running.started_at,
            finished_at: Some(Time(now)),
            ..ContainerStateTerminated::default()
        });
    }
}

/// The status of a pod that is refused for want of an address; the texts are those of Kubernetes'
/// admission.
pub fn rejected(
    pod: &Pod,
    resource: &PodIpResource,
    rejection: Rejection,
    now: Timestamp,
) -> PodStatus {
    let Rejection {
        requested,
        used,
        capacity,
    } = rejection;
    let mut status = pod.status.clone().unwrap_or_default();
    set_condition(
        &mut status,
        POD_READY_TO_START_CONTAINERS,
        "False",
        None,
        now,
    );
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some(OUT_OF_POD_IPS.into()),
        message: Some(format!(
            "Pod was rejected: Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )),
        start_time: status.start_time.clone().or(Some(Time(now))),
        // No container starts any more.
        init_container_statuses: None,
        container_statuses: None,
        ephemeral_container_statuses: None,
        ..status
    }
}

/// The fields that are reported of every pod that the kubelet has taken up.
pub(super) fn begun(pod: &Pod, host: &[IpAddr], now: Timestamp) -> PodStatus {
    let status = pod.status.clone().unwrap_or_default();
    PodStatus {
        host_ip: host.first().map(ToString::to_string),
        host_ips: non_empty(
            host.iter()
                .map(|ip| HostIP { ip: ip.to_string() })
                .collect(),
        ),
        start_time: status.start_time.clone().or(Some(Time(now))),
        ..status
    }
}

fn each(containers: &[Container], state: &ContainerState) -> Vec<ContainerStatus> {
    containers
        .iter()
        .map(|container| container_status(container, state))
        .collect()
}

fn container_status(container: &Container, state: &ContainerState) -> ContainerStatus {
    let is_running = state.running.is_some();
    let is_complete = state
        .terminated
        .as_ref()
        .is_some_and(|end| end.exit_code == 0);
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        // No image was pulled and no container made, so neither has an id.
        image_id: String::new(),
        container_id: None,
        ready: is_running || is_complete,
        started: Some(is_running),
        restart_count: 0,
        state: Some(state.clone()),
        ..ContainerStatus::default()
    }
}

/// The statuses of init containers: they have completed when the others run. Those that restart
/// always are sidecars, and run with the others.
fn init_statuses(
    spec: &PodSpec,
    running: &ContainerState,
    since: &Time,
) -> Option<Vec<ContainerStatus>> {
    let completed = ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 0,
            reason: Some("Completed".into()),
            started_at: Some(since.clone()),
            finished_at: Some(since.clone()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    };
    let state_of = |container: &Container| match container.restart_policy.as_deref() {
        Some("Always") => running.clone(),
        _ => completed.clone(),
    };
    let inits = spec.init_containers.iter().flatten();
    non_empty(
        inits
            .map(|init| container_status(init, &state_of(init)))
            .collect(),
    )
}

/// Sets a condition; its transition time changes only with its status.
pub(super) fn set_condition(
    status: &mut PodStatus,
    kind: &str,
    value: &str,
    why: Option<(&str, &str)>,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let position = conditions
        .iter()
        .position(|condition| condition.type_ == kind);
    let old = position.map(|at| conditions.remove(at));
    let since = old
        .filter(|old| old.status == value)
        .and_then(|old| old.last_transition_time);
    let condition = PodCondition {
        type_: kind.into(),
        status: value.into(),
        reason: why.map(|(reason, _)| reason.into()),
        message: why
            .map(|(_, message)| message.to_owned())
            .filter(|message| !message.is_empty()),
        last_transition_time: since.or(Some(Time(now))),
        ..PodCondition::default()
    };
    conditions.insert(position.unwrap_or(conditions.len()), condition);
}

/// `None` for an empty list.
pub(super) fn non_empty<T>(items: Vec<T>) -> Option<Vec<T>> {
    Some(items).filter(|items| !items.is_empty())
}

#[cfg(test)]
mod tests {
    use podplane_api::meta::ObjectMeta;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const START: ContainerStart = ContainerStart {
        at: NOW,
        restarts: 0,
    };

    fn container(name: &str) -> Container {
        Container {
            name: name.into(),
            image: Some("img".into()),
            ..Container::default()
        }
    }

    fn pod(host_network: bool) -> Pod {
        Pod {
            metadata: ObjectMeta::default(),
            spec: Some(PodSpec {
                host_network: Some(host_network),
                containers: vec![container("c"), container("d")],
                init_containers: Some(vec![container("i")]),
                ..PodSpec::default()
            }),
            status: None,
        }
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn condition(status: &PodStatus, kind: &str) -> PodCondition {
        let conditions = status.conditions.as_ref().unwrap();
        conditions.iter().find(|c| c.type_ == kind).unwrap().clone()
    }

    #[test]
    fn a_pod_runs_with_the_addresses_of_its_sandbox() {
        let sandbox = ReadySandbox {
            ips: ips(&["10.0.0.2", "fd00::2"]),
            created: NOW,
        };
        let status = running(&pod(false), &sandbox, START, &ips(&["172.16.0.1"]), NOW);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.2"));
        let pod_ips: Vec<_> = status
            .pod_ips
            .iter()
            .flatten()
            .map(|ip| ip.ip.as_str())
            .collect();
        assert_eq!(pod_ips, ["10.0.0.2", "fd00::2"]);
        assert_eq!(status.host_ip.as_deref(), Some("172.16.0.1"));
        assert!(status.container_statuses.iter().flatten().all(|c| c.ready));
        assert_eq!(status.init_container_statuses.as_ref().unwrap().len(), 1);
        assert_eq!(condition(&status, "Ready").status, "True");

        let again = Pod {
            status: Some(status.clone()),
            ..pod(false)
        };
        let later = Timestamp::from_second(60).unwrap();
        assert_eq!(
            running(&again, &sandbox, START, &ips(&["172.16.0.1"]), later),
            status,
            "what has not changed is not written"
        );
    }

    #[test]
    fn a_host_network_pod_has_the_addresses_of_its_node() {
        let sandbox = ReadySandbox {
            ips: vec![],
            created: NOW,
        };
        let status = running(&pod(true), &sandbox, START, &ips(&["172.16.0.1"]), NOW);
        assert_eq!(status.pod_ip.as_deref(), Some("172.16.0.1"));
    }

    #[test]
    fn a_pod_without_a_sandbox_is_pending() {
        let status = creating(&pod(false), &[], NOW);
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        let ready = condition(&status, "Ready");
        assert_eq!(ready.status, "False");
        assert_eq!(
            ready.message.as_deref(),
            Some("containers with unready status: [c d]")
        );
        let waiting = status.container_statuses.unwrap()[0]
            .state
            .clone()
            .unwrap()
            .waiting;
        assert_eq!(waiting.unwrap().reason.as_deref(), Some("PodInitializing"));
    }

    fn with(status: PodStatus) -> Pod {
        Pod {
            status: Some(status),
            ..pod(false)
        }
    }

    #[test]
    fn an_ended_pod_keeps_its_address_after_its_sandbox_is_removed() {
        let sandbox = ReadySandbox {
            ips: ips(&["10.0.0.2"]),
            created: NOW,
        };
        let running = with(running(&pod(false), &sandbox, START, &[], NOW));
        let later = Timestamp::from_second(60).unwrap();
        let ending = ended(&running, PodRemains::Sandbox, later);
        assert_eq!(ending.phase.as_deref(), Some("Succeeded"));
        assert_eq!(ending.pod_ip.as_deref(), Some("10.0.0.2"));
        assert_eq!(
            condition(&ending, POD_READY_TO_START_CONTAINERS).status,
            "True"
        );
        let ready = condition(&ending, "Ready");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_deref()),
            ("False", Some("PodCompleted"))
        );
        for container in ending.container_statuses.iter().flatten() {
            let end = container.state.as_ref().unwrap().terminated.as_ref();
            assert_eq!(end.unwrap().finished_at, Some(Time(later)));
        }
        let gone = ended(&with(ending), PodRemains::Nothing, later);
        assert_eq!(gone.phase.as_deref(), Some("Succeeded"));
        assert_eq!(gone.pod_ip.as_deref(), Some("10.0.0.2"));
        assert_eq!(
            condition(&gone, POD_READY_TO_START_CONTAINERS).status,
            "False"
        );
        let again = ended(&with(gone.clone()), PodRemains::Nothing, NOW);
        assert_eq!(again, gone, "what has not changed is not written");
    }

    #[test]
    fn a_pod_that_ends_before_it_ran_has_failed() {
        let waiting = with(creating(&pod(false), &[], NOW));
        let status = ended(&waiting, PodRemains::Sandbox, NOW);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let sandbox = condition(&status, POD_READY_TO_START_CONTAINERS);
        assert_eq!(sandbox.status, "Unknown", "the sandbox may have an address");
        assert!(
            status.container_statuses.iter().flatten().all(|c| c
                .state
                .as_ref()
                .unwrap()
                .waiting
                .is_some())
        );
    }

    #[test]
    fn a_pod_that_is_deleted_before_it_exits_has_failed() {
        let sandbox = ReadySandbox {
            ips: ips(&["10.0.0.2"]),
            created: NOW,
        };
        let mut pod = with(running(&pod(false), &sandbox, START, &[], NOW));
        let exit = [("podplane.io/exit-after".to_owned(), "1h".to_owned())];
        pod.metadata.annotations = Some(exit.into());
        let status = ended(&pod, PodRemains::Sandbox, NOW);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let end = status.container_statuses.unwrap()[0].state.clone().unwrap();
        let end = end.terminated.unwrap();
        assert_eq!((end.exit_code, end.reason.as_deref()), (143, Some("Error")));
    }

    #[test]
    fn rejection_has_the_message_of_kubernetes() {
        let sandbox = ReadySandbox {
            ips: ips(&["10.0.0.2"]),
            created: NOW,
        };
        let status = rejected(
            &with(running(&pod(false), &sandbox, START, &[], NOW)),
            &PodIpResource::default(),
            Rejection {
                requested: 1,
                used: 5,
                capacity: 5,
            },
            NOW,
        );
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("OutOfpodIPs"));
        assert_eq!(
            status.message.as_deref(),
            Some(
                "Pod was rejected: Node didn't have enough resource: podplane.io/pod-ips, requested: 1, used: 5, capacity: 5"
            )
        );
        assert_eq!(
            status.container_statuses, None,
            "`get pods` would show them"
        );
    }
}
