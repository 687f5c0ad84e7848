//! The worker of one pod on this node, which reconciles the pod's sandboxes and its status.
//!
//! Each sync lists the pod's sandboxes, asks [`plan`] for the next [`PodStep`], carries it out and
//! plans again, until a step ends the sync. The life of a pod has these steps:
//!
//! | sync | steps |
//! |---|---|
//! | the pod is bound to the node | `Run`, `Report`: its status has the addresses of its sandbox |
//! | its containers exit, and do not restart | `Report` writes the end, then `Remove`, `Release` |
//! | the sandbox dies | `Withdraw`, `Remove`, `Run`, `Report` |
//! | the pod is deleted | `Terminate`, `Remove`, `Finish`; with finalizers, `Release` comes first |
//! | its object is gone | `Forget`: the worker ends |
//!
//! [`PodStep`] describes each step, and `Worker::run_steps` the transitions. Between two syncs the
//! worker waits for a change of the pod, of its sandboxes or of the node's network, or for a timer.

mod container_end;
mod container_files;
mod container_images;
mod containers;
mod written;

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _,
    core::{Node as NodeObject, Pod, PodStatus},
    jiff::Timestamp,
    pod_ips::{OUT_OF_POD_IPS, is_host_network},
};
use podplane_client::{DeleteParams, events::EventType};
use podplane_error_chain::one_line;
use podplane_host::clock;
use podplane_service_runtime::trace::Span;
use tokio::sync::{Notify, watch};
use tonic::Status;

use self::{
    containers::ContainerMemory,
    written::{LastWrite, WriteBegun},
};
use super::{
    admission::AdmissionVerdict,
    exits::{self, ContainerRun},
    metrics::RunningPodGuard,
    node::{NetworkState, NodeContext, NodeError},
    plan::{PodStep, Sandbox, has_ip, plan},
    runtime::rpc_error,
    status::{self, ContainerStart, PodRemains, ReadySandbox},
    trace::SyncTrace,
};

/// The time to the next sync of a pod that waits for an address: another pod is about to release
/// one, or the node is about to get its block.
const ADDRESS_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The pause after the first failure. Each further failure doubles it, up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(250);
/// The longest pause after a failure: that of Kubernetes' kubelet after a failed sync.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Reconciles one pod, by UID, with its sandboxes.
#[derive(Debug)]
pub struct Worker {
    node: Arc<NodeContext>,
    uid: String,
    /// The pod as the API server has it; `None` if it is gone.
    pod: watch::Receiver<Option<Arc<Pod>>>,
    /// Notified by the lister of the node's sandboxes when one of the pod's changed.
    sandboxes_changed: Arc<Notify>,
    /// The state of pods' network on the node.
    network: watch::Receiver<NetworkState>,
    /// The pause after the next failure.
    backoff: Duration,
    /// The message of the last warning event, so that the same one is not recorded twice in a row.
    last_warning: Option<String>,
    /// Counts the pod as running while its sandbox is ready.
    running: Option<RunningPodGuard>,
    last_write: LastWrite,
    /// The memory of the containers, if the runtime makes them.
    containers: ContainerMemory,
}

/// The worker's action after a sync.
enum SyncAction {
    /// Wait for a change.
    AwaitChange,
    /// Sync again after a change, and after this time at the latest.
    RequeueAfter(Duration),
    /// End: there is neither pod nor sandbox.
    Stop,
}

/// The outcome of an attempt to create a sandbox.
enum StartOutcome {
    /// The sandbox of this id was created.
    Created(String),
    /// No sandbox was created.
    NotCreated(SyncAction),
}

/// The outcome of a report on a ready sandbox.
enum SandboxReport {
    /// The status is written; the sync ends.
    Done(SyncAction),
    /// The sandbox is not ready any more.
    NotReady,
    /// The containers exited, or have to exit now: this is the pod afterwards, or `None` if it is
    /// gone.
    Changed(Option<Arc<Pod>>),
}

/// The outcome of a report that containers run.
enum RunningReport {
    /// The pod afterwards, or `None` if it is gone.
    Written(Option<Arc<Pod>>),
    /// Another pod's status still has the address.
    AddressInUse,
}

