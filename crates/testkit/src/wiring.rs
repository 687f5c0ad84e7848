//! What a cluster is disturbed and recorded with: its links, its disks, its recording.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use podplane_client::{Client, Endpoint, endpoint};
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
    ClusterError, Finished, Result,
    disk::Disks,
    link::{Links, Server},
    program,
    recording::{self, Recorder},
};

/// How often it is looked whether there are services that have no link yet: while some may be starting, and otherwise.
const OFTEN: Duration = Duration::from_millis(50);
const SELDOM: Duration = Duration::from_millis(500);

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) links: bool,
    pub(crate) recording: Option<PathBuf>,
    /// Bytes of the disks of the apiserver and of nodes.
    pub(crate) disks: BTreeMap<String, u64>,
}

/// What there is.
#[derive(Debug, Default)]
pub(crate) struct Wiring {
    pub(crate) recorder: Recorder,
    pub(crate) disks: Option<Disks>,
    links: Option<(Arc<Links>, TempDir)>,
    tasks: JoinSet<()>,
    watch: Option<AbortHandle>,
    /// How many [`Changing`] there are.
    changing: watch::Sender<u32>,
}

/// Says that services may come and go, for as long as it is there.
#[derive(Debug)]
#[must_use]
pub(crate) struct Changing(watch::Sender<u32>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.send_modify(|changing| *changing -= 1);
    }
}

impl Wanted {
    /// Makes it, for a cluster that is to be started in `data_dir` with these arguments.
    pub(crate) fn wire(&self, data_dir: &Path, args: &[OsString]) -> Result<Wiring> {
        let mut wiring = Wiring::default();
        if let Some(dir) = &self.recording {
            fs::create_dir_all(dir).map_err(ClusterError::io(format!("make {}", dir.display())))?;
            wiring.recorder = Recorder::create(dir)?;
        }
        if !self.disks.is_empty() {
            let disks = self.disks.iter().map(|(place, bytes)| {
                let dir = match place.as_str() {
                    "apiserver" => data_dir.join("store"),
                    node => data_dir.join("nodes").join(node),
                };
                (place.clone(), (dir, *bytes))
            });
            wiring.disks = Some(Disks::mount(disks.collect(), &wiring.recorder)?);
        }
        if self.links || self.recording.is_some() {
            // Sockets are in it, and a name for one is short.
            let dir = tempfile::Builder::new().prefix("pl-").tempdir();
            let dir = dir.map_err(ClusterError::io("make a directory for links"))?;
            let links = Arc::new(Links::new(dir.path(), wiring.recorder.clone())?);
            let wires = Wires {
                data_dir: data_dir.into(),
                nodes: wiring.seen(data_dir).join("nodes"),
                runtime: value(args, "--cri-endpoint"),
            };
            for service in ["ipam-controller", "controller-manager", "scheduler"] {
                wires.serve_service(&links, service)?;
            }
            // Before the supervisor answers, nobody can tell which nodes share a kubelet.
            let nodes = nodes(data_dir, args);
            for (number, node) in nodes.iter().enumerate() {
                wires.serve_node(&links, node)?;
                wires.serve_service(&links, &format!("kubelet-{node}"))?;
                if number % shared(args) == 0 {
                    let group = number / shared(args);
                    wires.serve_service(&links, &format!("kubelet-nodes-{group}"))?;
                }
            }
            let changing = wiring.changing.subscribe();
            wiring.tasks.spawn(wires.keep(links.clone(), changing));
            wiring.links = Some((links, dir));
        }
        Ok(wiring)
    }
}

impl Wiring {
    /// The links, if there are any.
    pub(crate) fn links(&self) -> Option<&Arc<Links>> {
        self.links.as_ref().map(|(links, _)| links)
    }

