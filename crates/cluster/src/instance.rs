//! A running cluster: its network, its services and its nodes.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use futures::future::try_join_all;
use podplane_api::{ObjectKey, core::Node, node::NodeName};
use podplane_client::{Client, Endpoint, ListParams, reflector};
use podplane_host::{
    clock, fs,
    task::{self, spawn_blocking},
};
use podplane_pki::CertificateOwner;
use podplane_proto::cluster::{GetStatusResponse, ServiceStatus};
use podplane_service_runtime::serving::{AuthenticationMode, ServingFlags};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    certificates::ClusterCertificates,
    control::NodeKind,
    data_dir::{ClusterRecord, DataDir, Member},
    departure::{self, Sandboxes},
    fabric::{Fabric, NodeNetwork},
    mode::Mode,
    processes::{self, CommandLines, ServedNodes},
    service::{Service, ServiceSpec, ServiceState},
    services::{CLIENTS, ServiceCatalog},
    settings::{MAX_KERNEL_NODES, Network, Settings, node_not_found},
    supervisor::progress,
};

mod restart;

/// The time that a kubelet has to register its node. The API server may be restarting.
const REGISTRATION_DEADLINE: Duration = Duration::from_secs(60);

/// The running parts of a cluster. Each is recorded here as soon as it starts, so that
/// [`ClusterInstance::stop`] finds it however far [`ClusterInstance::start`] came.
#[derive(Debug)]
pub(crate) struct ClusterInstance {
    dir: DataDir,
    record: ClusterRecord,
    mode: Mode,
    /// The directory of the sockets that others serve between the services, if they do.
    links: Option<PathBuf>,
    /// The directories of the plugins; `None` if the CRI servers belong to others.
    plugins: Option<PathBuf>,
    node_network: NodeNetwork,
    fabric: Option<Fabric>,
    control_plane: Vec<Service>,
    groups: Vec<NodeGroup>,
    /// The tasks that keep the services running.
    keepers: JoinSet<()>,
    /// Cancelled to stop all services.
    stopping: CancellationToken,
    /// The API server's address, once it serves.
    server: String,
    /// `None` if the processes do not know each other by certificates.
    certificates: Option<ClusterCertificates>,
    view: watch::Sender<ClusterView>,
    services: &'static dyn ServiceCatalog,
}

/// The published state of the cluster, available even while the supervisor is busy.
#[derive(Debug, Default)]
pub(crate) struct ClusterView {
    /// The status without the services.
    status: GetStatusResponse,
    /// Each service with the nodes that it works for.
    services: Vec<(ServiceSpec, Vec<String>, watch::Receiver<ServiceState>)>,
}

