//! A single node: runs its CRI server and its kubelet here for a cluster elsewhere.
//!
//! Its data directory has the layout of a cluster's, so `podplane ping`, `exec` and `node
//! reset-bridge` work with it. Unlike `up` it creates no namespaces: the namespace in which it is
//! started is the node's.

use std::{future, net::IpAddr, path::PathBuf};

use anyhow::Context as _;
use podplane_api::node::NodeName;
use podplane_client::{CredentialFlags, Endpoint};
use podplane_host::{
    fs::{self, File},
    net, task,
};
use podplane_netlink::{netns, sysctl};
use podplane_service_runtime::{
    boundary::AllowedHosts, server::Listen, serving::ServingFlags, shutdown,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    data_dir::{DataDir, SupervisorRecord},
    departure::{self, Sandboxes},
    fabric,
    node_certificate::NodeCertificate,
    processes::{self, CommandLines, ServedNodes},
    service::{ListenAddress, STDERR, Service},
    services::ServiceCatalog,
    settings::Settings,
};

/// The configuration of `podplane node run`.
#[derive(Debug)]
pub struct LoneNode {
    pub name: NodeName,
    /// True for kernel mode, in which pods have network interfaces.
    pub kernel: bool,
    /// The node's addresses; empty: the one from which the server is reached.
    pub ips: Vec<IpAddr>,
    pub server: Endpoint,
    /// The credentials for the server, which both processes use.
    pub credentials: CredentialFlags,
    /// The file with the token by which the node requests a certificate for itself, if it is given
    /// none.
    pub bootstrap_token_file: Option<PathBuf>,
    /// The certificate and key with which the other nodes are read, for the routes to them.
    pub route_agent: Option<(PathBuf, PathBuf)>,
    /// The kubelet's listening address.
    pub listen: Listen,
    /// The host names that requests to both processes may use.
    pub allowed_hosts: AllowedHosts,
    /// The clients of the ports of both processes, and their TLS.
    pub serving: ServingFlags,
    pub settings: Settings,
    pub farewell: Farewell,
    pub services: &'static dyn ServiceCatalog,
}

/// The fate of the Node object when the node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// It stays, with its pods: the node comes back.
    Stay,
    /// It is deleted, with its pods.
    Leave,
}

impl LoneNode {
    /// The certificate that the node requests itself; `None` if it is given its credentials.
    fn certificate(&self, dir: &DataDir) -> anyhow::Result<Option<NodeCertificate>> {
        let token = self.bootstrap_token_file.clone();
        let certificate = token.map(|token| {
            NodeCertificate::new(&self.name, dir, &self.server, &self.credentials, token)
        });
        certificate.transpose()
    }
}

/// The name of this host, if it is valid for a node.
pub fn host_name() -> anyhow::Result<NodeName> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy().to_lowercase();
    Ok(name.parse()?)
}

/// Runs until SIGINT, SIGTERM or SIGHUP.
pub fn run(node: &LoneNode, dir: &DataDir) -> anyhow::Result<()> {
    dir.prepare()?;
    let lock = dir.lock()?;
    let lock = lock.with_context(|| {
        format!(
            "a cluster or a node runs in {} already: name another with --data-dir",
            dir.path().display()
        )
    })?;
    dir.clear_running()?;
    let netns = match node.kernel {
        true => Some(take_namespace(node, dir)?),
        false => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(live(node, dir, &lock, netns))
}

/// Binds the namespace of this process to the path of a node's.
fn take_namespace(node: &LoneNode, dir: &DataDir) -> anyhow::Result<PathBuf> {
    let need = "a node with --network kernel needs CAP_NET_ADMIN and CAP_SYS_ADMIN; --network ledger needs neither";
    sysctl::make_writable().context(need)?;
    let path = fabric::node_netns(&dir.run(), node.name.as_str());
    netns::remove(&path)?;
    netns::bind_own(&path).context(need)?;
    Ok(path)
}

async fn live(
    node: &LoneNode,
    dir: &DataDir,
    lock: &File,
    netns: Option<PathBuf>,
) -> anyhow::Result<()> {
    let mut signal = std::pin::pin!(shutdown::requested());
    let mut keepers = JoinSet::new();
    let mut run = |spec| {
        let (service, keeper) = Service::new(spec, CancellationToken::new());
        task::spawn(&mut keepers, keeper);
        service
    };
    let certificate = node.certificate(dir)?;
    let credentials = match &certificate {
        Some(certificate) => certificate.credentials(),
        None => node.credentials.clone(),
    };
    let specs = specs(node, dir, netns, &credentials)?;
    let renew_at = match &certificate {
        None => None,
        // Cancelling the wait loses nothing: the next start goes on with the same request.
        Some(certificate) => tokio::select! {
            obtained = certificate.obtain() => Some(obtained?),
            _ = &mut signal => return Ok(()),
        },
    };
    let [cri, kubelet] = specs.map(&mut run);
    dir.write_running(&SupervisorRecord {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        kernel: node.kernel,
        reason: "as --network says".into(),
        client_certificate: certificate.as_ref().map(NodeCertificate::path),
    })?;
    let listening = async {
        cri.listening().await?;
        kubelet.listening().await
    };
    // Cancelling either wait loses nothing: whatever was started is stopped below.
    let began = tokio::select! {
        listening = listening => listening.map(Some),
        _ = &mut signal => Ok(None),
    };
    if let Ok(Some(address)) = &began {
        tracing::info!(node = node.name.as_str(), kubelet = address, "serving");
        let renewal = async {
            match certificate.as_ref().zip(renew_at) {
                Some((certificate, renew_at)) => certificate.keep(renew_at).await,
                None => future::pending().await,
            }
        };
        // As above.
        tokio::select! {
            signal = signal => {
                tracing::info!(signal = signal.context("failed to listen for signals")?, "stopping");
            }
            () = dir.gone(lock) => {
                tracing::error!(dir = %dir.path().display(), "the data directory was removed; stopping");
            }
            () = renewal => {}
        }
    }
    // The kubelet first: it would make the sandboxes again.
    kubelet.stop();
    kubelet.stopped().await;
    if node.farewell == Farewell::Leave && began.is_ok() {
        leave(node, dir, &credentials).await;
    }
    cri.stop();
    while keepers.join_next().await.is_some() {}
    if node.kernel {
        netns::remove(&fabric::node_netns(&dir.run(), node.name.as_str()))?;
    }
    if dir.is_gone(lock) {
        return Err(dir.removed());
    }
    dir.clear_running()?;
    began.map(drop)
}

/// Removes the node from the cluster. Failures are logged: whoever stops a node cannot wait for a
/// server that is gone.
async fn leave(node: &LoneNode, dir: &DataDir, credentials: &CredentialFlags) {
    let name = node.name.as_str();
    let endpoint = processes::cri_endpoint(dir, None, name);
    let sandboxes = match departure::remove_sandboxes(&endpoint).await {
        Ok(()) => Sandboxes::Gone,
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "sandboxes are left behind");
            Sandboxes::Left
        }
    };
    let server = match node.server.clone().with_credentials(credentials) {
        Ok(server) => server,
        Err(error) => {
            tracing::warn!(%error, "Node object is left behind");
            return;
        }
    };
    match departure::forget(dir, &server, name, sandboxes, node.services).await {
        Ok(()) => tracing::info!(node = name, "left the cluster"),
        Err(error) => tracing::warn!(error = format!("{error:#}"), "Node object is left behind"),
    }
}

