//! The cluster on which a scenario is run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podplane_http_client::HttpClient;
use podplane_proto::cluster::ServiceStatus;
use podplane_test_cluster::{
    Cluster, ClusterBuilder, ClusterError, Process, Program,
    fault::Fault,
    monitor::{RevisionMonitor, ViolationSpan},
    within,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    format::{self, Flag, NodeSpec, Nodes, Several, word},
    look::EventCounts,
    objects::{ANSWER_LIMIT, Objects},
    plan::{Action, PlannedCase, glob},
    problem::listed,
};

/// The time between two looks at the cluster.
const LOOK: Duration = Duration::from_millis(50);

/// The capacity of the disk of a node that is to be filled, in bytes.
const DISK: u64 = 16 << 20;

/// The capacity of the API server's disk, in bytes. Its store needs 32 MiB to begin with.
const STORE: u64 = 64 << 20;

/// A cluster, with the faults that are injected into it.
#[derive(Debug)]
pub(crate) struct ScenarioCluster {
    /// The faults in effect. They are dropped before the cluster, because a paused process does not
    /// end when it is told to.
    held: Vec<ActiveFault>,
    /// Checks every revision of pods and nodes.
    pub(crate) monitor: RevisionMonitor,
    /// The number of its spans that `new_spans` has returned.
    taken: usize,
    pub(crate) case: Arc<PlannedCase>,
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    pub(crate) random: StdRng,
    /// The counts of events when steps began, by the names of the steps.
    pub(crate) marks: BTreeMap<String, EventCounts>,
    /// The directory for files of the scenario's commands.
    pub(crate) scratch: PathBuf,
    /// The findings of the last look at the expectations, for a narration.
    said: Mutex<Vec<String>>,
}

/// A fault in effect.
#[derive(Debug)]
pub(crate) struct ActiveFault {
    pub(crate) kind: FaultKind,
    /// The process or the node.
    pub(crate) of: String,
    /// Healed on drop.
    _fault: Fault,
}

/// A kind of fault, by the action that heals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// `resume`
    Paused,
    /// `heal`
    Cut,
    /// `freeDisk`
    FullDisk,
    /// `calls` with `clear`
    Calls,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paused => "paused",
            Self::Cut => "cut off",
            Self::FullDisk => "full",
            Self::Calls => "under call faults",
        })
    }
}