    /// What is at `path` for the cluster's processes, as this process reaches it.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let disks = self.disks.as_ref();
        disks.map_or_else(|| path.into(), |disks| disks.seen(path))
    }

    /// Runs a command that sees the disks.
    pub(crate) async fn run(&self, command: Command) -> Result<Finished> {
        match &self.disks {
            Some(disks) => disks.run(command).await,
            None => program::run(command).await,
        }
    }

    /// Records what becomes of objects from now on, if there is a recording, and no more as another client saw it.
    pub(crate) fn watch(&mut self, client: Client) {
        if let Some(earlier) = self.watch.take() {
            earlier.abort();
        }
        if self.recorder.is_recording() {
            let watch = recording::watch(client, self.recorder.clone());
            self.watch = Some(self.tasks.spawn(watch));
        }
    }

    /// Services may come and go from now on, until what is returned is dropped.
    pub(crate) fn changing(&self) -> Changing {
        self.changing.send_modify(|changing| *changing += 1);
        Changing(self.changing.clone())
    }
}

/// Which link leads where.
#[derive(Debug)]
struct Wires {
    data_dir: PathBuf,
    /// The directories of nodes, as this process reaches them.
    nodes: PathBuf,
    /// The runtimes of nodes, if they are others'.
    runtime: Option<String>,
}

impl Wires {
    fn serve_service(&self, links: &Links, name: &str) -> Result<()> {
        let published = self.data_dir.join("apiserver.address");
        links.serve(name, Server::Published(published))
    }

    fn serve_node(&self, links: &Links, node: &str) -> Result<()> {
        let server = match &self.runtime {
            Some(pattern) => pattern.replace("{node}", node),
            None => {
                let socket = self.nodes.join(node).join("cri.sock");
                format!("unix:{}", socket.display())
            }
        };
        links.serve(&format!("cri-{node}"), Server::At(server))
    }

    /// Gives services and nodes that come later links of their own, and ends those of services and nodes that go.
    async fn keep(self, links: Arc<Links>, mut changing: watch::Receiver<u32>) {
        let socket = self.data_dir.join("control.sock");
        let Ok(endpoint) = format!("unix:{}", socket.display()).parse::<Endpoint>() else {
            return;
        };
        let Ok(channel) = endpoint::channel(&endpoint) else {
            return;
        };
        let mut supervisor = ClusterServiceClient::new(channel);
        let mut known = BTreeSet::new();
        loop {
            let wait = match *changing.borrow_and_update() {
                0 => SELDOM,
                _ => OFTEN,
            };
            if let Ok(Err(_)) = timeout(wait, changing.changed()).await {
                return;
            }
            let Ok(status) = supervisor.get_status(GetStatusRequest {}).await else {
                continue;
            };
            match self.serve(&links, status.into_inner()) {
                Ok(now) => {
                    known.difference(&now).for_each(|gone| links.end(gone));
                    known = now;
                }
                // Whoever waits for the node will say that it does not come.
                Err(error) => tracing::warn!(%error, "a link cannot be served"),
            }
        }
    }

    /// Serves the links of what there is by now, and returns whose these are.
    fn serve(&self, links: &Links, status: GetStatusResponse) -> Result<BTreeSet<String>> {
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

/// The value of a flag of `up`.
fn value(args: &[OsString], flag: &str) -> Option<String> {
    let joined = format!("{flag}=");
    let texts: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let apart = texts.windows(2).find(|pair| pair[0] == flag);
    let found = apart.map(|pair| pair[1].to_string());
    let joined = texts.iter().find_map(|text| text.strip_prefix(&joined));
    found.or(joined.map(Into::into))
}

fn number(args: &[OsString], flag: &str, default: usize) -> usize {
    value(args, flag)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// How many nodes share a kubelet at most, unless they are in kernel mode.
fn shared(args: &[OsString]) -> usize {
    number(args, "--nodes-per-process", 500).max(1)
}

/// The nodes that there may be at the start: those that are asked for, and those that were there.
fn nodes(data_dir: &Path, args: &[OsString]) -> BTreeSet<String> {
    let asked = (0..number(args, "--nodes", 3)).map(|number| format!("node-{number}"));
    let kept = fs::read(data_dir.join("cluster.json")).unwrap_or_default();
    let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap_or_default();
    let kept = kept["nodes"].as_array().cloned().unwrap_or_default();
    let kept = kept.iter().filter_map(|node| node["name"].as_str());
    asked.chain(kept.map(Into::into)).collect()
}
