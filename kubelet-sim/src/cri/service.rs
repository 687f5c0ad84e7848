//! `runtime.v1.RuntimeService` over [`NodeSandboxes`].

use std::{collections::HashMap, sync::Arc};

use podplane_error_chain::one_line;
use podplane_host::task;
use podplane_proto::cri::{self, runtime_service_server::RuntimeService};
use podplane_service_runtime::trace::Span;
use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status};

use super::{
    capabilities,
    record::{Dns, SandboxMetadata, SandboxRecord, SandboxState},
    sandboxes::{NetworkMode, NodeSandboxes, SandboxError, SandboxSpec},
    sysctls,
    trace::{self, JourneyPart},
};
use crate::{PodCidrs, pod_cidrs::PodCidrsError};

/// The version of CRI's protocol between kubelet and runtime, the same string since its beginning.
const KUBE_API_VERSION: &str = "0.1.0";
const RUNTIME_NAME: &str = "podplane";
const NO_CONTAINERS: &str = "podplane runs sandboxes without containers";
const NO_METRICS: &str = "podplane has no metrics of sandboxes";

/// The runtime of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CriRuntime {
    sandboxes: Arc<NodeSandboxes>,
    /// Permits for running plugins, over all nodes of the process: the kernel serialises most of
    /// their work, so that more of them would only wait.
    slots: Arc<Semaphore>,
}

impl CriRuntime {
    /// A runtime that runs blocking work when one of `slots` is free.
    pub fn new(sandboxes: Arc<NodeSandboxes>, slots: Arc<Semaphore>) -> Self {
        Self { sandboxes, slots }
    }

    /// Does work on a thread of its own. It goes on if the caller goes away: a half-made sandbox is
    /// worse than one that nobody waits for.
    async fn run<T: Send + 'static>(
        &self,
        mut step: Span,
        work: impl FnOnce(&NodeSandboxes) -> Result<T, SandboxError> + Send + 'static,
    ) -> Result<T, Status> {
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
            Ok(done) => done.map_err(|error| status(&error)),
            Err(panic) => Err(Status::internal(panic.to_string())),
        }
    }
}

impl CriRuntime {
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
fn status(error: &SandboxError) -> Status {
    let code = match error {
        SandboxError::NotFound(_) => Code::NotFound,
        SandboxError::Exists { .. } => Code::AlreadyExists,
        SandboxError::Attach { .. } | SandboxError::Detach { .. } | SandboxError::Disk { .. } => {
            Code::Unknown
        }
    };
    Status::new(code, one_line(error))
}

fn no_such_container(id: &str) -> Status {
    Status::not_found(format!(
        "an error occurred when try to find container {id:?}: not found"
    ))
}

impl TryFrom<cri::RunPodSandboxRequest> for SandboxSpec {
    type Error = Status;

