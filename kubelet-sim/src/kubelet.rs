//! The kubelet: registers its nodes, reports them, and makes their pods run by calling a CRI
//! runtime.
//!
//! One process may serve many nodes. Each node has a loop that reports it ([`node`]), a lease
//! ([`lease`]), and a lister of its sandboxes ([`pods::watch_sandboxes`]). Each pod has a worker
//! ([`worker`]), which decides with [`plan::plan`].

pub mod admission;
mod container_events;
mod containers;
pub mod exits;
mod holds;
mod in_use;
pub mod instance;
mod ipam_report;
pub mod lease;
mod machine;
pub mod metrics;
pub mod node;
pub mod node_network;
pub mod node_status;
mod permissions;
pub mod plan;
pub mod pods;
mod route_agent;
pub mod runtime;
mod sandbox_config;
pub mod service;
pub mod status;
mod trace;
pub mod worker;

use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use std::{
    convert::Infallible,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use backon::Retryable as _;
use podplane_api::{
    core::{Node as NodeObject, Pod},
    pod_ips::PodIpFlags,
};
use podplane_client::{
    Cache, CacheChange, Channel, EventRecorder, ListParams, ServerError, ServerFlags,
    endpoint::{self, EndpointError},
    indexed_reflector, reflector, start_check,
};
use podplane_host::task;
use podplane_proto::{DESCRIPTORS, node::node_network_service_server::NodeNetworkServiceServer};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::Listen,
    serving::{ServingError, ServingFlags},
    tasks::TaskEnd,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{sync::mpsc, task::JoinError};
use tokio_util::sync::CancellationToken;

use self::{
    instance::{Instance, InstanceError},
    ipam_report::Reports,
    node::{NodeContext, NodeParts, unlimited_backoff},
    node_network::NodeFabric,
    node_status::NodeMachine,
    pods::{NOTICES, PodWorkers, watch_sandboxes},
    route_agent::RouteAgentFlags,
    runtime::RuntimeClient,
    service::KubeletNodeService,
};
use crate::{NodeDir, NodeName, cri::seconds};

/// The least time from one node's periodic sync to the next node's, in a process of many nodes.
const NODE_GAP: Duration = Duration::from_millis(10);
/// The number of nodes that are opened in parallel, so that their files go to the disk together,
/// and of runtimes that are asked in parallel: the memory of a call stays with the process.
const AT_ONCE: usize = 64;
/// The component under which nodes report their pods and their addresses.
const COMPONENT: &str = "kubelet";

/// The flags of the kubelet.
#[derive(Clone, Debug, clap::Args)]
pub struct KubeletConfig {
    /// Run the kubelet of this node; may be repeated
    #[arg(
        long = "node",
        value_name = "NAME",
        env = "PODPLANE_NODE",
        value_delimiter = ',',
        required = true
    )]
    pub nodes: Vec<NodeName>,

    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,

    /// Connect to this CRI runtime, such as unix:PATH; {node} is replaced by the node's name
    /// [default: cri.sock in the node's directory]
    #[arg(long, value_name = "ENDPOINT", env = "PODPLANE_CRI_ENDPOINT")]
    pub cri_endpoint: Option<String>,

    /// Make sandboxes only, and report the pods as running without any container, until their
    /// annotations say that they exit
    ///
    /// This is also what a kubelet does whose runtime refuses containers, as `podplane cri` does by
    /// default. The message of the node's condition Ready says so.
    #[arg(long, env = "PODPLANE_SANDBOXES_ONLY")]
    pub sandboxes_only: bool,

    /// Find each node's CNI configuration and allocation files in DIR/NAME; with `podplane cri`,
    /// use the same directory
    #[arg(long, value_name = "DIR", env = "PODPLANE_NODES_DIR")]
    pub nodes_dir: PathBuf,

    /// Find the IPAM plugin's report command in these directories, separated by colons or repeated;
    /// the first that has it wins
    ///
    /// The network configuration names the command, which reports how many addresses the plugin has
    /// on the node, and which it holds; docs/cni.md describes it.
    #[arg(
        long = "cni-bin-dir",
        value_name = "DIR",
        env = "PODPLANE_CNI_BIN_DIR",
        value_delimiter = ':',
        default_value = "/opt/cni/bin"
    )]
    pub cni_bin_dirs: Vec<PathBuf>,

    /// Report these addresses of the node, one per address family, the primary one first
    ///
    /// Nodes on several machines need addresses that reach each other.
    #[arg(
        long = "node-ip",
        value_name = "IP",
        env = "PODPLANE_NODE_IP",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    pub node_ips: Vec<IpAddr>,

    /// Set spec.providerID, the id of the node's instance in its cloud; {node} is replaced by the
    /// node's name [default: none]
    #[arg(long, value_name = "ID", env = "PODPLANE_PROVIDER_ID")]
    pub provider_id: Option<String>,

    /// Program the routes to the pod CIDRs of other nodes in this network namespace [default: no
    /// routes]
    #[arg(long, value_name = "PATH", env = "PODPLANE_NODE_NETNS")]
    pub node_netns: Option<PathBuf>,

    /// The network between the nodes.
    #[command(flatten)]
    pub node_network: node_network::NodeNetworkConfig,

    /// The identity for reading the other nodes.
    #[command(flatten)]
    pub route_agent: RouteAgentFlags,

    /// Admit at most N pods on a node
    #[arg(
        long,
        value_name = "N",
        env = "PODPLANE_MAX_PODS",
        default_value = "110"
    )]
    pub max_pods: u32,

    /// The addresses of pods.
    #[command(flatten)]
    pub pod_ips: PodIpFlags,

    /// Serve podplane.node.v1 at this address: IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "PODPLANE_LISTEN",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// The host names under which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Write the listening address to this file, once it is served
    #[arg(long, value_name = "FILE", env = "PODPLANE_ADDRESS_FILE")]
    pub address_file: Option<PathBuf>,

    /// Renew a node's lease every SECONDS, a number without a unit, such as 10 or 0.5
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_LEASE_INTERVAL", default_value = "10", value_parser = seconds)]
    pub lease_interval: Duration,

    /// Compute a node's status every SECONDS, a number without a unit, such as 10 or 0.5, even if
    /// no change is known
    ///
    /// At most 100 nodes are processed per second, so the interval is longer with very many nodes.
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_STATUS_INTERVAL", default_value = "10", value_parser = seconds)]
    pub status_interval: Duration,

    /// Write a node's status every SECONDS, a number without a unit, such as 10 or 0.5, even if it
    /// has not changed
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_HEARTBEAT_INTERVAL", default_value = "300", value_parser = seconds)]
    pub heartbeat_interval: Duration,

    /// List a node's sandboxes every SECONDS, a number without a unit, such as 10 or 0.5
    ///
    /// At most 100 nodes are processed per second, so the interval is longer with very many nodes.
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_RELIST_INTERVAL", default_value = "5", value_parser = seconds)]
    pub relist_interval: Duration,
}

