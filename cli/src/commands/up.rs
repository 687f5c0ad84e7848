//! `up`: starts a cluster on this machine.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use podplane_api::{ObjectKey, jiff::Timestamp};
use podplane_client::Client;
use podplane_ipam::cluster::RangeConfig;
use podplane_ipam_controller::AllocatorType;
use podplane_proto::cluster::GetStatusResponse;
use podplane_telemetry::shutdown;

use super::{apply::apply_manifest, duration};
use crate::{
    cluster::{
        data_dir::DataDir,
        kubeconfig,
        launch::{self, Launched, Lifetime, Outcome},
        limits,
        progress::Progress,
        ready::{Missing, Start, Wanted},
        settings::{Difference, Flags, Network, Settings},
        supervisor, trust,
    },
    global::{Global, block_on},
    kind::Kind,
    manifest::{self, Manifest},
};

/// The namespace of manifests that name none.
const NAMESPACE: &str = "default";

/// Start a cluster on this machine
///
/// A cluster that is down goes on where it was, with the flags it had unless others are given. One that runs already is left as it
/// is, if the flags that are given agree with its own; the files are applied in any case.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane up\n  podplane up --nodes 3 -f deploy/sample.yaml --wait\n  podplane up --cluster-cidr 10.255.0.0/19 --node-cidr-mask-size 30 --detach"
)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Have services reach the API server through the socket DIR/SERVICE.sock, and kubelets the CRI runtime of a node through DIR/cri-NODE.sock. Another
    /// program must serve these, as a test harness does that delays or fails their calls; services wait for it. For this run
    #[arg(long, value_name = "DIR")]
    links: Option<PathBuf>,

    /// Apply the objects of this file, or directory of files; may be repeated. There are no other pods
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Return when all nodes are Ready and the pods of the files run, else fail; the cluster goes on, as with --detach
    #[arg(long)]
    wait: bool,

    /// How long to wait for nodes and pods, as in 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    timeout: Duration,

    /// Return when the cluster serves and its nodes are Ready, or --timeout is over; it goes on
    /// until `podplane down`
    #[arg(long)]
    detach: bool,

    /// As --detach, but return when the cluster serves, and end the cluster when all who can write
    /// to standard input, a pipe, have closed it or are gone
    #[arg(long)]
    until_eof: bool,

    /// With --until-eof: remove the data directory too at that end
    #[arg(long, requires = "until_eof")]
    purge: bool,

    /// Be the supervisor that `up` starts
    #[arg(long, hide = true, value_name = "ORDER")]
    supervise: Option<String>,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    if let Some(order) = &args.supervise {
        return supervisor::run(order);
    }
    let dir = DataDir::new(&global.data_dir)?;
    let kept = if dir.is_locked()? {
        dir.record()?
    } else {
        dir.is_ours()?;
        dir.record_to_start()?
    };
    let settings = args
        .flags
        .over(&kept.map(|kept| kept.settings).unwrap_or_default())?;
    let ranges = settings.ranges()?;
    settings.runtimes()?;
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

/// How many nodes can be Ready with what the cluster itself has: those that there are blocks for.
fn able_nodes(settings: &Settings, ranges: &RangeConfig) -> usize {
    match settings.cidr_allocator_type {
        AllocatorType::RangeAllocator => usize::try_from(ranges.max_nodes()).unwrap_or(usize::MAX),
        // Blocks come from objects that are applied later, or from a cloud.
        AllocatorType::MultiCidrRangeAllocator | AllocatorType::CloudAllocator => 0,
    }
}

async fn up(
    args: &Args,
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
            // Else somebody else was faster, and it is their cluster that is found.
            is_new = supervisor.serving(&progress).await? == Outcome::Serves;
            found = launch::find(dir, args.timeout).await?;
        }
        let status = found.context("the cluster ended as soon as it had begun")?;
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
        // What the runtimes of others say is theirs.
        let start = (is_new && status.cri_endpoint.is_none()).then(|| Start {
            dir: dir.clone(),
            time,
        });
        // Losing either loses nothing: what is made is made.
        tokio::select! {
            furnished = furnish(args, &status, manifests, start, able, &progress) => furnished?,
            ended = launch::ended(dir) => {
                ended?;
                if let Some(launched) = &mut launched {
                    // It says why, if it was not asked to.
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
    // A signal before all is done ends what was started here; the parent-death signal would too, but nobody would wait for it.
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
        // What runs is left for people to look at.
        (Err(error), _, _) => Err(error),
    }
}

/// Says how kubectl finds the cluster.
fn for_kubectl(dir: &DataDir) {
    if let Some(line) = kubeconfig::export(dir) {
        anstream::eprintln!("for kubectl:  {line}");
    }
}

/// Makes the objects of the files, and waits for them.
async fn furnish(
    args: &Args,
    status: &GetStatusResponse,
    manifests: &[Manifest],
    start: Option<Start>,
    able: usize,
    progress: &Progress,
) -> anyhow::Result<()> {
    let client = Client::connect(&status.server.parse()?)?;
    let begun = Instant::now();
    let mut wanted = Wanted {
        nodes: status.nodes.clone(),
        start,
        enough: Some(able),
        ..Wanted::default()
    };
    // All nodes first, so that pods are spread over them and not put on the one that is Ready
    // first. Should one never be, they are made all the same. Who holds the pipe of --until-eof, as
    // a test does, waits for what it wants.
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
        .filter(|manifest| manifest.kind == Kind::Pod);
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
        "not all is there after {} s; the cluster goes on{}",
        args.timeout.as_secs_f32(),
        listed(&missing)
    )
}

fn listed(missing: &[Missing]) -> String {
    let each = missing.iter();
    let each = each.map(|missing| format!("\n  {}: {}", missing.what, missing.why));
    each.collect()
}

/// Stays until a signal ends the cluster, or the cluster ends by itself.
async fn attend(
    launched: &mut Launched,
    signal: std::pin::Pin<&mut impl Future<Output = std::io::Result<&'static str>>>,
) -> anyhow::Result<ExitCode> {
    // Losing either wait loses nothing: a process that ended stays so, and a signal is kept.
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

/// Whether the flags that are given agree with the cluster that runs.
fn agrees(flags: &Flags, dir: &DataDir, running: &GetStatusResponse) -> anyhow::Result<()> {
    let record = dir
        .record()?
        .with_context(|| {
            format!(
                "cluster.json is missing for the cluster that runs in {}: `podplane down` writes it again",
                dir.path().display()
            )
        })?;
    let given = flags.over(&record.settings)?;
    // What was left open has been decided, and the decision may be asked for.
    let is_decided = |difference: &Difference| match difference.flag {
        "--network" => {
            record.settings.network == Network::Auto && difference.given == running.network
        }
        "--listen" => difference.given == running.server,
        _ => false,
    };
    let differences = given
        .differences(&record.settings)
        .into_iter()
        .filter(|difference| !is_decided(difference));
    let each: Vec<_> = differences
        .map(
            |Difference {
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
