//! One pod on this node: looked at again and again until what is so is what should be.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _,
    core::{Pod, PodStatus},
    jiff::Timestamp,
    pod_ips::{OUT_OF_POD_IPS, is_host_network},
};
use podplane_client::{DeleteParams, events::EventType};
use podplane_telemetry::trace::Span;
use tokio::sync::{Notify, watch};
use tonic::Status;

use super::{
    admission::Verdict,
    metrics::Running,
    node::{NetworkState, Node, NodeError},
    plan::{Step, has_ip, plan},
    runtime::rpc_error,
    status::{self, Remains},
    trace::Steps,
};
use crate::cri::sandboxes::chain;

/// While an address is about to be freed, look again so often.
const SOON: Duration = Duration::from_millis(200);
/// After failures: from here, doubled up to [`MAX_BACKOFF`], which is Kubernetes' own pause between attempts at a sandbox.
const MIN_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Works for one pod, by UID.
#[derive(Debug)]
pub struct Worker {
    node: Arc<Node>,
    uid: String,
    /// The pod as the API server has it; `None` when it is gone.
    pod: watch::Receiver<Option<Arc<Pod>>>,
    /// Something about its sandboxes changed.
    woken: Arc<Notify>,
    /// Whether it can have a network.
    network: watch::Receiver<NetworkState>,
    backoff: Duration,
    /// The fault that the pod was last told of, so that it is told once.
    told: Option<String>,
    /// While its sandbox is ready.
    running: Option<Running>,
}

/// What to do when a look is over.
enum Next {
    /// Wait for a change.
    Rest,
    /// Look again, at the latest then.
    Again(Duration),
    /// The worker is done.
    End,
}

impl Worker {
    /// A worker for the pod `uid` on `node`.
    pub fn new(
        node: Arc<Node>,
        uid: String,
        pod: watch::Receiver<Option<Arc<Pod>>>,
        woken: Arc<Notify>,
    ) -> Self {
        Self {
            network: node.network.subscribe(),
            node,
            uid,
            pod,
            woken,
            backoff: MIN_BACKOFF,
            told: None,
            running: None,
        }
    }

