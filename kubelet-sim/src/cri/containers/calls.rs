//! The calls of `runtime.v1.RuntimeService` about containers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::stream::BoxStream;
use podplane_error_chain::one_line;
use podplane_host::task;
use podplane_proto::cri;
use tonic::{Code, Response, Status};

use super::{
    super::{
        id::SandboxId,
        record::SandboxRecord,
        sandboxes::now_nanos,
        streaming::{StreamRequest, WantedStreams},
    },
    ContainerError, NodeContainers,
    process::{
        ContainerProcess, Processes,
        exec::{ExecCommand, ExecOutput},
        stats::ProcessUsage,
    },
    record::{ContainerRecord, ContainerState},
    request::{ContainerSpec, RequestUse},
    wire,
};

/// The events of `GetContainerEvents`.
pub(in crate::cri) type EventStream =
    BoxStream<'static, Result<cri::ContainerEventResponse, Status>>;

impl From<&ContainerError> for Status {
    fn from(error: &ContainerError) -> Self {
        let code = match error {
            ContainerError::Sandbox(error) => return error.into(),
            ContainerError::NotFound(_) | ContainerError::ImageNotFound(_) => Code::NotFound,
            ContainerError::NameReserved { .. } => Code::AlreadyExists,
            ContainerError::State { .. } => Code::FailedPrecondition,
            ContainerError::Reference(_)
            | ContainerError::Annotation(_)
            | ContainerError::Mount(_) => Code::InvalidArgument,
            ContainerError::Log { .. }
            | ContainerError::Process { .. }
            | ContainerError::Disk { .. } => Code::Unknown,
        };
        Self::new(code, one_line(error).to_string())
    }
}

