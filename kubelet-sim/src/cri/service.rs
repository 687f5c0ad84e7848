//! `runtime.v1.RuntimeService` over [`NodeSandboxes`].

use std::{collections::HashMap, sync::Arc};

use podplane_error_chain::one_line;
use podplane_host::task;
use podplane_proto::cri::{self, ContainerEventType, runtime_service_server::RuntimeService};
use podplane_service_runtime::trace::Span;
use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status};

use super::{
    containers::{ContainerError, EventStream, NodeContainers},
    record::{SandboxId, SandboxRecord, SandboxState},
    sandbox_wire::matches,
    sandboxes::{NodeSandboxes, SandboxError, SandboxSpec, now_nanos},
    streaming::{StreamRequest, StreamUrls},
    trace::{self, JourneyPart},
};
use crate::{PodCidrs, pod_cidrs::PodCidrsError};

/// The version of CRI's protocol between kubelet and runtime, the same string since its beginning.
const KUBE_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "podplane";
const NO_CONTAINERS: &str = "podplane runs sandboxes without containers (--containers=none)";
const NO_METRICS: &str = "podplane has no metrics of sandboxes";

/// The runtime of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CriRuntime {
    sandboxes: Arc<NodeSandboxes>,
    /// `None` without containers.
    containers: Option<Arc<NodeContainers>>,
    /// Permits for running plugins, over all nodes of the process: the kernel serialises most of
    /// their work, so that more of them would only wait.
    slots: Arc<Semaphore>,
    /// `None` without processes.
    urls: Option<Arc<StreamUrls>>,
}

impl CriRuntime {
    /// A runtime that runs blocking work when one of `slots` is free, and streams at `urls`.
    pub fn new(
        sandboxes: Arc<NodeSandboxes>,
        containers: Option<Arc<NodeContainers>>,
        slots: Arc<Semaphore>,
        urls: Option<Arc<StreamUrls>>,
    ) -> Self {
        Self {
            sandboxes,
            containers,
            slots,
            urls,
        }
    }

    /// Does work on a thread of its own. It goes on if the caller goes away: a half-made sandbox is
    /// worse than one that nobody waits for.
    async fn run<T: Send + 'static, E>(
        &self,
        mut step: Span,
        work: impl FnOnce(&NodeSandboxes) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Status>
    where
        E: std::error::Error + Send + 'static,
        Status: for<'e> From<&'e E>,
    {
        let waiting = step.child("wait for a slot");
        let waits = self.slots.available_permits() == 0;
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.map_err(|_| Status::unavailable("the runtime is stopping"))?;
        if waits {
            waiting.end();
        }
        let sandboxes = self.sandboxes.clone();
        let work = move || {
            let _slot = slot;
            let entered = step.context().attach();
            let done = work(&sandboxes);
            drop(entered);
            if let Err(error) = &done {
                step.fail(|| one_line(error));
            }
            step.end();
            done
        };
        match task::spawn_blocking(work).await {
            Ok(done) => done.map_err(|error| (&error).into()),
            Err(panic) => Err(Status::internal(panic.to_string())),
        }
    }
}

impl CriRuntime {
    /// The containers, for a call that needs some.
    fn containers(&self) -> Result<&Arc<NodeContainers>, Status> {
        let none = || Status::unimplemented(NO_CONTAINERS);
        self.containers.as_ref().ok_or_else(none)
    }

    /// The containers, for a call about one.
    fn containers_with(&self, id: &str) -> Result<&Arc<NodeContainers>, Status> {
        let missing = || no_such_container(id);
        self.containers.as_ref().ok_or_else(missing)
    }

    /// A URL for a request; `None` if nothing is streamed, since no process runs.
    fn stream_url(&self, request: StreamRequest) -> Result<String, Status> {
        let none = || Status::unimplemented("nothing is streamed without --containers=process");
        let url = self.urls.as_ref().ok_or_else(none)?.url(request);
        url.map_err(|error| Status::resource_exhausted(error.to_string()))
    }

    /// The sandbox of an id, or of a unique prefix of it.
    fn sandbox(&self, id: &str) -> Result<Arc<SandboxRecord>, Status> {
        self.sandboxes.get(id).map_err(|error| (&error).into())
    }

