//! The kubelet: registers its nodes, reports them, and makes their pods run by calling a CRI runtime.
//!
//! One process may serve many nodes. For each there is a loop that reports it ([`node`]), a lease ([`lease`]), and a lister of
//! its sandboxes ([`pods::watch_sandboxes`]); for each pod a worker ([`worker`]), which decides with [`plan::plan`].

pub mod admission;
mod holds;
mod in_use;
pub mod instance;
mod ipam_report;
pub mod lease;
mod machine;
pub mod metrics;
pub mod node;
pub mod node_status;
pub mod plan;
pub mod pods;
pub mod routes;
pub mod runtime;
mod sandbox_config;
pub mod service;
pub mod status;
mod trace;
pub mod worker;

use futures::future::BoxFuture;
use std::{
    convert::Infallible,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use backon::Retryable as _;
use podplane_api::core::{Node as NodeObject, Pod};
use podplane_client::{
    Cache, Change, Client, Endpoint, EventRecorder, ListParams,
    endpoint::{self, EndpointError},
    reflector,
};
use podplane_proto::{DESCRIPTORS, node::node_network_service_server::NodeNetworkServiceServer};
use podplane_telemetry::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::{Listen, Listener, ServeError},
    tasks::Ended,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::{
    instance::{Instance, InstanceError},
    ipam_report::Reports,
    node::{Node, Parts, patiently},
    node_status::Machine,
    pods::{NOTICES, Pods, watch_sandboxes},
    runtime::Runtime,
    service::NodeNetwork,
};
use crate::{NodeDir, NodeName, cri::seconds};

/// Nodes report their pods and their addresses under this name.
const COMPONENT: &str = "kubelet";

/// Whether a pod must find a free address of its node to be admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum IpPolicy {
    /// It must, or fails with OutOfpodIPs.
    #[default]
    Resource,
    /// As resource: the scheduler does the rest.
    PodCidr,
    /// It need not: its sandbox fails again and again, as with the reference.
    Off,
}

/// What the kubelet is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// A node to be; repeat it for several
    #[arg(
        long = "node",
        value_name = "NAME",
        env = "PODPLANE_NODE",
        value_delimiter = ',',
        required = true
    )]
    pub nodes: Vec<NodeName>,

    /// The API server
    #[arg(long, value_name = "ADDR", env = "PODPLANE_SERVER")]
    pub server: Endpoint,

    /// The CRI runtime of a node; {node} stands for its name [default: the socket in its directory]
    #[arg(long, value_name = "ENDPOINT", env = "PODPLANE_CRI_ENDPOINT")]
    pub cri_endpoint: Option<String>,

    /// The directory of nodes, where network configurations and allocation files are
    #[arg(long, value_name = "DIR", env = "PODPLANE_NODES_DIR")]
    pub nodes_dir: PathBuf,

    /// A directory of CNI plugins, where the command of an IPAM report is looked for; repeat it for several
    #[arg(
        long = "cni-bin-dir",
        value_name = "DIR",
        env = "PODPLANE_CNI_BIN_DIR",
        value_delimiter = ':',
        default_value = "/opt/cni/bin"
    )]
    pub cni_bin_dirs: Vec<PathBuf>,

    /// The addresses of the node, one for each address family, the primary one first
    #[arg(
        long = "node-ip",
        value_name = "IP",
        env = "PODPLANE_NODE_IP",
        value_delimiter = ',',
        default_value = "127.0.0.1"
    )]
    pub node_ips: Vec<IpAddr>,

    /// The id of the node's instance at its cloud; {node} stands for the node's name [default: none]
    #[arg(long, value_name = "ID", env = "PODPLANE_PROVIDER_ID")]
    pub provider_id: Option<String>,

    /// The network namespace of the node: routes to other nodes' blocks are kept there [default: no routes are kept]
    #[arg(long, value_name = "PATH", env = "PODPLANE_NODE_NETNS")]
    pub node_netns: Option<PathBuf>,

    /// How many pods a node takes
    #[arg(
        long,
        value_name = "N",
        env = "PODPLANE_MAX_PODS",
        default_value = "110"
    )]
    pub max_pods: u32,

    /// Whether a pod must find a free address to be admitted
    #[arg(
        long,
        value_enum,
        env = "PODPLANE_IP_POLICY",
        default_value = "resource"
    )]
    pub ip_policy: IpPolicy,

    /// Where to serve podplane.node.v1
    #[arg(
        long,
        value_name = "ADDR",
        env = "PODPLANE_LISTEN",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// The names by which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// A file to write the address to once it is served
    #[arg(long, value_name = "FILE", env = "PODPLANE_ADDRESS_FILE")]
    pub address_file: Option<PathBuf>,

    /// How often a node's lease is renewed, in seconds
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_LEASE_INTERVAL", default_value = "10", value_parser = seconds)]
    pub lease_interval: Duration,

    /// How often a node's status is computed though nothing is known to have changed, in seconds
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_STATUS_INTERVAL", default_value = "10", value_parser = seconds)]
    pub status_interval: Duration,

    /// How often a node's status is written though it has not changed, in seconds
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_HEARTBEAT_INTERVAL", default_value = "300", value_parser = seconds)]
    pub heartbeat_interval: Duration,

    /// How often a node's sandboxes are listed, in seconds
    #[arg(long, value_name = "SECONDS", env = "PODPLANE_RELIST_INTERVAL", default_value = "5", value_parser = seconds)]
    pub relist_interval: Duration,
}

