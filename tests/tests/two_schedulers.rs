//! Two schedulers that do not know of each other, killed and paused in the middle of bursts: no
//! node ever gets more pods than it has addresses for, and no address stays unused.

use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_client::{Client, DeleteParams, ListParams};
use podplane_test_cluster::within;
use podplane_tests::{apiserver::Apiserver, pods::pod, programs::podplane, service::Service};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const NODES: usize = 50;
/// The addresses of each node.
const ADDRESSES: usize = 10;
/// The pods that are deleted and created at once.
const BURST: usize = 250;
/// The pods that exist, more than there are addresses.
const PODS: usize = NODES * ADDRESSES + 50;
/// The calls at once.
const CALLS: usize = 64;
/// The time in which a burst settles.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happens to a scheduler in the middle of a burst.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// It is killed, and another is started.
    Kill,
    /// It is stopped until the burst has settled without it, and then goes on with what it knew.
    Pause,
}

/// Each scheduler is disturbed in both ways: once in CI, twenty times in a soak.
fn disturbances() -> impl Iterator<Item = (usize, Disturbance)> {
    let soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let rounds = if soak { 20 } else { 1 };
    let each = [Disturbance::Kill, Disturbance::Pause];
    let each = each.into_iter().flat_map(|what| [(0, what), (1, what)]);
    (0..rounds).flat_map(move |_| each.clone())
}

/// An API server with nodes, and the schedulers.
struct SchedulersFixture {
    dir: tempfile::TempDir,
    apiserver: Apiserver,
    client: Client,
    created: usize,
}

impl SchedulersFixture {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let apiserver = Apiserver::start(dir.path()).await?;
        let client = apiserver.client()?;
        for n in 0..NODES {
            let amounts = json!({"pods": "110", "podplane.io/pod-ips": ADDRESSES.to_string()});
            let block = format!("10.0.{n}.0/28");
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": format!("node-{n}")},
                "spec": {"podCIDR": block, "podCIDRs": [block]},
                "status": {"capacity": amounts, "allocatable": amounts},
            }))?;
            client.all().create(&node).await?;
        }
        Ok(Self {
            dir,
            apiserver,
            client,
            created: 0,
        })
    }

    async fn scheduler(&self, number: usize) -> Result<Service> {
        let dir = self.dir.path().join(format!("scheduler-{number}"));
        fs::create_dir_all(&dir)?;
        let args = ["--server", self.apiserver.address(), "--leader-elect=false"];
        Service::start("scheduler", "127.0.0.1:0", &dir, &args).await
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        let list = self
            .client
            .all::<Pod>()
            .list(&ListParams::default())
            .await?;
        Ok(list.items)
    }

    /// Creates pods until there are [`PODS`]; returns the names of the new ones.
    async fn fill(&mut self) -> Result<Vec<String>> {
        let present = self.pods().await?.len();
        let first = self.created;
        self.created += PODS - present;
        let names: Vec<_> = (first..self.created).map(|n| format!("pod-{n}")).collect();
        let pods = self.client.namespaced::<Pod>("default");
        let calls = names.iter().map(|name| {
            let (pods, pod) = (pods.clone(), pod(name));
            async move { pods.create(&pod).await }
        });
        stream::iter(calls)
            .buffer_unordered(CALLS)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(names)
    }

    /// Deletes bound pods without a grace period, as no kubelet would answer.
    async fn delete_burst(&self) -> Result<()> {
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        let pods = self.client.namespaced::<Pod>("default");
        let bound = self
            .pods()
            .await?
            .into_iter()
            .filter(|pod| node_of(pod).is_some());
        let calls = bound.take(BURST).map(|pod| {
            let (pods, at_once) = (pods.clone(), at_once.clone());
            async move { pods.delete(pod.name(), &at_once).await }
        });
        stream::iter(calls)
            .buffer_unordered(CALLS)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(())
    }

    /// Waits until some of these pods are bound.
    async fn in_the_middle(&self, names: &[String]) -> Result<()> {
        let bound = || async {
            let pods = self.pods().await.unwrap_or_default();
            let new = |pod: &&Pod| names.iter().any(|name| name == pod.name());
            pods.iter()
                .filter(new)
                .filter(|pod| node_of(pod).is_some())
                .count()
        };
        within(PATIENCE, "some pods are bound", bound, |bound| *bound > 0).await?;
        Ok(())
    }

    /// Waits until every address is in use; returns the number of pods of each node.
    async fn settled(&self) -> Result<BTreeMap<String, usize>> {
        let read = || async {
            let mut nodes = BTreeMap::new();
            for pod in self.pods().await.unwrap_or_default() {
                if let Some(node) = node_of(&pod) {
                    *nodes.entry(node.to_owned()).or_default() += 1;
                }
            }
            nodes
        };
        let full =
            |nodes: &BTreeMap<String, usize>| nodes.values().sum::<usize>() >= NODES * ADDRESSES;
        Ok(within(PATIENCE, "every address is in use", read, full).await?)
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// `podplane audit --history --follow`, from before the first pod.
struct Auditor(Child);

impl Auditor {
    fn start(server: &str) -> Result<Self> {
        let mut command = podplane([
            "--server",
            server,
            "audit",
            "--history",
            "--follow",
            "-o",
            "json",
        ]);
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    /// Ends it, and returns its report.
    fn report(self) -> Result<Value> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let output = self.0.wait_with_output()?;
        serde_json::from_slice(&output.stdout).context("the report of the audit")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_never_bind_one_pod_too_many() -> Result<()> {
    let mut fixture = SchedulersFixture::start().await?;
    let auditor = Auditor::start(fixture.apiserver.address())?;
    let mut schedulers = [fixture.scheduler(0).await?, fixture.scheduler(1).await?];
    fixture.fill().await?;
    fixture.settled().await?;
    for (number, disturbance) in disturbances() {
        fixture.delete_burst().await?;
        let names = fixture.fill().await?;
        fixture.in_the_middle(&names).await?;
        match disturbance {
            Disturbance::Kill => {
                let restarted = fixture.scheduler(number + 2).await?;
                std::mem::replace(&mut schedulers[number], restarted).kill()?;
            }
            Disturbance::Pause => schedulers[number].pause()?,
        }
        let nodes = fixture.settled().await?;
        if let Disturbance::Pause = disturbance {
            schedulers[number].resume()?;
        }
        for (node, pods) in nodes {
            ensure!(
                pods == ADDRESSES,
                "{disturbance:?} {number}: {pods} pods on {node}"
            );
        }
    }
    let report = auditor.report()?;
    assert_eq!(report["findings"], json!([]), "{}", report["summary"]);
    assert_eq!(
        report["summary"]["notCovered"],
        json!([]),
        "{}",
        report["summary"]
    );
    let binds = report["summary"]["binds"]["withAddress"].as_u64();
    assert!(
        binds >= u64::try_from(fixture.created - 50).ok(),
        "{}",
        report["summary"]
    );
    Ok(())
}