    /// Sends events about a sandbox, if there are any.
    fn notify(&self, id: &SandboxId, kinds: &[ContainerEventType]) {
        if let Some(containers) = &self.containers {
            containers.notify_sandbox(id, kinds);
        }
    }

    /// Begins the span of a call for a pod.
    fn begin(&self, uid: &str, step: (JourneyPart, &'static str)) -> Span {
        trace::begin(uid, step, self.sandboxes.node()).server()
    }

    /// Begins the span of a call about a sandbox; an empty one if there is no such sandbox.
    fn begin_of(&self, id: &str, name: &'static str) -> Span {
        match self.sandboxes.get(id) {
            Ok(record) => self.begin(&record.metadata.uid, (JourneyPart::Deletion, name)),
            Err(_) => Span::of(None, ""),
        }
    }
}

/// The status of an error. CRI names no code but NotFound. Other runtimes answer Unknown for the
/// rest, and people see that in events.
impl From<&SandboxError> for Status {
    fn from(error: &SandboxError) -> Self {
        let code = match error {
            SandboxError::NotFound(_) => Code::NotFound,
            SandboxError::Exists { .. } => Code::AlreadyExists,
            SandboxError::NotReady(_) => Code::FailedPrecondition,
            SandboxError::Attach { .. }
            | SandboxError::Detach { .. }
            | SandboxError::Disk { .. } => Code::Unknown,
        };
        Self::new(code, one_line(error).to_string())
    }
}

fn no_such_container(id: &str) -> Status {
    Status::from(&ContainerError::NotFound(id.to_owned()))
}

fn condition(kind: &str, fault: Option<(&str, String)>) -> cri::RuntimeCondition {
    let status = fault.is_none();
    let (reason, message) = fault.unwrap_or_default();
    cri::RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
    }
}

