//! `kubeconfig`: prints a configuration for kubectl.

use std::process::ExitCode;

use podplane_cluster::{data_dir::DataDir, kubeconfig::export};
use podplane_pki::kubeconfig;

use crate::{global::GlobalOptions, output, pods::not_running, report::UsageError};

/// Print a kubeconfig for kubectl and other Kubernetes clients
///
/// Prints that of the running cluster, or of --server. `up` writes the same content to the file
/// `kubeconfig` in the data directory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  eval \"$(podplane kubeconfig --export)\"\n  podplane kubeconfig > ~/.kube/podplane && export KUBECONFIG=~/.kube/podplane\n  podplane kubeconfig --server 127.0.0.1:7080"
)]
pub(crate) struct KubeconfigArgs {
    /// Name the cluster, context and user NAME [default: podplane, podplane-DIRECTORY for another
    /// data directory, or podplane-ADDRESS with --server]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Print `export KUBECONFIG=FILE` for eval in a shell instead, with the file that `up` has
    /// written
    #[arg(long, conflicts_with = "context")]
    export: bool,
}

pub(crate) fn run(args: KubeconfigArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    if args.export && global.names_server() {
        return Err(UsageError(
            "--export prints the path of the file that `up` has written, and there is none for --server: write the output of `podplane kubeconfig` to a file, and export its path".into(),
        )
        .into());
    }
    let (server, files) = global.access()?;
    let url = server.to_string();
    anyhow::ensure!(
        !url.starts_with("unix:"),
        "the API server listens on {url}, and kubectl cannot use a unix socket: start it with --listen HOST:PORT"
    );
    if args.export {
        let dir = DataDir::new(&global.data_dir)?;
        let line = export(&dir).ok_or_else(|| not_running(&dir))?;
        output::line(line)?;
        return Ok(ExitCode::SUCCESS);
    }
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
