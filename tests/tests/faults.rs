//! The faults of the test cluster: each has its effect on real processes, and none once it is
//! healed.

use std::{collections::BTreeSet, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use http::Method;
use podplane_api::{
    Object as _,
    core::{Event, Node, NodeSpec, Pod},
    meta::ObjectMeta,
};
use podplane_client::{DeleteParams, ListParams};
use podplane_http_client::HttpClient;
use podplane_test_cluster::{
    Signal,
    link::{CallFault, Cut},
    plugins::Plugins,
    recording::{self, Recorder},
};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    pods::{ip, pod, running},
    programs::{bin_dir, finish},
};
use serde_json::json;
use tonic::Code;

/// A pod that names its node itself, and so needs no scheduler.
fn bound(name: &str, node: &str) -> Pod {
    let mut pod = pod(name);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.into());
    }
    pod
}

/// A pod that no scheduler takes.
fn unscheduled(name: &str) -> Pod {
    let mut pod = pod(name);
    let spec = pod.spec.get_or_insert_default();
    spec.scheduler_name = Some("none".to_owned());
    pod
}

async fn create(cluster: &Cluster, pod: &Pod) -> Result<()> {
    cluster.client().namespaced("default").create(pod).await?;
    Ok(())
}

async fn all_run(cluster: &Cluster, number: usize) -> Vec<Pod> {
    cluster
        .pods_until("they run", |pods| running(pods) == number)
        .await
}

async fn get(cluster: &Cluster, name: &str) -> Result<Pod> {
    Ok(cluster.client().namespaced("default").get(name).await?)
}

/// The messages of events about a pod with this reason.
async fn told(cluster: &Cluster, pod: &str, reason: &str) -> Result<Vec<String>> {
    let events = cluster.client().namespaced::<Event>("default");
    let events = events.list(&ListParams::default()).await?.items;
    let about = events.into_iter().filter(|event| {
        event.involved_object.name.as_deref() == Some(pod)
            && event.reason.as_deref() == Some(reason)
    });
    Ok(about.filter_map(|event| event.message).collect())
}

async fn until_told(cluster: &Cluster, pod: &str, reason: &str, what: &str) {
    let look = || told(cluster, pod, reason);
    let is_there = |seen: &Result<Vec<String>>| {
        seen.as_ref()
            .is_ok_and(|messages| messages.iter().any(|message| message.contains(what)))
    };
    let waited = format!("{reason} with {what:?}");
    eventually(&waited, look, is_there)
        .await
        .expect("it is told in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_behind_links_have_rights_of_their_own() -> Result<()> {
    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    const USERS: [(&str, &str); 4] = [
        ("scheduler", "system:kube-scheduler"),
        ("controller-manager", "system:kube-controller-manager"),
        ("ipam-controller", "system:podplane:ipam-controller"),
        ("kubelet-nodes-0", "system:podplane:kubelets"),
    ];
    let up = builder(Network::Ledger).nodes(2).links();
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 2 --wait").ok();
    for (process, user) in USERS {
        let log = cluster.log(process);
        assert!(!log.contains("forbidden"), "{user}: {log}");
    }
    // With their bindings, they lose what they may do.
    let rest = HttpClient::new(cluster.server());
    let bindings = rest.get(BINDINGS).await?.document()?;
    for binding in bindings["items"].as_array().into_iter().flatten() {
        let name = binding["metadata"]["name"].as_str().context("a name")?;
        let path = format!("{BINDINGS}/{name}");
        rest.send_json(Method::DELETE, &path, &json!({}))
            .await?
            .document()?;
    }
    for (process, user) in USERS {
        let log = || async { cluster.log(process) };
        let refusal = format!("User \"{user}\" cannot");
        eventually(&refusal, log, |log| {
            log.replace('\\', "").contains(&refusal)
        })
        .await;
    }
    Ok(())
}

#[tokio::test]
async fn a_scheduler_that_is_cut_off_binds_nothing_until_it_is_connected_again() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).links()).await? else {
        return Ok(());
    };
    for (number, cut) in [Cut::Refused, Cut::Silent].into_iter().enumerate() {
        let fault = cluster.cut_off("scheduler", cut)?;
        let (waits, runs) = (format!("waits-{number}"), format!("runs-{number}"));
        create(&cluster, &pod(&waits)).await?;
        create(&cluster, &bound(&runs, "node-0")).await?;
        all_run(&cluster, 2 * number + 1).await;
        let unbound = get(&cluster, &waits).await?;
        assert_eq!(unbound.spec.context("a spec")?.node_name, None, "{cut:?}");
        fault.heal();
        all_run(&cluster, 2 * number + 2).await;
    }
    cluster.finish().await
}

