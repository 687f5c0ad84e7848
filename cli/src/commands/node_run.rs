//! `node run`: runs a node on this machine, or in this container, for a cluster whose API server is
//! elsewhere.

use std::{net::IpAddr, path::PathBuf, process::ExitCode};

use podplane_api::pod_ips::PodIpFlags;
use podplane_cluster::{
    data_dir::DataDir,
    extra::ExtraConfig,
    lone_node::{self, Farewell, LoneNode},
    settings::{Settings, name_of},
};
use podplane_kubelet::{
    NodeName,
    cri::{PodNetworkMode, containers::ContainerMode, template::NetworkTemplate},
    kubelet::node_network::NetworkBackend,
};
use podplane_service_runtime::{
    boundary::AllowedHosts,
    logging::{self, LogConfig},
    server::Listen,
    serving::ServingFlags,
    trace::TraceConfig,
};

use crate::{global::GlobalOptions, services::OwnServices};

/// Join this machine as a node to the cluster at --server: run a CRI server and a kubelet, until
/// SIGINT, SIGTERM or SIGHUP
///
/// In kernel mode the current network namespace is the node's: it has the bridge of the pods and
/// the routes to the pods of other nodes. A node that is restarted with the same name resumes from
/// its data directory, as after a power cycle.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node run --server 10.0.0.1:7080 --network ledger\n  podplane node run edge-1 --server 10.0.0.1:7080 --leave-on-terminate\n  podplane node run edge-1 --server https://10.0.0.1:7080 --certificate-authority ca.crt --bootstrap-token-file token"
)]
pub(crate) struct NodeRunArgs {
    /// Use this node name [default: the host's name]
    #[arg(env = "PODPLANE_NODE")]
    name: Option<NodeName>,

    /// Set the pod network mode: kernel (network namespaces and interfaces) or ledger (addresses
    /// only)
    #[arg(
        value_name = "MODE",
        long,
        value_enum,
        env = "PODPLANE_NETWORK",
        default_value = "kernel"
    )]
    network: PodNetworkMode,

    /// Report these addresses of the node, one per address family [default: the local address that
    /// is used to connect to --server]
    #[arg(
        long = "node-ip",
        value_name = "IP",
        env = "PODPLANE_NODE_IP",
        value_delimiter = ','
    )]
    node_ips: Vec<IpAddr>,

    /// Connect the pods of different nodes in kernel mode by host-gw (routes; the nodes share a
    /// link) or vxlan (tunnels)
    ///
    /// A node reaches only the pods of nodes that have the same backend.
    #[arg(
        long,
        value_enum,
        env = "PODPLANE_NODE_NETWORK_BACKEND",
        value_name = "BACKEND",
        default_value = "host-gw"
    )]
    node_network_backend: NetworkBackend,

    /// The addresses of pods.
    #[command(flatten)]
    pod_ips: PodIpFlags,

    /// Write the node's CNI configuration from this template once its pod CIDR is assigned
    #[arg(
        value_name = "TEMPLATE",
        long,
        value_enum,
        env = "PODPLANE_CNI_TEMPLATE",
        default_value = "containerd"
    )]
    cni_template: NetworkTemplate,

    /// Set what the CRI server does with images and containers: none (refuse them), pretend (accept
    /// them, and run no process) or process (run programs of --container-roots)
    #[arg(
        value_name = "MODE",
        long,
        value_enum,
        env = "PODPLANE_CONTAINERS",
        default_value = "none"
    )]
    containers: ContainerMode,

    /// Find images in these directories: an image NAME:TAG is an unpacked directory, or a program,
    /// of that name (--containers process)
    #[arg(long, env = "PODPLANE_CONTAINER_ROOTS", value_name = "DIR[:DIR…]")]
    container_roots: Option<String>,

    /// Find the CNI plugins in these directories, separated by colons; the first that has a plugin
    /// wins [default: the directory of the podplane program]
    #[arg(long, env = "PODPLANE_CNI_BIN_DIR", value_name = "DIR[:DIR…]")]
    cni_bin_dir: Option<PathBuf>,

    /// Serve podplane.node.v1, the kubelet's API, at this address: IP:PORT (port 0: any free port)
    /// or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    listen: Listen,

    /// Serve /metrics, /livez, /readyz and /debug/log-level of the CRI server at this address:
    /// IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_CRI_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    cri_listen: Listen,

    /// The names of the ports of both processes.
    #[command(flatten)]
    allowed_hosts: AllowedHosts,

    /// The clients of the ports of both processes, and their TLS.
    #[command(flatten)]
    serving: ServingFlags,

    /// Join with the bearer token in this file: the node makes a key, requests a client certificate
    /// with the token, waits until it is approved and signed, and renews it before it expires
    ///
    /// Key and certificate are in pki/node-NAME.pem in --data-dir. A certificate that is there and
    /// valid is used without the token. Needs an https:// address and --certificate-authority.
    #[arg(long, env = "PODPLANE_BOOTSTRAP_TOKEN_FILE", value_name = "FILE")]
    bootstrap_token_file: Option<PathBuf>,

    /// Read the other nodes, for the routes to them in kernel mode, with this client certificate
    /// (PEM): a node's own certificate is not enough for that
    #[arg(
        long,
        env = "PODPLANE_ROUTE_AGENT_CLIENT_CERTIFICATE",
        value_name = "FILE",
        requires = "route_agent_client_key"
    )]
    route_agent_client_certificate: Option<PathBuf>,

    /// Use the private key in this file (PEM), which may be the file of
    /// --route-agent-client-certificate
    #[arg(
        long,
        env = "PODPLANE_ROUTE_AGENT_CLIENT_KEY",
        value_name = "FILE",
        requires = "route_agent_client_certificate"
    )]
    route_agent_client_key: Option<PathBuf>,

    /// On termination, remove all sandboxes and delete the Node object; for nodes that do not
    /// return under their name
    #[arg(long, env = "PODPLANE_LEAVE_ON_TERMINATE")]
    leave_on_terminate: bool,

    #[command(flatten)]
    log: LogConfig,

    #[command(flatten)]
    trace: TraceConfig,
}