impl KubeletConfig {
    /// The interval of a periodic task of a node, which is longer in a process of many nodes.
    fn paced_interval(&self, interval: Duration) -> Duration {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        interval.max(NODE_GAP * nodes)
    }
}

/// The reason why the kubelet ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletRunError {
    /// Several nodes with `--node-netns`: a namespace is of one node.
    #[error("--node-netns supports one node per process, but --node was given {0} times")]
    OneNode(usize),
    /// A node's directory cannot be used, or another kubelet uses it.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The working directory, in which a relative `--nodes-dir` is, is gone.
    #[error("failed to find the working directory, in which --nodes-dir is")]
    WorkingDirectory(#[source] std::io::Error),
    /// The address of the runtime, or of the API server for the route agent, is invalid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The API server cannot be used as its flags say.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The route agent has a certificate for podplane's API server.
    #[error(
        "--route-agent-client-certificate needs --server: a kubeconfig has the rights of the kubelet and of the route agent"
    )]
    RouteAgent,
    /// The listener cannot be bound, or served as its flags say.
    #[error(transparent)]
    Serve(#[from] ServingError),
    /// A task ended by itself.
    #[error(transparent)]
    Ended(#[from] TaskEnd),
    /// A thread that opened a node's directory died.
    #[error("failed to open the nodes")]
    Panicked(#[from] JoinError),
}

/// Runs the kubelet until `stop`.
///
/// # Errors
///
/// [`KubeletRunError`] if it cannot start, or if a part of it ends by itself.
pub fn run(
    config: KubeletConfig,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), KubeletRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

/// Starts the kubelet in this order, and runs its tasks until `stop` or until one ends:
///
/// 1. Opens the node directories, and connects to the API server and to the watches of it.
/// 2. Serves its own API; it is ready once the caches are synced and all runtimes have answered.
/// 3. Waits for the runtimes.
/// 4. Starts the tasks of each node, then those that serve all nodes.
async fn run_until(config: KubeletConfig, stop: CancellationToken) -> Result<(), KubeletRunError> {
    if config.node_netns.is_some() && config.nodes.len() > 1 {
        return Err(KubeletRunError::OneNode(config.nodes.len()));
    }
    allow_files(config.nodes.len());
    let instances = open_instances(&config).await?;
    let client = config.server.connect().await?;
    let (hosts, file) = (config.allowed_hosts.clone(), config.address_file.as_deref());
    let listeners = config
        .serving
        .listeners(&config.listen, hosts, file)
        .await?;
    let mut tasks = Tasks::new(stop);
    let (nodes_cache, nodes_driver) =
        reflector(client.all::<NodeObject>(), node_list_params(&config));
    let (pods_cache, pods_driver) = indexed_reflector(
        client.all::<Pod>(),
        pod_list_params(&config.nodes),
        node_name,
    );
    let (events, events_driver) = EventRecorder::new(client.clone(), COMPONENT, "");
    tasks.follow("watch of nodes", nodes_driver);
    tasks.follow("watch of pods", pods_driver);
    let other_nodes = config.route_agent.watch_nodes(&config, &mut tasks)?;
    let other_nodes = other_nodes.unwrap_or_else(|| nodes_cache.clone());
    tasks.follow("events", events_driver);
    let server = config.server.clone();
    let needed = permissions::NEEDED.to_vec();
    let check = start_check(client.clone(), server, needed, tasks.stop());
    tasks.spawn("check of the API server", check);

    let (known_nodes, runtimes_answered) = (Arc::new(OnceLock::new()), CancellationToken::new());
    let mut services = Services::default();
    services.add(NodeNetworkServiceServer::new(KubeletNodeService::new(
        known_nodes.clone(),
    )));
    let mut process = Process::new(DESCRIPTORS);
    process.serve_at(listeners, services);
    process.trace("kubelet", client.channel());
    let metrics = metrics::KubeletMetrics::new(process.registry());
    process.ready_when("nodes", nodes_cache.synced());
    process.ready_when("pods", pods_cache.synced());
    process.ready_when("runtimes", runtimes_answered.clone().cancelled_owned());
    process.start(&mut tasks).await;

    let (notices_tx, notices) = mpsc::channel(NOTICES);
    let machine = machine_of(&config);
    let mut nodes = Vec::new();
    for (name, (instance, dir)) in config.nodes.iter().zip(instances) {
        let parts = NodeParts {
            machine: machine(name),
            runtime: RuntimeClient::new(runtime_channel(&config, name, &dir)?, metrics.clone()),
            metrics: metrics.clone(),
            reports: Reports::new(name.as_str(), dir.clone(), config.cni_bin_dirs.clone()),
            pod_files: absolute(&dir.pods())?,
            dir,
            client: client.clone(),
            nodes: nodes_cache.clone(),
            pods: pods_cache.clone(),
            events: events.for_host(name.as_str()),
            ip_policy: config.pod_ips.ip_policy,
            resync: config.paced_interval(config.status_interval),
            heartbeat: config.heartbeat_interval,
            count_gap: config.paced_interval(Duration::ZERO),
            instance,
            is_alone: config.nodes.len() == 1,
            node_network: config.node_netns.clone().map(|netns| {
                let network = &config.node_network;
                Arc::new(NodeFabric::new(netns, name, &config.node_ips, network))
            }),
        };
        nodes.push(parts);
    }
    let stopping = tasks.stop();
    // Losing the wait loses nothing: the runtime is asked again after a restart.
    let nodes = tokio::select! {
        () = stopping.cancelled() => return Ok(tasks.run().await?),
        nodes = wait_for_runtimes(nodes, config.sandboxes_only) => nodes,
    };
    runtimes_answered.cancel();
    _ = known_nodes.set(service::by_name(&nodes));
    for node in &nodes {
        tasks.spawn("node", node.clone().run(tasks.stop()));
        tasks.spawn(
            "lease",
            lease::renew(node.clone(), config.lease_interval, tasks.stop()),
        );
        let listing = watch_sandboxes(
            node.clone(),
            config.paced_interval(config.relist_interval),
            notices_tx.clone(),
            tasks.stop(),
        );
        tasks.spawn("listing of sandboxes", listing);
        if node.machine.runs_containers {
            let events = container_events::watch(node.clone(), notices_tx.clone(), tasks.stop());
            tasks.spawn("events of containers", events);
        }
    }
    drop(notices_tx);
    let wake = wake_nodes(nodes_cache.clone(), nodes.clone(), tasks.stop());
    tasks.spawn("changes of nodes", wake);
    // Elsewhere nobody records who holds a block.
    if client.blocks().are_atomic() {
        let held = holds::run(nodes.clone(), nodes_cache.clone(), tasks.stop());
        tasks.spawn("blocks of nodes that are gone", held);
    }
    let workers = PodWorkers::new(&nodes, pods_cache).run(notices, tasks.stop());
    tasks.spawn("pods", workers);
    for node in nodes {
        if let Some(network) = node.node_network.clone() {
            let on_fault = move || node.status_changed.notify_one();
            let run = network.run(other_nodes.clone(), on_fault, tasks.stop());
            tasks.spawn("node network", run);
        }
    }
    Ok(tasks.run().await?)
}

/// Opens the instance of each node in parallel: a new one waits for the disk.
async fn open_instances(
    config: &KubeletConfig,
) -> Result<Vec<(Instance, NodeDir)>, KubeletRunError> {
    let mut opening = Vec::new();
    for name in config.nodes.clone() {
        let dir = NodeDir::new(&config.nodes_dir, &name);
        opening.push(async {
            let opened = task::spawn_blocking(move || Ok((Instance::open(&dir, &name)?, dir)));
            opened.await?
        });
    }
    stream::iter(opening).buffered(AT_ONCE).try_collect().await
}

/// Raises the limit of open files if it may be too low for so many nodes: each has a lock and a
/// connection to its runtime.
fn allow_files(nodes: usize) {
    const EACH: u64 = 4;
    const OTHERS: u64 = 256;
    let limit = getrlimit(Resource::Nofile);
    let needed = u64::try_from(nodes).unwrap_or(u64::MAX);
    let needed = needed.saturating_mul(EACH).saturating_add(OTHERS);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    let current = Some(limit.maximum.map_or(needed, |maximum| needed.min(maximum)));
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current, ..limit }) {
        tracing::warn!(%error, needed, "failed to raise the limit of open files");
    }
}

