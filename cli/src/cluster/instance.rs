//! A running cluster: its network, its services and its nodes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use futures::future::try_join_all;
use podplane_client::{Client, Endpoint};
use podplane_kubelet::{NodeName, cri::record::Records};
use podplane_proto::cluster::{GetStatusResponse, ServiceStatus};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    data_dir::{DataDir, Member, Record},
    departure::{self, Sandboxes},
    fabric::{Fabric, NodeNetwork},
    kubeconfig,
    mode::Mode,
    processes::{self, Lines, Place},
    ready,
    service::{Listens, Service, Spec, State},
    settings::{Flags, MAX_KERNEL_NODES, Network, Settings},
    supervisor::progress,
};
use crate::report::UsageError;

/// How long a kubelet may take to register its node. The API server may be starting again.
const REGISTRATION_DEADLINE: Duration = Duration::from_secs(60);

/// Everything that runs. What is started is recorded here at once, so that [`Cluster::stop`] finds it however far [`Cluster::start`] came.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: DataDir,
    record: Record,
    mode: Mode,
    /// Where others serve the sockets by which services reach each other, if they do.
    links: Option<PathBuf>,
    /// Absent where CRI servers are others'.
    plugins: Option<PathBuf>,
    node_network: NodeNetwork,
    fabric: Option<Fabric>,
    control_plane: Vec<Service>,
    groups: Vec<Group>,
    /// What keeps the services running.
    keepers: JoinSet<()>,
    /// Ends all that is kept running.
    stopping: CancellationToken,
    /// The API server's address, once it serves.
    server: String,
    view: watch::Sender<View>,
}

/// What is told of the cluster, also while it is busy with something.
#[derive(Debug, Default)]
pub(super) struct View {
    /// All but the services.
    status: GetStatusResponse,
    /// Each with the nodes that it works for.
    services: Vec<(Spec, Vec<String>, watch::Receiver<State>)>,
}

impl View {
    pub(super) fn status(&self) -> GetStatusResponse {
        let service = |(spec, nodes, state): &(Spec, Vec<String>, watch::Receiver<State>)| {
            let state = state.borrow().clone();
            let address = state.address.unwrap_or_default();
            ServiceStatus {
                name: spec.name.clone(),
                pid: state.pid,
                restarts: state.restarts,
                log: spec.log.display().to_string(),
                http_address: spec.http_address(&address).unwrap_or_default(),
                address,
                nodes: nodes.clone(),
            }
        };
        GetStatusResponse {
            services: self.services.iter().map(service).collect(),
            ..self.status.clone()
        }
    }
}

/// Nodes that share a CRI process and a kubelet.
#[derive(Debug)]
struct Group {
    name: String,
    nodes: Vec<Member>,
    /// Absent where the runtime is others'.
    cri: Option<Service>,
    /// Started when the API server's address is known.
    kubelet: Option<Service>,
}

impl Group {
    fn services(&self) -> impl Iterator<Item = &Service> {
        self.cri.iter().chain(&self.kubelet)
    }
}

/// Where a service is in a [`Cluster`].
#[derive(Clone, Copy, Debug)]
enum Slot {
    Control(usize),
    Cri(usize),
    Kubelet(usize),
}