    fn try_from(request: cri::RunPodSandboxRequest) -> Result<Self, Status> {
        let missing = |field: &str| Status::invalid_argument(format!("{field} is missing"));
        let config = request.config.ok_or_else(|| missing("config"))?;
        let metadata = config.metadata.ok_or_else(|| missing("config.metadata"))?;
        let cri::PodSandboxMetadata {
            name,
            uid,
            namespace,
            attempt,
        } = metadata;
        for (field, value) in [("name", &name), ("uid", &uid), ("namespace", &namespace)] {
            if value.is_empty() {
                return Err(missing(&format!("config.metadata.{field}")));
            }
            // These fields become CNI_ARGS, which cannot quote.
            if value.contains(['=', ';']) || value.contains(char::is_control) {
                return Err(Status::invalid_argument(format!(
                    "config.metadata.{field} {value:?} has a character that CNI_ARGS cannot carry"
                )));
            }
        }
        if !request.runtime_handler.is_empty() {
            return Err(Status::invalid_argument(format!(
                "failed to get sandbox runtime: no runtime for {:?} is configured",
                request.runtime_handler
            )));
        }
        let linux = config.linux.unwrap_or_default();
        let context = linux.security_context.unwrap_or_default();
        let options = context.namespace_options;
        let userns = options.as_ref().and_then(|o| o.userns_options.as_ref());
        if userns.is_some_and(|userns| userns.mode() == cri::NamespaceMode::Pod) {
            return Err(Status::invalid_argument(
                "config.linux.security_context.namespace_options.userns_options: a sandbox cannot \
                 have a user namespace of its own; set hostUsers of the pod to true, or leave it out",
            ));
        }
        let network = match options.map(|options| options.network()) {
            None | Some(cri::NamespaceMode::Pod) => NetworkMode::Pod,
            Some(cri::NamespaceMode::Node) => NetworkMode::Node,
            Some(mode @ (cri::NamespaceMode::Container | cri::NamespaceMode::Target)) => {
                return Err(Status::invalid_argument(format!(
                    "a sandbox cannot have its network in mode {}",
                    mode.as_str_name()
                )));
            }
        };
        let sysctls = sysctls::checked(linux.sysctls)?;
        if let (NetworkMode::Node, Some(path)) = (network, sysctls.keys().next()) {
            return Err(Status::invalid_argument(format!(
                "config.linux.sysctls: {path} cannot be set for a sandbox in its node's network, \
                 since it would be set for the whole node"
            )));
        }
        let annotations = config.annotations.into_iter().collect();
        let dns = config.dns_config.map(dns).transpose()?;
        let dns = dns.filter(|dns| *dns != Dns::default());
        let runtime_config = capabilities::of(capabilities::CapabilitySource {
            ports: &config.port_mappings,
            annotations: &annotations,
            dns: dns.as_ref(),
            cgroup_parent: &linux.cgroup_parent,
        })?;
        Ok(Self {
            metadata: SandboxMetadata {
                name,
                namespace,
                uid,
                attempt,
            },
            labels: config.labels.into_iter().collect(),
            annotations,
            runtime_handler: request.runtime_handler,
            hostname: hostname(config.hostname)?,
            dns,
            runtime_config,
            sysctls,
            network,
        })
    }
}

/// The host name, if it is valid.
fn hostname(name: String) -> Result<String, Status> {
    // The kernel takes any 64 bytes.
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.len() <= 64 && name.chars().all(is_allowed) {
        return Ok(name);
    }
    Err(Status::invalid_argument(format!(
        "config.hostname: invalid host name {name:?}: must be at most 64 letters, digits, '-' and '.'"
    )))
}

/// The resolver's configuration, if all entries are single words, as they become words of a file.
fn dns(config: cri::DnsConfig) -> Result<Dns, Status> {
    let cri::DnsConfig {
        servers,
        searches,
        options,
    } = config;
    for (field, words) in [
        ("servers", &servers),
        ("searches", &searches),
        ("options", &options),
    ] {
        let is_word = |text: &&String| !text.is_empty() && !text.contains(char::is_whitespace);
        if let Some(bad) = words.iter().find(|text| !is_word(text)) {
            return Err(Status::invalid_argument(format!(
                "config.dns_config.{field}: invalid entry {bad:?}: must be one word"
            )));
        }
    }
    Ok(Dns {
        servers,
        searches,
        options,
    })
}

fn wire_state(state: SandboxState) -> cri::PodSandboxState {
    match state {
        SandboxState::Ready => cri::PodSandboxState::SandboxReady,
        SandboxState::Creating | SandboxState::NotReady => cri::PodSandboxState::SandboxNotready,
    }
}

impl From<SandboxMetadata> for cri::PodSandboxMetadata {
    fn from(metadata: SandboxMetadata) -> Self {
        let SandboxMetadata {
            name,
            namespace,
            uid,
            attempt,
        } = metadata;
        Self {
            name,
            uid,
            namespace,
            attempt,
        }
    }
}

impl From<&SandboxRecord> for cri::PodSandbox {
    fn from(record: &SandboxRecord) -> Self {
        Self {
            state: wire_state(record.state).into(),
            id: record.id.clone().into(),
            metadata: Some(record.metadata.clone().into()),
            created_at: record.created_at,
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
            runtime_handler: record.runtime_handler.clone(),
        }
    }
}

impl From<&SandboxRecord> for cri::PodSandboxStatus {
    fn from(record: &SandboxRecord) -> Self {
        let mode = match record.network {
            Some(_) => cri::NamespaceMode::Pod,
            None => cri::NamespaceMode::Node,
        };
        let mut ips = record
            .network
            .iter()
            .flat_map(|network| &network.ips)
            .map(ToString::to_string);
        let network = cri::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| cri::PodIp { ip }).collect(),
        };
        let options = cri::NamespaceOption {
            network: mode.into(),
            ..cri::NamespaceOption::default()
        };
        Self {
            state: wire_state(record.state).into(),
            id: record.id.clone().into(),
            metadata: Some(record.metadata.clone().into()),
            created_at: record.created_at,
            network: Some(network),
            linux: Some(cri::LinuxPodSandboxStatus {
                namespaces: Some(cri::Namespace {
                    options: Some(options),
                }),
            }),
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
            runtime_handler: record.runtime_handler.clone(),
        }
    }
}

