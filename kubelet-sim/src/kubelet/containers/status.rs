//! The status of a pod whose containers the runtime runs, computed from what is observed by the
//! rules of Kubernetes' kubelet.

use std::{collections::BTreeMap, net::IpAddr};

use podplane_api::{
    core::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus, Pod, PodIP, PodStatus,
    },
    jiff::Timestamp,
    meta::Time,
    pod_ips::{POD_READY_TO_START_CONTAINERS, is_host_network},
};

use super::{
    super::status::{ReadySandbox, begun, non_empty, set_condition},
    ContainerPhase, PodContainer, UNKNOWN_EXIT, app_containers, init_containers, is_sidecar,
    newest,
    plan::{RestartPolicy, restart_policy},
};

/// The reason and the message with which a container waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaitReason {
    /// A CamelCase word.
    pub(crate) reason: &'static str,
    /// A text for people.
    pub(crate) message: String,
}

/// The observed state of a pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PodObservation<'a> {
    /// The id of its sandbox.
    pub(crate) sandbox_id: &'a str,
    /// The sandbox, if it is ready.
    pub(crate) sandbox: Option<&'a ReadySandbox>,
    /// The addresses of the node.
    pub(crate) host: &'a [IpAddr],
    /// The runtime's name, the scheme of container ids.
    pub(crate) runtime: &'a str,
    /// The containers.
    pub(crate) containers: &'a [PodContainer],
    /// The containers that wait, by name.
    pub(crate) waiting: &'a BTreeMap<String, WaitReason>,
    /// True if no container will start again.
    pub(crate) is_ending: bool,
    /// The time.
    pub(crate) now: Timestamp,
}

/// The status of the pod.
pub(crate) fn status(pod: &Pod, observed: PodObservation<'_>) -> PodStatus {
    let mut status = begun(pod, observed.host, observed.now);
    if let Some(sandbox) = observed.sandbox {
        let ips = if is_host_network(pod) {
            observed.host
        } else {
            &sandbox.ips
        };
        status.pod_ip = ips.first().map(ToString::to_string);
        status.pod_ips = non_empty(ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
        let kind = POD_READY_TO_START_CONTAINERS;
        set_condition(&mut status, kind, "True", None, observed.now);
    }
    status.reason = None;
    status.message = None;
    let is_initialized = is_initialized(pod, observed);
    let default_reason = match init_containers(pod).is_empty() || is_initialized {
        true => "ContainerCreating",
        false => "PodInitializing",
    };
    let of = |container: &Container, former: Option<&[ContainerStatus]>, is_init| {
        let former = former.and_then(|all| all.iter().find(|one| one.name == container.name));
        container_status(container, former, observed, default_reason, is_init)
    };
    let former = status.init_container_statuses.take();
    let inits = init_containers(pod).iter();
    let inits = inits.map(|init| of(init, former.as_deref(), true));
    let inits: Vec<_> = inits.collect();
    let former = status.container_statuses.take();
    let apps = app_containers(pod).iter();
    let apps: Vec<_> = apps.map(|app| of(app, former.as_deref(), false)).collect();
    status.phase = Some(phase(pod, &inits, &apps, is_initialized, observed.is_ending).into());
    set_conditions(
        &mut status,
        pod,
        &inits,
        &apps,
        is_initialized,
        observed.now,
    );
    status.init_container_statuses = non_empty(inits);
    status.container_statuses = Some(apps);
    status
}

/// Returns true if all init containers have run to their end, and all sidecars have started.
fn is_initialized(pod: &Pod, observed: PodObservation<'_>) -> bool {
    let newest = |name: &str| newest(observed.containers, observed.sandbox_id, name);
    if app_containers(pod)
        .iter()
        .any(|app| newest(&app.name).is_some())
    {
        return true;
    }
    init_containers(pod).iter().all(|init| {
        newest(&init.name).is_some_and(|found| match is_sidecar(init) {
            true => found.phase == ContainerPhase::Running,
            false => found.has_ended() && found.code() == 0,
        })
    })
}

fn container_status(
    container: &Container,
    former: Option<&ContainerStatus>,
    observed: PodObservation<'_>,
    default_reason: &str,
    is_init: bool,
) -> ContainerStatus {
    let found = newest(observed.containers, observed.sandbox_id, &container.name);
    let waiting = observed.waiting.get(&container.name);
    let waits = |reason: &str, message: Option<String>| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    };
    let id_of = |found: &PodContainer| format!("{}://{}", observed.runtime, found.id);
    let ended = found.filter(|found| found.has_ended());
    let state = match (waiting, found) {
        (Some(waiting), _) => waits(waiting.reason, Some(waiting.message.clone())),
        (None, Some(found)) => match found.phase {
            ContainerPhase::Created => waits(default_reason, None),
            ContainerPhase::Running => ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: found.started.map(whole_seconds),
                }),
                ..ContainerState::default()
            },
            ContainerPhase::Exited | ContainerPhase::Unknown => terminated(found, &id_of(found)),
        },
        // A container of a sandbox that is gone, whose end nobody saw.
        (None, None) if observed.is_ending => match former.and_then(lost) {
            Some(lost) => lost,
            None => former
                .and_then(|former| former.state.clone())
                .unwrap_or_else(|| waits(default_reason, None)),
        },
        (None, None) => waits(default_reason, None),
    };
    let older = observed.containers.iter().filter(|older| {
        older.name == container.name
            && older.has_ended()
            && found.is_none_or(|found| older.id != found.id)
    });
    let last_state = match ended.filter(|_| waiting.is_some()) {
        Some(ended) => Some(terminated(ended, &id_of(ended))),
        None => older
            .max_by_key(|older| (older.end(), older.attempt))
            .map(|older| terminated(older, &id_of(older)))
            .or_else(|| former_end(former, found.map(id_of).as_deref())),
    };
    let is_running = state.running.is_some();
    let is_complete = state
        .terminated
        .as_ref()
        .is_some_and(|end| end.exit_code == 0);
    let former_count = former.map_or(0, |former| former.restart_count);
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        image_id: match found {
            Some(found) => found.image_id.clone(),
            None => former.map(|f| f.image_id.clone()).unwrap_or_default(),
        },
        container_id: match found {
            Some(found) => Some(id_of(found)),
            None => former.and_then(|former| former.container_id.clone()),
        },
        ready: is_running || (is_init && is_complete),
        started: Some(is_running),
        restart_count: found.map_or(former_count, |found| found.restarts),
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