#[tokio::test]
async fn injects_the_given_number_of_failures_of_runtime_calls() -> Result<()> {
    let up = builder(Network::Ledger).nodes(1).links();
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let fail = CallFault::fail(Code::Unavailable)
        .of("RunPodSandbox")
        .times(2);
    let _fault = cluster.disturb("kubelet-node-0", &fail).await?;
    create(&cluster, &pod("a")).await?;
    let failure = "FailedCreatePodSandBox";
    until_told(
        &cluster,
        "a",
        failure,
        "injected: runtime.v1.RuntimeService/RunPodSandbox",
    )
    .await;
    all_run(&cluster, 1).await;
    assert_eq!(cluster.calls("kubelet-node-0", "RunPodSandbox").await?, 3);
    cluster.finish().await
}

/// Each attempt has a sandbox of its own, whose id is in the message.
#[tokio::test]
async fn failed_attempts_at_a_sandbox_are_counted_in_one_event() -> Result<()> {
    // A block of /30 has one address for pods.
    let flags = "--nodes 1 --cluster-cidr 10.20.0.0/30 --node-cidr-mask-size 30 --ip-policy off";
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags(flags)).await? else {
        return Ok(());
    };
    create(&cluster, &pod("first")).await?;
    all_run(&cluster, 1).await;
    create(&cluster, &pod("second")).await?;
    let events = cluster.client().namespaced::<Event>("default");
    let failed = || async {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        let is_failure = |event: &Event| event.reason.as_deref() == Some("FailedCreatePodSandBox");
        Some(events.into_iter().filter(is_failure).collect::<Vec<_>>())
    };
    // Their times have whole seconds.
    let is_repeated = |events: &Option<Vec<Event>>| {
        let events = || events.iter().flatten();
        let attempts: i32 = events().filter_map(|event| event.count).sum();
        let goes_on = |event: &Event| event.first_timestamp < event.last_timestamp;
        attempts >= 3 && events().any(goes_on)
    };
    let failed = eventually(
        "three attempts fail, not all in a second",
        failed,
        is_repeated,
    )
    .await;
    let failed = failed.unwrap_or_default();
    let [event] = &*failed else {
        anyhow::bail!("want one event: {failed:?}");
    };
    let message = event.message.as_deref().unwrap_or_default();
    assert!(message.contains("for sandbox \""), "{message}");
    cluster.finish().await
}

#[tokio::test]
async fn calls_with_lost_answers_take_effect_once() -> Result<()> {
    let up = builder(Network::Ledger).nodes(1).links();
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let lost = |method: &str| {
        CallFault::lose_answer(Code::Unavailable)
            .of(method)
            .times(1)
    };
    let _faults = [
        cluster.disturb("scheduler", &lost("BindPod")).await?,
        cluster
            .disturb("kubelet-node-0", &lost("RunPodSandbox"))
            .await?,
        cluster
            .disturb("ipam-controller", &lost("AssignPodCIDRs"))
            .await?,
    ];
    create(&cluster, &pod("a")).await?;
    all_run(&cluster, 1).await;
    cluster.add_nodes(["late"]).await?;
    let nodes = cluster.client().all::<Node>();
    let late = || async { nodes.get("late").await.ok() };
    let has_block = |node: &Option<Node>| {
        let spec = node.as_ref().and_then(|node| node.spec.as_ref());
        spec.is_some_and(|spec| spec.pod_cidr.is_some())
    };
    eventually("the late node has a block", late, has_block).await;
    let links = cluster.links()?;
    assert!(links.seen("scheduler", "BindPod")? >= 1);
    assert!(links.seen("ipam-controller", "AssignPodCIDRs")? >= 2);
    create(&cluster, &bound("b", "late")).await?;
    all_run(&cluster, 2).await;
    assert!(
        links.seen("cri-late", "RunPodSandbox")? == 1,
        "later nodes have links, too"
    );
    cluster.finish().await
}

