//! The part of a pod's worker that reconciles the pod's containers in its sandbox.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use podplane_api::{
    Object as _,
    core::{Container, Pod, PodStatus},
    jiff::{SignedDuration, Timestamp},
    pod_ips::is_terminal,
};
use podplane_client::events::EventType;
use podplane_host::clock::{self, Instant};
use tonic::Status;

use super::{
    super::{
        containers::{
            ContainerPhase, PodContainer, app_containers,
            images::{FailedPulls, PullPolicy, pull_policy},
            init_containers, is_sidecar, newest,
            plan::{ContainerPlan, ContainerStart, RestartDelays, RestartPolicy, plan, restart_policy},
            status::{PodObservation, WaitReason, carry_over, status},
        },
        exits::go_duration,
        node::NodeError,
        runtime::{RuntimeImage, rpc_error},
        status::{self as pod_status, PodRemains, ReadySandbox},
        trace::SyncTrace,
    },
    ADDRESS_POLL_INTERVAL, MIN_BACKOFF, SandboxReport, SyncAction, Worker,
};

/// The time until settings that could not be used are tried again.
const CONFIG_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// The time for which a failed pull is shown as such, before it is shown as a delay of the next.
const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);
/// The least grace period of containers that are stopped after others.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// The grace period of a pod whose specification has none: Kubernetes' default.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What a worker remembers of its pod's containers. A kubelet that starts again knows none of it.
#[derive(Debug, Default)]
pub(super) struct ContainerMemory {
    delays: RestartDelays,
    pulls: FailedPulls,
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
    fn new(reason: &'static str, message: String, retry: Timestamp) -> Self {
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

fn retry_at() -> Timestamp {
    after(clock::timestamp(), CONFIG_RETRY)
}

fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// The containers of one sync.
struct ContainerSync<'a> {
    /// As it was last written in this sync.
    pod: Arc<Pod>,
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
        let mut held = BTreeMap::new();
        let (plan, containers) = loop {
            let containers = self.list_containers().await?;
            let names: BTreeSet<_> = held.keys().cloned().collect();
            let delays = &self.containers.delays;
            let now = clock::timestamp();
            let plan = plan(pod, sandbox_id, &containers, delays, &names, now);
            if plan.start.is_empty() || self.is_pod_ending() {
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
        if plan.is_ended {
            let ended = self.end_containers(pod, Some((sandbox_id, sandbox))).await?;
            let status = pod_status::ended(&ended, PodRemains::Sandbox, clock::timestamp());
            let written = self.write_status(trace, pod, status).await?;
            tracing::debug!(node = self.node.name(), pod = %pod.key(), uid = self.uid, "containers have ended");
            return Ok(SandboxReport::Changed(written));
        }
        let waiting: BTreeMap<_, _> = held.iter().map(|(n, h)| (n.clone(), h.why.clone())).collect();
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
        let wakes = wakes.chain(self.containers.next_write);
        Ok(SandboxReport::Done(requeue_at(wakes.min())))
    }

    /// Returns true if the pod is deleted, or being deleted, by now.
    fn is_pod_ending(&self) -> bool {
        is_ending(self.pod.borrow().as_deref())
    }

    async fn list_containers(&self) -> Result<Vec<PodContainer>, NodeError> {
        let listed = self.node.runtime.containers_of(&self.uid).await;
        listed.map_err(NodeError::runtime("list the pod's containers"))
    }

    fn observed_status(
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

    fn record(&self, pod: &Pod, kind: EventType, reason: &'static str, message: String) {
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
        let id = match &start.created {
            Some(id) => id.clone(),
            None => match self.create_container(trace, sync, container, former).await? {
                Ok(id) => id,
                Err(hold) => return Ok(Err(hold)),
            },
        };
        let span = trace.begin("StartContainer").client();
        let started = self.node.runtime.start_container(&id);
        if let Err(status) = span.around(started, rpc_error).await {
            let message = rpc_error(&status);
            self.record(pod, EventType::Warning, "Failed", format!("Error: {message}"));
            return Ok(Err(HeldContainer::new("RunContainerError", message, retry_at())));
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
                tracing::debug!(node = self.node.name(), uid = self.uid, id = older.id, error, "failed to remove an old container; trying again after the next restart");
            }
        }
    }

    /// The image of a container, pulled as its policy says.
    async fn ensure_image(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        container: &Container,
    ) -> Result<Result<RuntimeImage, HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let reference = container.image.clone().unwrap_or_default();
        let present = match self.node.runtime.image(&reference).await {
            Ok(present) => present,
            Err(status) => {
                let message = format!("Failed to inspect image {reference:?}: {}", rpc_error(&status));
                self.record_warning_once(pod, "InspectFailed", message.clone());
                let reason = "ImageInspectError";
                return Ok(Err(HeldContainer::new(reason, message, retry_at())));
            }
        };
        match (pull_policy(container), present) {
            (PullPolicy::Never | PullPolicy::IfNotPresent, Some(image)) => {
                let message =
                    format!("Container image {reference:?} already present on machine");
                self.record(pod, EventType::Normal, "Pulled", message);
                Ok(Ok(image))
            }
            (PullPolicy::Never, None) => {
                let reason = "ErrImageNeverPull";
                let message = format!(
                    "Container image {reference:?} is not present with pull policy of Never"
                );
                self.record_warning_once(pod, reason, message.clone());
                Ok(Err(HeldContainer::new(reason, message, retry_at())))
            }
            (PullPolicy::Always | PullPolicy::IfNotPresent, _) => {
                self.pull(trace, sync, &reference).await
            }
        }
    }

    async fn pull(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        reference: &str,
    ) -> Result<Result<RuntimeImage, HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let pulls = &self.containers.pulls;
        if let Some(failed) = pulls.delaying(reference, clock::timestamp()) {
            let (retry, error) = (failed.until, failed.error.clone());
            let message = format!("Back-off pulling image {reference:?}");
            self.record(pod, EventType::Normal, "BackOff", message.clone());
            let reason = "ImagePullBackOff";
            self.record(pod, EventType::Warning, "Failed", format!("Error: {reason}"));
            let message = format!("{message}: ErrImagePull: {error}");
            return Ok(Err(HeldContainer::new(reason, message, retry)));
        }
        // A pull may take long, and the pod has its address.
        let containers = self.list_containers().await?;
        let creating = self.observed_status(
            sync,
            &containers,
            &ContainerPlan::default(),
            &BTreeMap::new(),
        );
        if let Some(written) = self.write_status(trace, pod, creating).await? {
            sync.pod = written;
        }
        self.record(pod, EventType::Normal, "Pulling", format!("Pulling image {reference:?}"));
        let began = Instant::now();
        let mut changes = self.pod.clone();
        let runtime = self.node.runtime.clone();
        let span = trace.begin("PullImage").client();
        let pull = span.around(runtime.pull_image(reference), rpc_error);
        // Cancelling a pull loses what it has fetched, which is not needed then.
        let pulled = tokio::select! {
            _ = changes.wait_for(|pod| is_ending(pod.as_deref())) => {
                let message = format!("Pulling image {reference:?} was cancelled");
                return Ok(Err(HeldContainer::new("ErrImagePull", message, retry_at())));
            }
            pulled = pull => pulled,
        };
        let found = match pulled {
            Ok(()) => runtime.image(reference).await,
            Err(status) => Err(status),
        };
        let missing = || Status::not_found("the runtime does not have the image after the pull");
        match found.and_then(|found| found.ok_or_else(missing)) {
            Ok(image) => {
                self.containers.pulls.forget(reference);
                let took = began.elapsed();
                let message = format!(
                    "Successfully pulled image {reference:?} in {took:.3?}. Image size: {} bytes.",
                    image.size
                );
                self.record(pod, EventType::Normal, "Pulled", message);
                Ok(Ok(image))
            }
            Err(status) => {
                let error = rpc_error(&status);
                let now = clock::timestamp();
                let pulls = &mut self.containers.pulls;
                pulls.note_failure(reference, error.clone(), now);
                let message = format!("Failed to pull image {reference:?}: {error}");
                self.record(pod, EventType::Warning, "Failed", message);
                let reason = "ErrImagePull";
                self.record(pod, EventType::Warning, "Failed", format!("Error: {reason}"));
                let shown = after(now, PULL_ERROR_SHOWN);
                Ok(Err(HeldContainer::new(reason, error, shown)))
            }
        }
    }

