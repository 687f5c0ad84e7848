//! `node`: gives the running cluster another node, or takes one away.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_proto::cluster::{AddNodeRequest, RemoveNodeRequest};

use crate::{
    cluster::{control, data_dir::DataDir, pods::not_running},
    global::{Global, block_on},
    output,
};

/// Add a node to the cluster that runs, or remove one
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  podplane node add edge-1\n  podplane node remove node-2")]
pub(crate) struct Args {
    #[command(subcommand)]
    change: Change,
}

#[derive(Debug, clap::Subcommand)]
enum Change {
    /// Make a node: its network, its CRI server and its kubelet, which registers it
    #[command(after_help = "Example:\n  podplane node add edge-1")]
    Add {
        /// The new node's name
        name: String,
    },
    /// End a node: its pods' sandboxes, its processes, its Node object, its network and its files
    #[command(after_help = "Example:\n  podplane node remove node-2")]
    Remove {
        /// The node's name
        name: String,
    },
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    dir.running()?.with_context(|| not_running(&dir))?;
    block_on(async {
        let mut control = control::client(&dir)?;
        let (name, done) = match args.change {
            Change::Add { name } => {
                let request = AddNodeRequest { name: name.clone() };
                (name, control.add_node(request).await.map(|_| "added"))
            }
            Change::Remove { name } => {
                let request = RemoveNodeRequest { name: name.clone() };
                (name, control.remove_node(request).await.map(|_| "removed"))
            }
        };
        let done = done.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        output::line(format_args!("node/{name} {done}"))?;
        Ok(ExitCode::SUCCESS)
    })
}
