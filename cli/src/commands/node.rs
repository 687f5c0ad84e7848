//! `node`: gives the running cluster another node, takes one away, or removes what an earlier block left on one.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_proto::cluster::{AddNodeRequest, RemoveNodeRequest};

use super::reset_bridge;
use crate::{
    cluster::{
        control,
        data_dir::DataDir,
        pods::not_running,
        settings::{Network, name_of},
    },
    global::{Global, block_on},
    output,
};

/// Add a node to the cluster that runs, remove one, or reset its bridge
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  podplane node add edge-1\n  podplane node remove node-2")]
pub(crate) struct Args {
    #[command(subcommand)]
    change: Change,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Make nodes: their network, their CRI servers and their kubelets, which register them
    #[command(
        after_help = "Examples:\n  podplane node add edge-1\n  podplane node add --network ledger bulk-1 bulk-2 bulk-3"
    )]
    Add {
        /// The new nodes' names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,

        /// Whether their pods get real interfaces; auto: as those of the cluster. Nodes that get none and are added together share processes
        #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
        network: Network,
    },
    /// End a node: its pods' sandboxes, its processes, its Node object, its network and its files
    #[command(after_help = "Example:\n  podplane node remove node-2")]
    Remove {
        /// The node's name
        name: String,
    },
    ResetBridge(reset_bridge::Args),
}

/// What the supervisor is asked for.
enum Request {
    Add(AddNodeRequest),
    Remove(RemoveNodeRequest),
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    dir.running()?.with_context(|| not_running(&dir))?;
    let (names, request) = match args.change {
        Change::ResetBridge(args) => return reset_bridge::run(&args, &dir),
        Change::Add { names, network } => {
            let request = AddNodeRequest {
                names: names.clone(),
                network: name_of(&network),
            };
            (names, Request::Add(request))
        }
        Change::Remove { name } => {
            let request = RemoveNodeRequest { name: name.clone() };
            (vec![name], Request::Remove(request))
        }
    };
    block_on(async {
        let mut control = control::client(&dir)?;
        let done = match request {
            Request::Add(request) => control.add_node(request).await.map(|_| "added"),
            Request::Remove(request) => control.remove_node(request).await.map(|_| "removed"),
        };
        let done = done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        names
            .iter()
            .try_for_each(|name| output::line(format_args!("node/{name} {done}")))?;
        Ok(ExitCode::SUCCESS)
    })
}
