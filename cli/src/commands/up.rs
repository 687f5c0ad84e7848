//! `up`: starts a cluster on this machine.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Args as _, Command, FromArgMatches as _};
use podplane_api::{ObjectKey, jiff::Timestamp};
use podplane_client::Client;
use podplane_cluster::{
    data_dir::{ClusterRecord, DataDir},
    extra::in_a_line,
    flags::UpFlags,
    kubeconfig,
    launch::{self, LaunchOutcome, LaunchedSupervisor, Lifetime},
    limits,
    settings::{FlagDifference, Network, Settings},
    supervisor, trust,
};
use podplane_ipam::{AllocatorType, cluster::RangeConfig};
use podplane_progress::Progress;
use podplane_proto::cluster::GetStatusResponse;
use podplane_service_runtime::shutdown;

use super::{apply::apply_manifest, duration};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    manifest::{self, Manifest},
    output,
    ready::{ClusterStart, ReadinessGoal, listed},
    services::{self, OwnServices, ServiceFlags},
};

/// The namespace of manifests without one.
const NAMESPACE: &str = "default";

/// Start a cluster on this machine
///
/// Runs the cluster in the foreground until Ctrl-C, which stops it; with --detach or --wait it runs
/// in the background until `podplane down`.
///
/// A stopped cluster is resumed, with its stored flags unless new ones are given. If a cluster
/// already runs with the same flags, only the files of --filename are applied; if the flags differ,
/// the command fails.
///
/// The kubeconfig is the file `kubeconfig` in the data directory. The pod network mode kernel needs
/// root, or a user that may create user namespaces; see --network.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane up\n  podplane up --nodes 3 -f deploy/sample.yaml --wait\n  podplane up --cluster-cidr 10.255.0.0/19 --node-cidr-mask-size 30 --detach\n  podplane up --standby --detach"
)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    flags: UpFlags,

    #[command(flatten)]
    service_flags: ServiceFlags,

    /// Route calls through external proxies in DIR, for fault injection; not kept for the next `up`
    ///
    /// Services reach the API server through DIR/SERVICE.sock, and kubelets the CRI runtime of a
    /// node through DIR/cri-NODE.sock. An external program must serve these sockets; services wait
    /// for it.
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        value_name = "DIR"
    )]
    links: Option<PathBuf>,

    /// Create or update the objects of these manifests after the start: a file, a directory (.yaml,
    /// .yml, .json), or - for standard input; may be repeated
    ///
    /// `up` creates no other pods.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Run the cluster in the background; return when all nodes are Ready and the pods of
    /// --filename run, or exit with 1 after --timeout; the cluster keeps running
    #[arg(long)]
    wait: bool,

    /// Wait at most this long for nodes and pods, such as 30s or 1m30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,

    /// Run the cluster in the background until `podplane down`; return when its nodes are Ready
    ///
    /// After --timeout it returns too, with success and a note of the nodes that are not Ready.
    #[arg(long)]
    detach: bool,

    /// Run the cluster in the background, and stop it when standard input, a pipe, reaches its end;
    /// for parent processes
    ///
    /// Returns when the cluster serves. The end is reached when every process that can write to the
    /// pipe has closed it or ended.
    #[arg(help_heading = "Process options", hide_short_help = true, long)]
    until_eof: bool,

    /// With --until-eof: also delete the data directory when the cluster stops; cannot be undone
    #[arg(
        help_heading = "Process options",
        hide_short_help = true,
        long,
        requires = "until_eof"
    )]
    purge: bool,

    /// Print the settings and nodes that the cluster would have, as cluster.json has them, and
    /// start nothing
    #[arg(long, hide = true)]
    print_record: bool,

    /// Run the supervisor that `up` starts
    #[arg(long, hide = true, value_name = "ORDER")]
    supervise: Option<String>,
}

impl UpArgs {
    /// With the flags of services where the settings have them.
    fn gathered(mut self) -> Self {
        let extra = &mut self.flags.changeable.extra_config;
        *extra = std::mem::take(&mut self.service_flags).before(std::mem::take(extra));
        self
    }
}

/// Checks that `up` would start a new cluster with these arguments alone.
pub(crate) fn check(line: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let command = UpArgs::augment_args(Command::new("up").no_binary_name(true));
    // What is in the environment is of others.
    let command = command.mut_args(|arg| arg.env(None::<&str>));
    let parsed = command.try_get_matches_from(line);
    let parsed = parsed.and_then(|matches| UpArgs::from_arg_matches(&matches));
    let args = parsed.map_err(|error| anyhow::anyhow!(in_a_line(&error)))?;
    let settings = args.gathered().flags.over(&Settings::default())?;
    settings.ranges()?;
    settings.runtimes()?;
    settings.standbys()?;
    Ok(())
}

