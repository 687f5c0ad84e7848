//! A cluster that a scenario is played on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podplane_proto::cluster::ServiceStatus;
use podplane_testkit::{
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
    look::Mark,
    objects::Objects,
    plan::{Action, Case, glob},
    problem::listed,
};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// The room on the disk of a node that is to be filled, in bytes.
const DISK: u64 = 16 << 20;

/// The same for the API server, whose store does not begin with less than 32 MiB.
const STORE: u64 = 64 << 20;

/// A cluster, and what is wrong with it on purpose.
#[derive(Debug)]
pub(crate) struct Stage {
    /// What is wrong until it is healed. It is dropped before the cluster: what stands still does not end when it is told to.
    held: Vec<Held>,
    /// Judges every revision of pods and nodes.
    pub(crate) monitor: RevisionMonitor,
    /// The number of its spans that have been taken.
    taken: usize,
    pub(crate) case: Arc<Case>,
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    pub(crate) random: StdRng,
    /// What had happened when steps began, by their names.
    pub(crate) marks: BTreeMap<String, Mark>,
    /// For files of the scenario's commands.
    pub(crate) scratch: PathBuf,
}

/// A fault that goes on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) kind: Kind,
    /// The process or the node.
    pub(crate) of: String,
    /// Healed when it is dropped.
    _fault: Fault,
}

/// What undoes a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `resume`
    Paused,
    /// `heal`
    Cut,
    /// `freeDisk`
    FullDisk,
    /// `calls` with `clear`
    Calls,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Paused => "paused",
            Self::Cut => "cut off",
            Self::FullDisk => "full",
            Self::Calls => "disturbed in its calls",
        })
    }
}

impl Stage {
    /// Starts the cluster of a scenario in `dir`, which is empty.
    pub(crate) async fn set(
        case: Arc<Case>,
        program: &Program,
        dir: &Path,
        seed: u64,
    ) -> Result<Self> {
        let scratch = dir.join("scratch");
        std::fs::create_dir_all(&scratch).with_context(|| format!("make {}", scratch.display()))?;
        let builder = builder(&case, program).program(program.path());
        let cluster = builder.data_dir(data_dir(dir)).record(dir).start().await?;
        let objects = Objects::new(cluster.server());
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
        })
    }

    /// Has the nodes join that the scenario names, and waits for all.
    pub(crate) async fn furnish(&self) -> Result<()> {
        if let Some(Nodes::Named(nodes)) = &self.case.cluster.nodes {
            self.add_nodes(nodes).await?;
        }
        if self.case.cluster.wait_for_nodes != Some(false) {
            self.nodes_ready().await?;
        }
        Ok(())
    }

    /// Waits until all nodes that the cluster has are Ready.
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
                "not Ready after {within:?}: {}; if that is meant, say cluster: {{waitForNodes: false}}",
                listed(&missing)
            );
            sleep(LOOK).await;
        }
    }

    /// Has a fault go on until it is healed.
    pub(crate) fn hold(&mut self, kind: Kind, of: impl Into<String>, fault: Fault) {
        let of = of.into();
        self.held.push(Held {
            kind,
            of,
            _fault: fault,
        });
    }

    /// Whose faults of a kind there are.
    pub(crate) fn held(&self, kind: Kind) -> Vec<&str> {
        let held = self.held.iter().filter(|held| held.kind == kind);
        held.map(|held| held.of.as_str()).collect()
    }

    /// Heals the faults of a kind that are meant; tells how many there were.
    pub(crate) fn heal(&mut self, kind: Kind, is_meant: impl Fn(&str) -> bool) -> usize {
        let before = self.held.len();
        self.held
            .retain(|held| held.kind != kind || !is_meant(&held.of));
        before - self.held.len()
    }

    /// Lets nodes join, with their labels and blocks. Those that are alike join together, and may share processes then.
    pub(crate) async fn add_nodes(&self, nodes: &[NodeSpec]) -> Result<()> {
        for alike in nodes.chunk_by(|a, b| {
            a.pod_cidr.is_none()
                && b.pod_cidr.is_none()
                && a.labels == b.labels
                && a.network == b.network
        }) {
            let [
                NodeSpec {
                    name,
                    network,
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
            match pod_cidr {
                // The kubelet takes over what is there.
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

    /// Takes the cluster down, and looks whether all of it is gone.
    pub(crate) async fn strike(self) -> Result<()> {
        drop((self.held, self.monitor));
        Ok(self.cluster.stop().await?)
    }

    /// What runs, as the supervisor has it.
    pub(crate) async fn services(&self) -> Result<Vec<ServiceStatus>> {
        Ok(self.cluster.status().await?.services)
    }

    /// Where a service listens.
    pub(crate) async fn address(&self, service: &str) -> Result<String> {
        let services = self.services().await?;
        let found = services.into_iter().find(|status| status.name == service);
        let address = found
            .with_context(|| format!("no process is called {service}"))?
            .address;
        ensure!(!address.is_empty(), "{service} is not up");
        Ok(address)
    }

    /// The name of a process; for a pattern one of those that match, whether it runs at the moment or not: chance goes by the seed alone.
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

    /// The node of that name; for a pattern one of those that match.
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
        ensure!(!each.is_empty(), "nothing is called {pattern}");
        let chosen = self.random.random_range(..each.len());
        each.into_iter()
            .nth(chosen)
            .context("there are as many as counted")
    }

    /// A process, as soon as it runs: one that has just ended is started again.
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

    /// The invariants that were broken at a revision since this was asked before.
    pub(crate) fn new_spans(&mut self) -> Vec<ViolationSpan> {
        let history = self.monitor.history();
        let from = std::mem::replace(&mut self.taken, history.begun());
        let new = history.breaches().filter(|span| span.ordinal >= from);
        new.cloned().collect()
    }

    /// Whether the cluster can be observed: not while its API server stands still.
    pub(crate) fn is_observable(&self) -> bool {
        let is_paused = |held: &Held| held.kind == Kind::Paused && held.of == "apiserver";
        !self.held.iter().any(is_paused)
    }
}

fn ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The data directory inside of a run's directory.
pub(crate) fn data_dir(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn builder(case: &Case, program: &Program) -> ClusterBuilder {
    let format::Cluster {
        network,
        cni_bin_dir,
        extra_config,
        ..
    } = &case.cluster;
    let disks = case.steps.iter().filter_map(|step| match &step.action {
        Action::FillDisk(node) => Some(&node.node),
        _ => None,
    });
    let network = match network {
        format::Network::Ledger => podplane_testkit::Network::Ledger,
        format::Network::Kernel => podplane_testkit::Network::Kernel,
        format::Network::Auto => podplane_testkit::Network::Auto,
    };
    // All nodes are waited for together.
    let mut builder = Cluster::builder().network(network).without_waiting();
    for node in disks {
        let room = if node == "apiserver" { STORE } else { DISK };
        builder = builder.disk(node, room);
    }
    for Flag { name, value, .. } in case.cluster.flags() {
        // The builder has its own word for this one.
        if name != "--network" {
            builder = builder.flag(name, value);
        }
    }
    if let Some(Several(dirs)) = cni_bin_dir {
        // What a plugin of one's own delegates to is podplane's, unless it is there too.
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
