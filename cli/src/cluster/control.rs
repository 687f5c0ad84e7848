//! The control socket: `podplane.cluster.v1`, both ends of it.

use podplane_client::{Endpoint, endpoint};
use podplane_kubelet::NodeName;
use podplane_proto::cluster::{
    AddNodeRequest, AddNodeResponse, GetStatusRequest, GetStatusResponse, RemoveNodeRequest,
    RemoveNodeResponse, StopRequest, StopResponse, cluster_service_client::ClusterServiceClient,
    cluster_service_server::ClusterService,
};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, transport::Channel};

use super::data_dir::DataDir;

/// What the supervisor is asked to do. It does one thing after another.
#[derive(Debug)]
pub(crate) enum Command {
    Status(oneshot::Sender<GetStatusResponse>),
    AddNode {
        name: NodeName,
        answer: oneshot::Sender<Result<(), Status>>,
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
        let name = request.into_inner().name.parse::<NodeName>();
        let name = name.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.ask(|answer| Command::AddNode { name, answer })
            .await??;
        Ok(Response::new(AddNodeResponse {}))
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

/// The client's end. Every call fails as unavailable where no cluster runs.
pub(crate) fn client(dir: &DataDir) -> anyhow::Result<ClusterServiceClient<Channel>> {
    let endpoint: Endpoint = format!("unix:{}", dir.control_socket().display()).parse()?;
    Ok(ClusterServiceClient::new(endpoint::channel(&endpoint)?))
}