/// The nodes to watch: those of the kubelet, if that is one, since a node may read itself alone.
/// For routes to the other nodes, all of them, unless the route agent reads these.
fn node_list_params(config: &KubeletConfig) -> ListParams {
    match &*config.nodes {
        [only] if config.node_netns.is_none() || config.route_agent.is_given() => ListParams {
            field_selector: format!("metadata.name={only}"),
            ..ListParams::default()
        },
        _ => ListParams::default(),
    }
}

/// The list parameters of the pods that matter: those of the only node, or all pods, which cost
/// less than a watch for each of many nodes.
fn pod_list_params(nodes: &[NodeName]) -> ListParams {
    match nodes {
        [only] => ListParams {
            field_selector: format!("spec.nodeName={only}"),
            ..ListParams::default()
        },
        _ => ListParams::default(),
    }
}

/// The node that a pod is bound to.
fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The machine that each node reports: all nodes have the same one.
fn machine_of(config: &KubeletConfig) -> impl Fn(&NodeName) -> NodeMachine {
    let (cpus, memory, info) = (
        machine::cpus(),
        machine::memory(),
        machine::info(String::new()),
    );
    move |name| NodeMachine {
        name: name.clone(),
        ips: config.node_ips.clone(),
        cpus,
        memory,
        max_pods: config.max_pods,
        pod_ips: config.pod_ips.pod_ip_resource.clone(),
        // Known once the runtime answers.
        runs_containers: false,
        provider_id: config
            .provider_id
            .as_ref()
            .map(|pattern| pattern.replace("{node}", name.as_str())),
        info: info.clone(),
    }
}

