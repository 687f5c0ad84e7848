//! Two schedulers at once, which share the nodes and do not know of each other, while pods come and
//! go: the webhook's guard at bind keeps every node within its addresses.

use std::{
    collections::BTreeMap,
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::{Object as _, core::Pod};
use podplane_client::DeleteParams;
use podplane_test_cluster::{ClusterBuilder, within};
use podplane_tests::{peers, service::Service};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::other::{OtherCluster, PATIENCE, SYSTEM, is_running, pod_for, pods_are_gone};

const NODES: u32 = 3;
/// The addresses of a /29 for pods.
const ADDRESSES: usize = 5;
/// The pods of each scheduler: together more than there are addresses.
const PODS: usize = 10;
const ROUNDS: usize = 4;
const NAMES: [&str; 2] = ["podplane", "another"];

/// `podplane audit --history --follow`, from before the first pod.
struct Auditor(Child);

impl Auditor {
    fn start(other: &OtherCluster) -> Result<Self> {
        let args = ["audit", "--history", "--follow", "-o", "json"];
        let mut command = other.cluster.command("podplane", args);
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    fn report(self) -> Result<Value> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let output = self.0.wait_with_output()?;
        serde_json::from_slice(&output.stdout).context("the report of the audit")
    }
}

async fn scheduler(other: &OtherCluster, name: &str) -> Result<Service> {
    let kubeconfig = other.kubeconfig(SYSTEM, "podplane-scheduler");
    let name_flag = format!("--scheduler-name={name}");
    let lease = format!("--leader-elect-resource-name={name}");
    let flags = [
        &*name_flag,
        &lease,
        "--leader-elect-resource-namespace=podplane-system",
        "--authentication=none",
    ];
    other.piece(name, "scheduler", &kubeconfig, &flags).await
}

async fn create(other: &OtherCluster, round: usize, count: usize) -> Result<()> {
    let pods = other.cluster.client().namespaced::<Pod>("default");
    for n in 0..count {
        for scheduler in NAMES {
            let name = format!("{scheduler}-{round}-{n}");
            pods.create(&pod_for(scheduler, &name)?).await?;
        }
    }
    Ok(())
}

/// Waits until all addresses are in use; returns the pods that run.
async fn full(other: &OtherCluster) -> Result<Vec<Pod>> {
    let running = || async {
        let pods = other.pods().await.into_iter();
        let pods = pods.filter(|pod| pod.namespace() == "default");
        pods.filter(is_running).collect::<Vec<_>>()
    };
    let all = NODES as usize * ADDRESSES;
    let what = format!("{all} pods run");
    Ok(within(PATIENCE, &what, running, |pods| pods.len() == all).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_stay_within_the_addresses_by_the_webhook() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let small = |up: ClusterBuilder| up.cluster_cidr("10.98.0.0/24").node_cidr_mask_size(29);
    let Some(other) = OtherCluster::start_with(NODES, small).await? else {
        return Ok(());
    };
    other.deploy("scheduler");
    let webhook = super::bases::webhook(&other, "Fail").await?;
    let auditor = Auditor::start(&other)?;
    let schedulers = [
        scheduler(&other, NAMES[0]).await?,
        scheduler(&other, NAMES[1]).await?,
    ];
    create(&other, 0, PODS).await?;
    let mut running = full(&other).await?;
    let pods = other.cluster.client().namespaced::<Pod>("default");
    for round in 1..=ROUNDS {
        for pod in running.iter().step_by(2) {
            pods.delete(pod.name(), &DeleteParams::default()).await?;
        }
        create(&other, round, running.len().div_ceil(4)).await?;
        running = full(&other).await?;
        let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in &running {
            *by_node.entry(podplane_tests::pods::node(pod)).or_default() += 1;
        }
        ensure!(
            by_node.values().all(|count| *count == ADDRESSES),
            "{by_node:?}"
        );
    }
    let report = auditor.report()?;
    // A deleted pod's address may be there a moment longer: that is a finding of severity info.
    let findings = report["findings"].as_array().context("findings")?;
    ensure!(
        findings.iter().all(|found| found["severity"] == "info"),
        "{report}"
    );
    // A kubelet would refuse a pod beyond its node's addresses.
    let failed = other
        .kubectl("get pods --field-selector status.phase=Failed -o name")
        .ok();
    ensure!(failed.is_empty(), "{failed}");
    for scheduler in schedulers {
        scheduler.kill()?;
    }
    other.remove("webhook");
    webhook.kill()?;
    pods_are_gone(&other).await?;
    other.cluster.finish().await
}