/// A time as a status has it.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn terminated(ended: &PodContainer, id: &str) -> ContainerState {
    let code = ended.code();
    let reason = match (ended.phase, ended.reason.as_str(), code) {
        (ContainerPhase::Unknown, _, _) => "ContainerStatusUnknown",
        (_, "", 0) => "Completed",
        (_, "", _) => "Error",
        (_, reason, _) => reason,
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: code,
            reason: Some(reason.to_owned()),
            message: Some(ended.message.clone()).filter(|message| !message.is_empty()),
            started_at: ended.started.map(whole_seconds),
            finished_at: ended.finished.map(whole_seconds),
            container_id: Some(id.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// The end of a container that was reported as running, and of which nothing is left.
fn lost(former: &ContainerStatus) -> Option<ContainerState> {
    let running = former.state.as_ref()?.running.as_ref()?;
    Some(ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: UNKNOWN_EXIT,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some("The container could not be located when the pod was terminated".into()),
            started_at: running.started_at.clone(),
            container_id: former.container_id.clone(),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    })
}

/// The end of an earlier container of that name, as it was reported.
fn former_end(former: Option<&ContainerStatus>, id: Option<&str>) -> Option<ContainerState> {
    let former = former?;
    let is_earlier = former.container_id.as_deref() != id;
    let state = former.state.as_ref();
    let ended = state.filter(|state| is_earlier && state.terminated.is_some());
    let last = || former.last_state.clone();
    let lost = || former.container_id.as_ref().and(lost(former));
    match ended {
        Some(ended) => Some(ended.clone()),
        None if is_earlier => lost().or_else(last),
        None => last(),
    }
}

/// The phase of the pod (source: `getPhase` of Kubernetes' kubelet).
fn phase(
    pod: &Pod,
    inits: &[ContainerStatus],
    apps: &[ContainerStatus],
    is_initialized: bool,
    is_ending: bool,
) -> &'static str {
    let end = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        let last = status.last_state.as_ref();
        let now = state.and_then(|state| state.terminated.as_ref());
        let is_waiting = state.is_some_and(|state| state.waiting.is_some());
        let before = last.filter(|_| is_waiting);
        now.or_else(|| before.and_then(|last| last.terminated.as_ref()))
            .map(|end| end.exit_code)
    };
    let is_running = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    let sidecars = init_containers(pod).iter().zip(inits);
    let mut normal_inits = sidecars.filter(|(init, _)| !is_sidecar(init));
    let has_failed_init = normal_inits.any(|(_, status)| end(status).is_some_and(|code| code != 0));
    if !is_initialized {
        let is_over = is_ending || restart_policy(pod) == RestartPolicy::Never;
        return match has_failed_init && is_over {
            true => "Failed",
            false if is_ending => "Failed",
            false => "Pending",
        };
    }
    let mut stopped = apps.iter().filter(|status| !is_running(status));
    // One that has never run comes before those that run.
    if stopped.any(|status| end(status).is_none()) {
        return if is_ending { "Failed" } else { "Pending" };
    }
    if apps.iter().any(is_running) {
        return "Running";
    }
    let codes: Vec<_> = apps.iter().map(end).collect();
    let has_succeeded = codes.iter().all(|code| *code == Some(0));
    match (restart_policy(pod), has_succeeded) {
        (_, true) if is_ending => "Succeeded",
        (_, false) if is_ending => "Failed",
        (RestartPolicy::Always, _) => "Running",
        (_, true) => "Succeeded",
        (RestartPolicy::Never, false) => "Failed",
        (RestartPolicy::OnFailure, false) => "Running",
    }
}