impl Cluster {
    /// A cluster of which nothing runs yet.
    pub(super) fn new(
        dir: DataDir,
        record: Record,
        mode: Mode,
        links: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let ranges = record.settings.ranges()?;
        Ok(Self {
            plugins: record.settings.plugins()?,
            node_network: NodeNetwork::beside(&ranges)?,
            links,
            stopping: CancellationToken::new(),
            view: watch::Sender::default(),
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
        let apiserver = self.run(self.lines(&self.record.settings).apiserver());
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
        let mut services = self.lines(&self.record.settings).control_plane();
        for service in services.split_off(1) {
            let service = self.run(service);
            self.control_plane.push(service);
        }
        for index in 0..self.groups.len() {
            self.start_kubelet(index);
        }
        for name in gone {
            // With the run that they were of.
            departure::forget(&self.dir, &self.server, name, Sandboxes::Gone).await?;
        }
        try_join_all(self.services().map(Service::listening)).await?;
        self.publish();
        progress(format!(
            "{} nodes have a kubelet and a CRI server",
            self.record.nodes.len()
        ));
        Ok(())
    }

    /// Ends everything that was started. Teardown tries every step; what fails is logged.
    pub(super) async fn stop(&mut self) {
        self.stopping.cancel();
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

    /// Writes the flags and nodes of a cluster that served, if the file was removed meanwhile.
    pub(super) fn keep_record(&self) -> anyhow::Result<()> {
        match self.server.is_empty() {
            true => Ok(()),
            false => self.dir.restore_record(&self.record),
        }
    }

    /// What is told of the cluster.
    pub(super) fn view(&self) -> watch::Receiver<View> {
        self.view.subscribe()
    }

    /// Tells what there is now.
    fn publish(&self) {
        let status = GetStatusResponse {
            server: self.server.clone(),
            network: self.mode.name().into(),
            network_reason: self.mode.reason().into(),
            pid: std::process::id(),
            services: Vec::new(),
            nodes: self
                .record
                .nodes
                .iter()
                .map(|node| node.name.clone())
                .collect(),
            cri_endpoint: self.record.settings.cri_endpoint.clone(),
            // Whoever serves this knows.
            http_address: String::new(),
        };
        let seen = |service: &Service, nodes: &[Member]| {
            let nodes = nodes.iter().map(|node| node.name.clone()).collect();
            (service.spec().clone(), nodes, service.observe())
        };
        let control_plane = self.control_plane.iter().map(|service| seen(service, &[]));
        let of_nodes = self.groups.iter().flat_map(|group| {
            let services = group.services();
            services.map(|service| seen(service, &group.nodes))
        });
        self.view.send_replace(View {
            status,
            services: control_plane.chain(of_nodes).collect(),
        });
    }

    fn lines<'a>(&'a self, settings: &'a Settings) -> Lines<'a> {
        Lines {
            dir: &self.dir,
            settings,
            server: &self.server,
            links: self.links.as_deref(),
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
        if let Some(endpoint) = &self.record.settings.cri_endpoint
            && !endpoint.contains("{node}")
            && self.record.nodes.len() + names.len() > 1
        {
            return Err(Status::failed_precondition(format!(
                "--cri-endpoint {endpoint} is the runtime of one node"
            )));
        }
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
        self.publish();
        let services = self.groups[first..].iter().flat_map(Group::services);
        try_join_all(services.map(Service::listening)).await?;
        self.await_registration(nodes).await?;
        self.dir.write_record(&self.record)
    }

    /// Waits until kubelets have registered their nodes.
    async fn await_registration(&self, nodes: &[Member]) -> anyhow::Result<()> {
        let client = Client::connect(&self.server.parse::<Endpoint>()?)?;
        let names = nodes.iter().map(|node| node.name.clone()).collect();
        let missing = ready::registered(&client, names, REGISTRATION_DEADLINE).await;
        anyhow::ensure!(
            missing.is_empty(),
            "nodes not registered after {} s: {}; the logs of their kubelets are in {}",
            REGISTRATION_DEADLINE.as_secs(),
            missing.join(", "),
            self.dir.log("kubelet-*").display()
        );
        Ok(())
    }

    /// The network that a node is attached to, if its pods have devices.
    fn fabric_of(&self, node: &Member) -> Option<Fabric> {
        self.fabric.clone().filter(|_| !node.ledger)
    }

    /// Starts services again: those of that name or kind, and those whose flags are others now. Returns their names.
    pub(super) async fn restart(
        &mut self,
        names: &[String],
        flags: &Flags,
    ) -> Result<Vec<String>, Status> {
        let known = |name: &&String| self.services().any(|service| service.spec().is(name));
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Status::not_found(format!(
                "the cluster has no service {name}; `podplane status` shows those that it has"
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
        for slot in self.slots() {
            let mut spec = self.spec(slot, &settings);
            let Some(running) = self.service(slot) else {
                continue;
            };
            if running.spec().args == spec.args && !names.iter().any(|name| spec.is(name)) {
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
                let again = self.run(before);
                let listening = again.listening().await;
                self.put(slot, again);
                listening?;
                return Err(error);
            }
            self.put(slot, service);
        }
        self.record.settings = settings;
        self.dir.write_record(&self.record)?;
        Ok(restarted)
    }

    fn slots(&self) -> Vec<Slot> {
        let control = (0..self.control_plane.len()).map(Slot::Control);
        let groups = 0..self.groups.len();
        let groups = groups.flat_map(|index| [Slot::Cri(index), Slot::Kubelet(index)]);
        control.chain(groups).collect()
    }

    fn service(&self, slot: Slot) -> Option<&Service> {
        match slot {
            Slot::Control(index) => self.control_plane.get(index),
            Slot::Cri(index) => self.groups[index].cri.as_ref(),
            Slot::Kubelet(index) => self.groups[index].kubelet.as_ref(),
        }
    }

    fn put(&mut self, slot: Slot, service: Service) {
        match slot {
            Slot::Control(index) => self.control_plane[index] = service,
            Slot::Cri(index) => self.groups[index].cri = Some(service),
            Slot::Kubelet(index) => self.groups[index].kubelet = Some(service),
        }
        self.publish();
    }

    fn spec(&self, slot: Slot, settings: &Settings) -> Spec {
        let lines = self.lines(settings);
        match slot {
            Slot::Control(index) => lines.control_plane().swap_remove(index),
            Slot::Cri(index) => self.cri_spec(&lines, &self.groups[index]),
            Slot::Kubelet(index) => self.kubelet_spec(&lines, &self.groups[index]),
        }
    }

    /// Ends a node: its pods' sandboxes, its processes, its Node object, its namespace and its files.
    pub(super) async fn remove_node(&mut self, name: &str) -> Result<(), Status> {
        self.node(name)?;
        self.end_node(name).await.map_err(internal)
    }

    async fn end_node(&mut self, name: &str) -> anyhow::Result<()> {
        let has_node = |group: &Group| group.nodes.iter().any(|node| node.name == name);
        // A runtime of this cluster ends with what it runs.
        let mut sandboxes = match self.plugins {
            Some(_) => Sandboxes::Gone,
            None => Sandboxes::Left,
        };
        if let Some(index) = self.groups.iter().position(has_node) {
            let group = self.groups.swap_remove(index);
            // The kubelet first: it would make the sandboxes again.
            if let Some(kubelet) = &group.kubelet {
                kubelet.stop();
                kubelet.stopped().await;
            }
            let endpoint = self.cri_endpoint(name);
            match departure::remove_sandboxes_in_time(&endpoint).await {
                Ok(()) => sandboxes = Sandboxes::Gone,
                Err(error) => tracing::warn!(
                    node = name,
                    error = format!("{error:#}"),
                    "sandboxes are left to the end of the node's namespace"
                ),
            }
            if let Some(cri) = &group.cri {
                cri.stop();
                cri.stopped().await;
            }
            // Others that shared these processes get new ones.
            let others: Vec<_> = group
                .nodes
                .into_iter()
                .filter(|node| node.name != name)
                .collect();
            if !others.is_empty() {
                self.start_group(group.name, others)?;
            }
            self.publish();
        }
        let node = self.record.nodes.iter().find(|node| node.name == name);
        if let Some(fabric) = node.and_then(|node| self.fabric_of(node)) {
            let name = name.to_owned();
            spawn_blocking(move || fabric.remove_node(&name)).await??;
        }
        departure::forget(&self.dir, &self.server, name, sandboxes).await?;
        // Last, so that a removal that failed half-way can be asked for again.
        self.record.nodes.retain(|node| node.name != name);
        self.publish();
        self.dir.write_record(&self.record)
    }

    /// Lets a node go through a power cycle. Others that shared its processes get new ones, and from now on it has its own.
    pub(super) async fn reboot_node(&mut self, name: &str) -> Result<(), Status> {
        let node = self.node(name)?.clone();
        if self.record.settings.cri_endpoint.is_some() {
            return Err(Status::failed_precondition(
                "the node's runtime is not of this cluster (--cri-endpoint): it cannot be switched off from here",
            ));
        }
        self.power_cycle(node).await.map_err(internal)
    }

    async fn power_cycle(&mut self, node: Member) -> anyhow::Result<()> {
        let has_node = |group: &Group| group.nodes.iter().any(|member| member.name == node.name);
        let mut others = None;
        if let Some(index) = self.groups.iter().position(has_node) {
            let group = self.groups.swap_remove(index);
            group.services().for_each(Service::kill);
            for service in group.services() {
                service.stopped().await;
            }
            let mut nodes = group.nodes;
            nodes.retain(|member| member.name != node.name);
            others = Some((group.name, nodes)).filter(|(_, nodes)| !nodes.is_empty());
        }
        let sandboxes = self.dir.nodes().join(&node.name).join("sandboxes");
        let (fabric, member) = (self.fabric_of(&node), node.clone());
        let switched = spawn_blocking(move || {
            if let Some(fabric) = fabric {
                fabric.switch_off(&member.name)?;
                fabric.add_node(&member)?;
            }
            anyhow::Ok(Records::open(sandboxes)?.power_cycle()?)
        });
        let switched = switched.await.map_err(Into::into).flatten();
        // Also if that failed: nothing else would start these processes again.
        let first = self.groups.len();
        let others = others.map_or(Ok(()), |(name, nodes)| self.start_group(name, nodes));
        let own = self.start_group(node.name.clone(), vec![node]);
        self.publish();
        switched.and(others).and(own)?;
        let services = self.groups[first..].iter().flat_map(Group::services);
        try_join_all(services.map(Service::listening)).await?;
        Ok(())
    }

    /// Cuts a node off from the other nodes, or connects it again.
    pub(super) async fn connect_node(&self, name: &str, connected: bool) -> Result<(), Status> {
        let node = self.node(name)?.clone();
        let fabric = self.fabric_of(&node).ok_or_else(|| {
            Status::failed_precondition(format!(
                "node {name} is in ledger mode: it has no uplink that could be cut"
            ))
        })?;
        let done = spawn_blocking(move || fabric.connect(&node, connected)).await;
        done.map_err(Into::into).flatten().map_err(internal)
    }

    fn cri_endpoint(&self, node: &str) -> String {
        let of_others = self.record.settings.cri_endpoint.as_deref();
        processes::cri_endpoint(&self.dir, of_others, node)
    }

    fn node(&self, name: &str) -> Result<&Member, Status> {
        let mut nodes = self.record.nodes.iter();
        nodes
            .find(|node| node.name == name)
            .ok_or_else(|| Status::not_found(format!("the cluster runs no node {name}")))
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
        let shared = usize::try_from(self.record.settings.nodes_per_process)?;
        for nodes in together.chunks(shared.max(1)) {
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

    /// Starts the processes of nodes that share them.
    fn start_group(&mut self, name: String, nodes: Vec<Member>) -> anyhow::Result<()> {
        self.start_cri(name, nodes)?;
        self.start_kubelet(self.groups.len() - 1);
        Ok(())
    }

    fn start_cri(&mut self, name: String, nodes: Vec<Member>) -> anyhow::Result<()> {
        for node in &nodes {
            let dir = self.dir.nodes().join(&node.name);
            fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let mut group = Group {
            name,
            nodes,
            cri: None,
            kubelet: None,
        };
        if self.plugins.is_some() {
            let spec = self.cri_spec(&self.lines(&self.record.settings), &group);
            group.cri = Some(self.run(spec));
        }
        self.groups.push(group);
        Ok(())
    }

    fn start_kubelet(&mut self, index: usize) {
        let lines = self.lines(&self.record.settings);
        let spec = self.kubelet_spec(&lines, &self.groups[index]);
        let kubelet = self.run(spec);
        self.groups[index].kubelet = Some(kubelet);
    }

    fn cri_spec(&self, lines: &Lines<'_>, group: &Group) -> Spec {
        let plugins = self.plugins.as_deref().unwrap_or(Path::new(""));
        self.with_place(&group.name, &group.nodes, |place| lines.cri(plugins, place))
    }

    fn kubelet_spec(&self, lines: &Lines<'_>, group: &Group) -> Spec {
        self.with_place(&group.name, &group.nodes, |place| lines.kubelet(place))
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
        let (service, keeper) = Service::new(spec, self.stopping.child_token());
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
