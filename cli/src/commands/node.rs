//! `node`: adds nodes to the running cluster, removes, reboots or disconnects them, or runs one.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use podplane_api::{core::Node, meta::ObjectMeta, names};
use podplane_client::{Channel, Client, DeleteParams};
use podplane_cluster::{
    control,
    data_dir::DataDir,
    settings::{Network, name_of},
};
use podplane_kubelet::kubelet::node_network::NetworkBackend;
use podplane_progress::{PlainLines, Progress};
use podplane_proto::cluster::{
    AddNodeRequest, RebootNodeRequest, RemoveNodeRequest, SetNodeNetworkRequest,
    cluster_service_client::ClusterServiceClient,
};
use tonic::Status;

use super::{completion::candidates, duration, forget, node_run, reset_bridge};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output,
    pods::running,
    ready::{ReadinessGoal, listed},
};

/// Manage nodes: add, remove, reboot, disconnect, reset or forget them, or join a remote cluster
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node add edge-1\n  podplane node remove node-2\n  podplane node reboot node-1\n  podplane node forget node-3"
)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    change: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    /// Create nodes: set up their network, start their CRI servers and kubelets, and register them
    #[command(
        after_help = "Examples:\n  podplane node add edge-1 --wait\n  podplane node add --network ledger bulk-1 bulk-2 bulk-3\n  podplane node add --label zone=a edge-2\n  podplane node add --node-network-backend vxlan edge-3"
    )]
    Add {
        /// Names of the new nodes
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,

        /// Set the pod network mode of the new nodes: auto (as in the cluster), kernel (network
        /// namespaces and interfaces) or ledger (addresses only)
        ///
        /// kernel requires a cluster in kernel mode. Ledger-mode nodes that are added together
        /// share processes.
        #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
        network: Network,

        /// Connect the pods of different nodes in kernel mode by host-gw (routes; the nodes share a
        /// link) or vxlan (tunnels) [default: as in the cluster]
        ///
        /// A node reaches only the pods of nodes that have the same backend.
        #[arg(long, value_enum, value_name = "BACKEND")]
        node_network_backend: Option<NetworkBackend>,

        /// Add this label to the new nodes, before they are assigned pod CIDRs; may be repeated
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,

        /// Wait until the nodes are Ready; exit with 1 after --timeout
        #[arg(long)]
        wait: bool,

        /// With --wait: fail if the nodes are not Ready after this time, such as 30s; requires
        /// --wait
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", requires = "wait")]
        timeout: Duration,
    },
    /// Remove a node permanently: its sandboxes, processes, Node object, network and files
    ///
    /// Asks for no confirmation. The pods are not drained first.
    #[command(after_help = "Examples:\n  podplane node remove node-2")]
    Remove {
        /// Name of the node
        #[arg(add = candidates::of(ResourceKind::Node))]
        name: String,
    },
    /// Simulate a power cycle of nodes
    ///
    /// Kills their processes, deletes their network namespaces and sandboxes, keeps their files,
    /// and starts the nodes again.
    #[command(after_help = "Examples:\n  podplane node reboot node-1 node-2")]
    Reboot {
        /// Names of the nodes
        #[arg(required = true, value_name = "NAME", add = candidates::of(ResourceKind::Node))]
        names: Vec<String>,
    },
    /// Simulate a network partition: disconnect nodes from the other nodes; kernel mode only
    ///
    /// Their kubelets still reach the API server. `podplane node connect` ends the partition.
    #[command(after_help = "Examples:\n  podplane node disconnect node-1")]
    Disconnect {
        /// Names of the nodes
        #[arg(required = true, value_name = "NAME", add = candidates::of(ResourceKind::Node))]
        names: Vec<String>,
    },
    /// Reconnect nodes that were disconnected with `node disconnect`
    #[command(after_help = "Examples:\n  podplane node connect node-1")]
    Connect {
        /// Names of the nodes
        #[arg(required = true, value_name = "NAME", add = candidates::of(ResourceKind::Node))]
        names: Vec<String>,
    },
    Forget(forget::ForgetArgs),
    ResetBridge(reset_bridge::ResetBridgeArgs),
    Run(Box<node_run::NodeRunArgs>),
}

/// A request to the supervisor.
enum SupervisorRequest {
    /// Add nodes, with labels for them.
    Add(AddNodeRequest, Vec<(String, String)>),
    Remove(RemoveNodeRequest),
    Reboot,
    Connect(bool),
}

