//! The supervisor of `podplane up` when something around it is wrong: commands that wait, missing
//! files, limits of the shell.

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually,
    pods::{node, running},
    processes_of,
    programs::{finish, podplane},
};
use tempfile::TempDir;

/// A data directory. Everything that runs on it ends with it.
struct OwnedDataDir(TempDir);

impl OwnedDataDir {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn dir(&self) -> String {
        self.0.path().join("d").display().to_string()
    }

    fn command(&self, args: &str) -> Command {
        let mut command = podplane(args.split_whitespace());
        command.env("PODPLANE_DATA_DIR", self.dir());
        command
    }

    fn start(&self, args: &str) -> Result<Child> {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join("d").join(name)
    }
}

impl Drop for OwnedDataDir {
    fn drop(&mut self) {
        finish(&mut self.command("down"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_commands_end_with_their_cluster() -> Result<()> {
    let home = OwnedDataDir::new()?;
    // There is room for one pod: the others wait for ever.
    let up = "up --network ledger --nodes 1 --node-cidr-mask-size 30 --detach";
    finish(&mut home.command(up)).ok();
    finish(&mut home.command("run first --wait")).ok();
    let run = home.start("run stuck --wait --timeout 1h")?;
    let made = || async { finish(&mut home.command("get pods")).stdout };
    eventually("the pod is made", made, |shown| shown.contains("stuck")).await;
    let file = home.0.path().join("stuck.yaml");
    fs::write(
        &file,
        "{apiVersion: v1, kind: Pod, metadata: {name: other}, spec: {\
         containers: [{name: c, image: c}]}}",
    )?;
    let up = home.start(&format!("up --wait --timeout 1h -f {}", file.display()))?;
    eventually("the other pod is made", made, |shown| {
        shown.contains("other")
    })
    .await;
    finish(&mut home.command("down")).ok();
    for (child, what) in [
        (run, "ended meanwhile"),
        (up, "ended before its nodes and pods"),
    ] {
        let output = child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(what), "{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_up_pods_are_spread_over_all_nodes() -> Result<()> {
    let home = OwnedDataDir::new()?;
    finish(&mut home.command("up --network ledger --nodes 3 --nodes-per-process 1 --detach")).ok();
    finish(&mut home.command("run web --replicas 6 --wait")).ok();
    let shown = finish(&mut home.command("get pods -o wide")).ok();
    for node in ["node-0", "node-1", "node-2"] {
        assert_eq!(shown.matches(node).count(), 2, "{shown}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn up_does_not_wait_for_nodes_that_have_no_block() -> Result<()> {
    let home = OwnedDataDir::new()?;
    // One block for two nodes: if this waited for all nodes, it would take an hour.
    let up = "up --network ledger --nodes 2 --cluster-cidr 10.20.0.0/24 --detach --timeout 1h";
    finish(&mut home.command(up)).ok();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_add_returns_once_the_node_exists() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags("--nodes 1")).await? else {
        return Ok(());
    };
    cluster.podplane("node add late").ok();
    cluster.podplane("get node late").ok();
    cluster.podplane("run web --replicas 2 --wait").ok();
    let pods = cluster.pods().await?;
    assert_eq!(running(&pods), 2);
    let nodes: BTreeSet<_> = pods.iter().map(node).collect();
    assert!(nodes.contains("node-0"), "{nodes:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_add_waits_until_the_nodes_are_ready() -> Result<()> {
    // Two blocks.
    let flags = "--nodes 1 --cluster-cidr 10.20.0.0/23 --node-cidr-mask-size 24";
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags(flags)).await? else {
        return Ok(());
    };
    cluster.podplane("node add second --wait").ok();
    let nodes = cluster.podplane("get node second").ok();
    let status = nodes.lines().nth(1).context("a node")?;
    assert_eq!(status.split_whitespace().nth(1), Some("Ready"), "{nodes}");
    let late = cluster.podplane("node add third --wait --timeout 1s");
    let late = late.failed(1);
    let why = "not all nodes are Ready after 1 s\n  node third: it has no podCIDR";
    assert!(late.contains(why), "{late}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_exports_the_file_of_the_cluster() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    let file = cluster.data_dir().join("kubeconfig");
    let line = cluster.podplane("kubeconfig --export").ok();
    assert_eq!(line, format!("export KUBECONFIG={}\n", file.display()));
    let refused = cluster.podplane("kubeconfig --export --server 127.0.0.1:1");
    let refused = refused.failed(2);
    assert!(refused.contains("there is none for --server"), "{refused}");
    cluster.finish().await
}

/// Each has the first lists of what it works on: it misses nothing that happens after the restart.
#[tokio::test(flavor = "multi_thread")]
async fn restarted_services_are_ready() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    let all = "restart apiserver ipam-controller controller-manager scheduler cri kubelet";
    let restarted = cluster.podplane(all).ok();
    assert!(restarted.lines().count() >= 6, "{restarted}");
    for line in restarted.lines() {
        let service = line.strip_suffix(" restarted").context("a service")?;
        let socket = cluster.podplane(&format!("status {service} --socket")).ok();
        // As it is printed.
        let health = cluster.podplane(&format!("health {}", socket.trim())).ok();
        assert!(health.contains("SERVING"), "{health}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_start_another_cluster_over_data_of_nodes() -> Result<()> {
    let home = OwnedDataDir::new()?;
    let up = "up --network ledger --nodes 2 --cluster-cidr 10.20.0.0/16 --detach";
    finish(&mut home.command(up)).ok();
    finish(&mut home.command("run web --wait")).ok();
    // A running cluster has the contents of the file, and writes it again.
    fs::remove_file(home.path("cluster.json"))?;
    finish(&mut home.command("down")).ok();
    let kept = fs::read_to_string(home.path("cluster.json"))?;
    assert!(kept.contains("10.20.0.0/16"), "{kept}");

    fs::remove_file(home.path("cluster.json"))?;
    let refused = finish(&mut home.command("up --network ledger --detach")).failed(1);
    assert!(
        refused.contains("cluster.json") && refused.contains("down --purge"),
        "{refused}"
    );
    fs::write(home.path("cluster.json"), kept)?;
    finish(&mut home.command("up --detach")).ok();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_data_directory_ends_the_cluster() -> Result<()> {
    let home = OwnedDataDir::new()?;
    let up = home.start("up --network ledger --nodes 2")?;
    let serves = || async { finish(&mut home.command("get nodes")).stdout };
    let is_ready = |shown: &String| shown.matches(" Ready ").count() == 2;
    eventually("the nodes are Ready", serves, is_ready).await;
    fs::remove_dir_all(home.path(""))?;
    let output = up.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("was removed or replaced"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let left = || async { processes_of(&home.dir()).unwrap_or_default() };
    eventually("no process is left", left, Vec::is_empty).await;
    // A kubelet may have written once more before the supervisor looked; the cluster's own files
    // stay away.
    assert!(!home.path("cluster.json").exists(), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_an_empty_version_file_can_be_stopped_but_not_started() -> Result<()> {
    let home = OwnedDataDir::new()?;
    finish(&mut home.command("up --network ledger --nodes 1 --detach")).ok();
    fs::write(home.path("VERSION"), "")?;
    finish(&mut home.command("down")).ok();
    let empty = finish(&mut home.command("up --detach")).failed(1);
    assert!(empty.contains("VERSION is empty"), "{empty}");
    fs::remove_file(home.path("VERSION"))?;
    for command in ["up --detach", "down"] {
        let missing = finish(&mut home.command(command)).failed(1);
        assert!(missing.contains("the file VERSION"), "{missing}");
    }
    Ok(())
}

/// Runs `up` in a shell with a limit; `None` if the program cannot even begin there.
fn up_limited(home: &OwnedDataDir, limit: &str) -> Result<Option<String>> {
    let program = home.command("");
    let program = program.get_program().to_str().context("a program")?;
    let dir = home.dir();
    let limited = |args: &str| {
        let line = format!("ulimit {limit} && exec {program} {args}");
        finish(Command::new("bash").args(["-c", &line]))
    };
    if limited("--version").code != Some(0) {
        return Ok(None);
    }
    let up = limited(&format!(
        "up --network ledger --nodes 1 --detach --wait --timeout 10s --data-dir {dir}"
    ));
    Ok(up.code.map(|_| up.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn names_the_limits_of_the_shell() -> Result<()> {
    for limit in ["-f 0", "-f 8"] {
        let home = OwnedDataDir::new()?;
        let text = up_limited(&home, limit)?.context("a small program can begin")?;
        assert!(
            text.contains("error:") && text.contains("ulimit -f"),
            "{limit}: {text}"
        );
    }
    // The least memory in which the program can begin is not enough for a cluster.
    for megabytes in (20..2000).step_by(20) {
        let home = OwnedDataDir::new()?;
        if let Some(text) = up_limited(&home, &format!("-v {}", megabytes * 1000))? {
            assert!(text.contains("ulimit -v"), "{megabytes} MB: {text}");
            return Ok(());
        }
    }
    anyhow::bail!("the program cannot begin in 2 GB")
}
