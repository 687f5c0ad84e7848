//! `podplane up` from the outside: pods with addresses that answer, and a machine that is as it was
//! before.

use std::{
    collections::BTreeSet, fs, os::unix::process::CommandExt as _, process::Command, time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_api::{Object as _, core::Pod};
use podplane_client::{PatchParams, PatchType};
use podplane_tests::{
    Cluster, Machine, Network, builder, eventually, peers,
    pods::{ip, node, running},
    processes_of,
    programs::{bin_dir, finish, podplane},
};

/// Only the IPAM controller reads `--release-delay`; `up` and `restart` pass it on.
#[tokio::test(flavor = "multi_thread")]
async fn flags_of_services_are_compared_changed_and_kept() -> Result<()> {
    let builder = builder(Network::Ledger).nodes(1);
    let Some(cluster) = Cluster::up(builder.flag("--release-delay", "1m")).await? else {
        return Ok(());
    };
    cluster.podplane("up --detach --release-delay 60s").ok();
    let refused = cluster.podplane("up --detach --release-delay 0s").failed(1);
    let difference = "--release-delay: 1m runs, 0s was given";
    assert!(refused.contains(difference), "{refused}");
    cluster.podplane("restart --release-delay soon").failed(2);
    let restarted = cluster.podplane("restart --release-delay 2m").ok();
    assert_eq!(restarted, "ipam-controller restarted\n");
    let again = cluster.podplane("restart --release-delay 2m").ok();
    assert_eq!(again, "nothing to restart: these flags are in force\n");
    // Each value alone is valid; the service compares them before it listens.
    let refused =
        cluster.podplane("restart --extra-config scheduler.leader-elect-lease-duration=5s");
    let refused = refused.failed(1);
    let why = "leaseDuration must be greater than renewDeadline";
    assert!(refused.contains(why), "{refused}");
    let again = cluster.podplane("restart --release-delay 2m").ok();
    assert_eq!(again, "nothing to restart: these flags are in force\n");
    let record = fs::read_to_string(cluster.data_dir().join("cluster.json"))?;
    let record: serde_json::Value = serde_json::from_str(&record)?;
    // Where programs look for it that know it as a setting of `up`.
    assert_eq!(record["settings"]["releaseDelay"], "2m");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_on_different_nodes_answer_each_other() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Kernel)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 6").ok();
    let pods = cluster
        .pods_until("six pods run", |pods| running(pods) == 6)
        .await;
    let nodes: BTreeSet<_> = pods.iter().map(node).collect();
    assert_eq!(nodes.len(), 3, "the scheduler spreads them: {nodes:?}");
    let addresses: BTreeSet<_> = pods.iter().map(ip).collect();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    for to in &pods[1..] {
        cluster
            .podplane(&format!(
                "ping {} {} --count 1 --verify",
                pods[0].name(),
                to.name()
            ))
            .ok();
    }
    let inside = cluster
        .run([
            "exec",
            pods[0].name(),
            "--",
            "ip",
            "-o",
            "-4",
            "address",
            "show",
            "eth0",
        ])
        .ok();
    assert!(inside.contains(ip(&pods[0])), "{inside}");
    let answer = cluster.podplane(&format!("ping {} 10.99.99.99 --count 1", pods[0].name()));
    assert_eq!(answer.code, Some(1), "nobody has that address: {answer:?}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn dual_stack_pods_have_and_use_both_addresses() -> Result<()> {
    let up = builder(Network::Kernel).flags("--nodes 2 --cluster-cidr 10.244.0.0/16,fd00:10:244::/48 --service-cluster-ip-range 10.96.0.0/16,fd00:10:96::/112");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 4").ok();
    let pods = cluster
        .pods_until("four pods run", |pods| running(pods) == 4)
        .await;
    let (from, to) = (
        &pods[0],
        pods.iter()
            .find(|pod| node(pod) != node(&pods[0]))
            .context("two nodes")?,
    );
    let ips: Vec<_> = to
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten())
        .map(|ip| ip.ip.as_str())
        .collect();
    assert_eq!(ips.len(), 2, "{ips:?}");
    for ip in ips {
        cluster
            .podplane(&format!("ping {} {ip} --count 1", from.name()))
            .ok();
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_a_user_namespace_without_privileges() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    const NOBODY: u32 = 65534;
    let before = Machine::now();
    let programs = tempfile::tempdir()?;
    // Perhaps only its owner may enter the build's directory.
    for entry in fs::read_dir(bin_dir())?
        .flatten()
        .filter(|entry| entry.path().is_file() && entry.path().extension().is_none())
    {
        fs::copy(entry.path(), programs.path().join(entry.file_name()))?;
    }
    let home = tempfile::tempdir()?;
    for dir in [programs.path(), home.path()] {
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY))?;
    }
    let as_nobody = |args: &str| {
        let mut command = Command::new(programs.path().join("podplane"));
        command
            .args(args.split_whitespace())
            .env("PODPLANE_DATA_DIR", home.path().join("d"))
            .uid(NOBODY)
            .gid(NOBODY);
        finish(&mut command)
    };
    let up = as_nobody("up --detach --wait --nodes 2 --network kernel");
    if up.code == Some(0) {
        as_nobody("run web --replicas 4 --wait").ok();
        as_nobody("ping web-0 web-1 --count 1 --verify").ok();
    }
    let down = as_nobody("down --purge");
    up.ok();
    down.ok();
    assert_eq!(
        processes_of(&home.path().display().to_string()).unwrap(),
        []
    );
    assert_eq!(before, Machine::now());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_mode_refuses_ping_and_exec_with_the_reason() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 2 --wait").ok();
    let refused = cluster.podplane("ping web-0 web-1").failed(2);
    assert!(refused.contains("ledger"), "{refused}");
    let refused = cluster.podplane("exec web-0 -- true").failed(1);
    assert!(refused.contains("ledger"), "{refused}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_kubelet_serves_many_ledger_nodes() -> Result<()> {
    let Some(cluster) = Cluster::up(
        builder(Network::Ledger)
            .nodes(100)
            .timeout(Duration::from_secs(120)),
    )
    .await?
    else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 200").ok();
    cluster
        .pods_until("200 pods run", |pods| running(pods) == 200)
        .await;
    let services = cluster.status().await?.services;
    assert_eq!(
        services
            .iter()
            .filter(|service| service.name.starts_with("kubelet"))
            .count(),
        1
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn down_keeps_the_store_and_up_resumes_it() -> Result<()> {
    let up = builder(Network::Kernel).flags("--nodes 2");
    let Some(mut cluster) = Cluster::up(up.clone()).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 4 --wait").ok();
    let uids = |pods: &[Pod]| {
        pods.iter()
            .map(|pod| pod.uid().to_owned())
            .collect::<BTreeSet<_>>()
    };
    let before = uids(&cluster.pods().await?);
    let blocks = |cluster: &Cluster| {
        cluster
            .podplane("get nodes -o yaml")
            .ok()
            .lines()
            .filter(|l| l.contains("podCIDR:"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let had = blocks(&cluster);
    cluster.podplane("down").ok();
    assert_eq!(cluster.left(), []);
    cluster.podplane("get pods").failed(2);

    cluster.start_again(&up).await?;
    let pods = cluster
        .pods_until("the pods run again", |pods| running(pods) == 4)
        .await;
    assert_eq!(uids(&pods), before, "the same pods");
    assert_eq!(blocks(&cluster), had, "the same blocks");
    let ready = |pods: &[Pod]| pods.iter().all(|pod| !ip(pod).is_empty());
    cluster.pods_until("every pod has an address", ready).await;
    let reaches = || async { cluster.podplane("ping web-0 web-1 --count 1 --verify").code };
    eventually("the new sandboxes answer", reaches, |code| *code == Some(0)).await;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_cluster_leaves_nothing_and_can_be_resumed() -> Result<()> {
    let up = builder(Network::Kernel).flags("--nodes 2");
    let Some(mut cluster) = Cluster::up(up.clone()).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 4 --wait").ok();
    let supervisor = i32::try_from(cluster.status().await?.pid)?;
    let supervisor = rustix::process::Pid::from_raw(supervisor).context("a process id")?;
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL)?;
    let left = || async { cluster.left() };
    eventually("its children die with it", left, Vec::is_empty).await;
    cluster.start_again(&up).await?;
    cluster
        .pods_until("the pods run again", |pods| running(pods) == 4)
        .await;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_up_must_agree_with_the_first() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags("--nodes 2")).await? else {
        return Ok(());
    };
    cluster
        .podplane("up --network ledger --nodes 2 --wait")
        .ok();
    let refused = cluster
        .podplane("up --network ledger --nodes 3 --cluster-cidr 10.0.0.0/16 --detach")
        .failed(1);
    for differs in ["--nodes", "--cluster-cidr", "10.0.0.0/16", "10.244.0.0/16"] {
        assert!(refused.contains(differs), "{differs} in {refused}");
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_be_added_and_removed() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Kernel).flags("--nodes 1")).await? else {
        return Ok(());
    };
    cluster.podplane("node add late").ok();
    let ready = || async { cluster.podplane("get node late").stdout };
    eventually("the new node is Ready", ready, |shown| {
        shown.contains(" Ready ")
    })
    .await;
    cluster.podplane("run here --node late --wait").ok();
    cluster.podplane("run there --node node-0 --wait").ok();
    cluster.podplane("ping here there --count 1 --verify").ok();
    cluster.podplane("node remove late").ok();
    cluster
        .pods_until("its pod is collected", |pods| pods.len() == 1)
        .await;
    cluster.podplane("get node late").failed(1);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_reassigned_only_after_its_pods_are_gone() -> Result<()> {
    let up = builder(Network::Ledger)
        .flags("--nodes 1 --cluster-cidr 10.255.0.0/24 --node-cidr-mask-size 24");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 2 --wait").ok();
    let second = cluster.podplane("node add second");
    let starved = || async { cluster.log("ipam-controller") };
    eventually("the second node finds no block", starved, |log| {
        log.contains("no block left for node")
    })
    .await;
    cluster.podplane("delete node node-0").ok();
    let given = || async {
        // Pods are read last: a pod that is seen then existed when the nodes were read.
        let nodes = cluster.nodes().await?;
        let block = nodes
            .iter()
            .filter(|node| node.name() == "second")
            .find_map(|node| node.spec.as_ref()?.pod_cidr.clone());
        let old: Vec<_> = cluster
            .pods()
            .await?
            .iter()
            .filter(|pod| node(pod) == "node-0")
            .map(|pod| pod.name().to_owned())
            .collect();
        anyhow::ensure!(
            block.is_none() || old.is_empty(),
            "second has {block:?}, which {old:?} still use"
        );
        anyhow::Ok(block)
    };
    let block = eventually("the second node has the block", given, |block| {
        !matches!(block, Ok(None))
    })
    .await?;
    assert_eq!(block.as_deref(), Some("10.255.0.0/24"), "{second:?}");
    let log = cluster.log("ipam-controller");
    assert!(
        log.contains("draining node block of a deleted node"),
        "{log}"
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_node_is_adopted_with_its_new_block() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags("--nodes 1")).await? else {
        return Ok(());
    };
    cluster.podplane("run before --wait").ok();
    cluster.podplane("delete node node-0").ok();
    cluster
        .pods_until("its pod is collected", <[Pod]>::is_empty)
        .await;
    cluster.podplane("get node node-0").failed(1);
    let file = cluster.data_dir().join("node.yaml");
    let spec = "{podCIDR: 10.244.77.0/24, podCIDRs: [10.244.77.0/24]}";
    fs::write(
        &file,
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: node-0}}\nspec: {spec}\n"),
    )?;
    cluster
        .run(["apply", "-f", &file.display().to_string()])
        .ok();
    cluster.podplane("run after --wait").ok();
    let pods = cluster.pods().await?;
    assert_eq!(pods.iter().map(ip).collect::<Vec<_>>(), ["10.244.77.2"]);
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_removes_dropped_fields_and_keeps_those_of_others() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags("--nodes 1")).await? else {
        return Ok(());
    };
    let file = cluster.data_dir().join("pod.yaml");
    let apply = |metadata: &str| {
        let spec = "{containers: [{name: c, image: i}]}";
        let text =
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, {metadata}}}\nspec: {spec}\n");
        fs::write(&file, text).map(|()| {
            let file = file.display().to_string();
            cluster.run(["apply", "-f", &file]).ok()
        })
    };
    let labels = async || -> Result<Vec<String>> {
        let pods = cluster.pods().await?;
        let labels = pods.into_iter().flat_map(|pod| pod.metadata.labels);
        Ok(labels
            .flatten()
            .map(|(key, value)| format!("{key}={value}"))
            .collect())
    };
    assert_eq!(apply("labels: {app: web, tier: front}")?, "pod/a created\n");
    assert_eq!(
        apply("labels: {app: web, tier: front}")?,
        "pod/a unchanged\n"
    );
    let patch = PatchParams {
        patch_type: PatchType::Merge,
        patch: r#"{"metadata": {"labels": {"added": "x", "app": "theirs"}}}"#.to_owned(),
        field_manager: "somebody".to_owned(),
        force: false,
    };
    cluster
        .client()
        .namespaced::<Pod>("default")
        .patch("a", &patch)
        .await?;
    assert_eq!(apply("labels: {app: web}")?, "pod/a configured\n");
    assert_eq!(labels().await?, ["added=x", "app=web"]);

    let shown = cluster.podplane("get pod a -o yaml").ok();
    assert!(!shown.contains("managedFields"), "{shown}");
    let shown = cluster
        .podplane("get pod a -o yaml --show-managed-fields")
        .ok();
    assert!(shown.contains("manager: somebody"), "{shown}");
    // The file has the status, the revision and the managed fields that a server wrote.
    fs::write(&file, shown.replace("added: x", "added: second"))?;
    let applied = cluster.run(["apply", "-f", &file.display().to_string()]);
    assert_eq!(applied.ok(), "pod/a configured\n");
    assert_eq!(labels().await?, ["added=second", "app=web"]);
    let stale = cluster.run(["apply", "-f", &file.display().to_string()]);
    assert!(stale.failed(1).contains("the object has been modified"));
    cluster.finish().await
}

