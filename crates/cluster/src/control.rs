//! The control socket, which serves `podplane.cluster.v1`: its server and its client.

use clap::ValueEnum as _;
use podplane_api::node::{NetworkBackend, NodeName};
use podplane_client::{Channel, Endpoint, endpoint};
use podplane_ipam::IpPolicy;
use podplane_proto::cluster::{
    AddNodeRequest, AddNodeResponse, GetStatusRequest, GetStatusResponse, RebootNodeRequest,
    RebootNodeResponse, RemoveNodeRequest, RemoveNodeResponse, RestartRequest, RestartResponse,
    SetNodeNetworkRequest, SetNodeNetworkResponse, StopRequest, StopResponse,
    cluster_service_client::ClusterServiceClient, cluster_service_server::ClusterService,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    data_dir::DataDir,
    extra::ExtraFlag,
    flags::{ChangeableFlags, UpFlags},
    instance::ClusterView,
    services::ServiceCatalog,
    settings::Network,
};

/// A command for the supervisor, which executes one after another.
#[derive(Debug)]
pub enum ControlCommand {
    AddNodes {
        names: Vec<NodeName>,
        kind: NodeKind,
        answer: oneshot::Sender<Result<(), Status>>,
    },
    Restart {
        services: Vec<String>,
        flags: Box<UpFlags>,
        /// Answered with the names of the restarted services.
        answer: oneshot::Sender<Result<Vec<String>, Status>>,
    },
    RemoveNode {
        name: String,
        answer: oneshot::Sender<Result<(), Status>>,
    },
    RebootNode {
        name: String,
        answer: oneshot::Sender<Result<(), Status>>,
    },
    ConnectNode {
        name: String,
        connected: bool,
        answer: oneshot::Sender<Result<(), Status>>,
    },
    /// Answered once nothing of the cluster is left.
    Stop(oneshot::Sender<()>),
}

/// The properties of nodes to be added.
#[derive(Clone, Copy, Debug)]
pub struct NodeKind {
    pub network: Network,
    /// The backend of their node network; `None`: the cluster's.
    pub backend: Option<NetworkBackend>,
}

/// The server: turns requests into commands.
#[derive(Debug)]
pub(crate) struct Control {
    /// The cluster's state, available even while the supervisor is busy.
    pub(crate) view: watch::Receiver<ClusterView>,
    pub(crate) commands: mpsc::Sender<ControlCommand>,
    /// Makes the supervisor abandon its present work.
    pub(crate) interrupt: CancellationToken,
    pub(crate) services: &'static dyn ServiceCatalog,
    /// The address at which the supervisor serves HTTP.
    pub(crate) http_address: String,
}

impl Control {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> ControlCommand,
    ) -> Result<T, Status> {
        let stopping = || Status::unavailable("the cluster is stopping");
        let (sender, answer) = oneshot::channel();
        self.commands
            .send(command(sender))
            .await
            .map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    }
}

