//! The control socket: `podplane.cluster.v1`, both ends of it.

use clap::ValueEnum as _;
use podplane_client::{Endpoint, endpoint};
use podplane_kubelet::NodeName;
use podplane_proto::cluster::{
    AddNodeRequest, AddNodeResponse, GetStatusRequest, GetStatusResponse, RemoveNodeRequest,
    RemoveNodeResponse, RestartRequest, RestartResponse, StopRequest, StopResponse,
    cluster_service_client::ClusterServiceClient, cluster_service_server::ClusterService,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, transport::Channel};

use super::{
    data_dir::DataDir,
    settings::{Flags, Network},
};

/// What the supervisor is asked to do. It does one thing after another.
#[derive(Debug)]
pub(crate) enum Command {
    Status(oneshot::Sender<GetStatusResponse>),
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
    /// Answered when nothing is left.
    Stop(oneshot::Sender<()>),
}

/// The server's end: turns requests into commands.
#[derive(Debug)]
pub(crate) struct Control {
    commands: mpsc::Sender<Command>,
}

impl Control {
    pub(crate) fn new(commands: mpsc::Sender<Command>) -> Self {
        Self { commands }
    }

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
        self.ask(Command::Status).await.map(Response::new)
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

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
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
    } = request;
    let mask = |mask: Option<u32>| mask.map(u8::try_from).transpose();
    let flags = Flags {
        cluster_cidr,
        node_cidr_mask_size: mask(node_cidr_mask_size)?,
        node_cidr_mask_size_ipv4: mask(node_cidr_mask_size_ipv4)?,
        node_cidr_mask_size_ipv6: mask(node_cidr_mask_size_ipv6)?,
        service_cluster_ip_range,
        compat: compat.map(|name| name.parse()).transpose()?,
        ..Flags::default()
    };
    Ok((services, flags))
}

/// The client's end. Every call fails as unavailable where no cluster runs.
pub(crate) fn client(dir: &DataDir) -> anyhow::Result<ClusterServiceClient<Channel>> {
    let endpoint: Endpoint = format!("unix:{}", dir.control_socket().display()).parse()?;
    Ok(ClusterServiceClient::new(endpoint::channel(&endpoint)?))
}