fn runtime_channel(
    config: &KubeletConfig,
    name: &NodeName,
    dir: &NodeDir,
) -> Result<Channel, EndpointError> {
    let text = match &config.cri_endpoint {
        Some(pattern) => pattern.replace("{node}", name.as_str()),
        None => format!("unix:{}", dir.socket().display()),
    };
    endpoint::channel(&text.parse()?)
}

fn absolute(path: &Path) -> Result<PathBuf, KubeletRunError> {
    std::path::absolute(path).map_err(KubeletRunError::WorkingDirectory)
}

/// Asks each runtime for its version, and whether it makes containers, until it answers: a node
/// without a runtime is not registered.
async fn wait_for_runtimes(parts: Vec<NodeParts>, sandboxes_only: bool) -> Vec<Arc<NodeContext>> {
    let meet = |mut parts: NodeParts| async move {
        let ask = || async {
            let version = parts.runtime.version().await?;
            let makes_containers = !sandboxes_only && parts.runtime.makes_containers().await?;
            Ok::<_, tonic::Status>((version, makes_containers))
        };
        let answer = ask
            .retry(unlimited_backoff())
            .notify(|error, wait| {
                let node = parts.machine.name.as_str();
                tracing::info!(
                    node,
                    error = error.message(),
                    retry_in = ?wait,
                    "waiting for the container runtime"
                );
            })
            .await;
        let (version, makes_containers) = answer.unwrap_or_default();
        let node = parts.machine.name.as_str();
        if !makes_containers && !sandboxes_only {
            tracing::warn!(
                node,
                runtime = version,
                "the container runtime refuses containers; pods are sandboxes without containers"
            );
        }
        parts.machine.info.container_runtime_version = version;
        parts.machine.runs_containers = makes_containers;
        Arc::new(NodeContext::new(parts))
    };
    let meeting = stream::iter(parts.into_iter().map(meet));
    meeting.buffered(AT_ONCE).collect().await
}

/// Wakes each node of this kubelet whose object changed.
async fn wake_nodes(
    cache: Cache<NodeObject>,
    nodes: Vec<Arc<NodeContext>>,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    use podplane_api::Object as _;

    let by_name: std::collections::BTreeMap<_, _> =
        nodes.iter().map(|node| (node.name(), node)).collect();
    let mut changes = cache.subscribe();
    loop {
        // A change is taken only when it is returned; losing a wait loses nothing.
        let change = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            change = changes.next() => change,
        };
        let (CacheChange::Applied { new: object, .. } | CacheChange::Deleted(object)) = change;
        if let Some(node) = by_name.get(object.name()) {
            node.object_changed.notify_one();
        }
    }
}
