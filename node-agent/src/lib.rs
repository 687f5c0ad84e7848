//! The node agent: publishes how many pods a node has addresses for, in clusters with another
//! kubelet than ours.
//!
//! It never gives or frees an address, and it writes nothing but its resource and annotations of
//! one Node, and the status of that node's blocks. [`sources`] has the rules by which networks are counted, as pure functions; [`account`]
//! has the amount to publish and why; [`agent`] reads, decides and writes. Start reading at
//! [`account`].

#![forbid(unsafe_code)]

pub mod account;
pub mod agent;
mod block_report;
mod caches;
pub mod config;
pub mod metrics;
pub mod publish;
pub mod sources;

pub use config::NodeAgentConfig;

use futures::future::BoxFuture;
use podplane_api::core::{Node, Pod};
use podplane_client::{
    ApiError, Client, ListParams, Permission, ServerError, reflector, start_check,
};
use podplane_service_runtime::{Process, Services, Tasks, serving::ServingError, tasks::TaskEnd};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use agent::Agent;
use metrics::NodeAgentMetrics;

/// Checked when the agent starts, beside those on the objects of networks.
const PERMISSIONS: &[Permission] = &[
    Permission::on("", "nodes", &["get", "list", "watch"]),
    Permission::on("", "nodes/status", &["patch"]),
    Permission::on("", "pods", &["list", "watch"]),
];

/// The reasons why the agent ended without a request to stop.
#[derive(Debug, thiserror::Error)]
pub enum NodeAgentError {
    /// The API server's address is invalid.
    #[error("failed to prepare the connection to the API server")]
    Server(#[from] ServerError),
    /// The agent's own address cannot be served as its flags say.
    #[error("failed to start the server")]
    Serve(#[from] ServingError),
    /// The resource could not be removed from the node.
    #[error("failed to remove the resource from the node: {}", .0.message)]
    Unpublish(ApiError),
    /// One of its tasks ended.
    #[error("failed to run the node agent")]
    Task(#[from] TaskEnd),
}

/// Publishes the node's addresses until `shutdown` is cancelled. Waits for an unreachable API
/// server.
///
/// # Errors
///
/// See [`NodeAgentError`].
pub fn run(
    config: NodeAgentConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), NodeAgentError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(
    config: NodeAgentConfig,
    shutdown: CancellationToken,
) -> Result<(), NodeAgentError> {
    let server = config.server.clone();
    let client = server.connect().await?;
    let name = config.node_name.to_string();
    if config.unpublish {
        return unpublish(&client, &name, &config).await;
    }
    let listeners = config.serving.listeners(
        &config.listen,
        config.allowed_hosts.clone(),
        config.address_file.as_deref(),
    );
    let listeners = listeners.await?;

    let mut tasks = Tasks::new(shutdown);
    let of_node = |field: &str| ListParams {
        field_selector: format!("{field}={name}"),
        ..ListParams::default()
    };
    let (nodes, nodes_driver) = reflector(client.all::<Node>(), of_node("metadata.name"));
    let (pods, pods_driver) = reflector(client.all::<Pod>(), of_node("spec.nodeName"));
    tasks.follow("node reflector", nodes_driver);
    tasks.follow("pod reflector", pods_driver);

    let (published, is_published) = watch::channel(false);
    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    process.serve_at(listeners, Services::default());
    process.ready_when("node", nodes.synced());
    process.ready_when("pods", pods.synced());
    process.ready_when("published", until_true(is_published));
    let metrics = NodeAgentMetrics::new(process.registry());
    process.start(&mut tasks).await;

    tracing::info!(%server, node = name, ipam = config.ipam.name(), "publishing pod addresses");
    let check = start_check(client.clone(), server, PERMISSIONS.to_vec(), tasks.stop());
    tasks.spawn("start check", check);
    let agent = Agent::new(config, client, nodes, pods, metrics, published);
    tasks.spawn("agent", agent.run(tasks.stop()));
    Ok(tasks.run().await?)
}

async fn until_true(mut value: watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        // The agent has ended, and so does the process.
        std::future::pending::<()>().await;
    }
}

/// Removes what an agent has published from the node, if the node is there.
async fn unpublish(
    client: &Client,
    name: &str,
    config: &NodeAgentConfig,
) -> Result<(), NodeAgentError> {
    let nodes = client.all::<Node>();
    let node = match nodes.get(name).await {
        Ok(node) => node,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(NodeAgentError::Unpublish(error)),
    };
    let resource = &config.pod_ip_resource;
    if publish::is_reported_by_kubelet(&node) || !publish::is_published(&node, resource) {
        return Ok(());
    }
    let patch = publish::withdrawal(resource);
    let removed = publish::apply(&nodes, name, &patch).await;
    removed.map_err(NodeAgentError::Unpublish)?;
    tracing::info!(node = name, %resource, "removed the pod addresses from the node");
    Ok(())
}
