//! The facilities for disturbing and recording a cluster: links, disks, and a recording.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use podplane_client::{Client, Endpoint, endpoint};
use podplane_cluster::{
    data_dir::{ClusterRecord, DataDir, Member},
    processes,
    services::{CLIENTS, standby},
    settings::Settings,
};
use podplane_proto::cluster::{
    GetStatusRequest, GetStatusResponse, cluster_service_client::ClusterServiceClient,
};
use tempfile::TempDir;
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use crate::{
    ClusterError, ProgramOutput, Result,
    disk::Disks,
    link::{LinkServer, Links},
    program,
    recording::{self, Recorder},
};

/// The times between two looks for services without a link: while some may be starting, and
/// otherwise.
const CHANGING_INTERVAL: Duration = Duration::from_millis(50);
const IDLE_INTERVAL: Duration = Duration::from_millis(500);

/// The facilities that the builder was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedFacilities {
    pub(crate) links: bool,
    pub(crate) recording: Option<PathBuf>,
    /// The sizes of the disks in bytes, by node or `apiserver`.
    pub(crate) disks: BTreeMap<String, u64>,
}

/// The facilities of a running cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterFacilities {
    pub(crate) recorder: Recorder,
    pub(crate) disks: Option<Disks>,
    links: Option<(Arc<Links>, TempDir)>,
    tasks: JoinSet<()>,
    watch: Option<AbortHandle>,
    /// The number of [`ServiceChange`] guards.
    changing: watch::Sender<u32>,
}

/// A guard during which services may come and go.
#[derive(Debug)]
#[must_use]
pub(crate) struct ServiceChange(watch::Sender<u32>);

impl Drop for ServiceChange {
    fn drop(&mut self) {
        self.0.send_modify(|changing| *changing -= 1);
    }
}

impl WantedFacilities {
    /// Makes the facilities, for a cluster that is to be started in `data_dir` by this command.
    pub(crate) async fn make(&self, data_dir: &Path, up: Command) -> Result<ClusterFacilities> {
        let mut facilities = ClusterFacilities::default();
        if let Some(dir) = &self.recording {
            fs::create_dir_all(dir).map_err(ClusterError::io(format!("make {}", dir.display())))?;
            facilities.recorder = Recorder::create(dir)?;
        }
        if !self.disks.is_empty() {
            let disks = self.disks.iter().map(|(place, bytes)| {
                let dir = match place.as_str() {
                    "apiserver" => data_dir.join("store"),
                    node => data_dir.join("nodes").join(node),
                };
                (place.clone(), (dir, *bytes))
            });
            facilities.disks = Some(Disks::mount(disks.collect(), &facilities.recorder)?);
        }
        if self.links || self.recording.is_some() {
            // The name is short, because the paths of sockets in it are limited.
            let dir = tempfile::Builder::new().prefix("pl-").tempdir();
            let dir = dir.map_err(ClusterError::io("make a directory for links"))?;
            let links = Arc::new(Links::new(dir.path(), facilities.recorder.clone())?);
            let files = DataDir::layout(data_dir);
            let ClusterRecord { settings, nodes } = planned_record(up).await?;
            let servers = LinkServers {
                seen: DataDir::layout(facilities.seen(data_dir)),
                dir: files,
                settings,
            };
            for service in CLIENTS {
                servers.serve_service(&links, service)?;
                if servers.settings.standby {
                    servers.serve_service(&links, &standby(service))?;
                }
            }
            // Before the supervisor answers, nobody can tell which nodes share a kubelet.
            let shared = usize::try_from(servers.settings.nodes_per_process).unwrap_or(usize::MAX);
            for (number, Member { name, .. }) in nodes.iter().enumerate() {
                servers.serve_node(&links, name)?;
                servers.serve_service(&links, &format!("kubelet-{name}"))?;
                if number % shared.max(1) == 0 {
                    let group = processes::shared_name(number / shared.max(1));
                    servers.serve_service(&links, &format!("kubelet-{group}"))?;
                }
            }
            let changing = facilities.changing.subscribe();
            facilities
                .tasks
                .spawn(servers.follow_services(links.clone(), changing));
            facilities.links = Some((links, dir));
        }
        Ok(facilities)
    }
}

impl ClusterFacilities {
    /// The links; `None` if the cluster was started without.
    pub(crate) fn links(&self) -> Option<&Arc<Links>> {
        self.links.as_ref().map(|(links, _)| links)
    }

