//! `trace`: prints the way of a pod as a waterfall.

pub(crate) mod html;
pub(super) mod rest;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::ValueEnum;
use jiff::Timestamp;
use podplane_api::{ObjectKey, trace::DroppedSteps};
use podplane_proto::trace::{
    self, GetPodTraceRequest, GetPodTraceResponse, trace_service_client::TraceServiceClient,
};
use podplane_service_runtime::trace::{Journey, ReceivedSpan, attribute, waterfall};
use serde::Serialize;
use serde_json::json;

use super::{NamespaceArgs, completion::candidates};
use crate::{
    any_cluster::AnyClusterFlags,
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output,
};

/// The width in columns if there is no terminal.
const WIDTH: usize = 120;
/// The time without a new span after which a trace is complete. Processes send their spans a little
/// after they ended.
const QUIET: Duration = Duration::from_millis(600);
/// The maximum number of polls of a trace that keeps growing.
const LOOKS: usize = 10;
/// The name of a step that changed the phase of a pod begins with this.
const STATUS: &str = "status ";
/// The step after which a pod has arrived.
const ARRIVED: &str = "status Running";
/// The steps after which a pod has ended.
const ENDED: [&str; 2] = ["status Succeeded", "status Failed"];

/// Show the trace of a pod: each step from the API request to Running, and of its deletion, with
/// its duration
///
/// podplane's API server keeps the traces of the last few thousand pods in memory, including those
/// of deleted pods; they are lost when it restarts. `podplane logs` shows the history of a pod.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  podplane trace pod web-0\n  podplane trace pod 1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed -o json"
)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    of: TraceSubject,
}

#[derive(Debug, clap::Subcommand)]
enum TraceSubject {
    /// Show the trace of a pod: each step of its start and of its deletion, with its duration
    #[command(
        after_help = "Examples:\n  podplane trace pod web-0\n  podplane trace pod web-0 -o json\n  podplane trace pod web-0 --html trace.html\n  podplane trace pod web-0 --kubeconfig ~/.kube/config"
    )]
    Pod(PodArgs),
}

#[derive(Debug, clap::Args)]
struct PodArgs {
    /// Name of the pod, which may be deleted, or its UID
    #[arg(value_name = "NAME|UID", add = candidates::of(ResourceKind::Pod))]
    pod: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Print in this format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: TraceFormat,

    /// Also write the traces to FILE as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum TraceFormat {
    /// A waterfall diagram
    #[default]
    Text,
    /// All recorded fields of each step
    Json,
}

