//! The CRI server: `runtime.v1` on a unix socket for each node.
//!
//! Without `--containers` there are sandboxes alone. Lists of containers and images are empty, and
//! the id of any is NotFound. Stopping or removing one succeeds; making, entering or pulling one is
//! Unimplemented. `docs/cri.md` lists the settings of a sandbox and of a container with their
//! effects.
//!
//! Start reading at [`sandboxes`].

pub mod bridges;
mod capabilities;
pub mod claims;
mod cni_result;
pub mod containers;
pub mod id;
pub mod images;
pub mod metrics;
pub mod network;
mod preparation;
pub mod record;
pub mod record_dir;
mod sandbox_request;
mod sandbox_wire;
pub mod sandboxes;
pub mod service;
pub mod streaming;
mod sysctls;
pub mod template;
mod trace;

use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use podplane_host::{clock, fs, task};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

use podplane_client::{
    CredentialFlags,
    endpoint::{self, Endpoint, EndpointError},
};
use podplane_cni::{spare::SpareFiles, types::ConfigError};
use podplane_proto::{
    DESCRIPTORS,
    cri::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer},
};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::{Listen, Listener, ServeError},
    serving::{AuthenticationMode, ServingError, ServingFlags},
    tasks::TaskEnd,
};
use tokio::{sync::Semaphore, task::JoinError, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::{
    containers::{
        ContainerError, ContainerMode, NodeContainers,
        process::{ProcessConfig, Processes},
    },
    images::{Images, roots::ImageRoots, store::ImageStore},
    metrics::{NetworkMetrics, SandboxCollector},
    network::SandboxNetworks,
    record::PluginMode,
    sandboxes::{NodeSandboxes, SandboxError},
    service::CriRuntime,
    streaming::StreamListener,
    template::NetworkTemplate,
};
use crate::{NodeDir, NodeName};

/// This program.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The number of nodes that are opened in parallel.
const AT_ONCE: usize = 16;

/// The users of a namespace in which each number of 16 bits has one.
const MIN_USERS: u32 = 65_535;

/// The network of pods: devices, or addresses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PodNetworkMode {
    /// Run all CNI plugins in the node's network namespace, for a network namespace of each pod
    Kernel,
    /// Run only the IPAM plugin: addresses without interfaces, and without privileges
    Ledger,
}

/// The flags of the CRI server.
#[derive(Clone, Debug, clap::Args)]
pub struct CriConfig {
    /// Serve the CRI of this node; may be repeated in ledger mode
    #[arg(
        long = "node",
        value_name = "NAME",
        env = "PODPLANE_NODE",
        value_delimiter = ',',
        required = true
    )]
    pub nodes: Vec<NodeName>,

    /// Keep each node's files in DIR/NAME: the CNI configuration (net.d), the plugins' state,
    /// sandboxes and the CRI socket (cri.sock)
    #[arg(long, value_name = "DIR", env = "PODPLANE_NODES_DIR")]
    pub nodes_dir: PathBuf,

    /// Report pod trace steps to this API server, HOST:PORT, a URL, or unix:PATH; used for nothing
    /// else [default: not reported]
    #[arg(long, value_name = "ADDR", env = "PODPLANE_SERVER")]
    pub server: Option<Endpoint>,

    /// The credentials for it.
    #[command(flatten)]
    pub credentials: CredentialFlags,

    /// Set the pod network mode: kernel (network namespaces and interfaces) or ledger (addresses
    /// only)
    #[arg(
        value_name = "MODE",
        long,
        value_enum,
        default_value = "kernel",
        env = "PODPLANE_NETWORK"
    )]
    pub network: PodNetworkMode,

    /// Run CNI plugins in this network namespace [default: that of this process]
    #[arg(long, value_name = "PATH", env = "PODPLANE_NODE_NETNS")]
    pub node_netns: Option<PathBuf>,

    /// Bind-mount the network namespace of each sandbox at DIR/NODE.ID
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/podplane/netns",
        env = "PODPLANE_NETNS_DIR"
    )]
    pub netns_dir: PathBuf,

    /// Find the CNI plugins in these directories, separated by colons or repeated; the first that
    /// has a plugin wins
    #[arg(
        long = "cni-bin-dir",
        value_name = "DIR",
        env = "PODPLANE_CNI_BIN_DIR",
        value_delimiter = ':',
        default_value = "/opt/cni/bin"
    )]
    pub cni_bin_dirs: Vec<PathBuf>,

    /// The flags that the user of a cluster sets.
    #[command(flatten)]
    pub cluster: NodeFlags,

    /// Mount only what is in the directory of a pod's own volumes, which is DIR/UID, into its
    /// containers (--containers process)
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/pods",
        env = "PODPLANE_KUBELET_PODS_DIR"
    )]
    pub kubelet_pods_dir: PathBuf,

    /// The program that starts containers: it calls [`podplane_container_init::run`] under the name
    /// [`podplane_container_init::NAME`]. This program, if absent.
    #[arg(skip)]
    pub container_init: Option<PathBuf>,

    /// Kill a CNI plugin that has run for SECONDS, a number without a unit, such as 10 or 0.5
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, env = "PODPLANE_CNI_TIMEOUT")]
    pub cni_timeout: Duration,

    /// Create and remove at most N sandboxes at once, over all nodes
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..), env = "PODPLANE_CNI_CONCURRENCY")]
    pub cni_concurrency: u16,

    /// Garbage-collect addresses and network namespaces without a sandbox every SECONDS, a number
    /// without a unit, such as 10 or 0.5
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, env = "PODPLANE_GC_INTERVAL")]
    pub gc_interval: Duration,

    /// Serve /metrics, /livez, /readyz and /debug/log-level at this address too: IP:PORT (port 0:
    /// any free port) or unix:PATH [default: not served]
    #[arg(long, value_name = "ADDR", env = "PODPLANE_HTTP_LISTEN")]
    pub http_listen: Option<Listen>,

    /// The host names under which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of --http-listen, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Write the address of --http-listen to this file, once it is served
    #[arg(
        long,
        value_name = "FILE",
        env = "PODPLANE_HTTP_ADDRESS_FILE",
        requires = "http_listen"
    )]
    pub http_address_file: Option<PathBuf>,
}