fn matches(record: &SandboxRecord, filter: &cri::PodSandboxFilter) -> bool {
    let cri::PodSandboxFilter {
        id,
        state,
        label_selector,
    } = filter;
    let has = |(key, value): (&String, &String)| record.labels.get(key) == Some(value);
    record.id.as_str().starts_with(id)
        && state.is_none_or(|state| state.state() == wire_state(record.state))
        && label_selector.iter().all(has)
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
        self.run(step, move |sandboxes| sandboxes.stop(&id)).await?;
        Ok(Response::new(cri::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Result<Response<cri::RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let step = self.begin_of(&id, "RemovePodSandbox");
        self.run(step, move |sandboxes| sandboxes.remove(&id))
            .await?;
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
        let record = self
            .sandboxes
            .get(&pod_sandbox_id)
            .map_err(|error| status(&error))?;
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
            ..cri::PodSandboxStatusResponse::default()
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
        _: Request<cri::CreateContainerRequest>,
    ) -> Result<Response<cri::CreateContainerResponse>, Status> {
        Err(Status::unimplemented(NO_CONTAINERS))
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Result<Response<cri::StartContainerResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    async fn stop_container(
        &self,
        _: Request<cri::StopContainerRequest>,
    ) -> Result<Response<cri::StopContainerResponse>, Status> {
        // CRI: stopping a stopped container succeeds, and a missing container counts as stopped.
        Ok(Response::new(cri::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        _: Request<cri::RemoveContainerRequest>,
    ) -> Result<Response<cri::RemoveContainerResponse>, Status> {
        Ok(Response::new(cri::RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        _: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        Ok(Response::new(cri::ListContainersResponse::default()))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Result<Response<cri::ContainerStatusResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Result<Response<cri::UpdateContainerResourcesResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Result<Response<cri::ReopenContainerLogResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    async fn exec_sync(
        &self,
        _: Request<cri::ExecSyncRequest>,
    ) -> Result<Response<cri::ExecSyncResponse>, Status> {
        Err(Status::unimplemented(format!(
            "{NO_CONTAINERS}: there is nothing to exec in"
        )))
    }

    async fn exec(
        &self,
        _: Request<cri::ExecRequest>,
    ) -> Result<Response<cri::ExecResponse>, Status> {
        Err(Status::unimplemented(format!(
            "{NO_CONTAINERS}: there is nothing to exec in; podplane exec runs a program of the host in a pod's namespace"
        )))
    }

    async fn attach(
        &self,
        _: Request<cri::AttachRequest>,
    ) -> Result<Response<cri::AttachResponse>, Status> {
        Err(Status::unimplemented(format!(
            "{NO_CONTAINERS}: there is nothing to attach to"
        )))
    }

    async fn port_forward(
        &self,
        _: Request<cri::PortForwardRequest>,
    ) -> Result<Response<cri::PortForwardResponse>, Status> {
        Err(Status::unimplemented(format!(
            "{NO_CONTAINERS}: no port answers"
        )))
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Result<Response<cri::ContainerStatsResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    async fn list_container_stats(
        &self,
        _: Request<cri::ListContainerStatsRequest>,
    ) -> Result<Response<cri::ListContainerStatsResponse>, Status> {
        Ok(Response::new(cri::ListContainerStatsResponse::default()))
    }

    async fn pod_sandbox_stats(
        &self,
        _: Request<cri::PodSandboxStatsRequest>,
    ) -> Result<Response<cri::PodSandboxStatsResponse>, Status> {
        Err(Status::unimplemented(format!(
            "{NO_CONTAINERS}: a sandbox uses nothing that could be measured"
        )))
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Result<Response<cri::ListPodSandboxStatsResponse>, Status> {
        Ok(Response::new(cri::ListPodSandboxStatsResponse::default()))
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Result<Response<cri::CheckpointContainerResponse>, Status> {
        Err(no_such_container(&request.get_ref().container_id))
    }

    type GetContainerEventsStream =
        tokio_stream::Pending<Result<cri::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        // After this answer clients fall back to listing, which is supported.
        Err(Status::unimplemented(NO_CONTAINERS))
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
