//! A running cluster.

use std::{
    ffi::OsStr,
    fs,
    io::PipeWriter,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podplane_api::core::{Node, Pod};
use podplane_client::{ApiError, Channel, Client, Endpoint, ListParams, endpoint};
use podplane_cluster::data_dir::DataDir;
use podplane_ipam::invariants::{self, Violation, World};
use podplane_proto::cluster::{
    AddNodeRequest, GetStatusRequest, GetStatusResponse, RebootNodeRequest, RemoveNodeRequest,
    RestartRequest, cluster_service_client::ClusterServiceClient,
};
use podplane_proto::trace::{
    GetPodTraceRequest, GetPodTraceResponse, trace_service_client::TraceServiceClient,
};

use crate::{
    ClusterBuilder, ClusterError, Process, Program, ProgramOutput, Result,
    builder::DirChoice,
    eventually,
    pods::Summary,
    processes_of,
    program::{self, line},
    wiring::ClusterFacilities,
    within, world,
};

/// The time that a violation may last without being reported: it may come from a sandbox that is
/// being made or removed.
const SETTLED: Duration = Duration::from_secs(20);

/// A running cluster. Dropping it takes it down; [`Cluster::finish`] also checks the invariants.
#[derive(Debug)]
pub struct Cluster {
    program: Program,
    /// `None` once it has been taken down.
    dir: Option<DirChoice>,
    client: Client,
    server: String,
    /// The pipe that keeps the cluster alive while it is open; `None` for a cluster that outlives
    /// this process.
    lifeline: Option<PipeWriter>,
    pub(crate) facilities: ClusterFacilities,
    keep: bool,
}

impl Cluster {
    /// Returns a builder, which starts a cluster.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    pub(crate) fn new(
        program: Program,
        dir: DirChoice,
        lifeline: Option<PipeWriter>,
        mut facilities: ClusterFacilities,
        keep: bool,
    ) -> Result<Self> {
        let server = server(dir.path())?;
        let client = Client::connect(&server.parse()?)?;
        facilities.watch(client.clone());
        Ok(Self {
            client,
            program,
            dir: Some(dir),
            server,
            lifeline,
            facilities,
            keep,
        })
    }

    /// Restarts the cluster on its data directory, after `podplane down` or a crash of all its
    /// processes. `flags` has the flags that change.
    ///
    /// # Errors
    ///
    /// As [`ClusterBuilder::start`].
    pub async fn start_again(&mut self, flags: &ClusterBuilder) -> Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let _changing = self.facilities.changing();
        self.lifeline = flags.up(&self.program, dir, &self.facilities).await?;
        self.server = server(self.data_dir())?;
        self.client = Client::connect(&self.server.parse()?)?;
        self.facilities.watch(self.client.clone());
        Ok(())
    }

    /// The data directory: `store`, `logs`, `nodes`, …
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new(""), DirChoice::path)
    }

    /// The data directory for reads by this process. It shows the content of the
    /// [disks](ClusterBuilder::disk), which otherwise only the cluster's own processes see.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.facilities.seen(self.data_dir())
    }

    /// The typed client of the API server.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The directory of the cluster's certificates: the authority `ca.crt`, and an administrator's
    /// certificate and key `admin.pem`. A cluster whose ports have no TLS has none.
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir().join("pki")
    }

    /// The address of the API server, for gRPC and REST: `HOST:PORT`, or `unix:PATH`.
    /// The socket of the API server, `unix:PATH`, for gRPC and REST: the user of this process may
    /// do everything there, without credentials. Its TCP address has TLS;
    /// [`kubeconfig`](Self::kubeconfig) has the credentials for it.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The path of the kubeconfig for kubectl and every other client of Kubernetes.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("kubeconfig")
    }

    /// The program with which the cluster was started.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns a client of the supervisor, the process that keeps all others running.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Endpoint`] if the path of its socket is not a valid address.
    pub fn supervisor(&self) -> Result<ClusterServiceClient<Channel>> {
        let socket = self.data_dir().join("control.sock");
        let endpoint: Endpoint = format!("unix:{}", socket.display()).parse()?;
        Ok(ClusterServiceClient::new(endpoint::channel(&endpoint)?))
    }

    /// Returns the state of the cluster: processes with pids, addresses and logs, and nodes.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if the supervisor does not answer.
    pub async fn status(&self) -> Result<GetStatusResponse> {
        let status = self.supervisor()?.get_status(GetStatusRequest {}).await?;
        Ok(status.into_inner())
    }

    /// Returns a process that runs now: `apiserver`, `ipam-controller`, `controller-manager`,
    /// `scheduler`, `kubelet-…`, `cri-…`. Nodes in ledger mode share theirs, `kubelet-nodes-0` and
    /// `cri-nodes-0`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoProcess`], with the names of processes that run.
    pub async fn process(&self, name: &str) -> Result<Process> {
        Process::find(self, name).await
    }

    /// Lists the pods of all namespaces.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Api`] if the API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let pods = self.client.all::<Pod>();
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// Lists all nodes.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Api`] if the API server does not answer.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes = self.client.all::<Node>();
        Ok(nodes.list(&ListParams::default()).await?.items)
    }

    /// Returns the traces of a pod, present or gone, as far as they have come to the API server.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Api`] if the API server does not answer, or knows of no such pod.
    pub async fn trace(&self, namespace: &str, name: &str) -> Result<GetPodTraceResponse> {
        let socket = DataDir::layout(self.data_dir()).apiserver_socket();
        let endpoint: Endpoint = format!("unix:{}", socket.display()).parse()?;
        let channel = endpoint::channel(&endpoint)?;
        let request = GetPodTraceRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        };
        let mut traces = TraceServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        let answer = traces.get_pod_trace(request).await;
        Ok(answer
            .map_err(|status| ApiError::from(&status))?
            .into_inner())
    }

    /// Waits until `enough` returns true for the pods, for at most [`crate::DEADLINE`], and returns
    /// them.
    ///
    /// # Errors
    ///
    /// [`ClusterError::TimedOut`], with the pods at the last look.
    pub async fn pods_until(
        &self,
        what: &str,
        enough: impl Fn(&[Pod]) -> bool,
    ) -> Result<Vec<Pod>> {
        let look = || async { self.pods().await.map(Summary) };
        let is_enough = |seen: &Result<Summary>| seen.as_ref().is_ok_and(|seen| enough(&seen.0));
        Ok(eventually(what, look, is_enough).await??.0)
    }

    /// Applies the objects of a manifest, in YAML or JSON, of any kind.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Failed`] if an object is refused, with the reason.
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        let mut command = self.command("podplane", ["apply", "-f", "-"]);
        command.stdin(program::input(manifest)?);
        succeed(command).await.map(drop)
    }

    /// Runs `podplane` on this cluster, and returns its standard output.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Failed`] if it fails, with its output.
    pub async fn podplane<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        succeed(self.command("podplane", args)).await
    }

    /// Returns a command of any program, in an environment in which `podplane`, `kubectl` and every
    /// client with a kubeconfig use this cluster. [`run`](crate::run) runs it to its end.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = S>,
    ) -> Command {
        let program = program.as_ref();
        let mut command = if program == "podplane" {
            self.program.command(args)
        } else {
            let mut command = Command::new(program);
            command.args(args).stdin(std::process::Stdio::null());
            program::without_settings(&mut command);
            command
        };
        let mut path = self.program.dir().as_os_str().to_owned();
        if let Some(others) = std::env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        command
            .env("PATH", path)
            .env("PODPLANE_DATA_DIR", self.data_dir())
            .env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Makes nodes; their kubelets then register them.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if one cannot be made; then none of them is made.
    pub async fn add_nodes<S: Into<String>>(
        &self,
        names: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        let names = names.into_iter().map(Into::into).collect();
        let request = AddNodeRequest {
            names,
            network: String::new(),
            node_network_backend: None,
        };
        let _changing = self.facilities.changing();
        self.supervisor()?.add_node(request).await?;
        Ok(())
    }

    /// Removes a node: its pods' sandboxes, its processes, its object and its files.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if there is no node of that name.
    pub async fn remove_node(&self, name: impl Into<String>) -> Result<()> {
        let request = RemoveNodeRequest { name: name.into() };
        let _changing = self.facilities.changing();
        self.supervisor()?.remove_node(request).await?;
        Ok(())
    }

    /// Power-cycles a node: its processes are killed, its network namespaces and sandboxes are
    /// gone, its files stay.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if there is no node of that name.
    pub async fn reboot_node(&self, name: impl Into<String>) -> Result<()> {
        let request = RebootNodeRequest { name: name.into() };
        let _changing = self.facilities.changing();
        self.supervisor()?.reboot_node(request).await?;
        Ok(())
    }

    /// Restarts processes: `scheduler`, `kubelet-node-0`, or all of a kind, `kubelet` and `cri`;
    /// and those whose flags change. `extra_config` has new flags, as `--extra-config` of `podplane
    /// up` takes them: `scheduler.log=debug`. Returns the names of all restarted processes.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Supervisor`] if there is no such process or flag.
    pub async fn restart<S: Into<String>>(
        &self,
        processes: impl IntoIterator<Item = S>,
        extra_config: impl IntoIterator<Item = S>,
    ) -> Result<Vec<String>> {
        let request = RestartRequest {
            services: processes.into_iter().map(Into::into).collect(),
            extra_config: extra_config.into_iter().map(Into::into).collect(),
            ..RestartRequest::default()
        };
        Ok(self
            .supervisor()?
            .restart(request)
            .await?
            .into_inner()
            .services)
    }

    /// Observes the cluster for the invariant checker: objects, allocation files, sandboxes.
    ///
    /// # Errors
    ///
    /// If the API server does not answer or a file cannot be read.
    pub async fn world(&self) -> Result<World> {
        world::observe(&self.client, &self.files()).await
    }

    /// Returns the violations at this moment. Some may be passing, such as the address of a sandbox
    /// that is being made.
    ///
    /// # Errors
    ///
    /// As [`Cluster::world`].
    pub async fn violations(&self) -> Result<Vec<Violation>> {
        Ok(invariants::check(&self.world().await?))
    }

    /// Waits until there is no violation: no address on two pods, every address inside its node's
    /// block, no overlapping blocks, no allocation without an owner. A violation that lasts longer
    /// than 20 seconds is an error.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Violations`], and the errors of [`Cluster::world`].
    pub async fn check(&self) -> Result<()> {
        let clean = |seen: &Result<Vec<Violation>>| seen.as_ref().is_ok_and(Vec::is_empty);
        let settled = within(SETTLED, "no violation", || self.violations(), clean).await;
        match settled {
            Ok(_) => Ok(()),
            Err(_) => match self.violations().await? {
                none if none.is_empty() => Ok(()),
                violations => Err(ClusterError::Violations(violations)),
            },
        }
    }

    /// Reads the log of a process, or of the `supervisor`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if there is no such log.
    pub fn log(&self, process: &str) -> Result<String> {
        let file = self.data_dir().join("logs").join(format!("{process}.log"));
        fs::read_to_string(&file).map_err(ClusterError::io(format!("read {}", file.display())))
    }

    /// [`Cluster::check`], then [`Cluster::stop`].
    ///
    /// # Errors
    ///
    /// The errors of both. The cluster is taken down in any case.
    pub async fn finish(self) -> Result<()> {
        let checked = self.check().await;
        self.end(checked).await
    }

    /// Takes the cluster down, and checks that all its processes are gone. A temporary data
    /// directory is removed.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Failed`] if the cluster does not end, [`ClusterError::Left`] with the
    /// processes that are left.
    pub async fn stop(self) -> Result<()> {
        self.end(Ok(())).await
    }

    /// Takes the cluster down. `well` is the result so far, which comes before later errors.
    async fn end(mut self, mut well: Result<()>) -> Result<()> {
        let Some(mut dir) = self.dir.take() else {
            return well;
        };
        let ended = succeed(down(&self.program, dir.path())).await;
        drop(self.lifeline.take());
        if ended.is_err() {
            // The supervisor removes the directory when it ends.
            dir.keep();
        }
        well = well.and(ended.map(drop)).and_then(|()| nothing_left(&dir));
        match well {
            Ok(()) => dir.remove(),
            Err(error) => {
                dir.ended_badly();
                Err(error)
            }
        }
    }
}