#[tokio::test]
async fn a_paused_or_killed_process_continues_its_work() -> Result<()> {
    let up = builder(Network::Ledger)
        .nodes(2)
        .flags("--nodes-per-process 1");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let paused = cluster.pause("kubelet-node-0").await?;
    create(&cluster, &bound("waits", "node-0")).await?;
    create(&cluster, &bound("runs", "node-1")).await?;
    all_run(&cluster, 1).await;
    assert_eq!(ip(&get(&cluster, "waits").await?), "");
    paused.heal();
    all_run(&cluster, 2).await;
    let before = cluster.process("scheduler").await?;
    cluster.signal("scheduler", Signal::KILL).await?;
    before.ended().await?;
    create(&cluster, &pod("later")).await?;
    all_run(&cluster, 3).await;
    assert_ne!(cluster.process("scheduler").await?.pid(), before.pid());
    cluster.finish().await
}

#[tokio::test]
async fn a_full_disk_of_a_node_fails_its_pods_until_there_is_room() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let up = builder(Network::Ledger).nodes(1).disk("node-0", 1 << 20);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let place = cluster.data_dir().display().to_string();
    assert!(!mounts.contains(&place), "the machine has no such disk");
    create(&cluster, &pod("before")).await?;
    all_run(&cluster, 1).await;
    let full = cluster.fill_disk("node-0")?;
    create(&cluster, &pod("after")).await?;
    until_told(
        &cluster,
        "after",
        "FailedCreatePodSandBox",
        "o space left on device",
    )
    .await;
    assert_eq!(running(&cluster.pods().await?), 1);
    // The node has a file for its next record, so it can record what it lost.
    cluster.reboot_node("node-0").await?;
    full.heal();
    all_run(&cluster, 2).await;
    cluster.finish().await
}

#[tokio::test]
async fn a_full_disk_of_the_api_server_loses_nothing_that_was_acknowledged() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let up = builder(Network::Ledger)
        .nodes(1)
        .disk("apiserver", 64 << 20);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let mut acknowledged = BTreeSet::new();
    for name in ["kept", "deleted", "deleted-later"] {
        create(&cluster, &unscheduled(name)).await?;
        acknowledged.insert(name.to_owned());
    }
    let full = cluster.fill_disk("apiserver")?;
    let refused = loop {
        let name = format!("pod-{}", acknowledged.len());
        let mut large = unscheduled(&name);
        let padding = [("padding".to_owned(), "x".repeat(64 << 10))];
        large.metadata.annotations = Some(padding.into());
        match create(&cluster, &large).await {
            Ok(()) => _ = acknowledged.insert(name),
            Err(error) => break error,
        }
        anyhow::ensure!(acknowledged.len() < 2000, "the disk is never full");
    };
    // Pods can be deleted and read on a full disk, also by a server that is started on it.
    let pods = cluster.client().namespaced::<Pod>("default");
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    pods.delete("deleted", &at_once).await?;
    acknowledged.remove("deleted");
    cluster.signal("apiserver", Signal::KILL).await?;
    let read = || async { cluster.pods().await.map_or(0, |pods| pods.len()) };
    let expected = acknowledged.len();
    eventually("it serves reads", read, |found| *found == expected).await;
    pods.delete("deleted-later", &at_once).await?;
    acknowledged.remove("deleted-later");
    assert!(create(&cluster, &pod("refused")).await.is_err());
    full.heal();
    let written = || async { create(&cluster, &pod("later")).await.is_ok() };
    eventually("it takes writes again", written, |written| *written).await;
    let kept: BTreeSet<_> = cluster
        .pods()
        .await?
        .iter()
        .map(|pod| pod.name().to_owned())
        .collect();
    let lost: Vec<_> = acknowledged.difference(&kept).collect();
    assert_eq!(lost, Vec::<&String>::new(), "after {refused:#}");
    cluster.finish().await
}

