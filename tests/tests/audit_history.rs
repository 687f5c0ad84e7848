//! `podplane audit --history`: the bindings of a running cluster, judged at their revisions, and
//! what the audit says of revisions that it could not read.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs::{self, File},
    pin::pin,
    process::Child,
};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use podplane_api::{Object as _, core::Pod};
use podplane_client::{ListParams, ObjectEvent, PatchParams, PatchType};
use podplane_ipam::IpPolicy;
use podplane_tests::{Cluster, Network, builder, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The addresses of a node with a block of /29.
const ADDRESSES: usize = 5;

fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

fn bound(pods: &[Pod]) -> usize {
    pods.iter().filter(|pod| is_bound(pod)).count()
}

/// The pods that got a node, each with the revision at which it did, in order.
async fn binds(cluster: &Cluster) -> Result<Vec<(String, u64)>> {
    let pods = cluster.client().all::<Pod>();
    let mut events = pin!(pods.watch(&ListParams::default(), "1").await?);
    let mut found = Vec::<(String, u64)>::new();
    loop {
        match events.next().await.unwrap()? {
            ObjectEvent::Added(pod) | ObjectEvent::Modified(pod) => {
                let is_new = !found.iter().any(|(name, _)| name == pod.name());
                if is_bound(&pod) && is_new {
                    found.push((pod.name().into(), pod.resource_version().parse()?));
                }
            }
            ObjectEvent::Deleted(_) => {}
            ObjectEvent::Bookmark(_) => return Ok(found),
        }
    }
}

/// The exit code and the report of an audit up to the present.
fn audited(cluster: &Cluster, server: &[&str]) -> (Option<i32>, Value) {
    let args = ["audit", "--history", "-o", "json"];
    let done = cluster.run(args.iter().chain(server).copied());
    let report = serde_json::from_str(&done.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {done:#?}"));
    (done.code, report)
}

/// The binds in a report that need an address, and those that took the last one of a node.
fn counted(report: &Value) -> (u64, u64) {
    let binds = &report["summary"]["binds"];
    let number = |name: &str| binds[name].as_u64().unwrap();
    (number("withAddress"), number("ofLastAddress"))
}

/// An audit that follows the history until it is interrupted; killed when it is dropped.
struct Follower {
    child: Child,
    dir: TempDir,
}

impl Follower {
    /// Starts the audit, and waits until it has begun.
    async fn start(cluster: &Cluster) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = |name: &str| File::create(dir.path().join(name));
        let args = ["audit", "--history", "--follow", "-o", "json"];
        let mut command = cluster.command("podplane", args);
        let command = command.stdout(file("stdout")?).stderr(file("stderr")?);
        let child = command.spawn()?;
        let follower = Self { child, dir };
        follower.says("following from revision").await;
        Ok(follower)
    }

    async fn says(&self, what: &str) {
        let read = || async { self.output("stderr") };
        eventually(what, read, |text| text.contains(what)).await;
    }

    fn output(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Interrupts it; returns its exit code and its report.
    fn interrupt(mut self) -> Result<(Option<i32>, Value)> {
        self.signal(Signal::INT)?;
        let code = self.child.wait()?.code();
        Ok((code, serde_json::from_str(&self.output("stdout"))?))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_binds_beyond_the_addresses_of_a_node_at_their_revisions() -> Result<()> {
    let up = builder(Network::Ledger)
        .nodes(1)
        .node_cidr_mask_size(29)
        .ip_policy(IpPolicy::Off);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let all = ADDRESSES + 2;
    cluster.podplane(&format!("run web --replicas {all}")).ok();
    cluster
        .pods_until("all are bound", |pods| bound(pods) == all)
        .await;
    let binds = binds(&cluster).await?;
    assert_eq!(binds.len(), all);
    let beyond = binds.iter().enumerate().skip(ADDRESSES);
    let want: Vec<_> = beyond
        .map(|(before, (name, revision))| {
            let taken = before + 1;
            let message = format!("node node-0: {taken} of 5 IPs taken: {taken} pods, 0 orphaned, by the bind of default/{name}");
            json!([revision, message])
        })
        .collect();
    let kubeconfig = cluster.kubeconfig();
    for server in [
        &[][..],
        &["--server", cluster.server()],
        &["--kubeconfig", kubeconfig.to_str().unwrap()],
    ] {
        let (code, report) = audited(&cluster, server);
        let found = report["findings"].as_array().unwrap().iter();
        let found: Vec<_> = found
            .filter(|found| found["code"] == "bind-over-capacity")
            .map(|found| json!([found["revision"], found["message"]]))
            .collect();
        assert_eq!(found, want, "{server:?}: {report:#}");
        assert_eq!(code, Some(1), "{server:?}");
        assert_eq!(counted(&report), (all as u64, 1), "{server:?}");
    }
    let table = cluster.podplane("audit --history").stdout;
    let (_, revision) = &binds[ADDRESSES];
    let row = table.lines().find(|line| line.contains("6 of 5 IPs taken"));
    assert!(
        row.is_some_and(|row| row.contains(&revision.to_string())),
        "{table}"
    );
    assert!(
        table.contains("\nfindings: error 2, warning 0, info 0"),
        "{table}"
    );
    let refused = cluster.podplane("audit --history -o sarif").failed(2);
    assert!(refused.contains("-o json"), "{refused}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_every_bind_of_a_cluster_that_keeps_to_its_addresses() -> Result<()> {
    let up = builder(Network::Ledger).nodes(1).node_cidr_mask_size(29);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let follower = Follower::start(&cluster).await?;
    let all = ADDRESSES + 2;
    cluster.podplane(&format!("run web --replicas {all}")).ok();
    let pods = cluster
        .pods_until("the node is full", |pods| bound(pods) == ADDRESSES)
        .await;
    let gone = pods.iter().find(|pod| is_bound(pod)).unwrap().name();
    cluster.podplane(&format!("delete pod {gone}")).ok();
    cluster
        .pods_until("another pod has its place", |pods| {
            bound(pods) == ADDRESSES && !pods.iter().any(|pod| pod.name() == gone)
        })
        .await;
    let binds = binds(&cluster).await?;
    assert_eq!(binds.len(), ADDRESSES + 1);
    for (code, report) in [follower.interrupt()?, audited(&cluster, &[])] {
        assert_eq!(code, Some(0), "{report:#}");
        assert_eq!(report["findings"], json!([]));
        assert_eq!(counted(&report), (binds.len() as u64, 2), "{report:#}");
        let summary = &report["summary"];
        let last = binds.last().unwrap().1;
        assert!(summary["from"].as_u64() <= Some(binds[0].1), "{summary:#}");
        assert!(summary["to"].as_u64() >= Some(last), "{summary:#}");
        assert_eq!(summary["notCovered"], json!([]));
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_the_revisions_that_it_missed() -> Result<()> {
    let up = builder(Network::Ledger)
        .nodes(1)
        .extra_config("apiserver", "history-bytes", "1Mi");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let follower = Follower::start(&cluster).await?;
    cluster.podplane("run web --wait").ok();
    follower.signal(Signal::STOP)?;
    let pods = cluster.client().namespaced::<Pod>("default");
    let paused = pods.list(&ListParams::default()).await?.resource_version;
    let web = pods.get("web").await?.metadata.resource_version;
    let web = web.context("a stored pod has a revision")?;
    // Each write replaces an object of some 200 KB.
    for write in 0.. {
        ensure!(
            write < 100,
            "the history from revision {paused} is still kept"
        );
        let value = format!("{write}{}", "x".repeat(200_000));
        let params = PatchParams {
            patch_type: PatchType::Merge,
            patch: json!({"metadata": {"annotations": {"large": value}}}).to_string(),
            field_manager: String::new(),
            force: false,
        };
        pods.patch("web", &params).await?;
        let watched = pods.watch(&ListParams::default(), &paused).await;
        if watched.is_err_and(|error| error.is_expired()) {
            break;
        }
    }
    follower.signal(Signal::CONT)?;
    follower.says("the watch fell behind the history").await;
    cluster.podplane("run later --wait").ok();
    let (code, report) = follower.interrupt()?;
    assert_eq!(code, Some(3), "{report:#}");
    assert_eq!(report["findings"], json!([]));
    let missed = report["summary"]["notCovered"].as_array().unwrap();
    let gap = missed.iter().find(|missed| missed["isGap"] == true);
    let gap = gap.unwrap_or_else(|| panic!("{report:#}"));
    let paused: u64 = paused.parse()?;
    assert!(gap["from"].as_u64() <= Some(paused + 1), "{gap}");
    assert!(gap["to"].as_u64() > Some(paused), "{gap}");
    // The bind after the gap; and the one before it, unless the pause came before it was read.
    let was_read = gap["from"].as_u64() > Some(web.parse()?);
    let binds = counted(&report).0;
    assert!(binds == 2 || (binds == 1 && !was_read), "{report:#}");
    // Another audit begins after the revisions that are gone.
    let (code, whole) = audited(&cluster, &[]);
    assert_eq!(code, Some(0), "{whole:#}");
    assert!(
        whole["summary"]["from"].as_u64() > Some(paused),
        "{whole:#}"
    );
    cluster.finish().await
}
