//! The CRI server: `runtime.v1` for sandboxes without containers, on a unix socket for each node.
//!
//! `docs/cri.md` says what becomes of each setting of a sandbox.
//!
//! What it answers where a runtime with containers would do more: lists of containers and images are empty, an id of one is
//! NotFound, stopping or removing one succeeds, and making, entering or pulling one is Unimplemented. Start reading at [`sandboxes`].

pub mod bridges;
mod capabilities;
pub mod claims;
mod cni_result;
pub mod images;
pub mod metrics;
pub mod network;
pub mod record;
pub mod sandboxes;
pub mod service;
mod sysctls;
pub mod template;
mod trace;

use futures::future::BoxFuture;
use std::{path::PathBuf, sync::Arc, time::Duration};

use podplane_client::endpoint::{self, Endpoint, EndpointError};
use podplane_cni::types::ConfigError;
use podplane_proto::{
    DESCRIPTORS,
    cri::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};
use podplane_telemetry::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::{Listen, Listener, ServeError},
    tasks::Ended,
};
use tokio::{sync::Semaphore, task, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::{
    images::Images,
    metrics::{Counted, Metrics},
    network::Network,
    record::Plugins,
    sandboxes::{SandboxError, Sandboxes},
    service::Runtime,
    template::Template,
};
use crate::{NodeDir, NodeName};

/// Whether pods get devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NetworkMode {
    /// All plugins are executed, in the node's namespace, for a namespace of each pod.
    Kernel,
    /// The IPAM plugin alone is executed: addresses without devices, and without privileges.
    Ledger,
}

/// What the CRI server is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// A node to serve; repeat it for several
    #[arg(
        long = "node",
        value_name = "NAME",
        env = "PODPLANE_NODE",
        value_delimiter = ',',
        required = true
    )]
    pub nodes: Vec<NodeName>,

    /// The directory of nodes: each has net.d, networks, results, sandboxes and its socket cri.sock in NAME/
    #[arg(long, value_name = "DIR", env = "PODPLANE_NODES_DIR")]
    pub nodes_dir: PathBuf,

    /// The API server, which is told of the steps of pods' journeys and of nothing else [default: nobody is]
    #[arg(long, value_name = "ADDR", env = "PODPLANE_SERVER")]
    pub server: Option<Endpoint>,

    /// Whether pods get devices: kernel executes all plugins, ledger the IPAM plugin alone
    #[arg(long, value_enum, default_value = "kernel", env = "PODPLANE_NETWORK")]
    pub network: NetworkMode,

    /// The network namespace that plugins are started in [default: this process's]
    #[arg(long, value_name = "PATH", env = "PODPLANE_NODE_NETNS")]
    pub node_netns: Option<PathBuf>,

    /// Where the namespaces of sandboxes are bound, as NODE.ID
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/podplane/netns",
        env = "PODPLANE_NETNS_DIR"
    )]
    pub netns_dir: PathBuf,

    /// A directory of CNI plugins; repeat it for several, the first that has a plugin wins
    #[arg(
        long = "cni-bin-dir",
        value_name = "DIR",
        env = "PODPLANE_CNI_BIN_DIR",
        value_delimiter = ':',
        default_value = "/opt/cni/bin"
    )]
    pub cni_bin_dirs: Vec<PathBuf>,

    /// The CNI configuration that is written when the node's podCIDR is known
    #[arg(
        long,
        value_enum,
        default_value = "containerd",
        env = "PODPLANE_CNI_TEMPLATE"
    )]
    pub cni_template: Template,

    /// How long one CNI plugin may take, in seconds; then it is killed
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, env = "PODPLANE_CNI_TIMEOUT")]
    pub cni_timeout: Duration,

    /// How many sandboxes are made or unmade at once, over all nodes
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..), env = "PODPLANE_CNI_CONCURRENCY")]
    pub cni_concurrency: u16,

    /// How often addresses and namespaces that no sandbox has are reclaimed, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, env = "PODPLANE_GC_INTERVAL")]
    pub gc_interval: Duration,

    /// Where to serve /metrics, /livez, /readyz and /debug/log-level, besides the sockets [default: nowhere]
    #[arg(long, value_name = "ADDR", env = "PODPLANE_HTTP_LISTEN")]
    pub http_listen: Option<Listen>,

    /// The names by which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// A file to write that address to
    #[arg(
        long,
        value_name = "FILE",
        env = "PODPLANE_HTTP_ADDRESS_FILE",
        requires = "http_listen"
    )]
    pub http_address_file: Option<PathBuf>,
}

