//! The part of a pod's worker that reconciles the pod's containers in its sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_api::{
    Object as _,
    core::{Container, Pod, PodStatus},
    jiff::{SignedDuration, Timestamp},
};
use podplane_client::events::EventType;
use podplane_host::clock;

use super::{
    super::{
        containers::{
            ContainerPhase, PodContainer, app_containers,
            images::FailedPulls,
            init_containers, newest,
            plan::{
                ContainerPlan, ContainerStart, RestartDelays, RestartPolicy, plan, restart_policy,
            },
            status::{PodObservation, WaitReason, carry_over, status},
        },
        exits::go_duration,
        node::NodeError,
        runtime::rpc_error,
        status::{self as pod_status, PodRemains, ReadySandbox},
        trace::SyncTrace,
    },
    ADDRESS_POLL_INTERVAL, MIN_BACKOFF, SandboxReport, SyncAction, Worker,
    container_end::grace_period,
};

/// The time until settings that could not be used are tried again.
const CONFIG_RETRY: SignedDuration = SignedDuration::from_secs(10);

/// A worker's memory of its pod's containers. A kubelet that starts again knows none of it.
#[derive(Debug, Default)]
pub(super) struct ContainerMemory {
    delays: RestartDelays,
    pub(super) pulls: FailedPulls,
    /// The time at which the files of volumes are written again, for their tokens. `None` before
    /// the first write.
    pub(super) next_write: Option<Timestamp>,
}

/// A container that cannot start now.
#[derive(Debug)]
pub(super) struct HeldContainer {
    why: WaitReason,
    retry: Timestamp,
}

impl HeldContainer {
    pub(super) fn new(reason: &'static str, message: String, retry: Timestamp) -> Self {
        Self {
            why: WaitReason { reason, message },
            retry,
        }
    }

    /// Settings that cannot be used.
    pub(super) fn config(message: String) -> Self {
        Self::new("CreateContainerConfigError", message, retry_at())
    }
}

pub(super) fn retry_at() -> Timestamp {
    after(clock::timestamp(), CONFIG_RETRY)
}

pub(super) fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// The containers of one sync.
pub(super) struct ContainerSync<'a> {
    /// As it was last written in this sync.
    pub(super) pod: Arc<Pod>,
    sandbox_id: &'a str,
    sandbox: &'a ReadySandbox,
}

impl Worker {
    /// Returns true if the runtime makes the containers of pods.
    pub(super) fn runs_containers(&self) -> bool {
        self.node.machine.runs_containers
    }

    /// Starts the pod's containers that are due, and writes the pod's status.
    pub(super) async fn sync_containers(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        sandbox_id: &str,
        sandbox: &ReadySandbox,
    ) -> Result<SandboxReport, NodeError> {
        let mut sync = ContainerSync {
            pod: pod.clone(),
            sandbox_id,
            sandbox,
        };
        let nothing = (ContainerPlan::default(), Vec::new(), BTreeMap::new());
        let first = self.observed_status(&sync, &nothing.1, &nothing.0, &nothing.2);
        if let Some(other) = self.node.other_holder(pod, &first) {
            tracing::debug!(node = self.node.name(), pod = %pod.key(), other, "address is still reported as another pod's");
            let poll = SyncAction::RequeueAfter(ADDRESS_POLL_INTERVAL);
            return Ok(SandboxReport::Done(poll));
        }
        if has_started(pod) {
            self.refresh_files(pod, sandbox).await;
        }
        let deadline = deadline(pod);
        let is_late = || deadline.is_some_and(|deadline| deadline <= clock::timestamp());
        let mut held = BTreeMap::new();
        let (plan, containers) = loop {
            let containers = self.list_containers().await?;
            let names: BTreeSet<_> = held.keys().cloned().collect();
            let delays = &self.containers.delays;
            let now = clock::timestamp();
            let plan = plan(pod, sandbox_id, &containers, delays, &names, now);
            if plan.start.is_empty() || plan.is_ended || is_late() || self.is_pod_ending() {
                break (plan, containers);
            }
            for start in &plan.start {
                let started = self
                    .start_container(trace, &mut sync, start, &containers)
                    .await?;
                if let Err(hold) = started {
                    held.insert(start.name.clone(), hold);
                }
            }
        };
        if self.is_pod_ending() {
            // The change of the pod wakes this worker at once.
            return Ok(SandboxReport::Done(SyncAction::AwaitChange));
        }
        let pod = &sync.pod;
        let is_late = is_late();
        if plan.is_ended || is_late {
            let ended = self
                .end_containers(pod, Some((sandbox_id, sandbox)))
                .await?;
            let mut status = pod_status::ended(&ended, PodRemains::Sandbox, clock::timestamp());
            if is_late && !plan.is_ended {
                status.phase = Some("Failed".into());
                status.reason = Some("DeadlineExceeded".into());
                status.message =
                    Some("Pod was active on the node longer than the specified deadline".into());
            }
            let written = self.write_status(trace, pod, status).await?;
            tracing::debug!(node = self.node.name(), pod = %pod.key(), uid = self.uid, "containers have ended");
            return Ok(SandboxReport::Changed(written));
        }
        let waiting: BTreeMap<_, _> = held
            .iter()
            .map(|(n, h)| (n.clone(), h.why.clone()))
            .collect();
        let status = self.observed_status(&sync, &containers, &plan, &waiting);
        self.record_delays(pod, &plan);
        let is_running = status.phase.as_deref() == Some("Running");
        let written = self.write_status(trace, pod, status).await?;
        if is_running && self.running.is_none() {
            self.running = Some(self.node.metrics.running());
            self.record_start_duration(pod);
        }
        self.backoff = MIN_BACKOFF;
        if held.is_empty() {
            self.last_warning = None;
        }
        if written.is_none() {
            return Ok(SandboxReport::Done(SyncAction::AwaitChange));
        }
        let wakes = held.values().map(|held| held.retry).chain(plan.wake());
        let wakes = wakes.chain(self.containers.next_write).chain(deadline);
        Ok(SandboxReport::Done(requeue_at(wakes.min())))
    }