/// Why the kubelet ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Only one node can be in a namespace.
    #[error("--node-netns is of one node; --node was given {0} times")]
    OneNode(usize),
    /// A node's directory cannot be used, or another kubelet uses it.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// An address of a server is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// It cannot serve.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A task ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Runs until `stop`.
///
/// # Errors
///
/// [`RunError`] if it cannot start, or if a part of it ends by itself.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<(), RunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> Result<(), RunError> {
    if config.node_netns.is_some() && config.nodes.len() > 1 {
        return Err(RunError::OneNode(config.nodes.len()));
    }
    allow_files(config.nodes.len());
    let mut instances = Vec::new();
    for name in &config.nodes {
        let dir = NodeDir::new(&config.nodes_dir, name);
        instances.push((Instance::open(&dir, name)?, dir));
    }
    let client = Client::connect(&config.server)?;
    let listener = Listener::published(&config.listen, config.address_file.as_deref()).await?;
    let listener = listener.allowing(config.allowed_hosts.clone());
    let mut tasks = Tasks::new(stop);
    let (nodes_cache, nodes_driver) = reflector(client.all::<NodeObject>(), ListParams::default());
    let (pods_cache, pods_driver) = reflector(client.all::<Pod>(), pods_of(&config.nodes));
    let (events, events_driver) = EventRecorder::new(client.clone(), COMPONENT, "");
    tasks.follow("watch of nodes", nodes_driver);
    tasks.follow("watch of pods", pods_driver);
    tasks.follow("events", events_driver);

    let (known_nodes, runtimes_met) = (Arc::new(OnceLock::new()), CancellationToken::new());
    let mut services = Services::default();
    services.add(NodeNetworkServiceServer::new(NodeNetwork::new(
        known_nodes.clone(),
    )));
    let mut process = Process::new(DESCRIPTORS);
    process.serve(listener, services);
    process.trace("kubelet", Some(client.channel()));
    let metrics = metrics::Metrics::new(process.registry());
    process.ready_when("nodes", nodes_cache.synced());
    process.ready_when("pods", pods_cache.synced());
    process.ready_when("runtimes", runtimes_met.clone().cancelled_owned());
    process.start(&mut tasks).await;

    let (notices_tx, notices) = mpsc::channel(NOTICES);
    let mut nodes = Vec::new();
    for (name, (instance, dir)) in config.nodes.iter().zip(instances) {
        let parts = Parts {
            machine: machine_of(&config, name),
            runtime: Runtime::new(runtime_channel(&config, name, &dir)?, metrics.clone()),
            metrics: metrics.clone(),
            reports: Reports::new(name.as_str(), dir.clone(), config.cni_bin_dirs.clone()),
            dir,
            client: client.clone(),
            nodes: nodes_cache.clone(),
            pods: pods_cache.clone(),
            events: events.for_host(name.as_str()),
            ip_policy: config.ip_policy,
            resync: config.status_interval,
            heartbeat: config.heartbeat_interval,
            instance,
            is_alone: config.nodes.len() == 1,
        };
        nodes.push(parts);
    }
    let stopping = tasks.stop();
    // Losing the wait loses nothing: the runtime is asked again after a restart.
    let nodes = tokio::select! {
        () = stopping.cancelled() => return Ok(tasks.run().await?),
        nodes = meet_runtimes(nodes) => nodes,
    };
    runtimes_met.cancel();
    _ = known_nodes.set(service::by_name(&nodes));
    for node in &nodes {
        tasks.spawn("node", node.clone().run(tasks.stop()));
        tasks.spawn(
            "lease",
            lease::renew(node.clone(), config.lease_interval, tasks.stop()),
        );
        let listing = watch_sandboxes(
            node.clone(),
            config.relist_interval,
            notices_tx.clone(),
            tasks.stop(),
        );
        tasks.spawn("listing of sandboxes", listing);
    }
    drop(notices_tx);
    let wake = wake_nodes(nodes_cache.clone(), nodes.clone(), tasks.stop());
    tasks.spawn("changes of nodes", wake);
    let held = holds::run(nodes.clone(), nodes_cache.clone(), tasks.stop());
    tasks.spawn("blocks of nodes that are gone", held);
    let workers = Pods::new(&nodes, pods_cache).run(notices, tasks.stop());
    tasks.spawn("pods", workers);
    if let (Some(netns), [name]) = (&config.node_netns, &config.nodes[..]) {
        let routes = routes::run(netns.clone(), name.clone(), nodes_cache, tasks.stop());
        tasks.spawn("routes", routes);
    }
    Ok(tasks.run().await?)
}

