//! `podplane top` on a terminal, with a cluster.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
};

use anyhow::Result;
use podplane_tests::{
    Cluster, Network, builder,
    programs::{finish, podplane},
    terminal::TerminalProgram,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

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
    let words = ["view 10.244.1.0/24", " live", "of node-"];
    let part = |text: &str| words.iter().all(|word| text.contains(word));
    map.until("the block", part).await;
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
async fn signals_restore_the_terminal_and_a_pipe_is_refused() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let mut top = start(&cluster, &["top", "pods"], 80, 24)?;
        top.until("the screen", |text| text.starts_with("pods (all) 0"))
            .await;
        assert!(!top.is_restored()?);
        let pid = i32::try_from(top.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal)?;
        assert_eq!(top.ended().await.code(), Some(128 + signal.as_raw()));
        top.until_restored().await;
    }

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

/// Answers a request as an API server of Kubernetes that has these nodes and pods.
fn answer(mut stream: TcpStream, nodes: &Value, pods: &Value) {
    let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines.find(String::is_empty);
    let target = first.split(' ').nth(1).unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let list = |kind: &str, items: &Value| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"},
            "items": items})
    };
    let document = match path {
        "/version" => Some(json!({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})),
        "/api/v1/nodes" => Some(list("NodeList", nodes)),
        "/api/v1/pods" => Some(list("PodList", pods)),
        "/api/v1/services" => Some(list("ServiceList", &json!([]))),
        _ => None,
    };
    let is_watch = document.is_some() && query.contains("watch=");
    let failed = |reason: &str, code: u16| {
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason,
            "code": code, "message": reason})
    };
    let (status, document) = match document {
        // As servers before 1.32, it does not stream lists.
        Some(_) if query.contains("sendInitialEvents=") => {
            ("422 Unprocessable Entity", failed("Invalid", 422))
        }
        Some(document) => ("200 OK", document),
        None => ("404 Not Found", failed("NotFound", 404)),
    };
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n");
    let is_open = is_watch && status == "200 OK";
    let body = match is_open {
        true => String::new(),
        false => document.to_string(),
    };
    // The client may have gone.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
    if is_open {
        // Nothing changes until the client goes.
        let _ = stream.read(&mut [0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_with_its_own_ipam_has_no_faults_and_finished_pods_no_addresses() -> Result<()> {
    let node = |name: &str, block: &str| {
        json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"podCIDR": block, "podCIDRs": [block]}})
    };
    let pod = |name: &str, node: &str, phase: &str, ip: &str| {
        json!({"metadata": {"namespace": "default", "name": name},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}})
    };
    let nodes = json!([node("a", "10.244.0.0/24"), node("b", "10.244.1.0/24")]);
    // As with Calico: pods have addresses of podCIDRs of any nodes. The kubelet does not report
    // the end of a sandbox.
    let pods = json!([
        pod("web-0", "b", "Running", "10.244.0.5"),
        pod("web-1", "b", "Running", "10.244.0.6"),
        pod("web-2", "b", "Running", "10.244.0.7"),
        pod("db-0", "a", "Running", "10.244.1.5"),
        pod("db-1", "a", "Running", "10.244.1.6"),
        pod("done", "a", "Succeeded", "10.244.0.5"),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (nodes, pods) = (nodes.clone(), pods.clone());
            thread::spawn(move || answer(stream, &nodes, &pods));
        }
    });
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("kubeconfig.json");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    fs::write(&file, kubeconfig.to_string())?;
    let file = file.display().to_string();
    let command = podplane(["map", "-i", "--kubeconfig", &file, "10.244.0.5"]);
    let mut map = TerminalProgram::start(&command, 100, 30)?;
    // Else it would be a duplicate, or outside.
    let has_pod = |text: &str| text.contains("pod 10.244.0.5: pod default/web-0 on b");
    map.until("the address of the pod that runs", has_pod).await;
    map.keys("1")?;
    let counts_pods = |text: &str| {
        let starts = |line: &str, row: [&str; 2]| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.first() == Some(&row[0]) && words.contains(&row[1])
        };
        [["a", "2/253"], ["b", "3/253"]]
            .into_iter()
            .all(|row| text.lines().any(|line| starts(line, row)))
    };
    map.until("the pods of each node", counts_pods).await;
    map.keys("q")?;
    assert!(map.ended().await.success());
    map.until_restored().await;
    Ok(())
}