pub(crate) fn run(args: TraceArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let TraceSubject::Pod(PodArgs {
        pod,
        namespace,
        cluster,
        output,
        html,
    }) = args.of;
    let request = match Journey::creation(&pod) {
        Some(_) => GetPodTraceRequest {
            uid: pod,
            ..GetPodTraceRequest::default()
        },
        None => by_name(ObjectKey::new(namespace.namespace, pod)),
    };
    output::page::check(&html)?;
    block_on(async {
        let (answer, server) = match cluster.is_given() {
            true => {
                let (client, server) = cluster.client().await?;
                match rest::of_pod(&client, &server, request).await {
                    Ok(answer) => (answer, server),
                    Err(error) => return Err(cluster.locate(error).await),
                }
            }
            false => {
                let answer = settled(global, request).await?;
                (answer, global.server()?.to_string())
            }
        };
        if let Some(file) = html {
            let source = format!("the API server at {server}");
            let page = html::report(answer.clone(), source)?;
            output::page::write(&file, page.html())?;
        }
        match output {
            TraceFormat::Text => {
                let width = output::terminal_width().map_or(WIDTH, usize::from);
                output::text(text(answer, width)?)?;
            }
            TraceFormat::Json => output::json(&document(answer)?)?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The traces of a pod as the command prints them, in lines of at most `width` characters.
pub(super) async fn of_pod(
    global: &GlobalOptions,
    key: &ObjectKey,
    width: usize,
) -> anyhow::Result<String> {
    text(settled(global, by_name(key.clone())).await?, width)
}

/// The request for the traces of a pod by its name.
pub(super) fn by_name(key: ObjectKey) -> GetPodTraceRequest {
    let ObjectKey { namespace, name } = key;
    GetPodTraceRequest {
        namespace,
        name,
        uid: String::new(),
    }
}

/// The traces, once nothing has been added to them for a while.
async fn settled(
    global: &GlobalOptions,
    request: GetPodTraceRequest,
) -> anyhow::Result<GetPodTraceResponse> {
    let channel = podplane_client::endpoint::channel(&global.server()?)?;
    let mut client = TraceServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut looks = 0;
    loop {
        let answer = client.get_pod_trace(request.clone()).await;
        let answer = answer
            .map_err(|status| podplane_client::ApiError::from(&status))?
            .into_inner();
        looks += 1;
        let traces = answer.creation.iter().chain(&answer.deletion);
        let received = traces.filter_map(|trace| SystemTime::try_from(trace.received?).ok());
        if !awaits_more(received.max(), looks).await {
            return Ok(answer);
        }
    }
}

/// Waits for what may still come to a trace that grew `last`. Returns false if nothing is expected
/// any more.
async fn awaits_more(last: Option<SystemTime>, looks: usize) -> bool {
    // A server with another clock is not waited for.
    let quiet = last.and_then(|last| last.elapsed().ok());
    match quiet {
        Some(quiet) if quiet < QUIET && looks < LOOKS => {
            tokio::time::sleep(QUIET - quiet).await;
            true
        }
        _ => false,
    }
}

/// The lines, without a line end behind the last one.
pub(super) fn text(answer: GetPodTraceResponse, width: usize) -> anyhow::Result<String> {
    let GetPodTraceResponse {
        namespace,
        name,
        uid,
        creation,
        deletion,
    } = answer;
    let mut lines = vec![format!("pod {namespace}/{name}, uid {uid}")];
    let end = TraceEnd::of(deletion.as_ref());
    if let Some(creation) = creation {
        let trace = PrintedTrace::try_from(creation)?;
        lines.push(String::new());
        lines.push(format!("trace {}", trace.trace_id));
        lines.push(trace.journey(end));
        lines.extend(trace.lines(width));
    }
    if let Some(deletion) = deletion {
        let trace = PrintedTrace::try_from(deletion)?;
        lines.push(String::new());
        lines.push(format!("trace {}", trace.trace_id));
        lines.push("deletion".to_owned());
        lines.extend(trace.lines(width));
    }
    Ok(lines.join("\n"))
}

fn document(answer: GetPodTraceResponse) -> anyhow::Result<serde_json::Value> {
    let GetPodTraceResponse {
        namespace,
        name,
        uid,
        creation,
        deletion,
    } = answer;
    let creation = creation.map(PrintedTrace::try_from).transpose()?;
    let deletion = deletion.map(PrintedTrace::try_from).transpose()?;
    Ok(
        json!({"namespace": namespace, "name": name, "uid": uid, "creation": creation, "deletion": deletion}),
    )
}

/// The time until which a pod that does not run has waited, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
enum TraceEnd {
    Present(u64),
    Deletion(u64),
}

impl TraceEnd {
    fn of(deletion: Option<&trace::Trace>) -> Self {
        let spans = deletion.iter().flat_map(|trace| &trace.spans);
        match spans.map(|span| span.start_time_unix_nano).min() {
            Some(at) => Self::Deletion(at),
            None => {
                Self::Present(u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or_default())
            }
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PrintedTrace {
    #[serde(rename = "traceID")]
    trace_id: String,
    #[serde(flatten)]
    dropped: DroppedSteps,
    spans: Vec<ReceivedSpan>,
}

impl PrintedTrace {
    /// A summary of the steps until `end`: the present, or the start of the deletion.
    fn journey(&self, end: TraceEnd) -> String {
        let arrived = self.spans.iter().find(|span| span.name == ARRIVED);
        let begun = self.spans.iter().map(|span| span.start_unix_nano).min();
        let begun = begun.unwrap_or_default();
        let after = |nanos: u64| waterfall::duration(nanos.saturating_sub(begun));
        let value = |key| self.spans.iter().find_map(|span| span.attribute(key));
        let node = value(attribute::CHOSEN).map(|node| format!(" on {node}"));
        let node = node.unwrap_or_default();
        if let Some(arrived) = arrived {
            let ips = value(attribute::IPS).map(|ips| format!(" with {ips}"));
            let ips = ips.unwrap_or_default();
            return format!("Running{node}{ips} after {}", after(arrived.end_unix_nano));
        }
        let is_end = |span: &&ReceivedSpan| ENDED.contains(&span.name.as_str());
        if let Some(ended) = self.spans.iter().find(is_end) {
            let phase = ended.name.trim_start_matches(STATUS);
            return format!("{phase}{node} after {}", after(ended.end_unix_nano));
        }
        let lacks = match node.is_empty() {
            true => "a node",
            false => "an address",
        };
        match end {
            TraceEnd::Deletion(at) => {
                format!("deleted without {lacks}{node} after {}", after(at))
            }
            TraceEnd::Present(at) => {
                format!("not Running yet: without {lacks}{node} for {}", after(at))
            }
        }
    }

    fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = vec![format!("from {}", self.begin())];
        lines.extend(waterfall::lines(&self.spans, &self.dropped, width));
        lines.extend(self.remarks());
        lines
    }

    /// The time of the first step.
    fn begin(&self) -> String {
        let begun = self.spans.iter().map(|span| span.start_unix_nano).min();
        let begun = Timestamp::from_nanosecond(begun.unwrap_or_default().into());
        format!("{:.3}", begun.unwrap_or_default())
    }

    /// Remarks on the trace as a whole.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let roots = self.spans.iter().filter(|span| span.parent == 0);
        let links = roots.flat_map(|root| &root.links);
        let links = links.map(|link| format!("requested by span {link}"));
        links.chain(self.dropped.remark())
    }
}

impl TryFrom<trace::Trace> for PrintedTrace {
    type Error = anyhow::Error;

    fn try_from(trace: trace::Trace) -> anyhow::Result<Self> {
        let dropped = trace.dropped_steps();
        let trace::Trace {
            trace_id, spans, ..
        } = trace;
        let spans: anyhow::Result<_> = spans.into_iter().map(parse_span).collect();
        Ok(Self {
            trace_id,
            dropped,
            spans: spans.context("failed to read the server's answer")?,
        })
    }
}

fn parse_span(span: trace::Span) -> anyhow::Result<ReceivedSpan> {
    let trace::Span {
        span_id,
        parent_span_id,
        name,
        service,
        start_time_unix_nano,
        end_time_unix_nano,
        error,
        attributes,
        links,
    } = span;
    let parent = match parent_span_id.as_str() {
        "" => 0,
        id => u64::from_str_radix(id, 16)?,
    };
    let attributes = attributes.into_iter();
    Ok(ReceivedSpan {
        id: u64::from_str_radix(&span_id, 16)?,
        parent,
        name,
        service,
        start_unix_nano: start_time_unix_nano,
        end_unix_nano: end_time_unix_nano.max(start_time_unix_nano),
        error,
        attributes: attributes
            .map(|attribute| (attribute.key, attribute.value))
            .collect(),
        links,
    })
}