    /// Works until there is neither pod nor sandbox; returns the UID.
    pub async fn run(mut self) -> String {
        loop {
            let pod = self.pod.borrow_and_update().clone();
            let next = match self.sync(pod).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(node = self.node.name(), uid = self.uid, error = %chain(&error), "pod not in order; trying again");
                    Next::Again(self.back_off())
                }
            };
            let pause = match next {
                Next::End => {
                    self.node.settled(&self.uid).await;
                    return self.uid;
                }
                Next::Rest => Duration::MAX,
                Next::Again(pause) => pause,
            };
            // `watch` and `Notify` keep what happens between two waits, so losing a wait loses nothing.
            tokio::select! {
                changed = self.pod.changed() => if changed.is_err() {
                    return self.uid; // The kubelet is ending.
                },
                () = self.woken.notified() => {}
                // The node has this one's sender, and we have the node.
                _ = self.network.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn back_off(&mut self) -> Duration {
        let pause = self.backoff;
        self.backoff = (pause * 2).min(MAX_BACKOFF);
        pause
    }

    /// Takes steps until there is nothing to do at once, as steps of the pod's journey.
    async fn sync(&mut self, pod: Option<Arc<Pod>>) -> Result<Next, NodeError> {
        if !self.node.is_ours() {
            // The pod is another instance's. What is so by then is looked at anew.
            self.node.ours().await;
            return Ok(Next::Again(Duration::ZERO));
        }
        let mut steps = Steps::new(self.node.name(), &self.uid, pod.as_deref());
        let synced = self.take(&mut steps, pod).await;
        steps.end(synced.as_ref().err().map(|error| chain(error)));
        synced
    }

    async fn take(
        &mut self,
        steps: &mut Steps,
        mut pod: Option<Arc<Pod>>,
    ) -> Result<Next, NodeError> {
        loop {
            let listed = self.node.runtime.list_of(&self.uid).await;
            let sandboxes = listed.map_err(NodeError::runtime("list the pod's sandboxes"))?;
            match (plan(pod.as_deref(), &sandboxes), &pod) {
                // The API server has said that it is gone; the change that says so too is on its way.
                (Step::Forget, _) if self.pod.borrow().is_some() => return Ok(Next::Rest),
                (Step::Forget, _) => return Ok(Next::End),
                (Step::Terminate, Some(over)) => {
                    let status = status::ended(over, Remains::Sandbox, Timestamp::now());
                    pod = self.write(steps, over, status).await?;
                }
                (Step::Withdraw, Some(without)) => pod = self.waiting(steps, without).await?,
                (Step::Remove(ids), of) => {
                    self.running = None;
                    let removed = self.remove(steps, &ids).await;
                    self.tell_removal(of.as_deref(), &removed);
                    removed?;
                }
                (Step::Release, Some(over)) => {
                    let status = status::ended(over, Remains::Nothing, Timestamp::now());
                    pod = self.write(steps, over, status).await?;
                }
                (Step::Run, Some(running)) => {
                    self.running = None;
                    if let Some(next) = self.start(steps, running).await? {
                        return Ok(next);
                    }
                }
                (Step::Report(id), Some(reported)) => {
                    let ready = self.node.runtime.ready(&id).await;
                    let ready =
                        ready.map_err(NodeError::runtime("ask for the sandbox's status"))?;
                    // Stopped since it was listed: look again.
                    let Some(ready) = ready else { continue };
                    let host = &self.node.machine.ips;
                    let status = status::running(reported, &ready, host, Timestamp::now());
                    if let Some(other) = self.node.other_holder(reported, &status) {
                        tracing::debug!(node = self.node.name(), pod = %reported.key(), other, "address is still reported as another pod's");
                        return Ok(Next::Again(SOON));
                    }
                    self.write(steps, reported, status).await?;
                    if self.running.is_none() {
                        self.running = Some(self.node.metrics.running());
                        self.note_start(reported);
                    }
                    self.backoff = MIN_BACKOFF;
                    self.told = None;
                    return Ok(Next::Rest);
                }
                (Step::Finish, Some(deleted)) => {
                    self.node.settled(&self.uid).await;
                    self.finish(steps, deleted).await?;
                    return Ok(Next::Rest);
                }
                (Step::Rest, _) => {
                    self.node.settled(&self.uid).await;
                    return Ok(Next::Rest);
                }
                // These are planned only for a pod that is there.
                (
                    Step::Terminate
                    | Step::Withdraw
                    | Step::Release
                    | Step::Run
                    | Step::Report(_)
                    | Step::Finish,
                    None,
                ) => return Ok(Next::Rest),
            }
        }
    }

    async fn remove(&self, steps: &mut Steps, ids: &[String]) -> Result<(), NodeError> {
        for id in ids {
            let span = steps.begin("remove sandbox").client();
            let removed = span.around(self.node.runtime.remove(id), rpc_error).await;
            removed.map_err(NodeError::runtime("remove a sandbox"))?;
            tracing::debug!(
                node = self.node.name(),
                uid = self.uid,
                sandbox = id,
                "removed"
            );
        }
        self.node.changed.notify_one();
        Ok(())
    }

    /// Tells people that the pod's sandboxes are gone, or why they are not.
    fn tell_removal(&mut self, pod: Option<&Pod>, removed: &Result<(), NodeError>) {
        match (pod, removed) {
            (None, _) => {}
            (Some(pod), Ok(())) if has_ip(pod) => {
                let message = "Stopped the pod's sandbox; its address is free";
                let events = &self.node.events;
                events.record(pod, EventType::Normal, "Killing", "", message);
            }
            (Some(_), Ok(())) => {}
            (Some(pod), Err(error)) => {
                let message = format!("error killing pod: {}", chain(error));
                self.tell_once(pod, "FailedKillPod", message);
            }
        }
    }

    /// Runs a sandbox for the pod, while its node holds its blocks.
    async fn make(
        &self,
        steps: &mut Steps,
        pod: &Pod,
    ) -> Result<Result<String, Status>, NodeError> {
        let _announced = if is_host_network(pod) {
            None
        } else {
            let announcing = steps.begin("announce");
            Some(
                announcing
                    .around(self.node.announce(), |e| chain(e))
                    .await?,
            )
        };
        let span = steps.begin("RunPodSandbox").client();
        Ok(span.around(self.node.runtime.run(pod), rpc_error).await)
    }

    /// Admits the pod and runs its sandbox; `None` to look at once.
    async fn start(
        &mut self,
        steps: &mut Steps,
        pod: &Arc<Pod>,
    ) -> Result<Option<Next>, NodeError> {
        let network = self.network.borrow_and_update().clone();
        match network {
            _ if is_host_network(pod) => {}
            NetworkState::Ready => {}
            // Too early to worry anybody.
            NetworkState::Unknown => return Ok(Some(Next::Rest)),
            NetworkState::Fault(fault) => {
                let message = format!("network is not ready: {fault}");
                self.tell_once(pod, "NetworkNotReady", message);
                self.waiting(steps, pod).await?;
                return Ok(Some(Next::Rest));
            }
        }
        let mut admission = steps.begin("admit");
        match self.node.admit(pod).await? {
            Verdict::Admit => admission.end(),
            Verdict::Wait => {
                admission.fail("no address is free; one is about to be");
                admission.end();
                return Ok(Some(Next::Again(SOON)));
            }
            Verdict::Reject(rejection) => {
                let status = status::rejected(pod, rejection, Timestamp::now());
                let message = status.message.clone().unwrap_or_default();
                admission.fail(message.clone());
                admission.end();
                self.write(steps, pod, status).await?;
                self.node.metrics.rejected(OUT_OF_POD_IPS);
                let events = &self.node.events;
                events.record(&**pod, EventType::Warning, OUT_OF_POD_IPS, "", message);
                self.node.changed.notify_one();
                return Ok(Some(Next::Rest));
            }
        }
        match self.make(steps, pod).await? {
            Ok(id) => {
                tracing::debug!(node = self.node.name(), pod = %pod.key(), sandbox = id, "sandbox is ready");
                self.node.settled(&self.uid).await;
                self.tell_attachment(pod, &id).await;
                Ok(None)
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
                tracing::info!(node = self.node.name(), pod = %pod.key(), error, "sandbox not made; trying again");
                self.waiting(steps, pod).await?;
                Ok(Some(Next::Again(self.back_off())))
            }
        }
    }

    /// Tells people which address the pod has got; it is no fault if that cannot be told.
    async fn tell_attachment(&self, pod: &Pod, id: &str) {
        if let Ok(Some(text)) = self.node.runtime.attachment(id).await {
            let short = id.get(..12).unwrap_or(id);
            let message = format!("{text} in sandbox {short}");
            let events = &self.node.events;
            events.record(pod, EventType::Normal, "AddedInterface", "", message);
        }
    }

    /// Notes how long the pod took to run; one that ran before, under an earlier kubelet, is not starting.
    fn note_start(&self, pod: &Pod) {
        let created = pod.metadata.creation_timestamp.as_ref();
        if let Some(created) = created.filter(|_| !has_ip(pod)) {
            self.node.metrics.started(created.0);
        }
    }

    fn tell_once(&mut self, pod: &Pod, reason: &'static str, message: String) {
        if self.told.as_deref() != Some(&message) {
            let events = &self.node.events;
            events.record(pod, EventType::Warning, reason, "", message.clone());
            self.told = Some(message);
        }
    }

    /// Reports that the pod is being created.
    async fn waiting(
        &self,
        steps: &mut Steps,
        pod: &Arc<Pod>,
    ) -> Result<Option<Arc<Pod>>, NodeError> {
        let status = status::creating(pod, &self.node.machine.ips, Timestamp::now());
        self.write(steps, pod, status).await
    }

    /// Writes the pod's status if it is not so already, and returns the pod as it is then; `None` if it is gone.
    async fn write(
        &self,
        steps: &mut Steps,
        pod: &Arc<Pod>,
        status: PodStatus,
    ) -> Result<Option<Arc<Pod>>, NodeError> {
        if pod.status.as_ref() == Some(&status) {
            return Ok(Some(pod.clone()));
        }
        let pods = self.node.client.namespaced::<Pod>(pod.namespace());
        let phase = status.phase.as_deref().unwrap_or_default();
        // What is written again, or in another way, takes the pod no further.
        let before = pod.status.as_ref();
        let is_step = before
            .is_none_or(|before| before.phase != status.phase || before.pod_ips != status.pod_ips);
        let span = match is_step {
            true => steps.begin(format!("status {phase}")).client(),
            false => Span::of(None, ""),
        };
        let wanted = Pod {
            status: Some(status),
            ..Pod::clone(pod)
        };
        let written = pods.update_status(&wanted);
        match span.around(written, ToString::to_string).await {
            Ok(written) => Ok(Some(Arc::new(written))),
            // The change that says so will wake us.
            Err(error) if error.is_not_found() => Ok(None),
            // A conflict among others: the pod that we looked at is old, the new one is on its way and wakes us.
            Err(error) => Err(NodeError::api("write the pod's status")(error)),
        }
    }

    /// Lets the API server forget a pod that has left this node; its address is free by now.
    async fn finish(&self, steps: &mut Steps, pod: &Pod) -> Result<(), NodeError> {
        let pods = self.node.client.namespaced::<Pod>(pod.namespace());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            uid: Some(pod.uid().into()),
            ..DeleteParams::default()
        };
        let span = steps.begin("delete").client();
        let deleted = pods.delete(pod.name(), &params);
        match span.around(deleted, ToString::to_string).await {
            // Gone, or another pod of that name: either way it is not there any more.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(NodeError::api("delete the pod")(error)),
            Ok(_) => Ok(()),
        }
    }
}