/// Fails if processes of the cluster in a directory still run.
fn nothing_left(dir: &DirChoice) -> Result<()> {
    let left = processes_of(&dir.path().display().to_string())?;
    if left.is_empty() {
        return Ok(());
    }
    let each = left.into_iter().map(|(pid, line)| format!("{pid} {line}"));
    Err(ClusterError::Left(each.collect()))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(mut dir) = self.dir.take() else {
            return;
        };
        if self.keep {
            return dir.keep();
        }
        // A cluster that cannot be ended in order ends when the lifeline closes.
        _ = down(&self.program, dir.path()).output();
        dir.ended_badly();
    }
}

fn down(program: &Program, data_dir: &Path) -> Command {
    program.command([OsStr::new("down"), "--data-dir".as_ref(), data_dir.as_ref()])
}

async fn succeed(command: Command) -> Result<String> {
    let shown = line(&command);
    match program::run(command).await? {
        ProgramOutput {
            code: Some(0),
            stdout,
            ..
        } => Ok(stdout),
        finished => Err(ClusterError::Failed {
            command: shown,
            finished,
        }),
    }
}

/// Reads the address of the API server from the data directory of a cluster.
fn server(data_dir: &Path) -> Result<String> {
    let socket = DataDir::layout(data_dir).apiserver_socket();
    let found = fs::metadata(&socket);
    found.map_err(ClusterError::io(format!("find {}", socket.display())))?;
    Ok(format!("unix:{}", socket.display()))
}
