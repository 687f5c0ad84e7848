//! The control socket: `podplane.cluster.v1`, both ends of it.

use clap::ValueEnum as _;
use podplane_client::{Endpoint, endpoint};
use podplane_kubelet::NodeName;
use podplane_proto::cluster::{
    AddNodeRequest, AddNodeResponse, GetStatusRequest, GetStatusResponse, RebootNodeRequest,
    RebootNodeResponse, RemoveNodeRequest, RemoveNodeResponse, RestartRequest, RestartResponse,
    SetNodeNetworkRequest, SetNodeNetworkResponse, StopRequest, StopResponse,
    cluster_service_client::ClusterServiceClient, cluster_service_server::ClusterService,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    data_dir::DataDir,
    instance::View,
    settings::{Flags, Network},
};

/// What the supervisor is asked to do. It does one thing after another.
#[derive(Debug)]
pub(crate) enum Command {
    AddNodes {
        names: Vec<NodeName>,
        network: Network,
        answer: oneshot::Sender<Result<(), Status>>,
    },
    Restart {
        services: Vec<String>,
        flags: Box<Flags>,
        /// Answered with those that were started again.
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
    /// Answered when nothing is left.
    Stop(oneshot::Sender<()>),
}

/// The server's end: turns requests into commands.
#[derive(Debug)]
pub(super) struct Control {
    /// Answers at once, whatever the supervisor is busy with.
    pub(super) view: watch::Receiver<View>,
    pub(super) commands: mpsc::Sender<Command>,
    /// Has the supervisor leave what it is busy with.
    pub(super) interrupt: CancellationToken,
    /// Where the supervisor serves HTTP.
    pub(super) http_address: String,
}

impl Control {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
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
        let AddNodeRequest { names, network } = request.into_inner();
        let names = names.iter().map(|name| name.parse::<NodeName>());
        let names = names
            .collect::<Result<_, _>>()
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let network = match &*network {
            "" => Network::Auto,
            name => Network::from_str(name, false).map_err(Status::invalid_argument)?,
        };
        self.ask(|answer| Command::AddNodes {
            names,
            network,
            answer,
        })
        .await??;
        Ok(Response::new(AddNodeResponse {}))
    }

    async fn restart(
        &self,
        request: Request<RestartRequest>,
    ) -> Result<Response<RestartResponse>, Status> {
        let (services, flags) = flags(request.into_inner())
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        let restarted = self
            .ask(|answer| Command::Restart {
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
        self.ask(|answer| Command::RemoveNode { name, answer })
            .await??;
        Ok(Response::new(RemoveNodeResponse {}))
    }

    async fn reboot_node(
        &self,
        request: Request<RebootNodeRequest>,
    ) -> Result<Response<RebootNodeResponse>, Status> {
        let name = request.into_inner().name;
        self.ask(|answer| Command::RebootNode { name, answer })
            .await??;
        Ok(Response::new(RebootNodeResponse {}))
    }

    async fn set_node_network(
        &self,
        request: Request<SetNodeNetworkRequest>,
    ) -> Result<Response<SetNodeNetworkResponse>, Status> {
        let SetNodeNetworkRequest { name, connected } = request.into_inner();
        self.ask(|answer| Command::ConnectNode {
            name,
            connected,
            answer,
        })
        .await??;
        Ok(Response::new(SetNodeNetworkResponse {}))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        self.interrupt.cancel();
        self.ask(Command::Stop).await?;
        Ok(Response::new(StopResponse {}))
    }
}

/// What a request to restart says, in the words of `up`.
fn flags(request: RestartRequest) -> anyhow::Result<(Vec<String>, Flags)> {
    let RestartRequest {
        services,
        cluster_cidr,
        node_cidr_mask_size,
        node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6,
        service_cluster_ip_range,
        compat,
        extra_config,
    } = request;
    let mask = |mask: Option<u32>| mask.map(u8::try_from).transpose();
    let flags = Flags {
        cluster_cidr,
        node_cidr_mask_size: mask(node_cidr_mask_size)?,
        node_cidr_mask_size_ipv4: mask(node_cidr_mask_size_ipv4)?,
        node_cidr_mask_size_ipv6: mask(node_cidr_mask_size_ipv6)?,
        service_cluster_ip_range,
        compat: compat.map(|name| name.parse()).transpose()?,
        extra_config: extra_config
            .iter()
            .map(|flag| flag.parse())
            .collect::<Result<_, _>>()?,
        ..Flags::default()
    };
    Ok((services, flags))
}

/// The client's end. Every call fails as unavailable where no cluster runs.
pub(crate) fn client(dir: &DataDir) -> anyhow::Result<ClusterServiceClient<Channel>> {
    let endpoint: Endpoint = format!("unix:{}", dir.control_socket().display()).parse()?;
    Ok(ClusterServiceClient::new(endpoint::channel(&endpoint)?))
}
