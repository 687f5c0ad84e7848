//! `top`: a cluster on the terminal, live.

use std::{io::stdout, process::ExitCode};

use anstream::{AutoStream, ColorChoice};
use anyhow::Context as _;
use podplane_api::{
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use podplane_client::Client;
use podplane_map::MapTarget;
use podplane_pki::kubeconfig::yaml_text;
use podplane_tui::{
    Detail, DetailKind, Details, Ended, MapSettings, Subject, Theme, TopSettings, View,
};
use tokio::runtime;

use super::{
    completion::candidates, describe, explain::ExplainerFlags, get, map::source::StatedRanges,
    trace,
};
use crate::{global::GlobalOptions, kind::ResourceKind, output, report};

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
    source: ExplainerFlags,

    /// Count requests for this extended resource as addresses that pods hold
    #[arg(long, default_value_t, value_name = "NAME")]
    pod_ip_resource: PodIpResource,
}

/// A live view.
pub(super) struct LiveView {
    pub(super) view: View,
    /// The part with which the map begins.
    pub(super) part: Option<MapTarget>,
    pub(super) namespace: Option<String>,
    pub(super) source: ExplainerFlags,
    pub(super) resource: PodIpResource,
    pub(super) ranges: StatedRanges,
    pub(super) theme: Theme,
}

pub(crate) fn run(args: TopArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let TopArgs {
        view,
        namespace,
        source,
        pod_ip_resource,
    } = args;
    let theme = match AutoStream::choice(&stdout()) {
        ColorChoice::Never => Theme::Plain,
        _ => Theme::Colored,
    };
    show(
        LiveView {
            view,
            part: None,
            namespace,
            source,
            resource: pod_ip_resource,
            ranges: StatedRanges::default(),
            theme,
        },
        global,
    )
}

/// Shows a live view until the user quits.
pub(super) fn show(view: LiveView, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    until_ended(top(view, global))
}

/// Shows the map of an address space that does not change until the user quits.
pub(super) fn show_map(settings: MapSettings) -> anyhow::Result<ExitCode> {
    until_ended(async { Ok(podplane_tui::run_map(settings).await?) })
}

fn until_ended(shown: impl Future<Output = anyhow::Result<Ended>>) -> anyhow::Result<ExitCode> {
    // Several threads: a large list is decoded beside the keys.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let ended = runtime.block_on(shown);
    // A request that is under way is not waited for.
    runtime.shutdown_background();
    Ok(match ended? {
        Ended::ByUser => ExitCode::SUCCESS,
        Ended::BySignal(number) => ExitCode::from(
            report::SIGNALLED.saturating_add(u8::try_from(number).unwrap_or(u8::MAX)),
        ),
    })
}

async fn top(view: LiveView, global: &GlobalOptions) -> anyhow::Result<Ended> {
    let LiveView {
        view,
        part,
        namespace,
        source,
        resource,
        ranges,
        theme,
    } = view;
    let (client, server) = match source.cluster.is_given() {
        true => source.cluster.client().await?,
        false => (global.client()?, global.server()?.to_string()),
    };
    let server = server.trim_end_matches('/').to_owned();
    let settings = TopSettings {
        client: client.clone(),
        server: server.clone(),
        namespace,
        resource: resource.clone(),
        cluster_cidrs: ranges.pods,
        view,
        part,
        theme,
    };
    let texts = CommandTexts {
        client,
        server,
        global: global.clone(),
        source,
        resource,
    };
    Ok(podplane_tui::run(settings, texts).await?)
}

/// The texts of `describe`, `trace`, `explain` and `get -o yaml`.
struct CommandTexts {
    client: Client,
    /// Its address.
    server: String,
    global: GlobalOptions,
    source: ExplainerFlags,
    resource: PodIpResource,
}

impl Details for CommandTexts {
    async fn load(&self, detail: Detail) -> Result<String, String> {
        let text = self.text(detail).await;
        let text = text.map_err(|error| match self.source.cluster.is_given() {
            true => report::plain(&error),
            false => report::plain(&self.global.locate(error)),
        })?;
        Ok(anstream::adapter::strip_str(&text).to_string())
    }
}

impl CommandTexts {
    async fn text(&self, Detail { kind, subject }: Detail) -> anyhow::Result<String> {
        let is_ours = !self.source.cluster.is_given();
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
            (DetailKind::Trace, Subject::Pod(key)) => {
                let width = output::terminal_width().map_or(WIDTH, usize::from);
                let request = trace::by_name(key);
                let answer = trace::rest::of_pod(&self.client, &self.server, request).await?;
                trace::text(answer, width)
            }
            (DetailKind::Explanation, Subject::Pod(key)) => {
                self.source.text(&self.global, &self.resource, key).await
            }
            (DetailKind::Trace | DetailKind::Explanation, Subject::Node(name)) => {
                anyhow::bail!("node {name}: only pods have a trace and an explanation")
            }
        }
    }
}