fn set_conditions(
    status: &mut PodStatus,
    pod: &Pod,
    inits: &[ContainerStatus],
    apps: &[ContainerStatus],
    is_initialized: bool,
    now: Timestamp,
) {
    let names = |statuses: &mut dyn Iterator<Item = &ContainerStatus>| {
        let names: Vec<_> = statuses.map(|status| status.name.as_str()).collect();
        names.join(" ")
    };
    if is_initialized {
        set_condition(status, "Initialized", "True", None, now);
    } else {
        let mut incomplete = inits.iter().filter(|init| !init.ready);
        let message = format!(
            "containers with incomplete status: [{}]",
            names(&mut incomplete)
        );
        let why = Some(("ContainersNotInitialized", message.as_str()));
        set_condition(status, "Initialized", "False", why, now);
    }
    let sidecars = init_containers(pod).iter().zip(inits);
    let sidecars = sidecars
        .filter(|(init, _)| is_sidecar(init))
        .map(|(_, status)| status);
    let mut unready = sidecars.chain(apps).filter(|status| !status.ready);
    let unready = names(&mut unready);
    if unready.is_empty() {
        set_condition(status, "ContainersReady", "True", None, now);
    } else {
        let message = format!("containers with unready status: [{unready}]");
        let why = Some(("ContainersNotReady", message.as_str()));
        set_condition(status, "ContainersReady", "False", why, now);
        set_condition(status, "Ready", "False", why, now);
    }
    if unready.is_empty() {
        match missing_gate(status, pod) {
            None => set_condition(status, "Ready", "True", None, now),
            Some(message) => {
                let why = Some(("ReadinessGatesNotReady", message.as_str()));
                set_condition(status, "Ready", "False", why, now);
            }
        }
    }
    set_condition(status, "PodScheduled", "True", None, now);
}

/// The first readiness gate whose condition is not true, in a text for people.
fn missing_gate(status: &PodStatus, pod: &Pod) -> Option<String> {
    let gates = pod.spec.as_ref()?.readiness_gates.as_ref()?;
    let is_true = |kind: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|found| found.type_ == kind && found.status == "True")
    };
    let missing = gates.iter().find(|gate| !is_true(&gate.condition_type))?;
    let kind = &missing.condition_type;
    Some(format!(
        "the condition of pod readiness gate {kind:?} is not true"
    ))
}

/// Keeps what `status`, of a pod without a sandbox, does not say of the pod's earlier containers:
/// their ids and their ends.
pub(crate) fn carry_over(status: &mut PodStatus, pod: &Pod) {
    let Some(old) = &pod.status else { return };
    let pairs = [
        (&mut status.container_statuses, &old.container_statuses),
        (
            &mut status.init_container_statuses,
            &old.init_container_statuses,
        ),
    ];
    for (statuses, former) in pairs {
        for container in statuses.iter_mut().flatten() {
            let mut former = former.iter().flatten();
            let Some(former) = former.find(|one| one.name == container.name) else {
                continue;
            };
            container.restart_count = former.restart_count;
            container.image_id.clone_from(&former.image_id);
            container.container_id.clone_from(&former.container_id);
            container.last_state = former_end(Some(former), None);
        }
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
