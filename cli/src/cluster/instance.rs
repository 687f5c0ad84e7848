//! A running cluster: its network, its services and its nodes.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::Context as _;
use futures::future::try_join_all;
use podplane_kubelet::NodeName;
use podplane_proto::cluster::{GetStatusResponse, ServiceStatus};
use tokio::task::{JoinSet, spawn_blocking};
use tonic::Status;

use super::{
    data_dir::{DataDir, Member, Record},
    departure,
    fabric::{Fabric, NodeNetwork},
    kubeconfig,
    mode::Mode,
    processes::{self, Place},
    service::{Listens, Service, Spec},
    settings::{Flags, MAX_KERNEL_NODES, Network, Settings},
    supervisor::progress,
};
use crate::report::UsageError;

/// How many nodes one CRI process and one kubelet serve where nothing runs inside nodes.
const NODES_PER_PROCESS: usize = 500;

/// Everything that runs. What is started is recorded here at once, so that [`Cluster::stop`] finds it however far [`Cluster::start`] came.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: DataDir,
    record: Record,
    mode: Mode,
    plugins: PathBuf,
    node_network: NodeNetwork,
    fabric: Option<Fabric>,
    control_plane: Vec<Service>,
    groups: Vec<Group>,
    /// What keeps the services running.
    keepers: JoinSet<()>,
    /// The API server's address, once it serves.
    server: String,
}

/// Nodes that share a CRI process and a kubelet.
#[derive(Debug)]
struct Group {
    name: String,
    nodes: Vec<Member>,
    cri: Service,
    /// Started when the API server's address is known.
    kubelet: Option<Service>,
}

impl Group {
    fn services(&self) -> impl Iterator<Item = &Service> {
        std::iter::once(&self.cri).chain(&self.kubelet)
    }
}

impl Cluster {
    /// A cluster of which nothing runs yet.
    pub(super) fn new(dir: DataDir, record: Record, mode: Mode) -> anyhow::Result<Self> {
        let ranges = record.settings.ranges()?;
        Ok(Self {
            plugins: record.settings.plugins()?,
            node_network: NodeNetwork::beside(&ranges)?,
            dir,
            record,
            mode,
            fabric: None,
            control_plane: Vec::new(),
            groups: Vec::new(),
            keepers: JoinSet::new(),
            server: String::new(),
        })
    }

    /// Starts all of it; returns when every service listens. `gone` are nodes that an earlier run of this cluster had.
    pub(super) async fn start(&mut self, gone: &[String]) -> anyhow::Result<()> {
        let apiserver = self.run(processes::apiserver(&self.dir, &self.record.settings));
        self.control_plane.push(apiserver);
        // The network and the CRI servers need no API server, so they are made while it reads its store.
        if self.mode.is_kernel() {
            self.make_fabric().await?;
        }
        let nodes = self.record.nodes.clone();
        self.start_cris(nodes)?;
        self.server = self.control_plane[0].listening().await?;
        kubeconfig::write(&self.dir, &self.server)?;
        progress(format!("apiserver serves on {}", self.server));
        // Before the first node is registered, and not before a start has come so far: flags that cannot work are not kept.
        self.dir.write_record(&self.record)?;
        let mut services = processes::control_plane(&self.dir, &self.record.settings, &self.server);
        for service in services.split_off(1) {
            let service = self.run(service);
            self.control_plane.push(service);
        }
        for index in 0..self.groups.len() {
            self.start_kubelet(index);
        }
        for name in gone {
            departure::forget(&self.dir, &self.server, name).await?;
        }
        try_join_all(self.services().map(Service::listening)).await?;
        progress(format!(
            "{} nodes have a kubelet and a CRI server",
            self.record.nodes.len()
        ));
        Ok(())
    }

    /// Ends everything that was started. Teardown tries every step; what fails is logged.
    pub(super) async fn stop(&mut self) {
        self.services().for_each(Service::stop);
        while self.keepers.join_next().await.is_some() {}
        if let Some(fabric) = self.fabric.take() {
            let removed = spawn_blocking(move || fabric.remove()).await;
            if let Err(error) = removed.map_err(Into::into).flatten() {
                // They end with this process in any case: its mount namespace has the last reference.
                tracing::warn!(
                    error = format!("{error:#}"),
                    "network namespaces are left to the kernel"
                );
            }
        }
    }

    pub(super) fn status(&self) -> GetStatusResponse {
        let status = |service: &Service| {
            let Spec { name, log, .. } = service.spec();
            let state = service.state();
            ServiceStatus {
                name: name.clone(),
                pid: state.pid,
                restarts: state.restarts,
                log: log.display().to_string(),
                address: state.address.unwrap_or_default(),
            }
        };
        GetStatusResponse {
            server: self.server.clone(),
            network: self.mode.name().into(),
            network_reason: self.mode.reason().into(),
            pid: std::process::id(),
            services: self.services().map(status).collect(),
            nodes: self
                .record
                .nodes
                .iter()
                .map(|node| node.name.clone())
                .collect(),
        }
    }