#[tokio::test]
async fn a_plugin_that_dies_before_it_answers_leaves_no_address_behind() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let plugins = Plugins::before(&bin_dir().canonicalize()?, dir.path(), Recorder::default())?;
    let up = builder(Network::Ledger).nodes(1).cni_bin_dir(plugins.dir());
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let _dies = plugins.die_before_answer("host-local", 2)?;
    create(&cluster, &pod("a")).await?;
    until_told(&cluster, "a", "FailedCreatePodSandBox", "host-local").await;
    all_run(&cluster, 1).await;
    assert_eq!(plugins.left("host-local"), 0);
    let held = cluster.world().await?.allocations.len();
    assert_eq!(held, 1, "the address of the pod, and of nobody else");
    cluster.finish().await
}

/// The ids of sandboxes in a node's records.
fn sandboxes(cluster: &Cluster, node: &str) -> BTreeSet<String> {
    let dir = cluster
        .data_dir()
        .join("nodes")
        .join(node)
        .join("sandboxes");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[tokio::test]
async fn a_rebooted_node_recreates_its_sandboxes() -> Result<()> {
    // The nodes share their processes, and one node leaves them.
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2).links()).await? else {
        return Ok(());
    };
    create(&cluster, &bound("a", "node-0")).await?;
    create(&cluster, &bound("b", "node-1")).await?;
    let before = all_run(&cluster, 2).await;
    let (old, others) = (sandboxes(&cluster, "node-0"), sandboxes(&cluster, "node-1"));
    cluster.reboot_node("node-0").await?;
    let look = || async { sandboxes(&cluster, "node-0") };
    let is_new = |now: &BTreeSet<String>| now.len() == 1 && now.is_disjoint(&old);
    eventually("another sandbox", look, is_new).await;
    assert_eq!(sandboxes(&cluster, "node-1"), others);
    let after = all_run(&cluster, 2).await;
    let uids = |pods: &[Pod]| {
        pods.iter()
            .map(|pod| pod.uid().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(uids(&before), uids(&after), "the same pods");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uplink_is_cut_and_mended_and_outlives_a_reboot() -> Result<()> {
    let up = builder(Network::Kernel)
        .nodes(2)
        .flags("--nodes-per-process 1");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    create(&cluster, &bound("a", "node-0")).await?;
    create(&cluster, &bound("b", "node-1")).await?;
    all_run(&cluster, 2).await;
    let ping = || async { cluster.podplane("ping a b --count 1 --verify").code };
    let reaches = |code: &Option<i32>| *code == Some(0);
    eventually("they reach each other", ping, reaches).await;
    let cut = cluster.disconnect_node("node-1").await?;
    assert_eq!(ping().await, Some(1));
    cut.heal();
    eventually("they reach each other again", ping, reaches).await;
    cluster.reboot_node("node-1").await?;
    eventually("they reach each other after the reboot", ping, reaches).await;
    cluster.finish().await
}

/// A kubelet that hears late of its Node might put a pod into the earlier block of the node.
#[tokio::test]
async fn a_kubelet_with_a_late_watch_gives_no_address_of_the_old_block() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1).links()).await? else {
        return Ok(());
    };
    create(&cluster, &pod("before")).await?;
    let before = all_run(&cluster, 1).await;
    assert!(ip(&before[0]).starts_with("10.244.0."));
    let late = CallFault::delay(Duration::from_secs(3600)).of("WatchNodes");
    let late = cluster.disturb("kubelet-node-0", &late).await?;

    let nodes = cluster.client().all::<Node>();
    nodes.delete("node-0", &DeleteParams::default()).await?;
    let other = "10.244.77.0/24".to_owned();
    let again = Node {
        metadata: ObjectMeta {
            name: Some("node-0".into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some(other.clone()),
            pod_cidrs: Some(vec![other]),
            ..NodeSpec::default()
        }),
        ..Node::default()
    };
    nodes.create(&again).await?;
    let links = cluster.links()?;
    let asked = || async { links.seen("kubelet-node-0", "GetNode") };
    let before = asked().await?;
    create(&cluster, &bound("after", "node-0")).await?;
    // It asks for the Node before it makes a sandbox. Asking again shows that it made none.
    let again =
        |seen: &podplane_test_cluster::Result<u64>| matches!(seen, Ok(seen) if *seen > before + 1);
    eventually("the kubelet has looked twice", asked, again).await?;
    let early = get(&cluster, "after").await?;
    assert_eq!(ip(&early), "", "its runtime still has the old block");
    late.heal();
    let runs = |pods: &[Pod]| {
        pods.iter()
            .any(|pod| pod.name() == "after" && ip(pod).starts_with("10.244.77."))
    };
    cluster.pods_until("it runs in the new block", runs).await;
    let given = told(&cluster, "after", "AddedInterface").await?;
    assert!(
        given.iter().all(|message| message.contains("[10.244.77.")),
        "{given:?}"
    );
    cluster.finish().await
}