pub(crate) fn run(args: NodeArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    // The time to wait until added nodes are Ready.
    let mut patience = None;
    let (names, request) = match args.change {
        NodeCommand::Run(args) => return node_run::run(*args, &dir, global),
        NodeCommand::Forget(args) => return forget::run(&args, global),
        NodeCommand::ResetBridge(args) => return reset_bridge::run(&args, &dir),
        NodeCommand::Add {
            names,
            network,
            node_network_backend,
            labels,
            wait,
            timeout,
        } => {
            patience = wait.then_some(timeout);
            let request = AddNodeRequest {
                names: names.clone(),
                network: name_of(&network),
                node_network_backend: node_network_backend.map(|backend| backend.name().to_owned()),
            };
            (names, SupervisorRequest::Add(request, labels))
        }
        NodeCommand::Remove { name } => {
            let request = RemoveNodeRequest { name: name.clone() };
            (vec![name], SupervisorRequest::Remove(request))
        }
        NodeCommand::Reboot { names } => (names, SupervisorRequest::Reboot),
        NodeCommand::Disconnect { names } => (names, SupervisorRequest::Connect(false)),
        NodeCommand::Connect { names } => (names, SupervisorRequest::Connect(true)),
    };
    running(&dir)?;
    block_on(async {
        let mut control = control::client(&dir)?;
        let done = match request {
            SupervisorRequest::Add(request, labels) => {
                let made = match labels.is_empty() {
                    true => Vec::new(),
                    false => register(&global.client()?, &names, labels).await?,
                };
                let added = control.add_node(request).await;
                if added.is_err() && !made.is_empty() {
                    unregister(&global.client()?, &made).await;
                }
                added.map(|_| "added")
            }
            SupervisorRequest::Remove(request) => {
                control.remove_node(request).await.map(|_| "removed")
            }
            SupervisorRequest::Reboot => reboot(&mut control, &names).await.map(|()| "rebooted"),
            SupervisorRequest::Connect(connected) => connect(&mut control, &names, connected)
                .await
                .map(|()| match connected {
                    true => "connected",
                    false => "disconnected",
                }),
        };
        let done = done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        names
            .iter()
            .try_for_each(|name| output::line(format_args!("node/{name} {done}")))?;
        if let Some(timeout) = patience {
            let ready = Box::pin(until_ready(&dir, names, timeout));
            global.while_running(ready).await?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Waits until nodes of the cluster are Ready.
async fn until_ready(dir: &DataDir, nodes: Vec<String>, timeout: Duration) -> anyhow::Result<()> {
    let server = format!("unix:{}", dir.apiserver_socket().display());
    let client = Client::connect(&server.parse()?)?;
    let goal = ReadinessGoal {
        nodes,
        ..ReadinessGoal::default()
    };
    let progress = Progress::with_lines("waiting for the nodes", PlainLines::IfSlow);
    let missing = goal.wait(&client, timeout, &progress).await;
    anyhow::ensure!(
        missing.is_empty(),
        "not all nodes are Ready after {} s{}",
        timeout.as_secs_f32(),
        listed(&missing)
    );
    Ok(())
}

type ControlClient = ClusterServiceClient<Channel>;

async fn reboot(control: &mut ControlClient, names: &[String]) -> Result<(), Status> {
    for name in names {
        let name = name.clone();
        control.reboot_node(RebootNodeRequest { name }).await?;
    }
    Ok(())
}

async fn connect(
    control: &mut ControlClient,
    names: &[String],
    connected: bool,
) -> Result<(), Status> {
    for name in names {
        let name = name.clone();
        let request = SetNodeNetworkRequest { name, connected };
        control.set_node_network(request).await?;
    }
    Ok(())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or("must be KEY=VALUE, such as zone=a")?;
    let broken = names::qualified_name(key)
        .into_iter()
        .chain(names::label_value(value));
    match broken.collect::<Vec<_>>().as_slice() {
        [] => Ok((key.to_owned(), value.to_owned())),
        rules => Err(rules.join("; ")),
    }
}

/// Creates the Node objects, with their labels; a kubelet takes over an existing one. Otherwise a
/// node could get a block before it has its labels.
async fn register(
    client: &Client,
    names: &[String],
    labels: Vec<(String, String)>,
) -> anyhow::Result<Vec<String>> {
    let labels: BTreeMap<String, String> = labels.into_iter().collect();
    let mut made = Vec::new();
    for name in names {
        let node = Node {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels.clone()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        if let Err(error) = client.all().create(&node).await {
            unregister(client, &made).await;
            return Err(error.into());
        }
        made.push(name.clone());
    }
    Ok(made)
}

/// Deletes the Node objects of nodes that could not be added.
async fn unregister(client: &Client, made: &[String]) {
    for name in made {
        let nodes = client.all::<Node>();
        if let Err(error) = nodes.delete(name, &DeleteParams::default()).await {
            tracing::warn!(node = name, %error, "Node object left behind");
        }
    }
}
