//! A CRI server of a test, and calls to it.

use std::{fs, path::Path};

use podplane_client::{Channel, endpoint};
use podplane_netlink::{Netlink, netns};
use podplane_proto::{
    cri as wire,
    cri::{NamespaceMode, RunPodSandboxRequest, runtime_service_client::RuntimeServiceClient},
};
use podplane_test_requirements::require;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Status;

use super::super::*;

/// The directory of our plugins, above the test program's; `cargo build -p podplane-cni-plugins
/// --bins` puts them there.
pub(super) fn own_plugins() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.ancestors().nth(2).unwrap().to_owned();
    assert!(
        dir.join("host-local").exists(),
        "no host-local in {}: run cargo build -p podplane-cni-plugins --bins",
        dir.display()
    );
    dir
}

/// Debian's plugins; `None` if the environment says to do without.
pub(super) fn peer_plugins() -> Option<PathBuf> {
    let dir = PathBuf::from("/usr/lib/cni");
    let is_there = dir.join("host-local").exists();
    let install = "apt-get install containernetworking-plugins";
    require("cni-plugins", is_there, install).then_some(dir)
}

pub(super) struct CriFixture {
    pub(super) dir: TempDir,
    pub(super) config: CriConfig,
    pub(super) stop: CancellationToken,
    pub(super) running: JoinSet<Result<(), CriRunError>>,
}

impl CriFixture {
    pub(super) async fn start(bin_dir: &Path) -> (Self, RuntimeServiceClient<Channel>) {
        let mut server = Self::prepare(bin_dir);
        let client = server.launch().await;
        (server, client)
    }

    pub(super) fn prepare(bin_dir: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = CriConfig {
            nodes: vec!["n1".parse().unwrap(), "n2".parse().unwrap()],
            server: None,
            credentials: Default::default(),
            nodes_dir: dir.path().join("nodes"),
            network: PodNetworkMode::Ledger,
            node_netns: None,
            netns_dir: dir.path().join("netns"),
            cni_bin_dirs: vec![bin_dir.to_owned()],
            cluster: NodeFlags {
                cni_template: NetworkTemplate::Containerd,
                containers: ContainerMode::None,
                container_roots: None,
            },
            kubelet_pods_dir: dir.path().join("pods"),
            container_init: None,
            cni_timeout: Duration::from_secs(10),
            cni_concurrency: 4,
            gc_interval: Duration::from_secs(3600),
            http_listen: None,
            allowed_hosts: Default::default(),
            serving: Default::default(),
            http_address_file: None,
        };
        Self {
            dir,
            config,
            stop: CancellationToken::new(),
            running: JoinSet::new(),
        }
    }

    /// A connection to the server of the first node.
    pub(super) fn channel(&self) -> Channel {
        let endpoint = format!("unix:{}", self.node().socket().display());
        endpoint::channel(&endpoint.parse().unwrap()).unwrap()
    }

    /// Starts the server and waits until it answers.
    pub(super) async fn launch(&mut self) -> RuntimeServiceClient<Channel> {
        self.stop = CancellationToken::new();
        self.running
            .spawn(run(self.config.clone(), self.stop.clone()));
        let mut client = RuntimeServiceClient::new(self.channel());
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while let Err(error) = client.version(wire::VersionRequest::default()).await {
            assert!(tokio::time::Instant::now() < deadline, "{error}");
            tokio::task::yield_now().await;
        }
        client
    }

    pub(super) async fn end(&mut self) {
        self.stop.cancel();
        self.running.join_next().await.unwrap().unwrap().unwrap();
    }

    pub(super) fn node(&self) -> NodeDir {
        NodeDir::new(&self.config.nodes_dir, &self.config.nodes[0])
    }

    /// The addresses that have an allocation file.
    pub(super) fn leased(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.node().networks().join("containerd-net")) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            .collect();
        names.sort();
        names
    }
}

pub(super) fn request(uid: &str, attempt: u32, mode: NamespaceMode) -> RunPodSandboxRequest {
    let options = wire::NamespaceOption {
        network: mode.into(),
        ..wire::NamespaceOption::default()
    };
    let linux = wire::LinuxPodSandboxConfig {
        security_context: Some(wire::LinuxSandboxSecurityContext {
            namespace_options: Some(options),
            ..wire::LinuxSandboxSecurityContext::default()
        }),
        ..wire::LinuxPodSandboxConfig::default()
    };
    let metadata = wire::PodSandboxMetadata {
        name: format!("pod-{uid}"),
        uid: uid.into(),
        namespace: "default".into(),
        attempt,
    };
    RunPodSandboxRequest {
        config: Some(wire::PodSandboxConfig {
            metadata: Some(metadata),
            labels: [("uid".to_owned(), uid.to_owned())].into(),
            linux: Some(linux),
            ..wire::PodSandboxConfig::default()
        }),
        runtime_handler: String::new(),
    }
}