/// The flags that `podplane up` and `podplane restart` take too, and pass on as they are. Each has
/// one value.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct NodeFlags {
    /// Write the node's CNI configuration from this template once its pod CIDR is assigned
    #[arg(
        long,
        value_enum,
        value_name = "TEMPLATE",
        default_value = "containerd",
        env = "PODPLANE_CNI_TEMPLATE"
    )]
    pub cni_template: NetworkTemplate,

    /// Set what the CRI server does with images and containers: none (refuse them), pretend (accept
    /// them, and run no process) or process (run programs of --container-roots)
    #[arg(
        long,
        value_enum,
        value_name = "MODE",
        default_value = "none",
        env = "PODPLANE_CONTAINERS"
    )]
    pub containers: ContainerMode,

    /// Find images in these directories: an image NAME:TAG is an unpacked directory, or a program,
    /// of that name (--containers process)
    #[arg(long, value_name = "DIR[:DIR…]", env = "PODPLANE_CONTAINER_ROOTS")]
    pub container_roots: Option<ImageRoots>,
}

/// The reason why the CRI server ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum CriRunError {
    /// Several nodes in kernel mode: nodes share a process only if nothing runs inside them.
    #[error("--network kernel supports one node per process, but --node was given {0} times")]
    OneNode(usize),
    /// Processes in sandboxes that have no namespace.
    #[error(
        "--containers process needs --network kernel: in ledger mode sandboxes have no network namespace to run a process in"
    )]
    NoNamespaces,
    /// Processes where everybody may ask for one.
    #[error(
        "--containers process is refused with --authentication=none, where everybody may run programs: choose --authentication=credentials"
    )]
    NoAuthentication,
    /// Processes without images.
    #[error("--containers process needs --container-roots, the directories of images")]
    NoRoots,
    /// Processes without the users that they need.
    #[error(
        "--containers process needs the users of the machine, and this user namespace has {0}: run as root"
    )]
    NoUsers(u32),
    /// The streaming server cannot listen.
    #[error("failed to listen for exec, attach and port-forward")]
    Streaming(#[source] io::Error),
    /// A constant configuration is invalid.
    #[error("failed to prepare the loopback network")]
    Loopback(#[from] ConfigError),
    /// A node's sandboxes cannot be read.
    #[error("failed to open node {node}")]
    Node {
        /// The node.
        node: NodeName,
        /// Why.
        source: Box<SandboxError>,
    },
    /// A node's containers cannot be read.
    #[error("failed to open the containers of node {node}")]
    Containers {
        /// The node.
        node: NodeName,
        /// Why.
        source: Box<ContainerError>,
    },
    /// The files for a node's cached results cannot be listed.
    #[error("failed to list the spare files of node {node}")]
    Spare {
        /// The node.
        node: NodeName,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The API server's address cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A thread that reads a node died.
    #[error("failed to open the nodes")]
    Panicked(#[from] JoinError),
    /// A socket cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The address of --http-listen cannot be served as its flags say.
    #[error(transparent)]
    Http(#[from] ServingError),
    /// A task ended by itself.
    #[error(transparent)]
    Ended(#[from] TaskEnd),
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
        .ok_or_else(|| format!("invalid duration {text:?}: must be a positive number of seconds"))
}

/// Runs the CRI server until `stop`.
///
/// # Errors
///
/// [`CriRunError`] if it cannot start, or if a part of it ends by itself.
pub fn run(
    config: CriConfig,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), CriRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(config: CriConfig, stop: CancellationToken) -> Result<(), CriRunError> {
    if config.network == PodNetworkMode::Kernel && config.nodes.len() > 1 {
        return Err(CriRunError::OneNode(config.nodes.len()));
    }
    let streaming = match config.cluster.containers {
        ContainerMode::None | ContainerMode::Pretend => None,
        ContainerMode::Process => {
            check_processes(&config)?;
            let bound = StreamListener::bind().await;
            Some(bound.map_err(CriRunError::Streaming)?)
        }
    };
    let slots = Arc::new(Semaphore::new(config.cni_concurrency.into()));
    let mut process = Process::new(DESCRIPTORS);
    if let Some(listen) = &config.http_listen {
        let hosts = config.allowed_hosts.clone();
        let file = config.http_address_file.as_deref();
        for listener in config.serving.listeners(listen, hosts, file).await? {
            process.serve_http(listener);
        }
    }
    let metrics = NetworkMetrics::new(process.registry());
    let mut nodes = Vec::new();
    let mut opening = Vec::new();
    for node in &config.nodes {
        opening.push(open(&config, node, metrics.clone()));
    }
    let opened = stream::iter(opening).buffered(AT_ONCE);
    let opened: Vec<_> = opened.try_collect().await?;
    let mut all_containers = Vec::new();
    for (
        node,
        OpenedNode {
            sandboxes,
            containers,
            images,
        },
    ) in config.nodes.iter().zip(opened)
    {
        let socket = Listen::Unix(NodeDir::new(&config.nodes_dir, node).socket());
        // Bound after the node has recovered, so no client sees it before that.
        let listener = Listener::bind(&socket).await?;
        let urls = streaming.as_ref().map(StreamListener::urls);
        let runtime = CriRuntime::new(sandboxes.clone(), containers.clone(), slots.clone(), urls);
        let mut services = Services::default();
        services
            .add(RuntimeServiceServer::new(runtime))
            .add(ImageServiceServer::new(images));
        process.serve(listener, services);
        nodes.push(sandboxes);
        all_containers.extend(containers);
    }
    let counted = Box::new(SandboxCollector(nodes.clone()));
    process.registry().register_collector(counted);
    let mut tasks = Tasks::new(stop);
    let server = config.server.clone().map(|server| {
        let server = server.with_credentials(&config.credentials)?;
        endpoint::channel(&server)
    });
    let server = server.transpose()?;
    process.trace("cri", server);
    process.start(&mut tasks).await;
    tasks.spawn(
        "garbage collection",
        collect_garbage(nodes, config.gc_interval, tasks.stop()),
    );
    for containers in all_containers {
        let ends = containers.clone().run_planned_ends(tasks.stop());
        tasks.spawn("planned ends of containers", ends);
        let processes = containers.run_processes(tasks.stop());
        tasks.spawn("processes of containers", processes);
    }
    if let Some(listener) = streaming {
        tasks.spawn("streaming", streaming::serve(listener, tasks.stop()));
    }
    Ok(tasks.run().await?)
}

/// Checks that processes can run, and that not everybody may ask for them.
fn check_processes(config: &CriConfig) -> Result<(), CriRunError> {
    if config.network != PodNetworkMode::Kernel {
        return Err(CriRunError::NoNamespaces);
    }
    if config.serving.authentication == AuthenticationMode::None {
        return Err(CriRunError::NoAuthentication);
    }
    if config.cluster.container_roots.is_none() {
        return Err(CriRunError::NoRoots);
    }
    // Of each line: the first user inside, the first outside, and the number.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let counts = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let users = counts.filter_map(|count| count.parse::<u32>().ok());
    let users = users.fold(0, u32::saturating_add);
    match users > MIN_USERS {
        true => Ok(()),
        false => Err(CriRunError::NoUsers(users)),
    }
}

/// A node that is ready to be served.
struct OpenedNode {
    sandboxes: Arc<NodeSandboxes>,
    containers: Option<Arc<NodeContainers>>,
    images: Images,
}

async fn open(
    config: &CriConfig,
    node: &NodeName,
    metrics: NetworkMetrics,
) -> Result<OpenedNode, CriRunError> {
    let dir = NodeDir::new(&config.nodes_dir, node);
    let spare = dir.cni_cache().join("results.free");
    let spare = task::spawn_blocking(move || SpareFiles::open(spare, 0o600)).await?;
    let spare = spare.map_err(|source| CriRunError::Spare {
        node: node.clone(),
        source,
    })?;
    let runtime = podplane_cni::Runtime {
        bin_dirs: config.cni_bin_dirs.clone(),
        cache_dir: dir.cni_cache().to_owned(),
        spare: Some(Arc::new(spare)),
        node_netns: config.node_netns.clone(),
        timeout: config.cni_timeout,
    };
    let plugins = match config.network {
        PodNetworkMode::Kernel => PluginMode::Chain,
        PodNetworkMode::Ledger => PluginMode::Ipam,
    };
    let network = SandboxNetworks::new(
        runtime,
        plugins,
        config.netns_dir.clone(),
        node.clone(),
        metrics,
    )?;
    let template = config.cluster.cni_template;
    let of_node = dir.clone();
    let opened = task::spawn_blocking(move || NodeSandboxes::open(of_node, template, network));
    let sandboxes = opened.await?.map_err(|source| CriRunError::Node {
        node: node.clone(),
        source: Box::new(source),
    })?;
    let sandboxes = Arc::new(sandboxes);
    if config.cluster.containers == ContainerMode::None {
        return Ok(OpenedNode {
            sandboxes,
            containers: None,
            images: Images::None {
                dir: config.nodes_dir.clone(),
            },
        });
    }
    let of_containers = sandboxes.clone();
    let (roots, processes) = match config.cluster.containers {
        ContainerMode::None | ContainerMode::Pretend => (None, None),
        ContainerMode::Process => {
            let processes = ProcessConfig {
                init: config
                    .container_init
                    .clone()
                    .unwrap_or_else(|| OWN_PROGRAM.into()),
                pods_dir: config.kubelet_pods_dir.clone(),
                scratch: dir.scratch(),
            };
            let roots = config.cluster.container_roots.clone().unwrap_or_default();
            (Some(roots), Some(processes))
        }
    };
    let opened = task::spawn_blocking(move || {
        if let Some(processes) = &processes {
            fs::create_dir_all(&processes.scratch).map_err(|source| ContainerError::Disk {
                step: "make the directory over which containers are mounted",
                source,
            })?;
        }
        let processes = processes.map(Processes::new);
        let images =
            ImageStore::open(dir.images(), roots).map_err(|source| ContainerError::Disk {
                step: "read the records of images",
                source,
            })?;
        let images = Arc::new(images);
        let containers = NodeContainers::open(&dir, of_containers, images.clone(), processes)?;
        Ok((Arc::new(containers), images))
    });
    let opened = opened.await?.map_err(|source| CriRunError::Containers {
        node: node.clone(),
        source: Box::new(source),
    });
    opened.map(|(containers, images)| OpenedNode {
        sandboxes,
        containers: Some(containers),
        images: Images::Stored(images),
    })
}

/// Reclaims what no sandbox has, every `interval`. Normally there is nothing; a killed plugin
/// leaves something behind.
async fn collect_garbage(
    nodes: Vec<Arc<NodeSandboxes>>,
    interval: Duration,
    stop: CancellationToken,
) -> Result<(), JoinError> {
    // The nodes collected garbage when they were opened, so the first tick is one interval away.
    let mut ticks = clock::interval_at(clock::Instant::now() + interval, interval);
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
pub(crate) mod tests;