/// Why the CRI server ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Several nodes share a process only where nothing runs inside them.
    #[error("--network kernel serves one node; --node was given {0} times")]
    OneNode(usize),
    /// A constant configuration is not valid.
    #[error("prepare the loopback network")]
    Loopback(#[from] ConfigError),
    /// A node's sandboxes cannot be read.
    #[error("open node {node}")]
    Node {
        /// The node.
        node: NodeName,
        /// Why.
        source: SandboxError,
    },
    /// The API server's address cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A thread that reads a node died.
    #[error("open the nodes")]
    Panicked(#[from] task::JoinError),
    /// A socket cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A task ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// A positive number of seconds, with a fraction if wanted.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let positive = |duration: &Duration| !duration.is_zero();
    let parsed = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed
        .filter(positive)
        .ok_or_else(|| format!("{text:?} is no positive number of seconds"))
}

/// Serves until `stop`.
///
/// # Errors
///
/// [`RunError`] if it cannot start, or if a part of it ends by itself.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<(), RunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> Result<(), RunError> {
    if config.network == NetworkMode::Kernel && config.nodes.len() > 1 {
        return Err(RunError::OneNode(config.nodes.len()));
    }
    let slots = Arc::new(Semaphore::new(config.cni_concurrency.into()));
    let mut process = Process::new(DESCRIPTORS);
    if let Some(listen) = &config.http_listen {
        let file = config.http_address_file.as_deref();
        let listener = Listener::published(listen, file).await?;
        process.serve_http(listener.allowing(config.allowed_hosts.clone()));
    }
    let metrics = Metrics::new(process.registry());
    let mut nodes = Vec::new();
    for node in &config.nodes {
        let sandboxes = open(&config, node, metrics.clone()).await?;
        let socket = Listen::Unix(NodeDir::new(&config.nodes_dir, node).socket());
        // Bound when the node is put right, so whoever connects finds it so.
        let listener = Listener::bind(&socket).await?;
        let runtime = Runtime::new(sandboxes.clone(), slots.clone());
        let images = Images {
            dir: config.nodes_dir.clone(),
        };
        let mut services = Services::default();
        services
            .add(RuntimeServiceServer::new(runtime))
            .add(ImageServiceServer::new(images));
        process.serve(listener, services);
        nodes.push(sandboxes);
    }
    let counted = Box::new(Counted(nodes.clone()));
    process.registry().register_collector(counted);
    let mut tasks = Tasks::new(stop);
    let server = config.server.as_ref().map(endpoint::channel).transpose()?;
    process.trace("cri", server);
    process.start(&mut tasks).await;
    tasks.spawn(
        "garbage collection",
        collect_garbage(nodes, config.gc_interval, tasks.stop()),
    );
    Ok(tasks.run().await?)
}

async fn open(
    config: &Config,
    node: &NodeName,
    metrics: Metrics,
) -> Result<Arc<Sandboxes>, RunError> {
    let dir = NodeDir::new(&config.nodes_dir, node);
    let runtime = podplane_cni::Runtime {
        bin_dirs: config.cni_bin_dirs.clone(),
        cache_dir: dir.cni_cache().to_owned(),
        node_netns: config.node_netns.clone(),
        timeout: config.cni_timeout,
    };
    let plugins = match config.network {
        NetworkMode::Kernel => Plugins::Chain,
        NetworkMode::Ledger => Plugins::Ipam,
    };
    let network = Network::new(
        runtime,
        plugins,
        config.netns_dir.clone(),
        node.clone(),
        metrics,
    )?;
    let template = config.cni_template;
    let opened = task::spawn_blocking(move || Sandboxes::open(dir, template, network)).await?;
    let opened = opened.map_err(|source| RunError::Node {
        node: node.clone(),
        source,
    })?;
    Ok(Arc::new(opened))
}

/// Looks for what no sandbox has, every `interval`. There should be nothing; there is after a plugin was killed.
async fn collect_garbage(
    nodes: Vec<Arc<Sandboxes>>,
    interval: Duration,
    stop: CancellationToken,
) -> Result<(), task::JoinError> {
    // Opening the nodes has just done it, so the first tick is one interval away.
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Losing either wait loses nothing.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        for node in &nodes {
            let node = Arc::clone(node);
            task::spawn_blocking(move || node.collect_garbage()).await?;
        }
    }
}

#[cfg(test)]
mod tests;
