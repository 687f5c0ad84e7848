//! `explain`: the verdict of the scheduler on each node for a pod.

mod view;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::ValueEnum;
use podplane_client::Endpoint;
use podplane_proto::{
    codec,
    scheduler::{ExplainPodRequest, PodState},
};

use self::view::Explanation;
use super::{NamespaceArgs, completion::candidates};
use crate::{
    explanation,
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output, pod_file,
    report::UsageError,
};

/// The time in which a scheduler answers, even for thousands of nodes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Explain a decision of the scheduler
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane explain pod web-0\n  podplane explain pod -f pod.yaml"
)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    what: ExplainSubject,
}

#[derive(Debug, clap::Subcommand)]
enum ExplainSubject {
    Pod(PodArgs),
}

/// Explain on each node why a pod is there, why it does not fit, and what would make it fit
///
/// For a pending pod and for a pod of a file: the verdict or the score of every node now. For a
/// bound pod: the scores at the decision, if this scheduler made it; else its node as of now.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane explain pod web-0\n  podplane explain pod web-0 -n shop -o json\n  podplane explain pod -f pod.yaml"
)]
struct PodArgs {
    /// Explain this pod
    #[arg(value_name = "NAME", required_unless_present = "filename", add = candidates::of(ResourceKind::Pod))]
    name: Option<String>,

    /// Explain where the pod of this file would be placed: a Pod, or the template of a Deployment
    /// or ReplicaSet; - for standard input
    ///
    /// The pod gets the defaults of a new one. Nothing is created.
    #[arg(short, long, value_name = "FILE", conflicts_with = "name")]
    filename: Option<PathBuf>,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Ask the scheduler at this address: HOST:PORT, a URL, or unix:PATH [default: those of the
    /// cluster in --data-dir]
    #[arg(long, value_name = "ADDR")]
    scheduler: Option<Endpoint>,

    /// Print in this format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: ExplainFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExplainFormat {
    /// Text for people
    Table,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

pub(crate) fn run(args: ExplainArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let ExplainSubject::Pod(args) = args.what;
    if args.scheduler.is_none() && global.names_server() {
        let why = "--server does not tell the address of the scheduler: pass --scheduler ADDR";
        return Err(UsageError(why.to_owned()).into());
    }
    let namespace = args.namespace.namespace;
    let (request, shown) = match (&args.filename, args.name) {
        (Some(file), _) => {
            let pod = pod_file::read(file, &namespace)?;
            let shown = podplane_api::Object::key(&pod).to_string();
            let request = ExplainPodRequest {
                pod: codec::encode(&pod)?.into(),
                ..ExplainPodRequest::default()
            };
            (request, shown)
        }
        (None, name) => {
            let name = name.unwrap_or_default();
            let shown = format!("{namespace}/{name}");
            let request = ExplainPodRequest {
                namespace,
                name,
                ..ExplainPodRequest::default()
            };
            (request, shown)
        }
    };
    let asked = explanation::explain(global, args.scheduler.as_ref(), &request, TIMEOUT);
    let answer = block_on(asked)?;
    if answer.state() == PodState::Unknown && answer.pod_uid.is_empty() {
        anyhow::bail!("{}", answer.message);
    }
    let explanation = Explanation::new(shown, answer);
    match args.output {
        ExplainFormat::Table => output::line(explanation.sheet())?,
        ExplainFormat::Json => output::json(&serde_json::to_value(&explanation)?)?,
        ExplainFormat::Yaml => output::yaml(&serde_json::to_value(&explanation)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
