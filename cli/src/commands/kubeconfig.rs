//! `kubeconfig`: what kubectl has to know to use the cluster.

use std::process::ExitCode;

use crate::{cluster::kubeconfig, global::Global, output};

/// Print a kubeconfig for kubectl and other clients of Kubernetes
///
/// It is of the cluster that runs in the data directory, where `up` has written the same to the file `kubeconfig`, or of --server.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane kubeconfig > ~/.kube/podplane && export KUBECONFIG=~/.kube/podplane\n  podplane kubeconfig --server 127.0.0.1:7080"
)]
pub(crate) struct Args {
    /// What to call the cluster, its context and its user. Default: podplane, with the data directory's name or the server's address
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let server = global.server()?;
    let name = args.context.unwrap_or_else(|| {
        if global.names_server() {
            let server = server.to_string();
            let address = server.rsplit('/').next().unwrap_or_default();
            format!("podplane-{address}")
        } else {
            kubeconfig::context(&global.data_dir)
        }
    });
    output::yaml(&kubeconfig::document(&name, &server)?)?;
    Ok(ExitCode::SUCCESS)
}
