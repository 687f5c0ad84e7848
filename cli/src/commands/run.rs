//! `run`: creates pods without a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use podplane_api::{
    Object as _, ObjectKey,
    core::{Container, Pod, PodSpec},
    kinds::pod,
    meta::ObjectMeta,
};
use podplane_client::{Api, Cache, ListParams};
use podplane_progress::{PlainLines, Progress};
use podplane_summary::WaitingReason;

use super::{BatchOutcome, IN_FLIGHT, NamespaceArgs, completion::candidates, duration, wait};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output,
};

/// The most pods that a terminal shows with a line each.
const MOST_LINES: usize = 20;

/// Create a pod NAME, or with --replicas N the pods NAME-0 to NAME-(N-1)
///
/// A pod gets a sandbox with its own network namespace and address. No container runs in it. A
/// terminal shows more than 20 pods as one line with their number.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane run web --replicas 6 --wait\n  podplane run probe --host-network --node node-0\n  podplane run db -l app=db,tier=back"
)]
pub(crate) struct RunArgs {
    /// Name of the pod, or with --replicas the prefix of the pods' names
    name: String,

    /// Create N pods, NAME-0 and so on [default: one pod NAME]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    replicas: Option<u32>,

    /// Use the network of the host, without a pod IP
    #[arg(long)]
    host_network: bool,

    /// Assign the pods to this node (spec.nodeName), bypassing the scheduler [default: the
    /// scheduler decides]
    #[arg(long, value_name = "NODE", add = candidates::of(ResourceKind::Node))]
    node: Option<String>,

    /// Set the image of the container in the spec; it is not pulled or run
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = "registry.k8s.io/pause:3.10"
    )]
    image: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Set these labels, KEY=VALUE separated by commas [default: run=NAME]
    #[arg(short, long, value_name = "LABELS", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,

    /// Wait until the pods are Running; exit with 1 after --timeout
    #[arg(long)]
    wait: bool,

    /// With --wait: fail if the pods are not Running after this time, such as 30s; requires --wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", requires = "wait")]
    timeout: Duration,
}

fn label(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .map(|(key, value)| (key.into(), value.into()))
        .ok_or_else(|| "want KEY=VALUE".into())
}

pub(crate) fn run(args: RunArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    block_on(async {
        let api = global
            .client()?
            .namespaced::<Pod>(args.namespace.namespace.as_str());
        let mut outcome = BatchOutcome::default();
        let mut created = BTreeSet::new();
        let pods = pods(&args);
        // On a terminal, many lines would hide all that was there.
        let is_counted = pods.len() > MOST_LINES && io::stdout().is_terminal();
        let progress = Progress::with_lines("", PlainLines::Never);
        progress.count(
            "creating pods",
            u64::try_from(pods.len()).unwrap_or(u64::MAX),
        );
        let mut creations = stream::iter(&pods)
            .map(|pod| api.create(pod))
            .buffered(IN_FLIGHT);
        while let Some(result) = creations.next().await {
            progress.advance(1);
            let result = progress.suspend(|| outcome.note(result.map_err(Into::into)))?;
            if let Some(pod) = result {
                if !is_counted {
                    progress
                        .suspend(|| output::line(format_args!("pod/{} created", pod.name())))?;
                }
                created.insert(pod.key());
            }
        }
        drop(progress);
        if is_counted {
            output::line(format_args!(
                "{} of {} pods created, {}",
                created.len(),
                pods.len(),
                names(&args.name, pods.len())
            ))?;
        }
        // Of pods that could not be created, the errors say enough.
        if args.wait && !created.is_empty() {
            let wait = wait_until_running(api.clone(), &created, args.timeout);
            global.while_running(wait).await?;
        }
        Ok(outcome.exit_code())
    })
}

/// The names of numbered pods.
fn names(name: &str, count: usize) -> String {
    format!("{name}-0 to {name}-{}", count.saturating_sub(1))
}

fn pods(args: &RunArgs) -> Vec<Pod> {
    let names: Vec<_> = match args.replicas {
        None => vec![args.name.clone()],
        Some(replicas) => (0..replicas)
            .map(|number| format!("{}-{number}", args.name))
            .collect(),
    };
    let labels: BTreeMap<_, _> = if args.labels.is_empty() {
        BTreeMap::from([("run".into(), args.name.clone())])
    } else {
        args.labels.iter().cloned().collect()
    };
    let container = Container {
        name: args.name.clone(),
        image: Some(args.image.clone()),
        ..Container::default()
    };
    let pod = |name| Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(args.namespace.namespace.clone()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container.clone()],
            host_network: args.host_network.then_some(true),
            node_name: args.node.clone(),
            ..PodSpec::default()
        }),
        status: None,
    };
    names.into_iter().map(pod).collect()
}