impl Worker {
    /// `sandboxes_changed` is notified when a sandbox of the pod `uid` changed.
    pub fn new(
        node: Arc<NodeContext>,
        uid: String,
        pod: watch::Receiver<Option<Arc<Pod>>>,
        sandboxes_changed: Arc<Notify>,
    ) -> Self {
        Self {
            network: node.network.subscribe(),
            node,
            uid,
            pod,
            sandboxes_changed,
            backoff: MIN_BACKOFF,
            last_warning: None,
            running: None,
            last_write: LastWrite::default(),
            containers: ContainerMemory::default(),
        }
    }

    /// Runs until the pod and its sandboxes are gone, or the kubelet shuts down. Returns the UID,
    /// under which the owner knows the worker.
    pub async fn run(mut self) -> String {
        loop {
            let pod = self.latest_pod();
            let action = match self.sync(pod).await {
                Ok(action) => action,
                Err(error) => {
                    tracing::debug!(node = self.node.name(), uid = self.uid, error = %one_line(&error), "failed to reconcile the pod; trying again");
                    SyncAction::RequeueAfter(self.next_backoff())
                }
            };
            let timeout = match action {
                SyncAction::Stop => {
                    self.node.release_reservation(&self.uid).await;
                    return self.uid;
                }
                SyncAction::AwaitChange => Duration::MAX,
                SyncAction::RequeueAfter(pause) => pause,
            };
            if !self.wait_for_change(timeout).await {
                return self.uid;
            }
        }
    }

    /// The newest pod that is known: the watch's, or this worker's last write, which the watch may
    /// not have yet.
    fn latest_pod(&mut self) -> Option<Arc<Pod>> {
        let watched = self.pod.borrow_and_update().clone()?;
        Some(self.last_write.or_newer(watched))
    }

    /// Waits for a change that is not this worker's own write, at most for `timeout`. Returns false
    /// if the kubelet is shutting down.
    async fn wait_for_change(&mut self, timeout: Duration) -> bool {
        let timer = clock::sleep(timeout);
        tokio::pin!(timer);
        loop {
            // `watch` and `Notify` keep what happens between two waits, so losing a wait loses
            // nothing.
            tokio::select! {
                changed = self.pod.changed() => match changed {
                    // The sender is dropped with the kubelet's table of workers.
                    Err(_) => return false,
                    Ok(()) if self.is_own_write() => continue,
                    Ok(()) => {}
                },
                () = self.sandboxes_changed.notified() => {}
                // Cannot fail: the sender is in `self.node`.
                _ = self.network.changed() => {}
                () = &mut timer => {}
            }
            return true;
        }
    }

    /// Returns true if the latest revision of the pod is this worker's own write. Marks it as seen.
    fn is_own_write(&mut self) -> bool {
        let pod = self.pod.borrow_and_update();
        pod.as_ref().is_some_and(|pod| self.last_write.is(pod))
    }

    /// Returns the pause after a failure, and doubles that of the next one.
    fn next_backoff(&mut self) -> Duration {
        let pause = self.backoff;
        self.backoff = (pause * 2).min(MAX_BACKOFF);
        pause
    }

    /// Reconciles the pod until no step is left that can be done now, and records the steps in the
    /// pod's trace.
    async fn sync(&mut self, pod: Option<Arc<Pod>>) -> Result<SyncAction, NodeError> {
        if !self.node.has_lease() {
            // Another instance of the node works for the pod. Once this one has the lease, it syncs
            // again with what the pod is then.
            self.node.wait_for_lease().await;
            return Ok(SyncAction::RequeueAfter(Duration::ZERO));
        }
        let node = self.node.clone();
        let mut trace = SyncTrace::new(node.name(), &self.uid, pod.as_deref());
        let synced = self.run_steps(&mut trace, pod).await;
        trace.end(synced.as_ref().err().map(|error| one_line(error)));
        synced
    }