impl ClusterView {
    pub(crate) fn status(&self) -> GetStatusResponse {
        let service =
            |(spec, nodes, state): &(ServiceSpec, Vec<String>, watch::Receiver<ServiceState>)| {
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
struct NodeGroup {
    name: String,
    nodes: Vec<Member>,
    /// `None` if the runtime belongs to others.
    cri: Option<Service>,
    /// Started when the API server's address is known.
    kubelet: Option<Service>,
}

impl NodeGroup {
    fn services(&self) -> impl Iterator<Item = &Service> {
        self.cri.iter().chain(&self.kubelet)
    }
}

/// The owners of the certificates of a group's processes: as servers, and if the group is one node,
/// that node.
fn owners_of_group(group: &str, nodes: &[Member]) -> Vec<CertificateOwner> {
    let ports = ["cri", "kubelet"];
    let ports = ports.map(|service| CertificateOwner::Serving(format!("{service}-{group}")));
    let node = match nodes {
        [node] => Some(CertificateOwner::Node(node.name.clone())),
        _ => None,
    };
    ports.into_iter().chain(node).collect()
}

impl ClusterInstance {
    /// A cluster of which nothing runs yet.
    pub(crate) fn new(
        dir: DataDir,
        record: ClusterRecord,
        mode: Mode,
        links: Option<PathBuf>,
        services: &'static dyn ServiceCatalog,
    ) -> anyhow::Result<Self> {
        let ranges = record.settings.ranges()?;
        let certificates = record.settings.has_certificates();
        Ok(Self {
            certificates: certificates.then(|| ClusterCertificates::of(&dir)),
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
            services,
        })
    }

    /// Starts everything; returns when every service listens. `gone` are nodes of an earlier run
    /// that are to be removed.
    pub(crate) async fn start(&mut self, gone: &[String]) -> anyhow::Result<()> {
        if let Some(certificates) = &self.certificates {
            let names = self.lines(&self.record.settings).control_plane();
            let ports = names
                .into_iter()
                .map(|spec| CertificateOwner::Serving(spec.name));
            let mut owners: Vec<_> = CertificateOwner::PROCESSES.into_iter().collect();
            owners.push(CertificateOwner::Monitoring);
            owners.extend(ports.skip(1));
            certificates.ensure(&owners, self.record.settings.certificate_lifetime()?)?;
        }
        let apiserver = self.run(self.lines(&self.record.settings).apiserver());
        self.control_plane.push(apiserver);
        // The network and the CRI servers do not need the API server, so they are created while it
        // reads its store.
        if self.mode.is_kernel() {
            self.make_fabric().await?;
        }
        let nodes = self.record.nodes.clone();
        self.start_cris(nodes)?;
        self.server = self.control_plane[0].listening().await?;
        progress(format!("apiserver serves on {}", self.server));
        // Before the first node is registered, but only once the start has come this far: flags
        // that cannot work are not kept.
        self.dir.write_record(&self.record)?;
        let services = self.lines(&self.record.settings).control_plane();
        let mut services = services.into_iter().skip(self.control_plane.len());
        for service in services.by_ref().take(CLIENTS.len()) {
            let service = self.run(service);
            self.control_plane.push(service);
        }
        for index in 0..self.groups.len() {
            self.start_kubelet(index);
        }
        for name in gone {
            // Their sandboxes ended with the earlier run.
            departure::forget(
                &self.dir,
                &self.local_server()?,
                name,
                Sandboxes::Gone,
                self.services,
            )
            .await?;
        }
        try_join_all(self.services().map(Service::listening)).await?;
        // Later than the others, which so lead first.
        for service in services {
            let service = self.run(service);
            self.control_plane.push(service);
        }
        try_join_all(self.control_plane.iter().map(Service::listening)).await?;
        self.publish();
        progress(format!(
            "{} nodes have a kubelet and a CRI server",
            self.record.nodes.len()
        ));
        Ok(())
    }

    /// Stops everything that was started. It tries every step and logs failures.
    pub(crate) async fn stop(&mut self) {
        self.stopping.cancel();
        while self.keepers.join_next().await.is_some() {}
        if let Some(fabric) = self.fabric.take() {
            let removed = spawn_blocking(move || fabric.remove()).await;
            if let Err(error) = removed.map_err(Into::into).flatten() {
                // They end with this process in any case: its mount namespace has the last
                // reference.
                tracing::warn!(
                    error = format!("{error:#}"),
                    "network namespaces are left to the kernel"
                );
            }
        }
    }

    /// Writes the flags and nodes of a cluster that served, if the file was removed meanwhile.
    pub(crate) fn keep_record(&self) -> anyhow::Result<()> {
        match self.server.is_empty() {
            true => Ok(()),
            false => self.dir.restore_record(&self.record),
        }
    }

    /// A receiver of the published state.
    pub(crate) fn view(&self) -> watch::Receiver<ClusterView> {
        self.view.subscribe()
    }

    /// Publishes the present state.
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
            // The server of this status fills it in.
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
        self.view.send_replace(ClusterView {
            status,
            services: control_plane.chain(of_nodes).collect(),
        });
    }

    fn lines<'a>(&'a self, settings: &'a Settings) -> CommandLines<'a> {
        CommandLines {
            dir: &self.dir,
            settings,
            server: &self.server,
            certificates: self.certificates.as_ref(),
            links: self.links.as_deref(),
        }
    }

    /// The flags of the port of a process of the supervisor's own kind, which has no command line.
    pub(crate) fn serving(&self, process: &str) -> anyhow::Result<ServingFlags> {
        if let Some(certificates) = &self.certificates {
            let lifetime = self.record.settings.certificate_lifetime()?;
            certificates.ensure(&[CertificateOwner::Serving(process.to_owned())], lifetime)?;
            return Ok(certificates.serving(process));
        }
        let authentication = match self.record.settings.is_authenticated() {
            true => AuthenticationMode::Credentials,
            false => AuthenticationMode::None,
        };
        Ok(ServingFlags {
            authentication,
            ..ServingFlags::default()
        })
    }

    /// The API server for this process, which needs no certificate at this socket.
    fn local_server(&self) -> anyhow::Result<Endpoint> {
        let socket = self.dir.apiserver_socket();
        Ok(format!("unix:{}", socket.display()).parse()?)
    }

    /// Creates nodes and starts their processes; the kubelets register them.
    pub(crate) async fn add_nodes(
        &mut self,
        names: Vec<NodeName>,
        kind: NodeKind,
    ) -> Result<(), Status> {
        let NodeKind { network, backend } = kind;
        let names: BTreeSet<_> = names.iter().map(ToString::to_string).collect();
        if let Some(name) = names.iter().find(|name| self.record.has(name)) {
            return Err(Status::already_exists(format!(
                "node `{name}` already exists"
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
        if backend.is_some() && (ledger || !self.mode.is_kernel()) {
            return Err(Status::failed_precondition(
                "a node without devices has no node network, so it has no backend of one",
            ));
        }
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
        let nodes: Vec<_> = names
            .map(|name| self.record.add(name, ledger, backend))
            .collect();
        let added = self.start_nodes(&nodes).await;
        if let Err(error) = &added {
            tracing::error!(error = format!("{error:#}"), "nodes cannot be added");
            for node in &nodes {
                // Its parts are removed; if that fails, the node stays on record for `node remove`.
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
        let services = self.groups[first..].iter().flat_map(NodeGroup::services);
        try_join_all(services.map(Service::listening)).await?;
        self.await_registration(nodes).await?;
        self.dir.write_record(&self.record)
    }

    /// Waits until kubelets have registered their nodes.
    async fn await_registration(&self, nodes: &[Member]) -> anyhow::Result<()> {
        let client = Client::connect(&self.local_server()?)?;
        let names = nodes.iter().map(|node| node.name.clone()).collect();
        let missing = registered(&client, names, REGISTRATION_DEADLINE).await;
        anyhow::ensure!(
            missing.is_empty(),
            "nodes not registered after {} s: {}; the logs of their kubelets are in {}",
            REGISTRATION_DEADLINE.as_secs(),
            missing.join(", "),
            self.dir.log("kubelet-*").display()
        );
        Ok(())
    }

    /// The network of a node, if its pods have devices.
    fn fabric_of(&self, node: &Member) -> Option<Fabric> {
        self.fabric.clone().filter(|_| !node.ledger)
    }

    /// Removes a node: its pods' sandboxes, its processes, its Node object, its namespace and its
    /// files.
    pub(crate) async fn remove_node(&mut self, name: &str) -> Result<(), Status> {
        self.node(name)?;
        self.end_node(name).await.map_err(internal)
    }

    async fn end_node(&mut self, name: &str) -> anyhow::Result<()> {
        let has_node = |group: &NodeGroup| group.nodes.iter().any(|node| node.name == name);
        // A runtime of this cluster takes its sandboxes down with it.
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
            if let Some(certificates) = &self.certificates {
                certificates.remove(&owners_of_group(&group.name, &group.nodes))?;
            }
            // Other nodes that shared these processes get new ones.
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
        let server = self.local_server()?;
        departure::forget(&self.dir, &server, name, sandboxes, self.services).await?;
        // Last, so that a removal that failed half-way can be requested again.
        self.record.nodes.retain(|node| node.name != name);
        self.publish();
        self.dir.write_record(&self.record)
    }

    /// Takes a node through a power cycle. Other nodes that shared its processes get new ones, and
    /// it has its own from now on.
    pub(crate) async fn reboot_node(&mut self, name: &str) -> Result<(), Status> {
        let node = self.node(name)?.clone();
        if self.record.settings.cri_endpoint.is_some() {
            return Err(Status::failed_precondition(
                "the node's runtime is not of this cluster (--cri-endpoint): it cannot be switched off from here",
            ));
        }
        self.power_cycle(node).await.map_err(internal)
    }

    async fn power_cycle(&mut self, node: Member) -> anyhow::Result<()> {
        let has_node =
            |group: &NodeGroup| group.nodes.iter().any(|member| member.name == node.name);
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
        let services = self.services;
        let switched = spawn_blocking(move || {
            if let Some(fabric) = fabric {
                fabric.switch_off(&member.name)?;
                fabric.add_node(&member)?;
            }
            anyhow::Ok(services.power_cycle(&sandboxes)?)
        });
        let switched = switched.await.map_err(Into::into).flatten();
        // Even if that failed: nothing else would start these processes again.
        let first = self.groups.len();
        let others = others.map_or(Ok(()), |(name, nodes)| self.start_group(name, nodes));
        let own = self.start_group(node.name.clone(), vec![node]);
        self.publish();
        switched.and(others).and(own)?;
        let services = self.groups[first..].iter().flat_map(NodeGroup::services);
        try_join_all(services.map(Service::listening)).await?;
        Ok(())
    }

    /// Disconnects a node from the other nodes, or connects it again.
    pub(crate) async fn connect_node(&self, name: &str, connected: bool) -> Result<(), Status> {
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
            .ok_or_else(|| Status::not_found(node_not_found(name)))
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

    /// Starts the CRI servers of nodes: one for each node with a namespace, else one for many.
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

    /// An unused name for a group.
    fn group_name(&self) -> String {
        let mut names = (0..).map(processes::shared_name);
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
            fs::create_dir_all(&dir)
                .with_context(|| format!("failed to make {}", dir.display()))?;
        }
        if let Some(certificates) = &self.certificates {
            let lifetime = self.record.settings.certificate_lifetime()?;
            certificates.ensure(&owners_of_group(&name, &nodes), lifetime)?;
        }
        let mut group = NodeGroup {
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

    fn cri_spec(&self, lines: &CommandLines<'_>, group: &NodeGroup) -> ServiceSpec {
        let plugins = self.plugins.as_deref().unwrap_or(Path::new(""));
        self.with_place(&group.name, &group.nodes, |place| lines.cri(plugins, place))
    }

    fn kubelet_spec(&self, lines: &CommandLines<'_>, group: &NodeGroup) -> ServiceSpec {
        self.with_place(&group.name, &group.nodes, |place| lines.kubelet(place))
    }

    fn with_place<T>(
        &self,
        name: &str,
        nodes: &[Member],
        f: impl FnOnce(&ServedNodes<'_>) -> T,
    ) -> T {
        let kernel = nodes.first().and_then(|node| {
            let fabric = self.fabric_of(node)?;
            Some((fabric.node(&node.name), fabric.addresses(node)))
        });
        let recorded = nodes.first().and_then(|node| self.node(&node.name).ok());
        f(&ServedNodes {
            name,
            backend: recorded.and_then(|node| node.node_network_backend),
            nodes: nodes.iter().map(|node| node.name.as_str()).collect(),
            kernel: kernel
                .as_ref()
                .map(|(path, addresses)| (path.as_path(), addresses.clone())),
        })
    }

    fn run(&mut self, spec: ServiceSpec) -> Service {
        let (service, keeper) = Service::new(spec, self.stopping.child_token());
        task::spawn(&mut self.keepers, keeper);
        service
    }

    fn services(&self) -> impl Iterator<Item = &Service> {
        self.control_plane
            .iter()
            .chain(self.groups.iter().flat_map(NodeGroup::services))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn internal(error: anyhow::Error) -> Status {
    Status::internal(format!("{error:#}"))
}

/// Waits until nodes are registered; returns those that are not when time is up.
async fn registered(client: &Client, names: Vec<String>, timeout: Duration) -> Vec<String> {
    let (nodes, driver) = reflector(client.all::<Node>(), ListParams::default());
    let missing = || -> Vec<String> {
        let is_missing = |name: &&String| nodes.get(&ObjectKey::new("", name.as_str())).is_none();
        names.iter().filter(is_missing).cloned().collect()
    };
    let watched = async {
        nodes.synced().await;
        let mut changes = nodes.subscribe();
        loop {
            while changes.try_next().is_some() {}
            if missing().is_empty() {
                return;
            }
            changes.next().await;
        }
    };
    // The driver never ends, and the other only waits.
    tokio::select! {
        () = driver => {}
        _ = clock::timeout(timeout, watched) => {}
    }
    missing()
}