    /// Makes nodes and starts their processes; the kubelets register them.
    pub(super) async fn add_nodes(
        &mut self,
        names: Vec<NodeName>,
        network: Network,
    ) -> Result<(), Status> {
        let names: BTreeSet<_> = names.iter().map(ToString::to_string).collect();
        if let Some(name) = names.iter().find(|name| self.record.has(name)) {
            return Err(Status::already_exists(format!(
                "node {name} is already there"
            )));
        }
        let ledger = match network {
            Network::Kernel if !self.mode.is_kernel() => {
                return Err(Status::failed_precondition(format!(
                    "the cluster is in ledger mode ({}): no node of it can have devices",
                    self.mode.reason()
                )));
            }
            Network::Auto | Network::Kernel => false,
            Network::Ledger => self.mode.is_kernel(),
        };
        let kernel_nodes = self.record.kernel_nodes() + names.len();
        if self.mode.is_kernel() && !ledger && kernel_nodes > MAX_KERNEL_NODES {
            return Err(Status::resource_exhausted(format!(
                "one bridge takes {MAX_KERNEL_NODES} nodes, and the cluster would have {kernel_nodes}"
            )));
        }
        let names = names.into_iter();
        let nodes: Vec<_> = names.map(|name| self.record.add(name, ledger)).collect();
        let added = self.start_nodes(&nodes).await;
        if let Err(error) = &added {
            tracing::error!(error = format!("{error:#}"), "nodes cannot be added");
            for node in &nodes {
                // What was made of it goes; what cannot go now is still on record, for `node remove`.
                if let Err(error) = self.end_node(&node.name).await {
                    tracing::warn!(
                        node = node.name,
                        error = format!("{error:#}"),
                        "something of the node is left"
                    );
                }
            }
        }
        added.map_err(internal)
    }

    async fn start_nodes(&mut self, nodes: &[Member]) -> anyhow::Result<()> {
        for node in nodes {
            if let Some(fabric) = self.fabric_of(node) {
                let node = node.clone();
                spawn_blocking(move || fabric.add_node(&node)).await??;
            }
        }
        let first = self.groups.len();
        self.start_cris(nodes.to_vec())?;
        for index in first..self.groups.len() {
            self.start_kubelet(index);
        }
        let services = self.groups[first..].iter().flat_map(Group::services);
        try_join_all(services.map(Service::listening)).await?;
        self.dir.write_record(&self.record)
    }

    /// The network that a node is attached to, if its pods have devices.
    fn fabric_of(&self, node: &Member) -> Option<Fabric> {
        self.fabric.clone().filter(|_| !node.ledger)
    }