    /// Plans and carries out steps until one ends the sync, or fails. `pod` and `sandboxes` are the
    /// state that the next step is planned from; each step updates what it changes:
    ///
    /// | step | updates | then |
    /// |---|---|---|
    /// | `Terminate`, `Withdraw`, `Release` | the pod, by a write of its status | plans again |
    /// | `Remove` | the sandboxes | plans again |
    /// | `Run` | the sandboxes | plans again; without a sandbox, ends as [`StartOutcome`] says |
    /// | `Report` | the pod's status | ends; plans again if the sandbox failed or the containers exited |
    /// | `Finish` | deletes the object | ends: the deletion wakes the worker |
    /// | `Rest` | | ends until a change |
    /// | `Forget` | | ends the worker |
    async fn run_steps(
        &mut self,
        trace: &mut SyncTrace<'_>,
        mut pod: Option<Arc<Pod>>,
    ) -> Result<SyncAction, NodeError> {
        let mut sandboxes = self.list_sandboxes().await?;
        // The id of the sandbox that this sync has created: its first report also records an event
        // with its addresses.
        let mut created = None;
        // Sandboxes are not listed again after a write of the status: only this worker creates
        // sandboxes of the pod.
        loop {
            match (plan(pod.as_deref(), &sandboxes), &pod) {
                // The watch has the pod, although a write found it missing, or this sync began
                // without it: the watch's next change wakes this worker.
                (PodStep::Forget, _) if self.pod.borrow().is_some() => {
                    return Ok(SyncAction::AwaitChange);
                }
                (PodStep::Forget, _) => {
                    self.remove_files().await;
                    return Ok(SyncAction::Stop);
                }
                (PodStep::Terminate, Some(current)) => {
                    pod = self.report_end(trace, current, PodRemains::Sandbox).await?;
                }
                (PodStep::Withdraw, Some(current)) if self.runs_containers() => {
                    let status = self.status_without_sandbox(current).await?;
                    pod = self.write_status(trace, current, status).await?;
                }
                (PodStep::Withdraw, Some(current)) => {
                    pod = self.report_creating(trace, current).await?;
                }
                (PodStep::Remove(ids), current) => {
                    self.running = None;
                    let removed = self.remove_sandboxes(trace, &ids).await;
                    self.record_removal(current.as_deref(), &removed);
                    removed?;
                    sandboxes = self.list_sandboxes().await?;
                }
                (PodStep::Release, Some(current)) => {
                    pod = self.report_end(trace, current, PodRemains::Nothing).await?;
                }
                (PodStep::Run, Some(current)) => {
                    self.running = None;
                    match self.start_sandbox(trace, current).await? {
                        StartOutcome::Created(id) => {
                            sandboxes = vec![Sandbox::newly_created(&id, current)];
                            created = Some(id);
                        }
                        StartOutcome::NotCreated(action) => return Ok(action),
                    }
                }
                (PodStep::Report(id), Some(current)) => {
                    let is_new = created.take().is_some_and(|created| created == id);
                    match self.report_sandbox(trace, current, &id, is_new).await? {
                        SandboxReport::Done(action) => return Ok(action),
                        SandboxReport::NotReady => sandboxes = self.list_sandboxes().await?,
                        SandboxReport::Changed(changed) => pod = changed,
                    }
                }
                (PodStep::Finish, Some(current)) => {
                    self.node.release_reservation(&self.uid).await;
                    self.delete_pod(trace, current).await?;
                    return Ok(SyncAction::AwaitChange);
                }
                (PodStep::Rest, _) => {
                    self.node.release_reservation(&self.uid).await;
                    return Ok(SyncAction::AwaitChange);
                }
                // Does not occur: `plan` returns these steps only with a pod.
                (
                    PodStep::Terminate
                    | PodStep::Withdraw
                    | PodStep::Release
                    | PodStep::Run
                    | PodStep::Report(_)
                    | PodStep::Finish,
                    None,
                ) => return Ok(SyncAction::AwaitChange),
            }
        }
    }

    /// Writes that the pod has ended. Its containers are stopped before, if the runtime made them.
    async fn report_end(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        remains: PodRemains,
    ) -> Result<Option<Arc<Pod>>, NodeError> {
        let ended = match self.runs_containers() {
            true => self.end_containers(pod, None).await?,
            false => pod.clone(),
        };
        let status = status::ended(&ended, remains, clock::timestamp());
        self.write_status(trace, pod, status).await
    }

    async fn list_sandboxes(&self) -> Result<Vec<Sandbox>, NodeError> {
        let listed = self.node.runtime.list_of(&self.uid).await;
        listed.map_err(NodeError::runtime("list the pod's sandboxes"))
    }

