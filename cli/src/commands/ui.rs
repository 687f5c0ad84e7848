//! `ui`: the page of a cluster in a browser of this machine, with the rights of its user.

mod local;
mod proxy;
mod scheduling;

use std::{process::ExitCode, sync::Arc};

use axum::{Router, routing::get};
use podplane_client::{ApiError, endpoint};
use podplane_ui::{Session, SessionSource};

use self::{local::LocalCluster, proxy::Upstream, scheduling::Explanations};
use crate::{
    any_cluster::AnyClusterFlags,
    global::{GlobalOptions, block_on},
    page::{self, PageArgs},
};

/// Open the page of a cluster in a browser
///
/// Prints an address of this machine that can be used once, and opens it where there is a desktop.
/// Anyone who opens it has the rights of this command's user, until the command is interrupted.
/// On the machine of the nodes, the page also shows the network of a node as a picture, with its
/// sandboxes, allocation files, links and routes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane ui\n  podplane ui --no-open --port 8080\n  podplane ui --kubeconfig podplane.kubeconfig"
)]
pub(crate) struct UiArgs {
    #[command(flatten)]
    page: PageArgs,

    #[command(flatten)]
    cluster: AnyClusterFlags,
}

/// The parts of the listener that answer for data.
struct UiParts {
    upstream: Upstream,
    /// `None` if the cluster is not on this machine.
    local: Option<LocalCluster>,
    cluster: AnyClusterFlags,
    global: GlobalOptions,
    explanations: Explanations,
}

pub(crate) fn run(args: UiArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let UiArgs { page, cluster } = args;
    let is_elsewhere = cluster.is_given() || global.names_server();
    // While the process has one thread.
    let local = (!is_elsewhere)
        .then(|| LocalCluster::enter(&global.data_dir))
        .flatten();
    block_on(async {
        let (upstream, server) = match cluster.is_given() {
            true => {
                let (client, server) = cluster.kube_client().await?;
                (Upstream::Kube(client), server)
            }
            false => {
                let server = global.server()?;
                let channel = endpoint::channel(&server)?;
                (Upstream::Channel(channel), server.to_string())
            }
        };
        let user = match upstream.user().await {
            Ok(user) => user,
            Err(error) if error.is::<ApiError>() && cluster.is_given() => {
                return Err(cluster.locate(error).await);
            }
            Err(error) if error.is::<ApiError>() => return Err(error),
            Err(error) => {
                return Err(error.context(format!("failed to open the page of {server}")));
            }
        };
        let session = Session {
            source: SessionSource::Listener,
            user,
            server,
        };
        let parts = Arc::new(UiParts {
            upstream,
            local,
            cluster,
            global: global.clone(),
            explanations: Explanations::default(),
        });
        let data = Router::new()
            .route("/summary/v1alpha1/nodes/{name}", get(local::node))
            .route(
                "/summary/v1alpha1/pods/{namespace}/{name}/explanation",
                get(scheduling::explanation),
            )
            .fallback(proxy::pass)
            .with_state(parts);
        page::serve(&page, session, data).await
    })?;
    Ok(ExitCode::SUCCESS)
}