    /// The pod with the final status of its containers, which are stopped first: sidecars last.
    /// `sandbox` is the pod's sandbox if it is ready. A terminal pod is returned as it is.
    pub(super) async fn end_containers(
        &mut self,
        pod: &Arc<Pod>,
        sandbox: Option<(&str, &ReadySandbox)>,
    ) -> Result<Arc<Pod>, NodeError> {
        if is_terminal(pod) {
            return Ok(pod.clone());
        }
        let began = Instant::now();
        let mut grace = grace_period(pod);
        let mut is_first = true;
        let containers = loop {
            let containers = self.list_containers().await?;
            let stop = next_to_stop(pod, &containers);
            if stop.is_empty() {
                break containers;
            }
            if is_first {
                for container in &stop {
                    let message = format!("Stopping container {}", container.name);
                    self.record(pod, EventType::Normal, "Killing", message);
                }
            }
            let left = grace.saturating_sub(began.elapsed());
            let left = if is_first { grace } else { left.max(MIN_GRACE) };
            let runtime = self.node.runtime.clone();
            let stops = join_all(stop.iter().map(|c| runtime.stop_container(&c.id, left)));
            let mut changes = self.pod.clone();
            let shorter = async {
                let is_shorter = |pod: &Option<Arc<Pod>>| {
                    pod.as_deref().map_or(Duration::ZERO, grace_period) < grace
                };
                let found = changes.wait_for(is_shorter).await;
                found.map_or(Duration::ZERO, |pod| {
                    pod.as_deref().map_or(Duration::ZERO, grace_period)
                })
            };
            // Cancelling the calls loses nothing: the containers are stopped again.
            tokio::select! {
                stopped = stops => {
                    for stopped in stopped {
                        stopped.map_err(NodeError::runtime("stop a container"))?;
                    }
                    is_first = false;
                }
                shorter = shorter => grace = shorter,
            }
        };
        let newest_sandbox = containers.iter().max_by_key(|c| c.created);
        let sandbox_id = match (sandbox, newest_sandbox) {
            (Some((id, _)), _) => id,
            (None, Some(container)) => &container.sandbox,
            (None, None) => "",
        };
        let observed = PodObservation {
            sandbox_id,
            sandbox: sandbox.map(|(_, ready)| ready),
            host: &self.node.machine.ips,
            runtime: self.node.machine.runtime_name(),
            containers: &containers,
            waiting: &BTreeMap::new(),
            is_ending: true,
            now: clock::timestamp(),
        };
        let mut ended = Pod::clone(pod);
        ended.status = Some(status(pod, observed));
        Ok(Arc::new(ended))
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

fn is_ending(pod: Option<&Pod>) -> bool {
    pod.is_none_or(Pod::is_deleting)
}

/// The time that the pod's containers have to end.
fn grace_period(pod: &Pod) -> Duration {
    let of_spec = || pod.spec.as_ref()?.termination_grace_period_seconds;
    let seconds = pod.metadata.deletion_grace_period_seconds;
    let seconds = seconds.or_else(of_spec).unwrap_or(DEFAULT_GRACE_SECONDS);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The containers to stop next: all but sidecars at once, then the sidecars, the last one first.
fn next_to_stop<'a>(pod: &Pod, containers: &'a [PodContainer]) -> Vec<&'a PodContainer> {
    let runs = |container: &&PodContainer| container.phase == ContainerPhase::Running;
    let sidecars = init_containers(pod).iter().filter(|init| is_sidecar(init));
    let order: Vec<_> = sidecars.map(|sidecar| sidecar.name.as_str()).collect();
    let position = |container: &PodContainer| order.iter().position(|name| *name == container.name);
    let running: Vec<_> = containers.iter().filter(runs).collect();
    let apps: Vec<_> = running.iter().copied().filter(|c| position(c).is_none()).collect();
    if !apps.is_empty() {
        return apps;
    }
    let last = running.into_iter().max_by_key(|container| position(container));
    last.into_iter().collect()
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
