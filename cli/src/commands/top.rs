//! `top`: a cluster on the terminal, live.

use std::{io::stdout, process::ExitCode};

use anstream::{AutoStream, ColorChoice};
use anyhow::Context as _;
use podplane_api::{
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use podplane_client::{Client, Endpoint};
use podplane_ipam::IpPolicy;
use podplane_pki::kubeconfig::yaml_text;
use podplane_scheduler::PlacementPolicy;
use podplane_tui::{Detail, DetailKind, Details, Ended, Subject, Theme, TopSettings, View};
use tokio::runtime;

use super::{completion::candidates, describe, explain, get, trace};
use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
    global::GlobalOptions,
    kind::ResourceKind,
    output, report,
};

/// The width of a trace if the terminal does not tell its own.
const WIDTH: usize = 120;

/// Show a cluster live on the terminal: nodes, pods, what waits and why, blocks, events, the map
///
/// Works with podplane's API server and, with --kubeconfig or --in-cluster, with any cluster of
/// Kubernetes. Nothing is written. `?` shows the keys.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane top\n  podplane top pods -n shop\n  podplane top map\n  podplane top waiting --kubeconfig ~/.kube/config"
)]
pub(crate) struct TopArgs {
    /// Begin with this view: nodes, pods, waiting, blocks, events or map
    #[arg(value_name = "VIEW", default_value = "nodes")]
    view: View,

    /// Read only the pods and events in this namespace [default: all]
    #[arg(short, long, value_name = "NAMESPACE", add = candidates::of(ResourceKind::Namespace))]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Ask the scheduler at this address for explanations: HOST:PORT, a URL, or unix:PATH
    /// [default: those of the cluster in --data-dir]
    #[arg(long, value_name = "ADDR", conflicts_with = ANY_CLUSTER)]
    scheduler: Option<Endpoint>,

    /// Limit the pods of a node by its pod addresses in explanations; requires --kubeconfig or
    /// --in-cluster
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "POLICY",
        requires = ANY_CLUSTER
    )]
    ip_policy: IpPolicy,

    /// Count requests for this extended resource as addresses that pods hold
    #[arg(long, default_value_t, value_name = "NAME")]
    pod_ip_resource: PodIpResource,
}

pub(crate) fn run(args: TopArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    // Several threads: a large list is decoded beside the keys.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let ended = runtime.block_on(top(args, global));
    // A request that is under way is not waited for.
    runtime.shutdown_background();
    Ok(match ended? {
        Ended::ByUser => ExitCode::SUCCESS,
        Ended::BySignal(number) => ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX)),
    })
}

async fn top(args: TopArgs, global: &GlobalOptions) -> anyhow::Result<Ended> {
    let (client, server) = match args.cluster.is_given() {
        true => {
            let config = args.cluster.config().await?;
            let server = config.cluster_url.to_string();
            (Client::over_rest(config)?, server)
        }
        false => (global.client()?, global.server()?.to_string()),
    };
    let settings = TopSettings {
        client: client.clone(),
        server: server.trim_end_matches('/').to_owned(),
        namespace: args.namespace,
        resource: args.pod_ip_resource.clone(),
        view: args.view,
        theme: match AutoStream::choice(&stdout()) {
            ColorChoice::Never => Theme::Plain,
            _ => Theme::Colored,
        },
    };
    let texts = CommandTexts {
        client,
        global: global.clone(),
        cluster: args.cluster,
        scheduler: args.scheduler,
        policy: PlacementPolicy {
            pod_ip_resource: args.pod_ip_resource,
            ..args.ip_policy.into()
        },
    };
    Ok(podplane_tui::run(settings, texts).await?)
}

/// The texts of `describe`, `trace`, `explain` and `get -o yaml`.
struct CommandTexts {
    client: Client,
    global: GlobalOptions,
    cluster: AnyClusterFlags,
    scheduler: Option<Endpoint>,
    policy: PlacementPolicy,
}

impl Details for CommandTexts {
    async fn load(&self, detail: Detail) -> Result<String, String> {
        let text = self.text(detail).await;
        let text = text.map_err(|error| match self.cluster.is_given() {
            true => report::plain(&error),
            false => report::plain(&self.global.locate(error)),
        })?;
        Ok(anstream::adapter::strip_str(&text).to_string())
    }
}

impl CommandTexts {
    async fn text(&self, Detail { kind, subject }: Detail) -> anyhow::Result<String> {
        let is_ours = !self.cluster.is_given();
        match (kind, subject) {
            (DetailKind::Description, Subject::Node(name)) => {
                Ok(describe::of_node(&self.client, &name).await?.to_string())
            }
            (DetailKind::Description, Subject::Pod(key)) => {
                let global = is_ours.then_some(&self.global);
                Ok(describe::of_pod(&self.client, global, &key)
                    .await?
                    .to_string())
            }
            (DetailKind::Yaml, Subject::Node(name)) => {
                let node = self.client.all::<Node>().get(&name).await?;
                Ok(yaml_text(&get::document(&node)?)?)
            }
            (DetailKind::Yaml, Subject::Pod(key)) => {
                let pods = self.client.namespaced::<Pod>(key.namespace);
                Ok(yaml_text(&get::document(&pods.get(&key.name).await?)?)?)
            }
            (DetailKind::Trace, Subject::Pod(key)) if is_ours => {
                let width = output::terminal_width().map_or(WIDTH, usize::from);
                trace::of_pod(&self.global, &key, width).await
            }
            (DetailKind::Trace, Subject::Pod(_)) => anyhow::bail!(
                "only podplane's API server keeps traces, and serves them by gRPC: use --server or --data-dir"
            ),
            (DetailKind::Explanation, Subject::Pod(key)) if is_ours => {
                explain::of_server(&self.global, self.scheduler.as_ref(), key).await
            }
            (DetailKind::Explanation, Subject::Pod(key)) => {
                explain::of_cluster(&self.cluster, self.policy.clone(), key).await
            }
            (DetailKind::Trace | DetailKind::Explanation, Subject::Node(name)) => {
                anyhow::bail!("node {name}: only pods have a trace and an explanation")
            }
        }
    }
}
