//! `kubeconfig`: prints a configuration for kubectl.

use std::process::ExitCode;

use podplane_cluster::kubeconfig;

use crate::{global::GlobalOptions, output};

/// Print a kubeconfig for kubectl and other Kubernetes clients
///
/// Prints that of the running cluster, or of --server. `up` writes the same content to the file
/// `kubeconfig` in the data directory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane kubeconfig > ~/.kube/podplane && export KUBECONFIG=~/.kube/podplane\n  podplane kubeconfig --server 127.0.0.1:7080"
)]
pub(crate) struct KubeconfigArgs {
    /// Name the cluster, context and user NAME [default: podplane, podplane-DIRECTORY for another
    /// data directory, or podplane-ADDRESS with --server]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

pub(crate) fn run(args: KubeconfigArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
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
    output::yaml(&kubeconfig::document(&name, &server, global.credentials())?)?;
    Ok(ExitCode::SUCCESS)
}