pub(super) type CriClient = RuntimeServiceClient<Channel>;

pub(super) async fn run_pod(client: &mut CriClient, uid: &str) -> Result<String, Status> {
    let request = request(uid, 0, NamespaceMode::Pod);
    let answer = client.run_pod_sandbox(request).await?;
    Ok(answer.into_inner().pod_sandbox_id)
}

pub(super) async fn configure(client: &mut CriClient, pod_cidr: &str) -> Result<(), Status> {
    let config = wire::RuntimeConfig {
        network_config: Some(wire::NetworkConfig {
            pod_cidr: pod_cidr.into(),
        }),
    };
    let request = wire::UpdateRuntimeConfigRequest {
        runtime_config: Some(config),
    };
    client.update_runtime_config(request).await.map(drop)
}

pub(super) async fn network_ready(client: &mut CriClient) -> wire::RuntimeCondition {
    let status = client.status(wire::StatusRequest::default()).await.unwrap();
    let conditions = status.into_inner().status.unwrap().conditions;
    assert!(conditions[0].status, "RuntimeReady");
    conditions[1].clone()
}

pub(super) async fn status(
    client: &mut CriClient,
    id: &str,
) -> Result<wire::PodSandboxStatus, Status> {
    let request = wire::PodSandboxStatusRequest {
        pod_sandbox_id: id.into(),
        verbose: false,
    };
    let answer = client.pod_sandbox_status(request).await?;
    Ok(answer.into_inner().status.unwrap())
}

pub(super) async fn list(client: &mut CriClient, filter: wire::PodSandboxFilter) -> Vec<String> {
    let request = wire::ListPodSandboxRequest {
        filter: Some(filter),
    };
    let answer = client.list_pod_sandbox(request).await.unwrap();
    let items = answer.into_inner().items.into_iter();
    items.map(|item| item.metadata.unwrap().uid).collect()
}

pub(super) async fn stop(client: &mut CriClient, id: &str) {
    let request = wire::StopPodSandboxRequest {
        pod_sandbox_id: id.into(),
    };
    client.stop_pod_sandbox(request).await.unwrap();
}

pub(super) async fn remove(client: &mut CriClient, id: &str) {
    let request = wire::RemovePodSandboxRequest {
        pod_sandbox_id: id.into(),
    };
    client.remove_pod_sandbox(request).await.unwrap();
}

/// A server in kernel mode whose node is a namespace of its own, which ends with it.
pub(super) struct Kernel(pub(super) CriFixture);

impl Kernel {
    pub(super) fn prepare() -> Self {
        Self::prepare_with(&own_plugins())
    }

    pub(super) fn prepare_with(bin_dir: &Path) -> Self {
        let mut server = CriFixture::prepare(bin_dir);
        let node = server.dir.path().join("node-netns");
        netns::create(&node).unwrap();
        let config = &mut server.config;
        config.nodes.truncate(1);
        config.network = PodNetworkMode::Kernel;
        config.node_netns = Some(node);
        Self(server)
    }

    /// The addresses of an interface in a namespace, without link-local ones; `None` if there is no
    /// such interface.
    pub(super) fn addresses(&self, netns: &Path, interface: &str) -> Option<Vec<String>> {
        let mut netlink = Netlink::open_in(netns).unwrap();
        let link = netlink.link(interface).unwrap()?;
        assert!(link.is_up, "{interface} is down");
        let addresses = netlink.addresses(link.index).unwrap();
        let shown = addresses
            .iter()
            .filter(|a| a.is_global || a.net.addr().is_ipv4());
        Some(shown.map(|address| address.net.to_string()).collect())
    }

    pub(super) fn pod_netns(&self, id: &str) -> PathBuf {
        self.0.config.netns_dir.join(format!("n1.{id}"))
    }

    pub(super) fn node_netns(&self) -> &Path {
        self.0.config.node_netns.as_deref().unwrap()
    }
}

impl AsRef<CriFixture> for CriFixture {
    fn as_ref(&self) -> &CriFixture {
        self
    }
}

impl AsRef<CriFixture> for Kernel {
    fn as_ref(&self) -> &CriFixture {
        &self.0
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for path in netns::list(&self.0.config.netns_dir).unwrap() {
            netns::remove(&path).unwrap();
        }
        netns::remove(self.node_netns()).unwrap();
    }
}