#[tokio::test]
async fn a_run_is_recorded_and_replayed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let up = builder(Network::Ledger).nodes(1).record(dir.path());
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    cluster.recorder().step(1, "a pod");
    create(&cluster, &pod("a")).await?;
    all_run(&cluster, 1).await;
    let shown = || async {
        let recording = recording::replay::read(dir.path()).unwrap();
        assert_eq!(recording.damage, []);
        let filter = recording::replay::Filter {
            step: Some(1),
            pod: Some("a".into()),
            ..recording::replay::Filter::default()
        };
        recording
            .filtered(&filter)
            .steps
            .first()
            .map(ToString::to_string)
    };
    let all = [
        "is bound to node node-0",
        "Add address [10.244.0.2]",
        "phase: none → Pending → Running",
        "podIPs: none → 10.244.0.2",
    ];
    let has_all = |shown: &Option<String>| {
        let text = shown.as_deref().unwrap_or_default();
        all.iter().all(|part| text.contains(part))
    };
    eventually("all of it is recorded", shown, has_all).await;
    cluster.recorder().step_ended("a pod", Ok(()));
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_gets_the_same_answers_over_a_link() -> Result<()> {
    let Some(python) = peers::python() else {
        return Ok(());
    };
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1).links()).await? else {
        return Ok(());
    };
    let run = |verb: &str, address: &str, rest: &[&str]| {
        let mut client = Command::new("python3");
        client.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py"));
        let client = client.args([verb, address]).args(rest);
        finish(client.env("PYTHONPATH", &python))
    };
    let link = cluster.links()?.dir().join("scheduler.sock");
    let link = format!("unix:{}", link.display());
    let namespaces = "podplane.core.v1.NamespaceService";
    let calls: [(&str, &[&str]); 4] = [
        ("services", &[]),
        ("health", &[namespaces]),
        (
            "call",
            &[namespaces, "GetNamespace", r#"{"name": "default"}"#],
        ),
        ("call", &[namespaces, "GetNamespace", r#"{"name": "none"}"#]),
    ];
    for (verb, rest) in calls {
        let (over, direct) = (run(verb, &link, rest), run(verb, cluster.server(), rest));
        assert_eq!(over, direct, "{verb} {rest:?}");
        let is_refused = rest.last().is_some_and(|last| last.contains("none"));
        assert_eq!(over.code, Some(i32::from(is_refused)), "{over:?}");
    }
    cluster.finish().await
}