    /// Returns true if the pod is deleted, or being deleted, by now.
    fn is_pod_ending(&self) -> bool {
        is_ending(self.pod.borrow().as_deref())
    }

    pub(super) async fn list_containers(&self) -> Result<Vec<PodContainer>, NodeError> {
        let listed = self.node.runtime.containers_of(&self.uid).await;
        listed.map_err(NodeError::runtime("list the pod's containers"))
    }

    pub(super) fn observed_status(
        &self,
        sync: &ContainerSync<'_>,
        containers: &[PodContainer],
        plan: &ContainerPlan,
        held: &BTreeMap<String, WaitReason>,
    ) -> PodStatus {
        let mut waiting = held.clone();
        for delayed in &plan.delayed {
            let message = format!(
                "back-off {} restarting failed container={} pod={}_{}({})",
                go_duration(delayed.delay),
                delayed.name,
                sync.pod.name(),
                sync.pod.namespace(),
                sync.pod.uid()
            );
            let reason = "CrashLoopBackOff";
            waiting.insert(delayed.name.clone(), WaitReason { reason, message });
        }
        let observed = PodObservation {
            sandbox_id: sync.sandbox_id,
            sandbox: Some(sync.sandbox),
            host: &self.node.machine.ips,
            runtime: self.node.machine.runtime_name(),
            containers,
            waiting: &waiting,
            is_ending: false,
            now: clock::timestamp(),
        };
        status(&sync.pod, observed)
    }

    fn record_delays(&self, pod: &Pod, plan: &ContainerPlan) {
        for delayed in &plan.delayed {
            let message = format!(
                "Back-off restarting failed container {} in pod {}_{}({})",
                delayed.name,
                pod.name(),
                pod.namespace(),
                pod.uid()
            );
            self.record(pod, EventType::Warning, "BackOff", message);
        }
    }

    pub(super) fn record(&self, pod: &Pod, kind: EventType, reason: &'static str, message: String) {
        self.node.events.record(pod, kind, reason, "", message);
    }