impl ScenarioCluster {
    /// Starts the cluster of a scenario in `dir`, which is empty.
    pub(crate) async fn start(
        case: Arc<PlannedCase>,
        program: &Program,
        dir: &Path,
        seed: u64,
    ) -> Result<Self> {
        let scratch = dir.join("scratch");
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("failed to make {}", scratch.display()))?;
        let builder = builder(&case, program).program(program.path());
        let cluster = builder.data_dir(data_dir(dir)).record(dir).start().await?;
        let objects = Objects::new(&cluster.pki_dir(), cluster.server())?;
        Ok(Self {
            held: Vec::new(),
            monitor: RevisionMonitor::start(cluster.client(), |_| ()),
            taken: 0,
            case,
            cluster,
            objects,
            random: StdRng::seed_from_u64(seed),
            marks: BTreeMap::new(),
            scratch,
            said: Mutex::default(),
        })
    }

    /// Notes what an expectation has found.
    pub(crate) fn say(&self, text: String) {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text);
    }

    /// Returns the notes since the last call.
    pub(crate) fn take_said(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the nodes that the scenario names, and waits until all nodes are Ready, unless the
    /// scenario does not want that.
    pub(crate) async fn prepare_nodes(&self) -> Result<()> {
        if let Some(Nodes::Named(nodes)) = &self.case.cluster.nodes {
            self.add_nodes(nodes).await?;
        }
        if self.case.cluster.wait_for_nodes != Some(false) {
            self.nodes_ready().await?;
        }
        Ok(())
    }

    /// Waits until all nodes of the cluster are Ready.
    async fn nodes_ready(&self) -> Result<()> {
        let wanted = self.cluster.status().await?.nodes;
        let within = self.case.within;
        let begun = Instant::now();
        loop {
            let nodes = self.objects.list("nodes", None, None).await?;
            let is_ready = |name: &&String| {
                nodes
                    .iter()
                    .any(|node| node["metadata"]["name"] == **name && ready(node))
            };
            let missing: Vec<_> = wanted
                .iter()
                .filter(|name| !is_ready(name))
                .take(10)
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < within,
                "not Ready after {within:?}: {}; to skip this wait, set cluster: {{waitForNodes: false}}",
                listed(&missing)
            );
            sleep(LOOK).await;
        }
    }

    /// Keeps a fault in effect until it is healed.
    pub(crate) fn hold(&mut self, kind: FaultKind, of: impl Into<String>, fault: Fault) {
        let of = of.into();
        self.held.push(ActiveFault {
            kind,
            of,
            _fault: fault,
        });
    }

    /// Returns the processes or nodes that have a fault of this kind.
    pub(crate) fn held(&self, kind: FaultKind) -> Vec<&str> {
        let held = self.held.iter().filter(|held| held.kind == kind);
        held.map(|held| held.of.as_str()).collect()
    }

    /// Heals the faults of a kind whose process or node `is_meant`. Returns their number.
    pub(crate) fn heal(&mut self, kind: FaultKind, is_meant: impl Fn(&str) -> bool) -> usize {
        let before = self.held.len();
        self.held
            .retain(|held| held.kind != kind || !is_meant(&held.of));
        before - self.held.len()
    }

    /// Adds nodes, with their labels and blocks. Neighbours in the list that are alike join
    /// together, and may then share processes.
    pub(crate) async fn add_nodes(&self, nodes: &[NodeSpec]) -> Result<()> {
        for alike in nodes.chunk_by(|a, b| {
            a.pod_cidr.is_none()
                && b.pod_cidr.is_none()
                && a.labels == b.labels
                && a.network == b.network
                && a.node_network_backend == b.node_network_backend
        }) {
            let [
                NodeSpec {
                    name,
                    network,
                    node_network_backend,
                    labels,
                    pod_cidr,
                },
                ..,
            ] = alike
            else {
                continue;
            };
            let mut args = vec!["node".to_owned(), "add".into()];
            args.extend(alike.iter().map(|node| node.name.clone()));
            if let Some(network) = network {
                args.extend(["--network".into(), word(network)]);
            }
            if let Some(backend) = node_network_backend {
                args.extend(["--node-network-backend".into(), word(backend)]);
            }
            match pod_cidr {
                // The kubelet takes over the existing object.
                Some(cidr) => {
                    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                        "spec": {"podCIDR": cidr.to_string(), "podCIDRs": [cidr.to_string()]}});
                    self.cluster.apply(&object.to_string()).await?;
                }
                None => args.extend(
                    labels
                        .iter()
                        .flat_map(|(key, value)| ["--label".into(), format!("{key}={value}")]),
                ),
            }
            self.cluster.podplane(args).await?;
        }
        Ok(())
    }

    /// Takes the cluster down, and fails if something of it is left.
    pub(crate) async fn stop(self) -> Result<()> {
        drop((self.held, self.monitor));
        Ok(self.cluster.stop().await?)
    }

    /// Returns the processes that the supervisor runs.
    pub(crate) async fn services(&self) -> Result<Vec<ServiceStatus>> {
        Ok(self.cluster.status().await?.services)
    }

    /// Returns a client of a service.
    pub(crate) async fn http(&self, service: &str) -> Result<HttpClient> {
        let services = self.services().await?;
        let found = services.into_iter().find(|status| status.name == service);
        let address = found
            .with_context(|| format!("there is no process {service}"))?
            .address;
        ensure!(!address.is_empty(), "{service} is not up");
        let pki = self.cluster.pki_dir();
        Ok(HttpClient::as_admin_of(&pki, &address)?.with_timeout(ANSWER_LIMIT))
    }

    /// Returns the name of a process; for a pattern, one of those that match. Those that do not run
    /// at the moment count too, so that the choice depends on the seed alone.
    pub(crate) async fn one_process(&mut self, pattern: &str) -> Result<String> {
        let names: Vec<_> = match glob(pattern) {
            None => return Ok(pattern.to_owned()),
            Some(_) => self
                .services()
                .await?
                .into_iter()
                .map(|service| service.name)
                .collect(),
        };
        self.one_of(pattern, names)
    }

    /// Returns the name of a node; for a pattern, one of those that match.
    pub(crate) async fn one_node(&mut self, pattern: &str) -> Result<String> {
        let names: Vec<_> = match glob(pattern) {
            None => return Ok(pattern.to_owned()),
            Some(_) => self.cluster.status().await?.nodes,
        };
        self.one_of(pattern, names)
    }

    fn one_of(&mut self, pattern: &str, names: Vec<String>) -> Result<String> {
        let is_meant = |name: &String| glob(pattern).is_none_or(|glob| glob.is_match(name));
        let each: BTreeSet<_> = names.into_iter().filter(is_meant).collect();
        ensure!(!each.is_empty(), "no name matches {pattern}");
        let chosen = self.random.random_range(..each.len());
        each.into_iter()
            .nth(chosen)
            .context("there are as many as counted")
    }

    /// Returns a process as soon as it runs: one that has just ended is restarted.
    pub(crate) async fn process(&self, name: &str) -> Result<Process> {
        let services = self.services().await?;
        let is_supervised = services.iter().any(|service| service.name == name);
        let look = || self.cluster.process(name);
        let is_decided = |found: &Result<Process, ClusterError>| {
            !is_supervised || !matches!(found, Err(ClusterError::NoProcess { .. }))
        };
        let what = format!("process {name}");
        Ok(within(self.case.within, &what, look, is_decided).await??)
    }

    /// Returns the violations at revisions since the last call.
    pub(crate) fn new_spans(&mut self) -> Vec<ViolationSpan> {
        let history = self.monitor.history();
        let from = std::mem::replace(&mut self.taken, history.begun());
        let new = history.breaches().filter(|span| span.ordinal >= from);
        new.cloned().collect()
    }

    /// Returns true if the cluster can be observed: not while its API server is paused.
    pub(crate) fn is_observable(&self) -> bool {
        let is_paused =
            |held: &ActiveFault| held.kind == FaultKind::Paused && held.of == "apiserver";
        !self.held.iter().any(is_paused)
    }
}