/// The specifications of the CRI server and the kubelet.
fn specs(
    node: &LoneNode,
    dir: &DataDir,
    netns: Option<PathBuf>,
    credentials: &CredentialFlags,
) -> anyhow::Result<[crate::service::ServiceSpec; 2]> {
    let own = dir.nodes().join(node.name.as_str());
    fs::create_dir_all(&own).with_context(|| format!("failed to make {}", own.display()))?;
    let plugins = node.settings.plugins()?.unwrap_or_default();
    let server = node.server.to_string();
    let ips = match node.ips.as_slice() {
        [] => vec![address_towards(&server)?],
        given => given.to_vec(),
    };
    let place = ServedNodes {
        name: node.name.as_str(),
        nodes: vec![node.name.as_str()],
        kernel: netns.as_deref().map(|netns| (netns, ips.clone())),
        backend: None,
    };
    let lines = CommandLines {
        dir,
        settings: &node.settings,
        server: &server,
        certificates: None,
        links: None,
    };
    let mut cri = lines.cri(&plugins, &place);
    let mut kubelet = lines.kubelet(&place);
    if place.kernel.is_none() {
        let ips = ips.iter().map(|ip| format!("--node-ip={ip}").into());
        kubelet.args.extend(ips);
    }
    if let Some((certificate, key)) = node.route_agent.as_ref().filter(|_| node.kernel) {
        for (flag, file) in [
            ("--route-agent-client-certificate", certificate),
            ("--route-agent-client-key", key),
        ] {
            kubelet.args.extend([flag.into(), file.into()]);
        }
    }
    for spec in [&mut cri, &mut kubelet] {
        spec.args.extend(node.serving.arguments());
        let hosts = node.allowed_hosts.names.iter();
        let hosts = hosts.map(|name| format!("--allowed-hosts={name}").into());
        spec.args.extend(hosts);
    }
    kubelet.listens = ListenAddress::AsPublished {
        listen: node.listen.to_string(),
        file: dir.address_file("kubelet"),
    };
    for spec in [&mut cri, &mut kubelet] {
        spec.args.extend(credentials.arguments());
        spec.log = STDERR.into();
    }
    Ok([cri, kubelet])
}

/// The address of this host from which packets go to the first of these servers whose name is known:
/// a container that is down has no name. Sends nothing.
fn address_towards(servers: &str) -> anyhow::Result<IpAddr> {
    let mut servers = servers.split(',').map(|server| {
        source_address(server).with_context(|| {
            format!("failed to find the node's own address by the way to {server}; or name it with --node-ip")
        })
    });
    let first = servers.next().context("no server")?;
    first.or_else(|error| servers.find_map(Result::ok).ok_or(error))
}

fn source_address(server: &str) -> std::io::Result<IpAddr> {
    let Some((_, authority)) = server.split_once("://") else {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    };
    let mut addresses = net::resolve(authority)?;
    let server = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
    let any: IpAddr = match server {
        std::net::SocketAddr::V4(_) => [0; 4].into(),
        std::net::SocketAddr::V6(_) => [0u8; 16].into(),
    };
    let socket = net::bind_udp((any, 0).into())?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_found_by_any_server_that_has_a_name() {
        let found = |servers: &str| address_towards(servers).map_err(|error| error.to_string());
        let here = Ok(IpAddr::from([127, 0, 0, 1]));
        assert_eq!(found("unix:/run/a.sock"), here);
        assert_eq!(found("https://127.0.0.1:1"), here);
        assert_eq!(found("https://not a name:1,https://127.0.0.1:1"), here);
        assert_eq!(found("https://127.0.0.1:1,https://not a name:1"), here);
        let error = found("https://not a name:1,https://nor this:1").unwrap_err();
        assert!(
            error.contains("by the way to https://not a name:1"),
            "{error}"
        );
    }
}