    /// Writes the status of a pod that runs in the sandbox `id`, and for a new sandbox records an
    /// event with its addresses.
    async fn report_sandbox(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        id: &str,
        is_new: bool,
    ) -> Result<SandboxReport, NodeError> {
        let runtime = &self.node.runtime;
        let ready = match is_new {
            true => runtime.ready_with_attachment(id).await,
            false => {
                let ready = runtime.ready(id).await;
                ready.map(|ready| ready.map(|ready| (ready, None)))
            }
        };
        let ready = ready.map_err(NodeError::runtime("ask for the sandbox's status"))?;
        let Some((ready, attachment)) = ready else {
            return Ok(SandboxReport::NotReady);
        };
        let reported = match self.runs_containers() {
            true => self.sync_containers(trace, pod, id, &ready).await,
            false => self.report_containers(trace, pod, &ready).await,
        };
        // The status comes first: clients wait for it, and not for the event.
        if let Some(text) = attachment {
            let short = id.get(..12).unwrap_or(id);
            let message = format!("{text} in sandbox {short}");
            let events = &self.node.events;
            events.record(&**pod, EventType::Normal, "AddedInterface", "", message);
        }
        reported
    }

    /// Writes the status of the containers in a ready sandbox: they run, until their pod's
    /// annotations say that they exit.
    async fn report_containers(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        ready: &ReadySandbox,
    ) -> Result<SandboxReport, NodeError> {
        let now = clock::timestamp();
        let wait_until = |time: Timestamp| {
            let wait = time.duration_since(now).unsigned_abs();
            SandboxReport::Done(SyncAction::RequeueAfter(wait))
        };
        match exits::containers(pod, ready.created, now) {
            ContainerRun::Running { start, end } => {
                let written = match self.report_running(trace, pod, ready, start, now).await? {
                    RunningReport::Written(written) => written,
                    RunningReport::AddressInUse => {
                        let poll = SyncAction::RequeueAfter(ADDRESS_POLL_INTERVAL);
                        return Ok(SandboxReport::Done(poll));
                    }
                };
                Ok(match end {
                    None => SandboxReport::Done(SyncAction::AwaitChange),
                    Some(end) if end <= now => SandboxReport::Changed(written),
                    Some(end) => wait_until(end),
                })
            }
            ContainerRun::Exit {
                started,
                code,
                restart,
            } => {
                let status = exits::exited(pod, started, code, restart, now);
                if restart.is_some_and(|wait| !wait.is_zero()) {
                    self.record_backoff(pod);
                }
                let written = self.write_status(trace, pod, status).await?;
                tracing::debug!(node = self.node.name(), pod = %pod.key(), uid = self.uid, code, "containers exited");
                Ok(SandboxReport::Changed(written))
            }
            ContainerRun::Waiting(until) => Ok(wait_until(until)),
        }
    }