#[tonic::async_trait]
impl ClusterService for Control {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(GetStatusResponse {
            http_address: self.http_address.clone(),
            ..self.view.borrow().status()
        }))
    }

    async fn add_node(
        &self,
        request: Request<AddNodeRequest>,
    ) -> Result<Response<AddNodeResponse>, Status> {
        let AddNodeRequest {
            names,
            network,
            node_network_backend,
        } = request.into_inner();
        let names = names.iter().map(|name| name.parse::<NodeName>());
        let names = names
            .collect::<Result<_, _>>()
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let network = match &*network {
            "" => Network::Auto,
            name => Network::from_str(name, false).map_err(Status::invalid_argument)?,
        };
        let backend = node_network_backend
            .map(|name| backend(&name))
            .transpose()
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let kind = NodeKind { network, backend };
        self.ask(|answer| ControlCommand::AddNodes {
            names,
            kind,
            answer,
        })
        .await??;
        Ok(Response::new(AddNodeResponse {}))
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        let (services, flags) = flags(request.into_inner(), self.services)
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let restarted = self
            .ask(|answer| ControlCommand::Restart {
                services,
                flags: Box::new(flags),
                answer,
            })
            .await??;
        Ok(Response::new(RestartResponse {
            services: restarted,
        }))
    }

    async fn remove_node(
        &self,
        request: Request<RemoveNodeRequest>,
    ) -> Result<Response<RemoveNodeResponse>, Status> {
        let name = request.into_inner().name;
        self.ask(|answer| ControlCommand::RemoveNode { name, answer })
            .await??;
        Ok(Response::new(RemoveNodeResponse {}))
    }

    async fn reboot_node(
        &self,
        request: Request<RebootNodeRequest>,
    ) -> Result<Response<RebootNodeResponse>, Status> {
        let name = request.into_inner().name;
        self.ask(|answer| ControlCommand::RebootNode { name, answer })
            .await??;
        Ok(Response::new(RebootNodeResponse {}))
    }

    async fn set_node_network(
        &self,
        request: Request<SetNodeNetworkRequest>,
    ) -> Result<Response<SetNodeNetworkResponse>, Status> {
        let SetNodeNetworkRequest { name, connected } = request.into_inner();
        self.ask(|answer| ControlCommand::ConnectNode {
            name,
            connected,
            answer,
        })
        .await??;
        Ok(Response::new(SetNodeNetworkResponse {}))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        self.interrupt.cancel();
        self.ask(ControlCommand::Stop).await?;
        Ok(Response::new(StopResponse {}))
    }
}

fn backend(name: &str) -> anyhow::Result<NetworkBackend> {
    NetworkBackend::from_str(name, false)
        .map_err(|error| anyhow::anyhow!("invalid node network backend {name:?}: {error}"))
}

fn policy(name: &str) -> anyhow::Result<IpPolicy> {
    IpPolicy::from_str(name, false)
        .map_err(|error| anyhow::anyhow!("invalid IP policy {name:?}: {error}"))
}

/// Converts a request to restart into services and flags of `up`.
fn flags(
    request: RestartRequest,
    known: &dyn ServiceCatalog,
) -> anyhow::Result<(Vec<String>, UpFlags)> {
    let RestartRequest {
        services,
        cluster_cidr,
        node_cidr_mask_size,
        node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6,
        service_cluster_ip_range,
        compat,
        extra_config,
        node_network_backend,
        cidr_allocator_type,
        ip_policy,
        pod_ip_resource,
    } = request;
    let mask = |mask: Option<u32>| mask.map(u8::try_from).transpose();
    let changeable = ChangeableFlags {
        cluster_cidr,
        node_cidr_mask_size: mask(node_cidr_mask_size)?,
        node_cidr_mask_size_ipv4: mask(node_cidr_mask_size_ipv4)?,
        node_cidr_mask_size_ipv6: mask(node_cidr_mask_size_ipv6)?,
        service_cluster_ip_range,
        compat: compat.map(|name| name.parse()).transpose()?,
        cidr_allocator_type: cidr_allocator_type.map(|name| name.parse()).transpose()?,
        node_network_backend: node_network_backend
            .map(|name| backend(&name))
            .transpose()?,
        ip_policy: ip_policy.map(|name| policy(&name)).transpose()?,
        pod_ip_resource: pod_ip_resource.map(|name| name.parse()).transpose()?,
        extra_config: extra_config
            .iter()
            .map(|flag| ExtraFlag::read(flag, known))
            .collect::<Result<_, _>>()?,
    };
    let flags = UpFlags {
        changeable,
        ..UpFlags::default()
    };
    Ok((services, flags))
}

/// A client of the control socket. Every call fails as unavailable if no cluster runs.
pub fn client(dir: &DataDir) -> anyhow::Result<ClusterServiceClient<Channel>> {
    let endpoint: Endpoint = format!("unix:{}", dir.control_socket().display()).parse()?;
    Ok(ClusterServiceClient::new(endpoint::channel(&endpoint)?))
}