pub(crate) fn run(args: UpArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    if let Some(order) = &args.supervise {
        let ended = supervisor::run(order, &OwnServices);
        // If it has removed the data directory, the indexes of its plugins are left elsewhere.
        if let Ok(supervisor::SuperviseOrder { data_dir, .. }) = serde_json::from_str(order) {
            podplane_host_local::forget_below(&data_dir)
                .context("failed to remove the indexes of host-local in /run/podplane")?;
        }
        return ended;
    }
    let args = args.gathered();
    let dir = DataDir::new(&global.data_dir)?;
    let kept = if dir.is_locked()? {
        dir.record()?
    } else {
        dir.is_ours()?;
        dir.record_to_start()?
    };
    let base = kept.as_ref().map(|kept| kept.settings.clone());
    let settings = args.flags.over(&base.unwrap_or_default())?;
    if args.print_record {
        output::json(&serde_json::to_value(
            ClusterRecord::next(kept, settings).0,
        )?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ranges = settings.ranges()?;
    settings.runtimes()?;
    settings.standbys()?;
    if args.flags.cni_bin_dir.is_none()
        && let Some(dirs) = &settings.cni_bin_dir
    {
        trust::programs(dirs.as_os_str())?;
    }
    settings.plugins()?;
    for notice in &ranges.notices {
        anstream::eprintln!("note: {notice}");
    }
    if u64::from(settings.nodes) > ranges.max_nodes() {
        anstream::eprintln!(
            "note: the cluster CIDR has blocks for {} of {} nodes; the others will have none",
            ranges.max_nodes(),
            settings.nodes
        );
    }
    let manifests = if args.filename.is_empty() {
        Vec::new()
    } else {
        manifest::read(&args.filename)?
    };
    dir.prepare()?;
    let able = able_nodes(&settings, &ranges);
    block_on(up(&args, &dir, settings, &manifests, able))
}

/// The number of nodes that can be Ready with the cluster's own blocks.
fn able_nodes(settings: &Settings, ranges: &RangeConfig) -> usize {
    match settings.cidr_allocator_type {
        AllocatorType::RangeAllocator => usize::try_from(ranges.max_nodes()).unwrap_or(usize::MAX),
        // Blocks come from objects that are applied later, or from a cloud.
        AllocatorType::MultiCidrRangeAllocator | AllocatorType::CloudAllocator => 0,
    }
}

async fn up(
    args: &UpArgs,
    dir: &DataDir,
    settings: Settings,
    manifests: &[Manifest],
    able: usize,
) -> anyhow::Result<ExitCode> {
    let lifetime = match (args.detach || args.wait, args.until_eof) {
        (_, true) => Lifetime::UntilEof { purge: args.purge },
        (true, false) => Lifetime::Detached,
        (false, false) => Lifetime::Attached,
    };
    let links = args.links.as_ref().map(std::path::absolute).transpose()?;
    let mut signal = std::pin::pin!(shutdown::requested());
    let progress = Progress::new("starting");
    if let Some(limits) = limits::limits() {
        progress.done(&format!(
            "note: processes here have {limits}: beyond that, services fail or end"
        ));
    }
    let mut launched = None;
    let time = Timestamp::now();
    let work = async {
        let mut is_new = false;
        let mut found = launch::find(dir, args.timeout).await?;
        if found.is_none() {
            let supervisor = launched.insert(launch::launch(dir, settings, links, lifetime)?);
            // Otherwise another `up` was faster, and its cluster is found.
            is_new = supervisor.serving(|text| progress.done(text)).await? == LaunchOutcome::Serves;
            found = launch::find(dir, args.timeout).await?;
        }
        let status = found.context("the cluster ended during its start")?;
        if !is_new {
            launched = None;
            agrees(&args.flags, dir, &status)?;
            anyhow::ensure!(
                args.links.is_none(),
                "--links is for a cluster that is started, and one runs in {}: end it with `podplane down` first",
                dir.path().display()
            );
            progress.done(&format!(
                "a cluster with these flags runs in {}",
                dir.path().display()
            ));
        }
        // A runtime outside of the cluster reports its own state.
        let start = (is_new && status.cri_endpoint.is_none()).then(|| ClusterStart {
            dir: dir.clone(),
            time,
        });
        // Cancelling either loses nothing: created objects stay.
        tokio::select! {
            furnished = furnish(args, dir, &status, manifests, start, able, &progress) => furnished?,
            ended = launch::ended(dir) => {
                ended?;
                if let Some(launched) = &mut launched {
                    // The supervisor reports the reason, unless it was asked to stop.
                    launched.end().await?;
                }
                anyhow::bail!(
                    "the cluster in {} ended before its nodes and pods were ready, by `podplane down` or \
                     a signal; see {}",
                    dir.path().display(),
                    dir.log("supervisor").display()
                );
            }
        }
        anyhow::Ok(status)
    };
    // A signal before all is done stops the cluster that was started here; the parent-death signal
    // would too, but nobody would wait for it.
    let done = tokio::select! {
        done = work => done,
        signal = &mut signal => Err(anyhow::anyhow!("interrupted by {}", signal?)),
    };
    drop(progress);
    match (done, launched, lifetime) {
        (Ok(status), Some(mut launched), Lifetime::Attached) => {
            anstream::eprintln!("API server on {}; Ctrl-C ends the cluster", status.server);
            for_kubectl(dir);
            attend(&mut launched, signal).await
        }
        (Ok(status), _, _) => {
            anstream::eprintln!(
                "API server on {}; `podplane down --data-dir {}` ends the cluster",
                status.server,
                dir.path().display()
            );
            for_kubectl(dir);
            Ok(ExitCode::SUCCESS)
        }
        (Err(error), Some(mut launched), _)
            if lifetime == Lifetime::Attached || !launched.serves() =>
        {
            launched.stop().await?;
            Err(error)
        }
        // A running cluster is left for people to look at.
        (Err(error), _, _) => Err(error),
    }
}

/// Prints the line by which kubectl finds the cluster.
fn for_kubectl(dir: &DataDir) {
    if let Some(line) = kubeconfig::export(dir) {
        anstream::eprintln!("for kubectl:  {line}");
    }
}

/// Applies the files, and waits for their pods.
async fn furnish(
    args: &UpArgs,
    dir: &DataDir,
    status: &GetStatusResponse,
    manifests: &[Manifest],
    start: Option<ClusterStart>,
    able: usize,
    progress: &Progress,
) -> anyhow::Result<()> {
    let server = format!("unix:{}", dir.apiserver_socket().display());
    let client = Client::connect(&server.parse()?)?;
    let begun = Instant::now();
    let mut wanted = ReadinessGoal {
        nodes: status.nodes.clone(),
        start,
        enough: Some(able),
        ..ReadinessGoal::default()
    };
    // All nodes first, so that pods are spread over them and not all put on the first Ready one. If
    // one never becomes Ready, the pods are created all the same. The process that holds the pipe
    // of --until-eof, such as a test, does its own waiting.
    if args.wait && !manifests.is_empty() {
        wanted.wait(&client, args.timeout / 2, progress).await;
    } else if !args.wait && !args.until_eof {
        let missing = wanted.wait(&client, args.timeout, progress).await;
        if !missing.is_empty() {
            let seconds = args.timeout.as_secs_f32();
            progress.done(&format!(
                "note: not all nodes are Ready after {seconds} s; the cluster goes on{}",
                listed(&missing)
            ));
        }
    }
    wanted.enough = None;
    for manifest in manifests {
        let (name, done) = apply_manifest(&client, manifest, NAMESPACE).await?;
        progress.done(&format!("{name} {done}"));
    }
    if !args.wait {
        return Ok(());
    }
    let pods = manifests
        .iter()
        .filter(|manifest| manifest.kind == ResourceKind::Pod);
    wanted.pods = pods
        .map(|pod| ObjectKey::new(pod.namespace(NAMESPACE), pod.name()))
        .collect();
    let missing = wanted
        .wait(
            &client,
            args.timeout.saturating_sub(begun.elapsed()),
            progress,
        )
        .await;
    if missing.is_empty() {
        return Ok(());
    }
    anyhow::bail!(
        "not all nodes and pods are ready after {} s; the cluster goes on{}",
        args.timeout.as_secs_f32(),
        listed(&missing)
    )
}

/// Waits until a signal stops the cluster, or the cluster ends by itself.
async fn attend(
    launched: &mut LaunchedSupervisor,
    signal: std::pin::Pin<&mut impl Future<Output = std::io::Result<&'static str>>>,
) -> anyhow::Result<ExitCode> {
    // Cancelling either wait loses nothing: a process that ended stays so, and a signal is kept.
    let ended = tokio::select! {
        ended = launched.end() => Some(ended),
        _ = signal => None,
    };
    match ended {
        None => launched.stop().await,
        Some(ended) => ended,
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Checks that the given flags agree with the running cluster.
fn agrees(flags: &UpFlags, dir: &DataDir, running: &GetStatusResponse) -> anyhow::Result<()> {
    let record = dir
        .record()?
        .with_context(|| {
            format!(
                "cluster.json is missing for the cluster that runs in {}: `podplane down` writes it again",
                dir.path().display()
            )
        })?;
    let given = flags.over(&record.settings)?;
    // Values that were left open have been decided, and the decision may be named.
    let is_decided = |difference: &FlagDifference| match &*difference.flag {
        "--network" => {
            record.settings.network == Network::Auto && difference.given == running.network
        }
        "--listen" => difference.given == running.server,
        _ => false,
    };
    let of_services = services::differences(&given.extra_config, &record.settings.extra_config);
    let differences = given
        .differences(&record.settings)
        .into_iter()
        .chain(of_services)
        .filter(|difference| !is_decided(difference));
    let each: Vec<_> = differences
        .map(
            |FlagDifference {
                 flag,
                 running,
                 given,
             }| format!("\n  {flag}: {running} runs, {given} was given"),
        )
        .collect();
    anyhow::ensure!(
        each.is_empty(),
        "a cluster with other flags runs in {}; end it with `podplane down --data-dir {}`, or take another --data-dir{}",
        dir.path().display(),
        dir.path().display(),
        each.concat()
    );
    Ok(())
}