    /// Translates `path`, as the cluster's processes see it, to a path for this process.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let disks = self.disks.as_ref();
        disks.map_or_else(|| path.into(), |disks| disks.seen(path))
    }

    /// Runs a command that sees the disks, if there are any.
    pub(crate) async fn run(&self, command: Command) -> Result<ProgramOutput> {
        match &self.disks {
            Some(disks) => disks.run(command).await,
            None => program::run(command).await,
        }
    }

    /// Records changes of objects from now on, as `client` sees them, if there is a recording. An
    /// earlier client is no longer used.
    pub(crate) fn watch(&mut self, client: Client) {
        if let Some(earlier) = self.watch.take() {
            earlier.abort();
        }
        if self.recorder.is_recording() {
            let watch = recording::watch(client, self.recorder.clone());
            self.watch = Some(self.tasks.spawn(watch));
        }
    }

    /// Returns a guard: services may come and go until it is dropped.
    pub(crate) fn changing(&self) -> ServiceChange {
        self.changing.send_modify(|changing| *changing += 1);
        ServiceChange(self.changing.clone())
    }
}

/// The servers to which links lead.
#[derive(Debug)]
struct LinkServers {
    dir: DataDir,
    /// The same as this process reaches it: nodes may be on disks of their own.
    seen: DataDir,
    settings: Settings,
}

impl LinkServers {
    fn serve_service(&self, links: &Links, name: &str) -> Result<()> {
        let socket = self.dir.apiserver_socket();
        let server = LinkServer::At(format!("unix:{}", socket.display()));
        links.serve_as(name, server, processes::linked_user(&self.settings, name))
    }

    fn serve_node(&self, links: &Links, node: &str) -> Result<()> {
        let server =
            processes::cri_endpoint(&self.seen, self.settings.cri_endpoint.as_deref(), node);
        links.serve(&format!("cri-{node}"), LinkServer::At(server))
    }

    /// Makes links for services and nodes that are added, and ends those of services and nodes that
    /// are removed: it asks the supervisor at each interval, which is shorter while a
    /// [`ServiceChange`] guard lives, and ends with the cluster.
    async fn follow_services(self, links: Arc<Links>, mut changing: watch::Receiver<u32>) {
        let socket = self.dir.control_socket();
        let endpoint = format!("unix:{}", socket.display()).parse::<Endpoint>();
        let channel = match endpoint.and_then(|endpoint| endpoint::channel(&endpoint)) {
            Ok(channel) => channel,
            Err(error) => {
                let socket = socket.display();
                tracing::error!(%error, %socket, "nodes that are added get no links");
                return;
            }
        };
        let mut supervisor = ClusterServiceClient::new(channel);
        let mut known = BTreeSet::new();
        loop {
            let wait = match *changing.borrow_and_update() {
                0 => IDLE_INTERVAL,
                _ => CHANGING_INTERVAL,
            };
            if let Ok(Err(_)) = timeout(wait, changing.changed()).await {
                return;
            }
            let Ok(status) = supervisor.get_status(GetStatusRequest {}).await else {
                continue;
            };
            match self.serve_present(&links, status.into_inner()) {
                Ok(now) => {
                    known.difference(&now).for_each(|gone| links.end(gone));
                    known = now;
                }
                // The caller that waits for the node reports that it does not come.
                Err(error) => tracing::warn!(%error, "a link cannot be served"),
            }
        }
    }

    /// Serves links for all present kubelets and nodes, and returns their clients.
    fn serve_present(&self, links: &Links, status: GetStatusResponse) -> Result<BTreeSet<String>> {
        let GetStatusResponse {
            services, nodes, ..
        } = status;
        let names = services.into_iter().map(|service| service.name);
        let mut now: BTreeSet<_> = names.filter(|name| name.starts_with("kubelet-")).collect();
        for kubelet in &now {
            self.serve_service(links, kubelet)?;
        }
        for node in nodes {
            self.serve_node(links, &node)?;
            now.insert(format!("cri-{node}"));
        }
        Ok(now)
    }
}

/// The record that a cluster would start with, which this command line of `up` prints. Empty if
/// `up` refuses its arguments: it says why when it is run for good.
async fn planned_record(mut up: Command) -> Result<ClusterRecord> {
    up.arg("--print-record");
    let printed = program::run(up).await?.stdout;
    Ok(serde_json::from_str(&printed).unwrap_or_default())
}