    /// Starts a container. The inner error: it has to wait.
    async fn start_container(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        start: &ContainerStart,
        containers: &[PodContainer],
    ) -> Result<Result<(), HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let all = init_containers(pod).iter().chain(app_containers(pod));
        let Some(container) = all.clone().find(|container| container.name == start.name) else {
            return Ok(Ok(()));
        };
        let former = newest(containers, sync.sandbox_id, &start.name);
        let is_unknown = |former: &&PodContainer| former.phase == ContainerPhase::Unknown;
        if start.created.is_none()
            && let Some(former) = former.filter(is_unknown)
        {
            // Its processes may be there.
            let runtime = &self.node.runtime;
            let stopped = runtime.stop_container(&former.id, grace_period(pod)).await;
            stopped.map_err(NodeError::runtime("stop a container"))?;
        }
        let id = match &start.created {
            Some(id) => id.clone(),
            None => match self
                .create_container(trace, sync, container, former)
                .await?
            {
                Ok(id) => id,
                Err(hold) => return Ok(Err(hold)),
            },
        };
        let span = trace.begin("StartContainer").client();
        let started = self.node.runtime.start_container(&id);
        if let Err(status) = span.around(started, rpc_error).await {
            let message = rpc_error(&status);
            self.record(
                pod,
                EventType::Warning,
                "Failed",
                format!("Error: {message}"),
            );
            return Ok(Err(HeldContainer::new(
                "RunContainerError",
                message,
                retry_at(),
            )));
        }
        let message = format!("Started container {}", container.name);
        self.record(pod, EventType::Normal, "Started", message);
        tracing::debug!(node = self.node.name(), pod = %pod.key(), uid = self.uid, container = container.name, id, "started the container");
        Ok(Ok(()))
    }

    async fn create_container(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        container: &Container,
        former: Option<&PodContainer>,
    ) -> Result<Result<String, HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let image = match self.ensure_image(trace, sync, container).await? {
            Ok(image) => image,
            Err(hold) => return Ok(Err(hold)),
        };
        let restarts = match former {
            Some(former) => former.restarts.saturating_add(1),
            None => restarts_before(pod, &container.name),
        };
        let attempt = former.map_or(0, |former| former.attempt.saturating_add(1));
        let made = self
            .container_config(pod, sync.sandbox, container, &image, attempt, restarts)
            .await;
        let config = match made {
            Ok(config) => config,
            Err(hold) => {
                let message = format!("Error: {}", hold.why.message);
                self.record_warning_once(pod, "Failed", message);
                return Ok(Err(hold));
            }
        };
        let logs = self.pod_dir().logs();
        let sandbox_config = self.node.runtime.sandbox_config(pod, Some(&logs)).await;
        let runtime = self.node.runtime.clone();
        let created = runtime.create_container(sync.sandbox_id, config, sandbox_config);
        let span = trace.begin("CreateContainer").client();
        match span.around(created, rpc_error).await {
            Ok(id) => {
                if let Some(former) = former {
                    let now = clock::timestamp();
                    self.containers.delays.note_restart(former, now);
                    self.remove_older(former).await;
                }
                let message = format!("Created container: {}", container.name);
                self.record(pod, EventType::Normal, "Created", message);
                Ok(Ok(id))
            }
            Err(status) => {
                let message = rpc_error(&status);
                self.record_warning_once(pod, "Failed", format!("Error: {message}"));
                let reason = "CreateContainerError";
                Ok(Err(HeldContainer::new(reason, message, retry_at())))
            }
        }
    }

    /// Removes the containers of a name that ended before `last`, which stays for its exit code.
    async fn remove_older(&self, last: &PodContainer) {
        let Ok(containers) = self.list_containers().await else {
            return; // They are removed after the next restart.
        };
        let older = containers.into_iter().filter(|older| {
            older.name == last.name && older.sandbox == last.sandbox && older.attempt < last.attempt
        });
        for older in older {
            if let Err(status) = self.node.runtime.remove_container(&older.id).await {
                let error = rpc_error(&status);
                tracing::debug!(
                    node = self.node.name(),
                    uid = self.uid,
                    id = older.id,
                    error,
                    "failed to remove an old container; trying again after the next restart"
                );
            }
        }
    }

    /// The status of a pod that has lost its sandbox: it waits for another one, or has ended if its
    /// containers do not restart.
    pub(super) async fn status_without_sandbox(
        &mut self,
        pod: &Arc<Pod>,
    ) -> Result<PodStatus, NodeError> {
        let now = clock::timestamp();
        if has_started(pod) && restart_policy(pod) == RestartPolicy::Never {
            let ended = self.end_containers(pod, None).await?;
            return Ok(pod_status::ended(&ended, PodRemains::Sandbox, now));
        }
        let mut status = pod_status::creating(pod, &self.node.machine.ips, now);
        carry_over(&mut status, pod);
        Ok(status)
    }
}

/// The end of the pod's `activeDeadlineSeconds`.
fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let began = pod.status.as_ref()?.start_time.as_ref()?.0;
    Some(after(began, SignedDuration::from_secs(seconds)))
}

/// Returns true if a container of the pod was ever created.
fn has_started(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|status| {
        let inits = status.init_container_statuses.iter().flatten();
        inits.chain(status.container_statuses.iter().flatten())
    });
    all.into_iter().any(|one| one.container_id.is_some())
}

/// The restarts of a container whose earlier one went with its sandbox, the next start included.
fn restarts_before(pod: &Pod, name: &str) -> i32 {
    let status = pod.status.as_ref();
    let mut all = status.into_iter().flat_map(|status| {
        let inits = status.init_container_statuses.iter().flatten();
        inits.chain(status.container_statuses.iter().flatten())
    });
    match all.find(|status| status.name == name) {
        Some(former) if former.container_id.is_some() => former.restart_count.saturating_add(1),
        _ => 0,
    }
}

pub(super) fn is_ending(pod: Option<&Pod>) -> bool {
    pod.is_none_or(Pod::is_deleting)
}

fn requeue_at(wake: Option<Timestamp>) -> SyncAction {
    match wake {
        None => SyncAction::AwaitChange,
        Some(wake) => {
            let wait = wake.duration_since(clock::timestamp());
            SyncAction::RequeueAfter(Duration::try_from(wait).unwrap_or_default())
        }
    }
}
