//! `explain`: the verdict of the scheduler on each node for a pod.

pub(super) mod live;
mod view;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::ValueEnum;
use podplane_api::{Object as _, ObjectKey, core::Pod, pod_ips::PodIpResource};
use podplane_client::{ApiError, Endpoint};
use podplane_ipam::IpPolicy;
use podplane_progress::{PlainLines, Progress};
use podplane_proto::{
    codec,
    scheduler::{ExplainPodRequest, ExplainPodResponse, PodState},
};
use podplane_scheduler::PlacementPolicy;

use self::{live::Subject, view::Explanation};
use super::{NamespaceArgs, completion::candidates};
use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
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
///
/// With --kubeconfig or --in-cluster no scheduler is asked: the objects of the cluster are listed,
/// and the rules of podplane's scheduler are applied to them here, whichever scheduler the pod is
/// for.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane explain pod web-0\n  podplane explain pod web-0 -n shop -o json\n  podplane explain pod -f pod.yaml\n  podplane explain pod web-0 --kubeconfig ~/.kube/config"
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

    #[command(flatten)]
    source: ExplainerFlags,

    /// Count this extended resource of nodes as their pod addresses; requires --kubeconfig or
    /// --in-cluster
    #[arg(long, default_value_t, value_name = "NAME", requires = ANY_CLUSTER)]
    pod_ip_resource: PodIpResource,

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

/// The flags that name the cluster, and who explains its pods.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ExplainerFlags {
    /// Ask the scheduler at this address for explanations: HOST:PORT, a URL, or unix:PATH
    /// [default: those of the cluster in --data-dir]
    #[arg(long, value_name = "ADDR", conflicts_with = ANY_CLUSTER)]
    scheduler: Option<Endpoint>,

    #[command(flatten)]
    pub(super) cluster: AnyClusterFlags,

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
}

impl ExplainerFlags {
    /// Those of a cluster that is not podplane's.
    pub(super) fn of_cluster(cluster: AnyClusterFlags) -> Self {
        Self {
            cluster,
            ..Self::default()
        }
    }

    /// The rules that are applied to the objects of any cluster.
    fn policy(&self, pod_ip_resource: &PodIpResource) -> PlacementPolicy {
        PlacementPolicy {
            pod_ip_resource: pod_ip_resource.clone(),
            ..self.ip_policy.into()
        }
    }

    /// The explanation of a pod as the command prints it.
    pub(super) async fn text(
        &self,
        global: &GlobalOptions,
        resource: &PodIpResource,
        key: ObjectKey,
    ) -> anyhow::Result<String> {
        let shown = key.to_string();
        let explanation = self.explain(global, resource, shown, Subject::Existing(key));
        Ok(explanation.await?.sheet().to_string())
    }

    async fn explain(
        &self,
        global: &GlobalOptions,
        resource: &PodIpResource,
        shown: String,
        subject: Subject,
    ) -> anyhow::Result<Explanation> {
        match self.cluster.is_given() {
            true => {
                let explained = live::explain(&self.cluster, self.policy(resource), subject);
                let explained = explained.await?;
                Ok(Explanation::new(shown, explained.response).without(explained.not_considered))
            }
            false => {
                let answer = ask(self.scheduler.as_ref(), subject, global).await?;
                Ok(Explanation::new(shown, answer))
            }
        }
    }
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
    let (shown, subject) = subject(&args)?;
    let progress = Progress::with_lines(
        "reading the cluster",
        match args.output {
            ExplainFormat::Table => PlainLines::IfSlow,
            ExplainFormat::Json | ExplainFormat::Yaml => PlainLines::Never,
        },
    );
    let explanation = block_on(
        args.source
            .explain(global, &args.pod_ip_resource, shown, subject),
    )?;
    drop(progress);
    match args.output {
        ExplainFormat::Table => output::line(explanation.sheet())?,
        ExplainFormat::Json => output::json(&serde_json::to_value(&explanation)?)?,
        ExplainFormat::Yaml => output::yaml(&serde_json::to_value(&explanation)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The pod of the arguments, and its namespace and name for the output.
fn subject(args: &PodArgs) -> anyhow::Result<(String, Subject)> {
    let namespace = &args.namespace.namespace;
    Ok(match (&args.filename, &args.name) {
        (Some(file), _) => {
            let pod = pod_file::read(file, namespace)?;
            (pod.key().to_string(), Subject::Hypothetical(Box::new(pod)))
        }
        (None, name) => {
            let key = ObjectKey::new(namespace.clone(), name.clone().unwrap_or_default());
            (key.to_string(), Subject::Existing(key))
        }
    })
}

/// Asks the schedulers of podplane's cluster.
async fn ask(
    scheduler: Option<&Endpoint>,
    subject: Subject,
    global: &GlobalOptions,
) -> anyhow::Result<ExplainPodResponse> {
    if scheduler.is_none() && global.names_server() {
        let why = "--server does not tell the address of the scheduler: pass --scheduler ADDR";
        return Err(UsageError(why.to_owned()).into());
    }
    let request = match subject {
        Subject::Hypothetical(pod) => ExplainPodRequest {
            pod: codec::encode(&*pod)?.into(),
            ..ExplainPodRequest::default()
        },
        Subject::Existing(ObjectKey { namespace, name }) => ExplainPodRequest {
            namespace,
            name,
            ..ExplainPodRequest::default()
        },
    };
    let answer = explanation::explain(global, scheduler, &request, TIMEOUT).await?;
    if answer.state() == PodState::Unknown && answer.pod_uid.is_empty() {
        return Err(ApiError::not_found(Pod::PLURAL, &request.name).into());
    }
    Ok(answer)
}