impl NodeContainers {
    /// Does work on a thread of its own. It goes on if the caller goes away.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ContainerError> + Send + 'static,
    ) -> Result<T, Status> {
        let containers = Arc::clone(self);
        match task::spawn_blocking(move || work(&containers)).await {
            Ok(done) => done.map_err(|error| (&error).into()),
            Err(panic) => Err(Status::internal(panic.to_string())),
        }
    }

    pub(in crate::cri) async fn call_create(
        self: &Arc<Self>,
        request: cri::CreateContainerRequest,
    ) -> Result<Response<cri::CreateContainerResponse>, Status> {
        let used = match self.processes {
            Some(_) => RequestUse::Process,
            None => RequestUse::Pretend,
        };
        let spec = ContainerSpec::of(request, used)?;
        let id = self.run(move |containers| containers.create(spec)).await?;
        Ok(Response::new(cri::CreateContainerResponse {
            container_id: id.into(),
        }))
    }

    pub(in crate::cri) async fn call_start(
        self: &Arc<Self>,
        id: String,
    ) -> Result<Response<cri::StartContainerResponse>, Status> {
        self.run(move |containers| containers.start(&id)).await?;
        Ok(Response::new(cri::StartContainerResponse {}))
    }

    pub(in crate::cri) async fn call_stop(
        self: &Arc<Self>,
        cri::StopContainerRequest {
            container_id,
            timeout,
        }: cri::StopContainerRequest,
    ) -> Result<Response<cri::StopContainerResponse>, Status> {
        let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        self.run(move |containers| containers.stop(&container_id, grace))
            .await?;
        Ok(Response::new(cri::StopContainerResponse {}))
    }

    pub(in crate::cri) async fn call_remove(
        self: &Arc<Self>,
        id: String,
    ) -> Result<Response<cri::RemoveContainerResponse>, Status> {
        self.run(move |containers| containers.remove(&id)).await?;
        Ok(Response::new(cri::RemoveContainerResponse {}))
    }

    pub(in crate::cri) fn call_list(
        &self,
        request: cri::ListContainersRequest,
    ) -> Response<cri::ListContainersResponse> {
        let filter = request.filter.unwrap_or_default();
        let all = self.list();
        let matching = all.iter().filter(|record| wire::matches(record, &filter));
        let containers = matching.map(|record| (&**record).into()).collect();
        Response::new(cri::ListContainersResponse { containers })
    }

    pub(in crate::cri) fn call_status(
        &self,
        request: &cri::ContainerStatusRequest,
    ) -> Result<Response<cri::ContainerStatusResponse>, Status> {
        let found = self.get(&request.container_id);
        let record = found.map_err(|error| Status::from(&error))?;
        let mut info = HashMap::new();
        if request.verbose {
            let described = serde_json::to_string(&*record);
            let described = described.map_err(|error| Status::internal(error.to_string()))?;
            info.insert("info".to_owned(), described);
        }
        Ok(Response::new(cri::ContainerStatusResponse {
            status: Some((&*record).into()),
            info,
        }))
    }

    pub(in crate::cri) async fn call_update(
        self: &Arc<Self>,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Result<Response<cri::UpdateContainerResourcesResponse>, Status> {
        let id = request.container_id;
        let resources = request.linux.unwrap_or_default().into();
        self.run(move |containers| containers.update_resources(&id, resources))
            .await?;
        Ok(Response::new(cri::UpdateContainerResourcesResponse {}))
    }

    pub(in crate::cri) async fn call_reopen_log(
        self: &Arc<Self>,
        id: String,
    ) -> Result<Response<cri::ReopenContainerLogResponse>, Status> {
        self.run(move |containers| containers.reopen_log(&id))
            .await?;
        Ok(Response::new(cri::ReopenContainerLogResponse {}))
    }

    /// The process of a running container, and what executes others in it.
    fn process_of(
        &self,
        id: &str,
        action: &str,
    ) -> Result<(Arc<ContainerProcess>, Arc<Processes>), Status> {
        let Some(processes) = &self.processes else {
            return self.refuse_entry(id, action);
        };
        let record = self.running(id).map_err(|error| Status::from(&error))?;
        let process = processes.get(&record.id).ok_or_else(|| {
            Status::failed_precondition(format!("the process of container \"{id}\" has ended"))
        })?;
        Ok((process, processes.clone()))
    }

    pub(in crate::cri) async fn call_exec_sync(
        self: &Arc<Self>,
        request: cri::ExecSyncRequest,
    ) -> Result<Response<cri::ExecSyncResponse>, Status> {
        let cri::ExecSyncRequest {
            container_id,
            cmd,
            timeout,
        } = request;
        let (container, processes) = self.process_of(&container_id, "execute a command in")?;
        let command = command(cmd, false, false)?;
        let shown = command.args.join(" ");
        let started = task::spawn_blocking(move || processes.exec(&container, command)).await;
        let started = started.map_err(|panic| Status::internal(panic.to_string()))?;
        let process = started.map_err(|error| {
            Status::unknown(format!("failed to exec in container: {}", one_line(&error)))
        })?;
        let timeout = u64::try_from(timeout).ok().filter(|seconds| *seconds > 0);
        let output = process.output(timeout.map(Duration::from_secs)).await;
        let ExecOutput {
            code,
            stdout,
            stderr,
        } = output.ok_or_else(|| {
            let seconds = timeout.unwrap_or_default();
            Status::deadline_exceeded(format!(
                "command {shown:?} timed out: it was killed after {seconds}s"
            ))
        })?;
        Ok(Response::new(cri::ExecSyncResponse {
            stdout,
            stderr,
            exit_code: code,
        }))
    }

    pub(in crate::cri) fn exec_request(
        &self,
        request: cri::ExecRequest,
    ) -> Result<StreamRequest, Status> {
        let cri::ExecRequest {
            container_id,
            cmd,
            tty,
            stdin,
            stdout,
            stderr,
        } = request;
        let (container, processes) = self.process_of(&container_id, "execute a command in")?;
        let streams = wanted_streams(WantedStreams {
            stdin,
            stdout,
            stderr,
            tty,
        })?;
        Ok(StreamRequest::Exec {
            container,
            processes,
            command: command(cmd, stdin, tty)?,
            streams,
        })
    }

    pub(in crate::cri) fn attach_request(
        &self,
        request: &cri::AttachRequest,
    ) -> Result<StreamRequest, Status> {
        let (container, _) = self.process_of(&request.container_id, "attach to")?;
        let streams = wanted_streams(WantedStreams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        })?;
        Ok(StreamRequest::Attach { container, streams })
    }

    /// Refuses to enter a container: an answer of a program that did not run would be a lie, and a
    /// probe by exec would take it for success.
    pub(in crate::cri) fn refuse_entry<T>(&self, id: &str, action: &str) -> Result<T, Status> {
        let record = self.running(id).map_err(|error| Status::from(&error))?;
        Err(Status::unimplemented(format!(
            "container {:?} of pod {}/{} has no process to {action} (--containers=pretend)",
            record.name, record.pod.namespace, record.pod.name
        )))
    }

    /// The file system that a container's files would be on.
    fn mountpoint(&self) -> String {
        self.images.dir().to_string_lossy().into_owned()
    }

    pub(in crate::cri) fn call_stats(
        &self,
        id: &str,
    ) -> Result<Response<cri::ContainerStatsResponse>, Status> {
        let record = self.get(id).map_err(|error| Status::from(&error))?;
        Ok(Response::new(cri::ContainerStatsResponse {
            stats: Some(self.stats_of(&record)),
        }))
    }

    pub(in crate::cri) fn call_list_stats(
        &self,
        request: cri::ListContainerStatsRequest,
    ) -> Response<cri::ListContainerStatsResponse> {
        let cri::ContainerStatsFilter {
            id,
            pod_sandbox_id,
            label_selector,
        } = request.filter.unwrap_or_default();
        let filter = cri::ContainerFilter {
            id,
            pod_sandbox_id,
            label_selector,
            state: None,
        };
        let all = self.list();
        let matching = all
            .iter()
            .filter(|record| is_running(record) && wire::matches(record, &filter));
        let stats = matching.map(|record| self.stats_of(record)).collect();
        Response::new(cri::ListContainerStatsResponse { stats })
    }

    /// The resources that a sandbox uses.
    pub(in crate::cri) fn sandbox_stats(&self, record: &SandboxRecord) -> cri::PodSandboxStats {
        let containers = self.of_sandbox(&record.id);
        let running = containers.iter().filter(|record| is_running(record));
        let used = running.map(|record| (&**record, self.usage(record)));
        wire::sandbox_stats(record, &used.collect::<Vec<_>>(), &self.mountpoint())
    }

    fn stats_of(&self, record: &ContainerRecord) -> cri::ContainerStats {
        wire::stats(record, &self.usage(record), &self.mountpoint())
    }

    /// The resources that a container uses: none without a process.
    fn usage(&self, record: &ContainerRecord) -> ProcessUsage {
        let process = self.process(record);
        // A process that ends meanwhile uses nothing any more.
        process
            .and_then(|process| process.usage().ok())
            .unwrap_or_default()
    }

    /// The status of a sandbox and of its containers.
    pub(super) fn pod_of(
        &self,
        sandbox: &SandboxId,
    ) -> (Option<cri::PodSandboxStatus>, Vec<cri::ContainerStatus>) {
        let status = self.sandboxes.get(sandbox.as_str()).ok();
        let containers = self.statuses(sandbox);
        (status.map(|record| (&*record).into()), containers)
    }

    /// The status of each container of a sandbox.
    pub(in crate::cri) fn statuses(&self, sandbox: &SandboxId) -> Vec<cri::ContainerStatus> {
        let containers = self.of_sandbox(sandbox);
        containers.iter().map(|record| (&**record).into()).collect()
    }

    /// Sends events about a sandbox itself, which have its id.
    pub(in crate::cri) fn notify_sandbox(
        &self,
        sandbox: &SandboxId,
        kinds: &[cri::ContainerEventType],
    ) {
        for kind in kinds {
            self.events.send(sandbox.as_str(), *kind, now_nanos(), || {
                self.pod_of(sandbox)
            });
        }
    }

    pub(in crate::cri) fn call_events(&self) -> Response<EventStream> {
        Response::new(Box::pin(self.events.listen()))
    }
}

fn command(args: Vec<String>, stdin: bool, tty: bool) -> Result<ExecCommand, Status> {
    match args.is_empty() {
        true => Err(Status::invalid_argument("cmd is missing")),
        false => Ok(ExecCommand { args, stdin, tty }),
    }
}

/// Checks the streams of a client, by CRI's rules.
fn wanted_streams(streams: WantedStreams) -> Result<WantedStreams, Status> {
    let WantedStreams {
        stdin,
        stdout,
        stderr,
        tty,
    } = streams;
    if tty && stderr {
        return Err(Status::invalid_argument(
            "tty and stderr cannot both be true: a terminal has one output",
        ));
    }
    match stdin || stdout || stderr {
        true => Ok(streams),
        false => Err(Status::invalid_argument(
            "one of stdin, stdout and stderr must be set",
        )),
    }
}

fn is_running(record: &ContainerRecord) -> bool {
    matches!(record.state, ContainerState::Running { .. })
}
