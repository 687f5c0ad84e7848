//! `podplane top` on a terminal, with a cluster.

use std::process::{Command, Stdio};

use anyhow::Result;
use podplane_tests::{
    Cluster, Network, builder,
    programs::{finish, podplane},
    terminal::TerminalProgram,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const ESCAPE: &str = "\u{1b}";

fn start(cluster: &Cluster, args: &[&str], columns: u16, rows: u16) -> Result<TerminalProgram> {
    let command = cluster.command("podplane", args);
    Ok(TerminalProgram::start(&command, columns, rows)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn shows_a_cluster_live_and_survives_a_restart_of_the_api_server() -> Result<()> {
    // Twice as large as the range around the blocks of three nodes.
    let up = builder(Network::Ledger).nodes(3).node_cidr_mask_size(29);
    let up = up.flags("--cluster-cidr 10.244.0.0/26");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let mut top = start(&cluster, &["top"], 110, 30)?;
    let ready = |text: &str| text.matches(" Ready ").count() == 3 && text.contains("0/5");
    top.until("three nodes are Ready", ready).await;

    // A pod that is made now appears, and has gone its way.
    cluster.podplane("run web --wait").ok();
    top.keys("2")?;
    let runs = |text: &str| text.contains("web ") && text.contains(" SBAR");
    let text = top.until("the pod runs", runs).await;
    assert!(text.contains("10.244."), "{text}");

    // More pods than addresses: they wait, with the reason.
    cluster.podplane("run many --replicas 16").ok();
    top.keys("3")?;
    let wait = |text: &str| {
        text.starts_with("waiting (all) 1 ")
            && text.contains("\n2 ")
            && text.contains("Insufficient")
    };
    top.until("two pods wait", wait).await;
    top.keys("\r")?;
    let listed = |text: &str| text.starts_with("pods (waiting: Insufficient pod IPs) 2");
    let text = top.until("their pods are listed", listed).await;
    assert!(!text.contains("web "), "{text}");

    // What the commands print.
    top.keys("x")?;
    let why =
        |text: &str| text.contains("To Make It Fit") || text.contains("Insufficient pod IPs,");
    top.until("the explanation", |text| {
        text.starts_with("explain pod") && why(text)
    })
    .await;
    top.keys(ESCAPE)?;
    top.until("back", listed).await;
    top.keys("2/^web$\r")?;
    top.until("the filter", |text| text.starts_with("pods (all) 1 of 17"))
        .await;
    top.keys("t")?;
    top.until("the trace", |text| {
        text.contains("RunPodSandbox") && text.contains("bind")
    })
    .await;
    top.keys("d")?;
    let text = top
        .until("the description", |text| text.contains("Conditions:"))
        .await;
    assert!(text.contains("Host Network:"), "{text}");
    top.keys("y")?;
    top.until("the YAML", |text| text.contains("apiVersion: v1"))
        .await;
    top.keys(ESCAPE)?;

    // The map, to the node under the cursor.
    top.keys("6")?;
    top.until("the map", |text| {
        text.starts_with("cluster CIDR 10.244.0.0/26") && text.contains("block 10.244.")
    })
    .await;
    top.keys("n")?;
    top.until("the pods of the node", |text| {
        text.starts_with("pods (on node-")
    })
    .await;

    // Another size. A key at the same moment would only be read with the next one.
    top.keys("1")?;
    top.until("the nodes", |text| text.starts_with("nodes (all)"))
        .await;
    top.resize(80, 24)?;
    let fits = |text: &str| {
        let lines: Vec<_> = text.lines().collect();
        lines.len() <= 24
            && lines
                .iter()
                .any(|line| line.starts_with("node-2") && line.contains("Ready"))
    };
    top.until("the smaller screen", fits).await;

    // A restart of the API server.
    cluster.restart(["apiserver"], []).await?;
    cluster.podplane("delete pod web").ok();
    let is_back = |text: &str| text.contains(" live") && text.contains("node-2");
    top.until("the connection is back", is_back).await;
    top.keys("2/^web$\r")?;
    let is_gone = |text: &str| text.contains("no pod matches /^web$") && text.contains(" live");
    top.until("the deleted pod is gone", is_gone).await;

    top.keys("q")?;
    assert!(top.ended().await.success());
    top.until_restored().await;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_map_begins_at_a_part_and_leads_to_everything_else() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let mut map = start(&cluster, &["map", "-i", "10.244.1.0/24"], 110, 30)?;
    let part = |text: &str| text.contains("view 10.244.1.0/24") && text.contains(" live");
    let text = map.until("the block", part).await;
    assert!(text.contains("of node-"), "{text}");
    map.keys("2")?;
    map.until("the pods", |text| text.contains("web ")).await;
    map.keys("q")?;
    assert!(map.ended().await.success());
    map.until_restored().await;

    let file = cluster.kubeconfig().to_string_lossy().into_owned();
    let any = ["map", "--interactive", "--kubeconfig", &file, "services"];
    let mut map = start(&cluster, &any, 110, 30)?;
    map.until("the services", |text| text.starts_with("service range"))
        .await;
    map.keys("q")?;
    assert!(map.ended().await.success());
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_has_a_map_to_move_through() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dump = dir.path().join("dump.json");
    let node = json!({"kind": "Node", "metadata": {"name": "node-a"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}});
    let pod = json!({"kind": "Pod", "metadata": {"namespace": "default", "name": "web"},
        "spec": {"nodeName": "node-a"}, "status": {"podIPs": [{"ip": "10.244.1.7"}]}});
    std::fs::write(
        &dump,
        json!({"kind": "List", "items": [node, pod]}).to_string(),
    )?;
    let dump = dump.display().to_string();
    let command = podplane(["map", "-i", "--from", &dump, "10.244.1.7"]);
    let mut map = TerminalProgram::start(&command, 100, 30)?;
    let is_there = |text: &str| text.contains("pod 10.244.1.7: pod default/web on node-a");
    let text = map.until("the address", is_there).await;
    assert!(text.contains("not live"), "{text}");
    map.keys("1")?;
    map.until("no other view", |text| {
        text.contains("only the map is known")
    })
    .await;
    map.keys("q")?;
    assert!(map.ended().await.success());
    map.until_restored().await;

    for (args, want) in [
        (&["map", "-i", "--from", "-"][..], "pass the dump as a file"),
        (&["map", "-i", "--from", &dump], "is not a terminal"),
        (&["map", "-i", "-o", "json"], "cannot be used with"),
    ] {
        let refused = finish(podplane(args).stdin(Stdio::null()));
        assert!(!refused.stderr.is_empty(), "{args:?}");
        assert!(refused.stderr.contains(want), "{args:?}: {refused:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_restores_the_terminal_and_a_pipe_is_refused() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    let mut top = start(&cluster, &["top", "pods"], 80, 24)?;
    top.until("the screen", |text| text.starts_with("pods (all) 0"))
        .await;
    assert!(!top.is_restored()?);
    let pid = i32::try_from(top.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), Signal::TERM)?;
    assert_eq!(top.ended().await.code(), Some(128 + 15));
    top.until_restored().await;

    let mut piped: Command = cluster.command("podplane", ["top"]);
    let output = piped.stdin(Stdio::null()).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("standard input is not a terminal") && error.contains("podplane get"),
        "{error}"
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_a_cluster_by_its_kubeconfig() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let file = cluster.kubeconfig().to_string_lossy().into_owned();
    let mut top = start(&cluster, &["top", "pods", "--kubeconfig", &file], 110, 24)?;
    let runs = |text: &str| text.contains("web ") && text.contains("Running");
    top.until("the pod", runs).await;
    top.keys("x")?;
    top.until("the explanation", |text| {
        text.contains("Not Considered") || text.contains("State:")
    })
    .await;
    top.keys("t")?;
    top.until("the trace", |text| {
        text.contains("RunPodSandbox") && text.contains("bind")
    })
    .await;
    top.keys("1")?;
    top.until("the nodes", |text| {
        text.contains("node-1") && text.contains("1/253")
    })
    .await;
    top.keys("4")?;
    top.until("the blocks", |text| {
        text.contains("10.244.1.0/24") && text.contains("node-")
    })
    .await;
    // They have records, which the objects do not have.
    top.until("the service range", |text| text.contains("reserved"))
        .await;
    top.keys("6")?;
    top.until("the range of the flag", |text| {
        text.starts_with("cluster CIDR 10.244.0.0/16 ") && !text.contains("inferred")
    })
    .await;
    top.keys("q")?;
    assert!(top.ended().await.success());

    let trace = ["trace", "pod", "web", "--kubeconfig", &file];
    let trace = finish(&mut podplane(trace)).ok();
    assert!(
        trace.contains("RunPodSandbox") && trace.contains("Running on node-"),
        "{trace}"
    );
    let args = ["top", "pods", "-n", "wrong", "--kubeconfig", &file];
    let mut top = start(&cluster, &args, 110, 24)?;
    top.until("the missing namespace", |text| {
        text.starts_with("pods (namespace wrong) 0")
            && text.contains("namespace wrong does not exist")
    })
    .await;
    top.keys("q")?;
    assert!(top.ended().await.success());
    cluster.finish().await
}
