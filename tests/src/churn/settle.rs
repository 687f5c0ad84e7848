//! The end of a churn: everything is removed, and nothing may be left.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Result;
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    pod_ips::pod_cidrs,
};
use podplane_client::DeleteParams;
use podplane_proto::{cluster::ServiceStatus, ipam::BlockState};
use podplane_test_cluster::{pods, within, world::node_dirs};

use super::{
    ChurnCluster, lock,
    plan::{NODES, PODS, node_name},
    steps, watch,
};

/// The time limit for pods to end, for nodes to come back, and for addresses to be freed.
const DEADLINE: Duration = Duration::from_secs(120);

/// Ends all pods, brings all nodes back, and waits until nothing is left.
pub(super) async fn settle(stage: &Arc<ChurnCluster>) -> Result<()> {
    lock(&stage.paused).clear();
    for node in 0..NODES {
        steps::create_node(stage, &node_name(node), None).await?;
    }
    stage.journal.note("all pods are deleted");
    within(
        DEADLINE,
        "all pods are gone",
        || end_pods(stage),
        Vec::is_empty,
    )
    .await?;
    let nodes = || nodes_in_disorder(stage);
    within(
        DEADLINE,
        "all nodes are Ready and have blocks",
        nodes,
        Vec::is_empty,
    )
    .await?;
    recovered(stage).await?;
    within(
        DEADLINE,
        "all pods are gone",
        || end_pods(stage),
        Vec::is_empty,
    )
    .await?;
    let nothing = |left: &Vec<String>| left.is_empty();
    within(DEADLINE, "nothing is left", || left(stage), nothing).await?;
    stage.journal.note("nothing is left");
    Ok(())
}

/// Waits until all processes run, then creates as many pods as there are addresses, and waits until
/// these run.
async fn recovered(stage: &ChurnCluster) -> Result<()> {
    let processes = || async { stage.cluster.status().await.map(|status| status.services) };
    let run = |services: &podplane_test_cluster::Result<Vec<ServiceStatus>>| {
        let services = services.as_ref();
        services.is_ok_and(|all| all.iter().all(|service| service.pid.is_some()))
    };
    within(DEADLINE, "all processes run", processes, run).await??;
    let api = stage.cluster.client().namespaced::<Pod>("default");
    let full = NODES * PODS;
    for number in 0..full {
        api.create(&pods::pod(&format!("last-{number}"))).await?;
    }
    let waiting = || async {
        let pods = stage.cluster.pods().await?;
        anyhow::Ok(not_running(&pods))
    };
    let none = |waiting: &Result<Vec<String>>| waiting.as_ref().is_ok_and(Vec::is_empty);
    within(DEADLINE, "every address is a pod's", waiting, none).await??;
    stage.journal.note("every address is a pod's");
    Ok(())
}

fn not_running(pods: &[Pod]) -> Vec<String> {
    let waiting = pods.iter().filter(|pod| pods::phase(pod) != "Running");
    let told = waiting.map(|pod| format!("{}: {}", pod.key(), pods::unscheduled(pod)));
    told.collect()
}

/// Deletes all existing pods; returns them as text.
async fn end_pods(stage: &ChurnCluster) -> Vec<String> {
    let pods = match stage.cluster.pods().await {
        Ok(pods) => pods,
        Err(error) => return vec![format!("{error:?}")],
    };
    for pod in &pods {
        let api = stage.cluster.client().namespaced::<Pod>(pod.namespace());
        if !pod.is_deleting() {
            // A failure is seen in the next round.
            _ = api.delete(pod.name(), &DeleteParams::default()).await;
        }
        if pod.metadata.finalizers.is_some() {
            _ = steps::finalize(stage, pod.name()).await;
        }
    }
    let there = pods.iter().map(|pod| pod.key().to_string());
    there.collect()
}

async fn nodes_in_disorder(stage: &ChurnCluster) -> Vec<String> {
    let nodes = match stage.cluster.nodes().await {
        Ok(nodes) => nodes,
        Err(error) => return vec![format!("{error:?}")],
    };
    let wanted: BTreeSet<_> = (0..NODES).map(node_name).collect();
    let there: BTreeSet<_> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let differ = wanted.symmetric_difference(&there);
    let differ = differ.map(|name| format!("{name} is one of {wanted:?} or of {there:?} alone"));
    let bad = nodes.iter().filter_map(|node| match pod_cidrs(node) {
        [] => Some(format!("{} has no block", node.name())),
        _ if !is_ready(node) => Some(format!("{} is not Ready", node.name())),
        _ => None,
    });
    differ.chain(bad).collect()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Everything that removed pods and nodes have left behind.
async fn left(stage: &Arc<ChurnCluster>) -> Vec<String> {
    let mut left = Vec::new();
    let mut add = |found: Result<Vec<String>>| match found {
        Ok(found) => left.extend(found),
        Err(error) => left.push(format!("it cannot be seen: {error:?}")),
    };
    add(on_nodes(stage).await);
    add(records_of_sandboxes(stage));
    add(blocks_of_nodes_that_are_gone(stage).await);
    let history = stage.monitor.history();
    left.extend(
        history
            .tracker()
            .pods()
            .map(|pod| format!("the watch still has pod {pod}")),
    );
    left
}

async fn on_nodes(stage: &Arc<ChurnCluster>) -> Result<Vec<String>> {
    let snapshot = watch::snapshot(stage).await?;
    let leases = snapshot.leases.iter();
    let leases =
        leases.map(|lease| format!("lease {} of {} on {}", lease.ip, lease.owner, lease.node));
    let namespaces = snapshot.namespaces.iter().map(|seen| &seen.sandbox);
    let namespaces =
        namespaces.map(|one| format!("network namespace of {} on {}", one.id, one.node));
    let mut found: Vec<_> = leases.chain(namespaces).collect();
    if let Some(place) = stage.observer.namespaces() {
        let veths = place.veths()?.into_iter();
        found.extend(veths.map(|(node, name)| format!("veth {name} on {node}")));
    }
    Ok(found)
}

/// The records of sandboxes, including stopped ones, which hold nothing.
fn records_of_sandboxes(stage: &ChurnCluster) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (node, dir) in node_dirs(stage.cluster.data_dir())? {
        for entry in std::fs::read_dir(dir.join("sandboxes"))
            .into_iter()
            .flatten()
        {
            let name = entry?.file_name();
            found.push(format!("record {} on {node}", name.display()));
        }
    }
    Ok(found)
}

async fn blocks_of_nodes_that_are_gone(stage: &ChurnCluster) -> Result<Vec<String>> {
    let nodes = stage.cluster.nodes().await?;
    let there: BTreeSet<_> = nodes.iter().map(|node| node.uid()).collect();
    let records = stage.cluster.client().blocks().list().await?.blocks;
    let of_nobody = records.iter().filter(|record| {
        record.state() != BlockState::Reserved && !there.contains(record.node_uid.as_str())
    });
    let told = of_nobody.map(|record| {
        let state = record.state().as_str_name();
        format!(
            "{state} block {} of {}, which is gone",
            record.cidr, record.node_name
        )
    });
    Ok(told.collect())
}