    /// Starts services of the control plane again: those of that name, and those whose flags are others now. Returns their names.
    pub(super) async fn restart(
        &mut self,
        names: &[String],
        flags: &Flags,
    ) -> Result<Vec<String>, Status> {
        let known = |name: &&String| {
            let mut services = self.control_plane.iter();
            services.any(|service| service.spec().name == **name)
        };
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Status::not_found(format!(
                "the control plane has no service {name}"
            )));
        }
        let settings = flags.over(&self.record.settings).map_err(internal)?;
        let invalid = |error: UsageError| Status::invalid_argument(error.to_string());
        if !self
            .node_network
            .is_beside(&settings.ranges().map_err(invalid)?)
        {
            return Err(Status::failed_precondition(
                "the ranges overlap the nodes' own addresses; take others, or `podplane down` first",
            ));
        }
        self.restart_with(names, settings).await.map_err(internal)
    }

    async fn restart_with(
        &mut self,
        names: &[String],
        settings: Settings,
    ) -> anyhow::Result<Vec<String>> {
        let mut restarted = Vec::new();
        let specs = processes::control_plane(&self.dir, &settings, &self.server);
        for (index, mut spec) in specs.into_iter().enumerate() {
            let running = &self.control_plane[index];
            if running.spec().args == spec.args && !names.contains(&spec.name) {
                continue;
            }
            // Where its clients know it.
            if let (Listens::AsPublished { listen, .. }, Some(address)) =
                (&mut spec.listens, running.state().address)
            {
                *listen = address;
            }
            let before = running.spec().clone();
            running.stop();
            running.stopped().await;
            restarted.push(spec.name.clone());
            let service = self.run(spec);
            let started = service.listening().await;
            if let Err(error) = started {
                // With the flags that it ran with it runs again.
                service.stop();
                service.stopped().await;
                self.control_plane[index] = self.run(before);
                self.control_plane[index].listening().await?;
                return Err(error);
            }
            self.control_plane[index] = service;
        }
        self.record.settings = settings;
        self.dir.write_record(&self.record)?;
        Ok(restarted)
    }

    /// Ends a node: its pods' sandboxes, its processes, its Node object, its namespace and its files.
    pub(super) async fn remove_node(&mut self, name: &str) -> Result<(), Status> {
        if !self.record.has(name) {
            return Err(Status::not_found(format!(
                "the cluster runs no node {name}"
            )));
        }
        self.end_node(name).await.map_err(internal)
    }

    async fn end_node(&mut self, name: &str) -> anyhow::Result<()> {
        let has_node = |group: &Group| group.nodes.iter().any(|node| node.name == name);
        if let Some(index) = self.groups.iter().position(has_node) {
            let group = self.groups.swap_remove(index);
            // The kubelet first: it would make the sandboxes again.
            if let Some(kubelet) = &group.kubelet {
                kubelet.stop();
                kubelet.stopped().await;
            }
            if let Err(error) = departure::remove_sandboxes(&self.dir, name).await {
                tracing::warn!(
                    node = name,
                    error = format!("{error:#}"),
                    "sandboxes are left to the end of the node's namespace"
                );
            }
            group.cri.stop();
            group.cri.stopped().await;
            // Others that shared these processes get new ones.
            let others: Vec<_> = group
                .nodes
                .into_iter()
                .filter(|node| node.name != name)
                .collect();
            if !others.is_empty() {
                self.start_cri(group.name, others)?;
                self.start_kubelet(self.groups.len() - 1);
            }
        }
        let node = self.record.nodes.iter().find(|node| node.name == name);
        if let Some(fabric) = node.and_then(|node| self.fabric_of(node)) {
            let name = name.to_owned();
            spawn_blocking(move || fabric.remove_node(&name)).await??;
        }
        departure::forget(&self.dir, &self.server, name).await?;
        // Last, so that a removal that failed half-way can be asked for again.
        self.record.nodes.retain(|node| node.name != name);
        self.dir.write_record(&self.record)
    }

    async fn make_fabric(&mut self) -> anyhow::Result<()> {
        let (run, network, nodes) = (
            self.dir.run(),
            self.node_network.clone(),
            self.record.nodes.clone(),
        );
        let made = spawn_blocking(move || {
            let fabric = Fabric::create(&run, network)?;
            let mut nodes = nodes.iter().filter(|node| !node.ledger);
            nodes.try_for_each(|node| fabric.add_node(node))?;
            anyhow::Ok(fabric)
        });
        self.fabric = Some(made.await??);
        Ok(())
    }

    /// Starts the CRI servers of nodes: one each where something runs inside them, else one for many.
    fn start_cris(&mut self, nodes: Vec<Member>) -> anyhow::Result<()> {
        let (alone, together): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .partition(|node| self.fabric_of(node).is_some());
        for node in alone {
            self.start_cri(node.name.clone(), vec![node])?;
        }
        for nodes in together.chunks(NODES_PER_PROCESS) {
            let name = match nodes {
                [node] => node.name.clone(),
                _ => self.group_name(),
            };
            self.start_cri(name, nodes.to_vec())?;
        }
        Ok(())
    }

    /// A name that no group has.
    fn group_name(&self) -> String {
        let mut names = (0..).map(|number| format!("nodes-{number}"));
        let is_free = |name: &String| self.groups.iter().all(|group| group.name != *name);
        names.find(is_free).unwrap_or_default()
    }

    fn start_cri(&mut self, name: String, nodes: Vec<Member>) -> anyhow::Result<()> {
        for node in &nodes {
            let dir = self.dir.nodes().join(&node.name);
            fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let spec = self.with_place(&name, &nodes, |place| {
            processes::cri(&self.dir, &self.record.settings, &self.plugins, place)
        });
        let cri = self.run(spec);
        self.groups.push(Group {
            name,
            nodes,
            cri,
            kubelet: None,
        });
        Ok(())
    }

    fn start_kubelet(&mut self, index: usize) {
        let Group { name, nodes, .. } = &self.groups[index];
        let spec = self.with_place(name, nodes, |place| {
            processes::kubelet(&self.dir, &self.record.settings, &self.server, place)
        });
        let kubelet = self.run(spec);
        self.groups[index].kubelet = Some(kubelet);
    }

    fn with_place<T>(&self, name: &str, nodes: &[Member], f: impl FnOnce(&Place<'_>) -> T) -> T {
        let kernel = nodes.first().and_then(|node| {
            let fabric = self.fabric_of(node)?;
            Some((fabric.node(&node.name), fabric.addresses(node)))
        });
        f(&Place {
            name,
            nodes: nodes.iter().map(|node| node.name.as_str()).collect(),
            kernel: kernel
                .as_ref()
                .map(|(path, addresses)| (path.as_path(), addresses.clone())),
        })
    }

    fn run(&mut self, spec: Spec) -> Service {
        let (service, keeper) = Service::new(spec);
        self.keepers.spawn(keeper);
        service
    }

    fn services(&self) -> impl Iterator<Item = &Service> {
        self.control_plane
            .iter()
            .chain(self.groups.iter().flat_map(Group::services))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn internal(error: anyhow::Error) -> Status {
    Status::internal(format!("{error:#}"))
}