#[tonic::async_trait]
impl RuntimeService for CriRuntime {
    async fn version(
        &self,
        _: Request<cri::VersionRequest>,
    ) -> Result<Response<cri::VersionResponse>, Status> {
        Ok(Response::new(cri::VersionResponse {
            version: KUBE_API_VERSION.to_owned(),
            runtime_name: RUNTIME_NAME.to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn status(
        &self,
        request: Request<cri::StatusRequest>,
    ) -> Result<Response<cri::StatusResponse>, Status> {
        let network = self.sandboxes.network_ready();
        let fault = network.as_ref().err().map(|error| {
            let message = format!(
                "Network plugin returns error: cni plugin not initialized: {}",
                one_line(error)
            );
            ("NetworkPluginNotReady", message)
        });
        let conditions = vec![
            condition("RuntimeReady", None),
            condition("NetworkReady", fault),
        ];
        let mut info = HashMap::new();
        if request.get_ref().verbose {
            let sandboxes = self.sandboxes.list().len();
            info.insert(
                "sandboxes".to_owned(),
                serde_json::json!(sandboxes).to_string(),
            );
        }
        Ok(Response::new(cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            info,
            ..cri::StatusResponse::default()
        }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<cri::UpdateRuntimeConfigResponse>, Status> {
        let config = request
            .into_inner()
            .runtime_config
            .and_then(|config| config.network_config);
        let pod_cidr = config.unwrap_or_default().pod_cidr;
        // A client without a podCIDR sends an empty one.
        if !pod_cidr.is_empty() {
            let cidrs: PodCidrs = pod_cidr.parse().map_err(|error: PodCidrsError| {
                Status::invalid_argument(format!(
                    "runtime_config.network_config.pod_cidr: {}",
                    one_line(&error)
                ))
            })?;
            let of_no_pod = Span::of(None, "");
            self.run(of_no_pod, move |sandboxes| sandboxes.configure(&cidrs))
                .await?;
        }
        Ok(Response::new(cri::UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Result<Response<cri::RunPodSandboxResponse>, Status> {
        let spec = SandboxSpec::try_from(request.into_inner())?;
        if let Some(path) = spec.sysctls.keys().next()
            && !self.sandboxes.has_namespaces()
        {
            return Err(Status::invalid_argument(format!(
                "config.linux.sysctls: {path} cannot be set: sandboxes of this node have addresses \
                 and no network namespace (--network ledger)"
            )));
        }
        let step = self.begin(&spec.metadata.uid, (JourneyPart::Creation, "RunPodSandbox"));
        let id = self
            .run(step, move |sandboxes| sandboxes.run(&spec))
            .await?;
        let kinds = [
            ContainerEventType::ContainerCreatedEvent,
            ContainerEventType::ContainerStartedEvent,
        ];
        self.notify(&id, &kinds);
        Ok(Response::new(cri::RunPodSandboxResponse {
            pod_sandbox_id: id.into(),
        }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Result<Response<cri::StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let step = self.begin_of(&id, "StopPodSandbox");
        let sandbox = self.sandboxes.get(&id).ok();
        match self.containers.clone() {
            Some(containers) => {
                self.run(step, move |_| containers.stop_sandbox(&id))
                    .await?
            }
            None => self.run(step, move |sandboxes| sandboxes.stop(&id)).await?,
        }
        if let Some(sandbox) = sandbox {
            self.notify(&sandbox.id, &[ContainerEventType::ContainerStoppedEvent]);
        }
        Ok(Response::new(cri::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Result<Response<cri::RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let step = self.begin_of(&id, "RemovePodSandbox");
        let sandbox = self.sandboxes.get(&id).ok();
        match self.containers.clone() {
            Some(containers) => {
                self.run(step, move |_| containers.remove_sandbox(&id))
                    .await?;
            }
            None => {
                self.run(step, move |sandboxes| sandboxes.remove(&id))
                    .await?;
            }
        }
        if let Some(sandbox) = sandbox {
            self.notify(&sandbox.id, &[ContainerEventType::ContainerDeletedEvent]);
        }
        Ok(Response::new(cri::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Result<Response<cri::PodSandboxStatusResponse>, Status> {
        let cri::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose,
        } = request.into_inner();
        let record = self.sandbox(&pod_sandbox_id)?;
        let mut info = HashMap::new();
        if verbose {
            let described = serde_json::to_value(&*record);
            let mut described = described.map_err(|error| Status::internal(error.to_string()))?;
            described["cniResult"] = self.sandboxes.cni_result(&record).unwrap_or_default();
            info.insert("info".to_owned(), described.to_string());
        }
        Ok(Response::new(cri::PodSandboxStatusResponse {
            status: Some((&*record).into()),
            info,
            containers_statuses: match &self.containers {
                Some(containers) => containers.statuses(&record.id),
                None => Vec::new(),
            },
            timestamp: now_nanos(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Result<Response<cri::ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let records = self.sandboxes.list();
        let matching = records.iter().filter(|record| matches(record, &filter));
        let items = matching.map(|record| (&**record).into()).collect();
        Ok(Response::new(cri::ListPodSandboxResponse { items }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Result<Response<cri::CreateContainerResponse>, Status> {
        self.containers()?.call_create(request.into_inner()).await
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Result<Response<cri::StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.containers_with(&id)?.call_start(id).await
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Result<Response<cri::StopContainerResponse>, Status> {
        match &self.containers {
            Some(containers) => containers.call_stop(request.into_inner()).await,
            // CRI: stopping a stopped container succeeds, and a missing one counts as stopped.
            None => Ok(Response::new(cri::StopContainerResponse {})),
        }
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Result<Response<cri::RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        match &self.containers {
            Some(containers) => containers.call_remove(id).await,
            None => Ok(Response::new(cri::RemoveContainerResponse {})),
        }
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        Ok(match &self.containers {
            Some(containers) => containers.call_list(request.into_inner()),
            None => Response::new(Default::default()),
        })
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Result<Response<cri::ContainerStatusResponse>, Status> {
        let request = request.into_inner();
        self.containers_with(&request.container_id)?
            .call_status(&request)
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Result<Response<cri::UpdateContainerResourcesResponse>, Status> {
        let request = request.into_inner();
        let containers = self.containers_with(&request.container_id)?;
        containers.call_update(request).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Result<Response<cri::ReopenContainerLogResponse>, Status> {
        let id = request.into_inner().container_id;
        self.containers_with(&id)?.call_reopen_log(id).await
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Result<Response<cri::ExecSyncResponse>, Status> {
        self.containers()?
            .call_exec_sync(request.into_inner())
            .await
    }

    async fn exec(
        &self,
        request: Request<cri::ExecRequest>,
    ) -> Result<Response<cri::ExecResponse>, Status> {
        let containers = self.containers.as_ref().ok_or_else(|| {
            Status::unimplemented(format!(
                "{NO_CONTAINERS}: there is nothing to exec in; podplane exec runs a program of the \
                 host in a pod's namespace"
            ))
        })?;
        let request = containers.exec_request(request.into_inner())?;
        let url = self.stream_url(request)?;
        Ok(Response::new(cri::ExecResponse { url }))
    }

    async fn attach(
        &self,
        request: Request<cri::AttachRequest>,
    ) -> Result<Response<cri::AttachResponse>, Status> {
        let request = self.containers()?.attach_request(&request.into_inner())?;
        let url = self.stream_url(request)?;
        Ok(Response::new(cri::AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> Result<Response<cri::PortForwardResponse>, Status> {
        if self.urls.is_none() {
            return Err(Status::unimplemented(
                "podplane runs no process in sandboxes: no port answers",
            ));
        }
        let record = self.sandbox(&request.get_ref().pod_sandbox_id)?;
        if record.state != SandboxState::Ready {
            return Err((&SandboxError::NotReady(record.id.clone())).into());
        }
        if record.attached().is_none() {
            return Err(Status::failed_precondition(
                "the sandbox is in its node's network, whose ports are not forwarded",
            ));
        }
        let url = self.stream_url(StreamRequest::PortForward(record))?;
        Ok(Response::new(cri::PortForwardResponse { url }))
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Result<Response<cri::ContainerStatsResponse>, Status> {
        let id = request.into_inner().container_id;
        self.containers_with(&id)?.call_stats(&id)
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Result<Response<cri::ListContainerStatsResponse>, Status> {
        Ok(match &self.containers {
            Some(containers) => containers.call_list_stats(request.into_inner()),
            None => Response::new(Default::default()),
        })
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Result<Response<cri::PodSandboxStatsResponse>, Status> {
        let containers = self.containers()?;
        let record = self.sandbox(&request.get_ref().pod_sandbox_id)?;
        Ok(Response::new(cri::PodSandboxStatsResponse {
            stats: Some(containers.sandbox_stats(&record)),
        }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Result<Response<cri::ListPodSandboxStatsResponse>, Status> {
        let Some(containers) = &self.containers else {
            return Ok(Response::new(Default::default()));
        };
        let cri::PodSandboxStatsFilter { id, label_selector } =
            request.into_inner().filter.unwrap_or_default();
        let filter = cri::PodSandboxFilter {
            id,
            state: Some(cri::PodSandboxStateValue {
                state: cri::PodSandboxState::SandboxReady.into(),
            }),
            label_selector,
        };
        let records = self.sandboxes.list();
        let matching = records.iter().filter(|record| matches(record, &filter));
        let stats = matching.map(|record| containers.sandbox_stats(record));
        Ok(Response::new(cri::ListPodSandboxStatsResponse {
            stats: stats.collect(),
        }))
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Result<Response<cri::CheckpointContainerResponse>, Status> {
        let id = &request.get_ref().container_id;
        self.containers_with(id)?.refuse_entry(id, "checkpoint")
    }

    type GetContainerEventsStream = EventStream;

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Result<Response<EventStream>, Status> {
        // Without containers there are no events. Clients fall back to listing.
        Ok(self.containers()?.call_events())
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Result<Response<cri::ListMetricDescriptorsResponse>, Status> {
        Err(Status::unimplemented(NO_METRICS))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Result<Response<cri::ListPodSandboxMetricsResponse>, Status> {
        Err(Status::unimplemented(NO_METRICS))
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> Result<Response<cri::RuntimeConfigResponse>, Status> {
        Ok(Response::new(cri::RuntimeConfigResponse::default()))
    }
}