/// Raises the limit of open files where it may be too low for so many nodes: each has a lock and a
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
        tracing::warn!(%error, needed, "limit of open files not raised");
    }
}

/// The pods that matter: those of the one node, or all, which is less than a watch for each of many nodes.
fn pods_of(nodes: &[NodeName]) -> ListParams {
    match nodes {
        [only] => ListParams {
            field_selector: format!("spec.nodeName={only}"),
            ..ListParams::default()
        },
        _ => ListParams::default(),
    }
}

fn machine_of(config: &Config, name: &NodeName) -> Machine {
    Machine {
        name: name.clone(),
        ips: config.node_ips.clone(),
        cpus: machine::cpus(),
        memory: machine::memory(),
        max_pods: config.max_pods,
        provider_id: config
            .provider_id
            .as_ref()
            .map(|pattern| pattern.replace("{node}", name.as_str())),
        info: machine::info(String::new()),
    }
}

fn runtime_channel(
    config: &Config,
    name: &NodeName,
    dir: &NodeDir,
) -> Result<tonic::transport::Channel, EndpointError> {
    let text = match &config.cri_endpoint {
        Some(pattern) => pattern.replace("{node}", name.as_str()),
        None => format!("unix:{}", dir.socket().display()),
    };
    endpoint::channel(&text.parse()?)
}

/// Asks each runtime for its version, for as long as it takes it to answer: a node without a runtime is none.
async fn meet_runtimes(parts: Vec<Parts>) -> Vec<Arc<Node>> {
    let meet = |mut parts: Parts| async move {
        let version = (|| parts.runtime.version())
            .retry(patiently())
            .notify(|error, wait| {
                let node = parts.machine.name.as_str();
                tracing::info!(
                    node,
                    error = error.message(),
                    ?wait,
                    "the runtime does not answer yet"
                );
            })
            .await;
        parts.machine.info.container_runtime_version = version.unwrap_or_default();
        Arc::new(Node::new(parts))
    };
    futures::future::join_all(parts.into_iter().map(meet)).await
}

/// Tells each node of ours when its object changed.
async fn wake_nodes(
    cache: Cache<NodeObject>,
    nodes: Vec<Arc<Node>>,
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
        let (Change::Applied { new: object, .. } | Change::Deleted(object)) = change;
        if let Some(node) = by_name.get(object.name()) {
            node.changed.notify_one();
        }
    }
}