/// Asks a shell with the script of `podplane completion` for completions of a line.
#[tokio::test(flavor = "multi_thread")]
async fn a_shell_completes_names_of_the_cluster() -> Result<()> {
    const COMPLETE: &str = r#"
        set -e
        source <(podplane completion bash)
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        _clap_complete_podplane podplane "${@: -1}" "${@: -2:1}"
        echo "${COMPREPLY[*]}"
    "#;
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 2 --wait").ok();
    let complete = |line: &str| {
        let path = format!("{}:{}", bin_dir().display(), env!("PATH"));
        let data_dir = cluster.data_dir();
        let mut shell = Command::new("bash");
        shell.args(["-c", COMPLETE, "bash"]).args(line.split(' '));
        shell.env("PATH", path).env("PODPLANE_DATA_DIR", data_dir);
        finish(&mut shell).ok().trim().to_owned()
    };
    for (line, want) in [
        ("podplane describe pod w", "web-0 web-1"),
        ("podplane describe pod/web-1", "pod/web-1"),
        ("podplane get nodes n", "node-0"),
        ("podplane get -n kube-system pods w", ""),
        ("podplane get pods -n kube-s", "kube-system"),
        ("podplane logs web-0", "web-0"),
        ("podplane node reboot n", "node-0"),
        ("podplane desc", "describe"),
        ("podplane --server 127.0.0.1:1 describe pod w", ""),
    ] {
        assert_eq!(complete(line), want, "{line}");
    }
    cluster.finish().await
}

#[test]
fn help_of_every_command_has_an_example() {
    let help = finish(&mut podplane(["--help"])).ok();
    let commands = help
        .split("Commands:")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next())
        .unwrap_or_default();
    let names: Vec<_> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names
        .into_iter()
        .filter(|name| !matches!(*name, "" | "help"))
    {
        let help = finish(&mut podplane([name, "--help"])).ok();
        assert!(help.contains("Example"), "{name}:\n{help}");
    }
}
