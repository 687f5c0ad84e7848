//! `node`: gives the running cluster another node, takes one away, does to one what happens to machines, or is one.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Context as _;
use podplane_api::{core::Node, meta::ObjectMeta, names};
use podplane_client::{Client, DeleteParams};
use podplane_proto::cluster::{
    AddNodeRequest, RebootNodeRequest, RemoveNodeRequest, SetNodeNetworkRequest,
    cluster_service_client::ClusterServiceClient,
};
use tonic::{Status, transport::Channel};

use super::{completion::candidates, forget, node_run, reset_bridge};
use crate::{
    cluster::{
        control,
        data_dir::DataDir,
        pods::not_running,
        settings::{Network, name_of},
    },
    global::{Global, block_on},
    kind::Kind,
    output,
};

/// Add a node to the cluster that runs, remove one, reboot it, cut it off, reset its bridge, forget
/// one that is gone, or be a node of a cluster elsewhere
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node add edge-1\n  podplane node remove node-2\n  podplane node reboot node-1\n  podplane node forget node-3"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    change: Change,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Make nodes: their network, their CRI servers and their kubelets, which register them
    #[command(
        after_help = "Examples:\n  podplane node add edge-1\n  podplane node add --network ledger bulk-1 bulk-2 bulk-3\n  podplane node add --label zone=a edge-2"
    )]
    Add {
        /// The new nodes' names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,

        /// Whether their pods get real interfaces; auto: as those of the cluster. Nodes that get none and are added together share processes
        #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
        network: Network,

        /// A label of theirs; repeat it for several. It is there before they are given blocks
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// End a node: its pods' sandboxes, its processes, its Node object, its network and its files
    #[command(after_help = "Example:\n  podplane node remove node-2")]
    Remove {
        /// The node's name
        #[arg(add = candidates::of(Kind::Node))]
        name: String,
    },
    /// Let nodes go through a power cycle: their processes are killed, their network namespaces and sandboxes are gone, their files stay, and all is started again
    #[command(after_help = "Example:\n  podplane node reboot node-1 node-2")]
    Reboot {
        /// The nodes' names
        #[arg(required = true, value_name = "NAME", add = candidates::of(Kind::Node))]
        names: Vec<String>,
    },
    /// Cut nodes' uplinks to the other nodes, as if cables were pulled; their kubelets reach the API server as before. Kernel mode only
    #[command(after_help = "Example:\n  podplane node disconnect node-1")]
    Disconnect {
        /// The nodes' names
        #[arg(required = true, value_name = "NAME", add = candidates::of(Kind::Node))]
        names: Vec<String>,
    },
    /// Mend the uplinks of nodes that were disconnected
    #[command(after_help = "Example:\n  podplane node connect node-1")]
    Connect {
        /// The nodes' names
        #[arg(required = true, value_name = "NAME", add = candidates::of(Kind::Node))]
        names: Vec<String>,
    },
    Forget(forget::Args),
    ResetBridge(reset_bridge::Args),
    Run(node_run::Args),
}

/// What the supervisor is asked for.
enum Request {
    /// With labels for the nodes.
    Add(AddNodeRequest, Vec<(String, String)>),
    Remove(RemoveNodeRequest),
    Reboot,
    Connect(bool),
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    let (names, request) = match args.change {
        Change::Run(args) => return node_run::run(args, &dir, global),
        Change::Forget(args) => return forget::run(&args, global),
        Change::ResetBridge(args) => return reset_bridge::run(&args, &dir),
        Change::Add {
            names,
            network,
            labels,
        } => {
            let request = AddNodeRequest {
                names: names.clone(),
                network: name_of(&network),
            };
            (names, Request::Add(request, labels))
        }
        Change::Remove { name } => {
            let request = RemoveNodeRequest { name: name.clone() };
            (vec![name], Request::Remove(request))
        }
        Change::Reboot { names } => (names, Request::Reboot),
        Change::Disconnect { names } => (names, Request::Connect(false)),
        Change::Connect { names } => (names, Request::Connect(true)),
    };
    dir.running()?.with_context(|| not_running(&dir))?;
    block_on(async {
        let mut control = control::client(&dir)?;
        let done = match request {
            Request::Add(request, labels) => {
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
            Request::Remove(request) => control.remove_node(request).await.map(|_| "removed"),
            Request::Reboot => reboot(&mut control, &names).await.map(|()| "rebooted"),
            Request::Connect(connected) => {
                connect(&mut control, &names, connected)
                    .await
                    .map(|()| match connected {
                        true => "connected",
                        false => "disconnected",
                    })
            }
        };
        let done = done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        names
            .iter()
            .try_for_each(|name| output::line(format_args!("node/{name} {done}")))?;
        Ok(ExitCode::SUCCESS)
    })
}

type Control = ClusterServiceClient<Channel>;

async fn reboot(control: &mut Control, names: &[String]) -> Result<(), Status> {
    for name in names {
        let name = name.clone();
        control.reboot_node(RebootNodeRequest { name }).await?;
    }
    Ok(())
}

async fn connect(control: &mut Control, names: &[String], connected: bool) -> Result<(), Status> {
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
        .ok_or("a label is KEY=VALUE, such as zone=a")?;
    let broken = names::qualified_name(key)
        .into_iter()
        .chain(names::label_value(value));
    match broken.collect::<Vec<_>>().as_slice() {
        [] => Ok((key.to_owned(), value.to_owned())),
        rules => Err(rules.join("; ")),
    }
}

/// Makes the Node objects, with their labels; a kubelet takes over what is there. Without that, a node may have been given a block by the time it has a label.
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

/// Nodes that come to nothing.
async fn unregister(client: &Client, made: &[String]) {
    for name in made {
        let nodes = client.all::<Node>();
        if let Err(error) = nodes.delete(name, &DeleteParams::default()).await {
            tracing::warn!(node = name, %error, "Node object left behind");
        }
    }
}
