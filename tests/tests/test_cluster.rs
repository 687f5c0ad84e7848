//! The test cluster as its users see it: many clusters at once, none of which is left, however its
//! test ended.

use std::{
    env,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_test_cluster::{
    Cluster, ClusterError, Network, Program,
    pods::{self, phase, running},
    processes_of,
};
use podplane_tests::{Machine, eventually, peers, programs::finish};
use tokio::{sync::oneshot, task::JoinSet};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The name of the test that does not end by itself, and of the variable without which it does
/// nothing.
const ENDLESS: &str = "endless";

#[tokio::test(flavor = "multi_thread")]
async fn clusters_run_side_by_side_and_leave_nothing() -> Result<()> {
    let before = Machine::now();
    let mut starting = JoinSet::new();
    for _ in 0..8 {
        starting.spawn(Cluster::builder().nodes(2).start());
    }
    let started = starting.join_all().await;
    let clusters = started.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut using = JoinSet::new();
    let dirs: Vec<_> = clusters.iter().map(|c| c.data_dir().to_owned()).collect();
    for cluster in clusters {
        using.spawn(async move {
            cluster
                .client()
                .namespaced("default")
                .create(&pods::pod("a"))
                .await?;
            let runs = |pods: &[_]| pods.len() == 1 && running(pods) == 1;
            cluster.pods_until("its own pod runs", runs).await?;
            cluster.finish().await
        });
    }
    using
        .join_all()
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    for dir in dirs {
        assert!(!dir.exists(), "{}", dir.display());
    }
    assert_eq!(before, Machine::now());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_panics_leaves_no_cluster() -> Result<()> {
    let (sender, dir) = oneshot::channel();
    let mut failing = JoinSet::new();
    failing.spawn(async move {
        let cluster = Cluster::builder()
            .nodes(1)
            .start()
            .await
            .expect("a cluster");
        sender
            .send(cluster.data_dir().to_owned())
            .expect("a listener");
        panic!("on purpose");
    });
    let dir: PathBuf = dir.await?;
    let ended = failing.join_next().await.context("it ends")?;
    assert!(ended.expect_err("it panics").is_panic());
    is_gone(&dir).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_is_killed_leaves_no_cluster() -> Result<()> {
    let mut test = EndlessCluster::start()?;
    let dir = test.dir()?;
    assert!(dir.join("apiserver.address").exists());
    test.0.kill()?;
    test.0.wait()?;
    is_gone(&dir).await
}

/// Another process of these tests, with a cluster.
struct EndlessCluster(Child);

impl EndlessCluster {
    fn start() -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--exact", ENDLESS, "--ignored", "--nocapture"]);
        command.env(ENDLESS, "");
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    /// The data directory of its cluster, once that runs.
    fn dir(&mut self) -> Result<PathBuf> {
        let output = self.0.stdout.take().context("its output is a pipe")?;
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once("cluster in ")?.1.into()));
        said.context("it says where its cluster is")
    }
}

impl Drop for EndlessCluster {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "another test runs it, and kills it"]
async fn endless() -> Result<()> {
    if env::var_os(ENDLESS).is_none() {
        return Ok(());
    }
    let mut cluster = Cluster::builder().nodes(1);
    if peers::root() {
        // As root, the cluster and the test cluster have mounts, too.
        cluster = cluster.network(Network::Kernel).disk("node-0", 1 << 20);
    }
    let cluster = cluster.start().await?;
    println!("cluster in {}", cluster.data_dir().display());
    std::future::pending().await
}

async fn is_gone(dir: &Path) -> Result<()> {
    let text = dir.display().to_string();
    let left = || async { (processes_of(&text).unwrap_or_default(), dir.exists()) };
    eventually(
        "nothing of the cluster is left",
        left,
        |(processes, dir)| processes.is_empty() && !dir,
    )
    .await;
    Ok(())
}

#[tokio::test]
async fn processes_are_killed_and_paused() -> Result<()> {
    let cluster = Cluster::builder().nodes(1).start().await?;
    let first = cluster.process("scheduler").await?;
    first.kill().await?;
    assert!(first.resume().is_err(), "it has ended");
    let again = || async { cluster.process("scheduler").await.map(|now| now.pid()) };
    let pid = eventually("it runs again", again, Result::is_ok).await?;
    assert_ne!(pid, first.pid());

    let scheduler = cluster.process("scheduler").await?;
    scheduler.pause().await?;
    let state =
        || async { std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default() };
    eventually("it is stopped", state, |stat| stat.contains(") T ")).await;
    let pods = cluster.client().namespaced("default");
    pods.create(&pods::pod("a")).await?;
    scheduler.resume()?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await?;
    assert!(cluster.log("scheduler")?.contains("scheduling"));
    Ok(cluster.finish().await?)
}

#[tokio::test]
async fn errors_name_the_cause() -> Result<()> {
    let nowhere = Cluster::builder()
        .program("/nowhere/podplane")
        .start()
        .await;
    let error = nowhere.expect_err("there is none").to_string();
    assert!(
        error.contains("/nowhere") && error.contains("PODPLANE_BIN_DIR"),
        "{error}"
    );
    let refused = Cluster::builder().cluster_cidr("10.0.0.0/33").start().await;
    let error = refused.expect_err("no range").to_string();
    assert!(
        error.contains("--cluster-cidr 10.0.0.0/33") && error.contains("failed with code 2"),
        "{error}"
    );

    let cluster = Cluster::builder().nodes(1).start().await?;
    let error = cluster.process("kubelet").await.expect_err("no such name");
    let text = error.to_string();
    assert!(
        text.contains("no process kubelet") && text.contains("kubelet-node-0"),
        "{text}"
    );
    let error = cluster
        .apply("{apiVersion: v1, kind: Pod, metadata: {name: Web}}")
        .await;
    let text = error.expect_err("no name for a pod").to_string();
    assert!(
        text.contains("metadata.name") && text.contains("Web"),
        "{text}"
    );

    let waiting = cluster.apply("{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeSelector: {no: where}, containers: [{name: c, image: i}]}}");
    waiting.await?;
    let told = |pods: &[_]| pods.iter().any(|pod| !pods::unscheduled(pod).is_empty());
    let pods = cluster.pods_until("the scheduler has looked", told).await?;
    assert_eq!(phase(&pods[0]), "Pending");
    let look = || async { pods.iter().map(phase).collect::<Vec<_>>() };
    let late = podplane_test_cluster::within(Duration::ZERO, "it runs", look, |_| false).await;
    let error = late.expect_err("it does not");
    assert!(matches!(&error, ClusterError::TimedOut { what, .. } if what == "it runs"));
    assert!(error.to_string().contains("Pending"), "{error}");
    Ok(cluster.finish().await?)
}

#[tokio::test]
async fn a_given_data_directory_is_kept_and_can_be_resumed() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("pp-").tempdir()?;
    let start = || Cluster::builder().nodes(1).data_dir(dir.path()).start();
    let cluster = start().await?;
    cluster.podplane(["run", "web", "--wait"]).await?;
    cluster.finish().await?;
    let cluster = start().await?;
    cluster
        .pods_until("it runs again", |pods| running(pods) == 1)
        .await?;
    Ok(cluster.finish().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_in_kernel_mode_answer_pings() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let before = Machine::now();
    let cluster = Cluster::builder().network(Network::Kernel).start().await?;
    cluster
        .podplane(["run", "web", "--replicas", "2", "--wait"])
        .await?;
    let ping = ["ping", "web-0", "web-1", "--count", "1", "--verify"];
    let said = cluster.podplane(ping).await?;
    assert!(said.contains("verified: it is pod default/web-1"), "{said}");
    cluster.finish().await?;
    assert_eq!(before, Machine::now());
    Ok(())
}

/// Runs the last line of the example's README.
#[test]
fn the_python_example_runs_as_documented() -> Result<()> {
    let Some(path) = peers::python_kubernetes() else {
        return Ok(());
    };
    let readme = std::fs::read_to_string(Path::new(TOP).join("examples/python/README.md"))?;
    let mut lines = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let last = lines.next_back().context("a console")?;
    let (_, args) = last.split_once("/bin/python ").context("it calls Python")?;
    let programs = Program::find()?;
    let search = format!("{}:{}", programs.dir().display(), env::var("PATH")?);
    let mut command = Command::new("python3");
    command
        .args(args.split_whitespace())
        .current_dir(TOP)
        .env("PATH", search)
        .env("PYTHONPATH", path);
    let said = finish(&mut command).ok();
    let last = said.lines().last();
    assert_eq!(
        last,
        Some("6 pods, 6 addresses, each of its node's block"),
        "{said}"
    );
    Ok(())
}