    fn record_backoff(&self, pod: &Pod) {
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            let message = format!(
                "Back-off restarting failed container {} in pod {}_{}({})",
                container.name,
                pod.name(),
                pod.namespace(),
                pod.uid()
            );
            let events = &self.node.events;
            events.record(pod, EventType::Warning, "BackOff", "", message);
        }
    }

    async fn report_running(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        ready: &ReadySandbox,
        start: ContainerStart,
        now: Timestamp,
    ) -> Result<RunningReport, NodeError> {
        let host = &self.node.machine.ips;
        let status = status::running(pod, ready, start, host, now);
        if let Some(other) = self.node.other_holder(pod, &status) {
            tracing::debug!(node = self.node.name(), pod = %pod.key(), other, "address is still reported as another pod's");
            return Ok(RunningReport::AddressInUse);
        }
        let written = self.write_status(trace, pod, status).await?;
        if self.running.is_none() {
            self.running = Some(self.node.metrics.running());
            self.record_start_duration(pod);
        }
        self.backoff = MIN_BACKOFF;
        self.last_warning = None;
        Ok(RunningReport::Written(written))
    }

    async fn remove_sandboxes(
        &self,
        trace: &mut SyncTrace<'_>,
        ids: &[String],
    ) -> Result<(), NodeError> {
        for id in ids {
            let span = trace.begin("remove sandbox").client();
            let removed = span.around(self.node.runtime.remove(id), rpc_error).await;
            removed.map_err(NodeError::runtime("remove a sandbox"))?;
            tracing::debug!(
                node = self.node.name(),
                uid = self.uid,
                sandbox = id,
                "removed the sandbox"
            );
        }
        self.node.addresses_changed.notify_one();
        Ok(())
    }

    /// Records an event for the removal of the pod's sandboxes, or for its failure.
    fn record_removal(&mut self, pod: Option<&Pod>, removed: &Result<(), NodeError>) {
        match (pod, removed) {
            (None, _) => {}
            (Some(pod), Ok(())) if has_ip(pod) => {
                let message = "Stopped the pod's sandbox; its address is free";
                let events = &self.node.events;
                events.record(pod, EventType::Normal, "Killing", "", message);
            }
            (Some(_), Ok(())) => {}
            (Some(pod), Err(error)) => {
                let message = format!("error killing pod: {}", one_line(error));
                self.record_warning_once(pod, "FailedKillPod", message);
            }
        }
    }

    /// Runs a sandbox for the pod, and keeps the hold of the blocks of `node` until the sandbox
    /// exists. `node` is `None` if the sandbox takes no address of them.
    ///
    /// # Errors
    ///
    /// The outer error: the hold could not be taken. The inner one: the runtime's.
    async fn run_sandbox(
        &self,
        trace: &mut SyncTrace<'_>,
        pod: &Pod,
        node: Option<NodeObject>,
    ) -> Result<Result<String, Status>, NodeError> {
        let _hold = match &node {
            None => None,
            Some(node) => {
                let span = trace.begin("announce");
                let hold = self.node.hold_blocks(node);
                Some(span.around(hold, |e| one_line(e)).await?)
            }
        };
        let span = trace.begin("RunPodSandbox").client();
        let logs = self.runs_containers().then(|| self.pod_dir().logs());
        let run = self.node.runtime.run(pod, logs.as_deref());
        Ok(span.around(run, rpc_error).await)
    }

    /// Creates the pod's sandbox, if the node's network is ready and the pod is admitted. A pod on
    /// the node's own network does not wait for it. The other cases:
    ///
    /// - The network's state is unknown: waits for it.
    /// - The network has a fault: a warning event, and the pod is reported as being created.
    /// - No address is free, but one is about to be: polls.
    /// - The pod is rejected: it is reported as failed.
    /// - The runtime fails: a warning event, the pod is reported as being created, and the worker
    ///   backs off.
    async fn start_sandbox(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
    ) -> Result<StartOutcome, NodeError> {
        let network = self.network.borrow_and_update().clone();
        match network {
            _ if is_host_network(pod) => {}
            NetworkState::Ready => {}
            // Not a fault yet, so there is no event. The next state wakes this worker.
            NetworkState::Unknown => return Ok(StartOutcome::NotCreated(SyncAction::AwaitChange)),
            NetworkState::Fault(fault) => {
                let message = format!("network is not ready: {fault}");
                self.record_warning_once(pod, "NetworkNotReady", message);
                self.report_creating(trace, pod).await?;
                return Ok(StartOutcome::NotCreated(SyncAction::AwaitChange));
            }
        }
        let mut admission = trace.begin("admit");
        let read = async {
            if is_host_network(pod) {
                Ok(None)
            } else {
                self.node.read_uncached().await.map(Some)
            }
        };
        let (verdict, node) = tokio::join!(self.node.admit(pod), read);
        match verdict? {
            AdmissionVerdict::Admit => admission.end(),
            AdmissionVerdict::Wait => {
                admission.fail(|| "no address is free; one is about to be");
                admission.end();
                return Ok(StartOutcome::NotCreated(SyncAction::RequeueAfter(
                    ADDRESS_POLL_INTERVAL,
                )));
            }
            AdmissionVerdict::Reject(rejection) => {
                let status = status::rejected(
                    pod,
                    &self.node.machine.pod_ips,
                    rejection,
                    clock::timestamp(),
                );
                let message = status.message.clone().unwrap_or_default();
                admission.fail(|| message.clone());
                admission.end();
                self.write_status(trace, pod, status).await?;
                self.node.metrics.count_rejection(OUT_OF_POD_IPS);
                let events = &self.node.events;
                events.record(&**pod, EventType::Warning, OUT_OF_POD_IPS, "", message);
                self.node.status_changed.notify_one();
                return Ok(StartOutcome::NotCreated(SyncAction::AwaitChange));
            }
        }
        match self.run_sandbox(trace, pod, node?).await? {
            Ok(id) => {
                tracing::debug!(node = self.node.name(), pod = %pod.key(), uid = self.uid, sandbox = id, "created the sandbox");
                self.node.release_reservation(&self.uid).await;
                Ok(StartOutcome::Created(id))
            }
            Err(error) => {
                let error = rpc_error(&error);
                let message = format!("Failed to create pod sandbox: {error}");
                let events = &self.node.events;
                events.record(
                    &**pod,
                    EventType::Warning,
                    "FailedCreatePodSandBox",
                    "",
                    message,
                );
                let wait = self.next_backoff();
                tracing::warn!(node = self.node.name(), pod = %pod.key(), uid = self.uid, error, retry_in = ?wait, "failed to create the sandbox; trying again");
                self.report_creating(trace, pod).await?;
                Ok(StartOutcome::NotCreated(SyncAction::RequeueAfter(wait)))
            }
        }
    }

    /// Records the time from the pod's creation until it runs, unless it ran before: then it is
    /// reported with an address already, perhaps by an earlier kubelet.
    fn record_start_duration(&self, pod: &Pod) {
        let created = pod.metadata.creation_timestamp.as_ref();
        if let Some(created) = created.filter(|_| !has_ip(pod)) {
            self.node.metrics.observe_start(created.0);
        }
    }

    /// Records a warning event, unless its message is that of the last one.
    fn record_warning_once(&mut self, pod: &Pod, reason: &'static str, message: String) {
        if self.last_warning.as_deref() != Some(&message) {
            let events = &self.node.events;
            events.record(pod, EventType::Warning, reason, "", message.clone());
            self.last_warning = Some(message);
        }
    }

    /// Writes the status of a pod whose sandbox is not there yet.
    async fn report_creating(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
    ) -> Result<Option<Arc<Pod>>, NodeError> {
        let status = status::creating(pod, &self.node.machine.ips, clock::timestamp());
        self.write_status(trace, pod, status).await
    }

    /// Writes the pod's status if it has changed. Returns the pod with the status, or `None` if the
    /// pod is gone.
    async fn write_status(
        &mut self,
        trace: &mut SyncTrace<'_>,
        pod: &Arc<Pod>,
        status: PodStatus,
    ) -> Result<Option<Arc<Pod>>, NodeError> {
        if pod.status.as_ref() == Some(&status) {
            return Ok(Some(pod.clone()));
        }
        let pods = self.node.client.namespaced::<Pod>(pod.namespace());
        let phase = status.phase.as_deref().unwrap_or_default();
        // Only a change of the phase or of the addresses is a step of the trace.
        let before = pod.status.as_ref();
        let is_step = before
            .is_none_or(|before| before.phase != status.phase || before.pod_ips != status.pod_ips);
        let span = match is_step {
            true => {
                let span = trace.begin("status").client();
                span.named(|| format!("status {phase}"))
            }
            false => Span::of(None, ""),
        };
        let desired = Pod {
            status: Some(status),
            ..Pod::clone(pod)
        };
        let begun = WriteBegun::at(self.pod.borrow().as_deref());
        let written = pods.update_status(&desired);
        match span.around(written, ToString::to_string).await {
            Ok(written) => {
                let written = Arc::new(written);
                self.last_write.answered(begun, written.clone());
                Ok(Some(written))
            }
            // The watch event of the deletion wakes this worker.
            Err(error) if error.is_not_found() => Ok(None),
            // Often a conflict: the pod of this sync is stale, and the watch event of the newer one
            // wakes this worker.
            Err(error) => Err(NodeError::api("write the pod's status")(error)),
        }
    }

    /// Deletes the object of a pod whose sandboxes are gone: its address is free.
    async fn delete_pod(&self, trace: &mut SyncTrace<'_>, pod: &Pod) -> Result<(), NodeError> {
        let pods = self.node.client.namespaced::<Pod>(pod.namespace());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            uid: Some(pod.uid().into()),
            ..DeleteParams::default()
        };
        let span = trace.begin("delete").client();
        let deleted = pods.delete(pod.name(), &params);
        match span.around(deleted, ToString::to_string).await {
            // Deleted already, or replaced by a pod of that name with another UID.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(NodeError::api("delete the pod")(error)),
            Ok(_) => Ok(()),
        }
    }
}