/// Waits until all run; fails when one never will, or the time is over.
async fn wait_until_running(
    api: Api<Pod>,
    pods: &BTreeSet<ObjectKey>,
    timeout: Duration,
) -> anyhow::Result<()> {
    let total = u64::try_from(pods.len()).unwrap_or(u64::MAX);
    let progress = Progress::with_lines("", PlainLines::IfSlow);
    progress.count("waiting for pods to run", total);
    let begun = Instant::now();
    let mut waiting = NotRunning::default();
    let ended = wait::until(api, ListParams::default(), Some(timeout), |cache| {
        waiting = NotRunning::of(cache, pods);
        let count = u64::try_from(waiting.count()).unwrap_or(u64::MAX);
        progress.position(total.saturating_sub(count));
        (waiting.has_failed || count == 0).then_some(())
    });
    let ended = ended.await;
    drop(progress);
    match ended {
        Some(()) => anyhow::ensure!(waiting.count() == 0, "not all pods can run: {waiting}"),
        None => anyhow::bail!(
            "timed out waiting for pods to run: {} of {total} do not: {waiting}",
            waiting.count()
        ),
    }
    let took = begun.elapsed().as_secs_f64();
    anstream::eprintln!("{total} of {total} pods run, after {took:.1} s");
    Ok(())
}

/// The most pods of a state that a message names.
const MOST_NAMES: usize = 5;

/// The pods that do not run yet.
#[derive(Debug, Default)]
struct NotRunning {
    /// Their names by state, with the reason for which they wait.
    states: BTreeMap<String, Vec<String>>,
    /// True if one of them never will.
    has_failed: bool,
}

impl NotRunning {
    fn of(cache: &Cache<Pod>, pods: &BTreeSet<ObjectKey>) -> Self {
        let mut found = Self::default();
        for key in pods {
            let Some(pod) = cache.get(key) else {
                found.has_failed = true;
                found.add("deleted".to_owned(), key);
                continue;
            };
            let status = pod.status.as_ref();
            let is_ready = status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let phase = status.and_then(|status| status.phase.as_deref());
            if phase == Some("Running") && is_ready {
                continue;
            }
            found.has_failed |= matches!(phase, Some("Failed" | "Succeeded"));
            let shown = pod::shown_status(&pod);
            let state = match WaitingReason::of(&pod) {
                Some(waits) => format!("{shown}, {}", waits.reason),
                None => shown,
            };
            found.add(state, key);
        }
        found
    }

    fn add(&mut self, state: String, pod: &ObjectKey) {
        self.states.entry(state).or_default().push(pod.name.clone());
    }

    fn count(&self) -> usize {
        self.states.values().map(Vec::len).sum()
    }
}

/// `web-3, web-4 (Pending, Insufficient pod IPs); web-1 (Failed)`
impl fmt::Display for NotRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (state, pods)) in self.states.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let named: Vec<_> = pods.iter().take(MOST_NAMES).map(String::as_str).collect();
            write!(f, "{separator}{}", named.join(", "))?;
            let others = pods.len().saturating_sub(named.len());
            if others > 0 {
                write!(f, " and {others} more")?;
            }
            write!(f, " ({state})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::parse_args;

    fn created_pods(line: &str) -> Vec<serde_json::Value> {
        let args = parse_args(line.split(' ')).unwrap();
        pods(&args)
            .iter()
            .map(|pod| serde_json::to_value(pod).unwrap())
            .collect()
    }

    #[test]
    fn a_single_pod_is_not_numbered() {
        let want = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "labels": {"run": "web"}},
            "spec": {"containers": [{"name": "web", "image": "registry.k8s.io/pause:3.10"}]}});
        assert_eq!(created_pods("run web"), [want]);
    }

    #[test]
    fn replicas_are_numbered() {
        let pods = created_pods(
            "run web --replicas 2 --host-network --node node-1 -n kube-system -l a=1,b=",
        );
        let names: Vec<_> = pods.iter().map(|pod| &pod["metadata"]["name"]).collect();
        assert_eq!(names, ["web-0", "web-1"]);
        assert_eq!(pods[1]["metadata"]["labels"], json!({"a": "1", "b": ""}));
        assert_eq!(pods[1]["metadata"]["namespace"], "kube-system");
        assert_eq!(pods[1]["spec"]["hostNetwork"], true);
        assert_eq!(pods[1]["spec"]["nodeName"], "node-1");
        assert!(parse_args::<RunArgs>(["run", "web", "-l", "novalue"]).is_err());
    }

    #[test]
    fn pods_that_do_not_run_are_grouped_by_their_state() {
        let mut waiting = NotRunning::default();
        for number in 0..7 {
            let key = ObjectKey::new("default", format!("web-{number}"));
            waiting.add("Pending, Insufficient pod IPs".into(), &key);
        }
        waiting.add("deleted".into(), &ObjectKey::new("default", "api"));
        assert_eq!(waiting.count(), 8);
        assert_eq!(
            waiting.to_string(),
            "web-0, web-1, web-2, web-3, web-4 and 2 more (Pending, Insufficient pod IPs); \
             api (deleted)"
        );
    }
}