pub(crate) fn run(
    args: NodeRunArgs,
    dir: &DataDir,
    global: &GlobalOptions,
) -> anyhow::Result<ExitCode> {
    let NodeRunArgs {
        name,
        network,
        node_ips,
        node_network_backend,
        pod_ips: PodIpFlags {
            ip_policy,
            pod_ip_resource,
        },
        cni_template,
        containers,
        container_roots,
        cni_bin_dir,
        listen,
        cri_listen,
        allowed_hosts,
        serving,
        bootstrap_token_file,
        route_agent_client_certificate,
        route_agent_client_key,
        leave_on_terminate,
        log,
        trace: TraceConfig {
            otlp_endpoint,
            trace_sampling_ratio,
        },
    } = args;
    logging::init(&log)?;
    anyhow::ensure!(
        serving.local_socket.is_none(),
        "--local-socket is what `node run` itself decides: the kubelet's is in --data-dir"
    );
    let mut extra_config = ExtraConfig::default();
    extra_config.set("cri", "cni-template", name_of(&cni_template));
    extra_config.set("cri", "containers", name_of(&containers));
    extra_config.set("cri", "http-listen", cri_listen.to_string());
    if let Some(roots) = container_roots {
        extra_config.set("cri", "container-roots", roots);
    }
    let node = LoneNode {
        name: name.map_or_else(lone_node::host_name, Ok)?,
        kernel: network == PodNetworkMode::Kernel,
        ips: node_ips,
        server: global.server()?,
        credentials: global.credentials().clone(),
        bootstrap_token_file,
        route_agent: route_agent_client_certificate.zip(route_agent_client_key),
        listen,
        allowed_hosts,
        serving,
        settings: Settings {
            node_network_backend,
            ip_policy,
            pod_ip_resource,
            cni_bin_dir,
            extra_config,
            otlp_endpoint,
            trace_sampling_ratio: trace_sampling_ratio.unwrap_or_default(),
            ..Settings::default()
        },
        farewell: match leave_on_terminate {
            true => Farewell::Leave,
            false => Farewell::Stay,
        },
        services: &OwnServices,
    };
    lone_node::run(&node, dir)?;
    Ok(ExitCode::SUCCESS)
}