fn ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The data directory inside the directory of a run.
pub(crate) fn data_dir(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn builder(case: &PlannedCase, program: &Program) -> ClusterBuilder {
    let format::Cluster {
        cni_bin_dir,
        extra_config,
        ..
    } = &case.cluster;
    let disks = case.steps.iter().filter_map(|step| match &step.action {
        Action::FillDisk(node) => Some(&node.node),
        _ => None,
    });
    // `prepare_nodes` waits for all nodes together.
    let mut builder = Cluster::builder()
        .network(case.cluster.network())
        .without_waiting();
    for node in disks {
        let room = if node == "apiserver" { STORE } else { DISK };
        builder = builder.disk(node, room);
    }
    for Flag { name, value, .. } in case.cluster.flags() {
        // The builder has a method of its own for this flag.
        if name != "--network" {
            builder = builder.flag(name, value);
        }
    }
    if let Some(Several(dirs)) = cni_bin_dir {
        // A plugin to which the user's plugin delegates is podplane's, unless these directories
        // have it.
        let each = dirs.iter().map(|dir| case.resolve(dir));
        let each = each.chain([program.dir().to_owned()]);
        let joined = std::env::join_paths(each).unwrap_or_default();
        builder = builder.cni_bin_dir(joined);
    }
    for (service, flags) in extra_config {
        for (flag, value) in flags {
            builder = builder.extra_config(service, flag, &value.to_string());
        }
    }
    builder
}
