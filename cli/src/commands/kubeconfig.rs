//! `kubeconfig`: prints a configuration for kubectl.

use std::process::ExitCode;

use podplane_pki::kubeconfig;

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
    let (server, files) = global.access()?;
    let url = server.to_string();
    anyhow::ensure!(
        !url.starts_with("unix:"),
        "the API server listens on {url}, and kubectl cannot use a unix socket: start it with --listen HOST:PORT"
    );
    let name = args.context.unwrap_or_else(|| {
        if global.names_server() {
            let address = url.rsplit('/').next().unwrap_or_default();
            format!("podplane-{address}")
        } else {
            kubeconfig::context(&global.data_dir)
        }
    });
    output::yaml(&kubeconfig::document(&name, &url, &files)?)?;
    Ok(ExitCode::SUCCESS)
}
