//! The execution of a plan's steps.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_api::{
    core::{Node, NodeSpec, Pod},
    meta::ObjectMeta,
    pod_ips::{POD_IPS_ALLOCATED, pod_cidrs},
};
use podplane_client::{ApiError, DeleteParams, ListParams, Reason};
use podplane_ipam::invariants::Allocation;
use podplane_proto::ipam::{BlockUpdate, block_update};
use podplane_test_cluster::{ClusterError, pods, within, world::node_dirs};
use tokio::task::spawn_blocking;

use super::{
    ChurnCluster, ChurnIpam, lock, other_ipam,
    plan::{ChurnStep, LeaseDamage, PodKind, TargetProcess, node_name, pod_name},
};

/// The time limit of a step's attempts: everything that dies is back much sooner.
const DEADLINE: Duration = Duration::from_secs(120);
pub(super) const FINALIZER: &str = "example.com/churn";
/// The node that waits for a block.
pub(super) const TAKER: &str = "taker";

/// Executes a step. The objects that it is about may be gone already.
pub(super) async fn perform(stage: &ChurnCluster, step: &ChurnStep) -> Result<()> {
    let done = match step {
        ChurnStep::Create { pod, kind } => create(stage, *pod, *kind).await,
        ChurnStep::Delete { pod, force } => delete(stage, *pod, *force).await,
        ChurnStep::Finalize { pod } => finalize(stage, &pod_name(*pod))
            .await
            .map(|()| "done".into()),
        ChurnStep::Kill(victim) => kill(stage, *victim).await,
        ChurnStep::Pause { node } => pause(stage, *node).await,
        ChurnStep::Resume { node } => {
            lock(&stage.paused).retain(|(paused, _)| paused != node);
            Ok("done".into())
        }
        ChurnStep::Damage { how, pick } => damage(stage, *how, *pick).await,
        ChurnStep::DeleteNode { node } => delete_node(stage, &node_name(*node)).await,
        ChurnStep::CreateNode { node } => create_node(stage, &node_name(*node), None).await,
        ChurnStep::ReplaceNode { node } => replace_node(stage, &node_name(*node)).await,
        ChurnStep::AddTaker => add_node(stage, TAKER).await,
        ChurnStep::RemoveTaker => remove_node(stage, TAKER).await,
        ChurnStep::ClaimEmpty { node } => claim_empty(stage, &node_name(*node)).await,
        ChurnStep::Snatch { node } => snatch(stage, &node_name(*node)).await,
    };
    let done = done.with_context(|| step.to_string())?;
    stage.journal.note(format!("{step}: {done}"));
    Ok(())
}

/// Repeats a request until it succeeds, or fails with an error that is `right`; returns that
/// answer.
async fn answered<T: std::fmt::Debug, F: Future<Output = Result<T, ApiError>>>(
    what: &str,
    ask: impl FnMut() -> F,
    right: impl Fn(&ApiError) -> bool,
) -> Result<Result<T, ApiError>> {
    let is_answer = |answer: &Result<T, ApiError>| answer.as_ref().map_or_else(&right, |_| true);
    Ok(within(DEADLINE, what, ask, is_answer).await?)
}

fn told<T>(answer: Result<T, ApiError>) -> String {
    answer.map_or_else(|error| error.to_string(), |_| "done".into())
}

async fn create(stage: &ChurnCluster, number: usize, kind: PodKind) -> Result<String> {
    let mut pod = pods::pod(&pod_name(number));
    if let Some(spec) = &mut pod.spec {
        spec.termination_grace_period_seconds = Some(1);
        match kind {
            PodKind::Plain => {}
            PodKind::Finalizer => pod.metadata.finalizers = Some(vec![FINALIZER.into()]),
            PodKind::Bound(node) => spec.node_name = Some(node_name(node)),
            PodKind::HostNetwork => spec.host_network = Some(true),
        }
    }
    let api = stage.cluster.client().namespaced::<Pod>("default");
    let ask = || api.create(&pod);
    let answer = answered("the pod is created", ask, ApiError::is_already_exists).await?;
    let acknowledged = answer
        .as_ref()
        .ok()
        .and_then(|pod| pod.metadata.uid.clone());
    lock(&stage.created).insert(number, acknowledged);
    Ok(told(answer))
}

async fn delete(stage: &ChurnCluster, number: usize, force: bool) -> Result<String> {
    let created = || std::future::ready(lock(&stage.created).contains_key(&number));
    within(DEADLINE, "the pod is created", created, |created| *created).await?;
    let params = DeleteParams {
        grace_period_seconds: force.then_some(0),
        ..DeleteParams::default()
    };
    let (api, name) = (
        stage.cluster.client().namespaced::<Pod>("default"),
        pod_name(number),
    );
    let ask = || api.delete(&name, &params);
    let answer = answered("the deletion is accepted", ask, ApiError::is_not_found).await?;
    Ok(told(answer))
}

/// Removes the finalizers of a pod.
pub(super) async fn finalize(stage: &ChurnCluster, name: &str) -> Result<()> {
    let api = stage.cluster.client().namespaced::<Pod>("default");
    let ask = || async {
        let mut pod = api.get(name).await?;
        pod.metadata.finalizers = None;
        api.update(&pod).await
    };
    // Either it has none any more, or it is gone.
    _ = answered("the finalizer is gone", ask, ApiError::is_not_found).await?;
    Ok(())
}

async fn kill(stage: &ChurnCluster, victim: TargetProcess) -> Result<String> {
    // A paused kubelet is to be silent, and one that is started again is not.
    if let TargetProcess::Kubelet(node) = victim
        && lock(&stage.paused)
            .iter()
            .any(|(paused, _)| *paused == node)
    {
        return Ok("it stands still".into());
    }
    let killed = match stage.cluster.process(&victim.to_string()).await {
        Ok(process) => process.kill().await,
        Err(error) => Err(error),
    };
    match killed {
        Ok(()) => Ok("done".into()),
        // It is being started again.
        Err(ClusterError::NoProcess { .. } | ClusterError::Io { .. }) => Ok("not running".into()),
        Err(error) => Err(error.into()),
    }
}

async fn pause(stage: &ChurnCluster, node: usize) -> Result<String> {
    let kubelet = TargetProcess::Kubelet(node).to_string();
    let ask = || stage.cluster.pause(&kubelet);
    let fault = within(DEADLINE, "the kubelet is stopped", ask, Result::is_ok).await??;
    lock(&stage.paused).push((node, fault));
    Ok("done".into())
}

async fn damage(stage: &ChurnCluster, how: LeaseDamage, pick: usize) -> Result<String> {
    // Only the plugin could find the content of a file of its own.
    let how = match stage.ipam {
        ChurnIpam::HostLocal => how,
        ChurnIpam::Other => LeaseDamage::Delete,
    };
    let observer = stage.observer.clone();
    let snapshot = spawn_blocking(move || observer.snapshot(Vec::new())).await??;
    let leases: Vec<_> = snapshot
        .leases
        .iter()
        .filter(|lease| {
            let mut ready = snapshot.sandboxes.iter().filter(|seen| seen.is_ready);
            ready.any(|seen| (&seen.sandbox.node, &seen.sandbox.id) == (&lease.node, &lease.owner))
        })
        .collect();
    let Some(at) = pick.checked_rem(leases.len()) else {
        return Ok("there is none".into());
    };
    let lease = leases[at];
    let owner = lease.owner.get(..13).unwrap_or(&lease.owner);
    let told = format!("{} of sandbox {owner} on {}, {how:?}", lease.ip, lease.node);
    let files = files(stage, lease)?;
    if files.is_empty() {
        return Ok(format!("{told}: it is gone"));
    }
    for file in files {
        // Skips a lease that has been released meanwhile.
        let open = OpenOptions::new().write(true).open(&file);
        let Ok(mut open) = open else {
            return Ok(format!("{told}: it is gone"));
        };
        match how {
            LeaseDamage::Truncate => open.set_len(0)?,
            LeaseDamage::Nul => {
                let length = usize::try_from(open.metadata()?.len())?;
                open.write_all(&vec![0; length])?;
            }
            LeaseDamage::Delete => _ = std::fs::remove_file(&file),
        }
    }
    Ok(told)
}

/// The files of a lease; none if it has been released meanwhile, or its node removed.
fn files(stage: &ChurnCluster, lease: &Allocation) -> Result<Vec<PathBuf>> {
    let nodes: BTreeMap<_, _> = node_dirs(stage.cluster.data_dir())?.into_iter().collect();
    let Some(dir) = nodes.get(&lease.node) else {
        return Ok(Vec::new());
    };
    let dirs = match stage.ipam {
        ChurnIpam::HostLocal => dir.join("networks"),
        ChurnIpam::Other => dir.join(other_ipam::LEASES),
    };
    let networks = match std::fs::read_dir(dirs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        networks => networks?.flatten(),
    };
    let files = networks.map(|network| network.path().join(lease.ip.to_string()));
    Ok(files.filter(|file| file.exists()).collect())
}

async fn delete_node(stage: &ChurnCluster, name: &str) -> Result<String> {
    let api = stage.cluster.client().all::<Node>();
    let params = DeleteParams::default();
    let ask = || api.delete(name, &params);
    let answer = answered("the node is deleted", ask, ApiError::is_not_found).await?;
    Ok(told(answer))
}

/// Creates a Node object, with these blocks if any are given.
pub(super) async fn create_node(
    stage: &ChurnCluster,
    name: &str,
    blocks: Option<&[String]>,
) -> Result<String> {
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: blocks.map(|blocks| NodeSpec {
            pod_cidr: blocks.first().cloned(),
            pod_cidrs: Some(blocks.to_vec()),
            ..NodeSpec::default()
        }),
        ..Node::default()
    };
    let api = stage.cluster.client().all::<Node>();
    let ask = || api.create(&node);
    let refused = |error: &ApiError| {
        error.is_already_exists() || blocks.is_some() && error.reason != Reason::ServiceUnavailable
    };
    Ok(told(answered("the node is created", ask, refused).await?))
}

/// The supervisor's answer. It may refuse, since such a node exists or does not.
fn asked(answer: podplane_test_cluster::Result<()>) -> Result<String> {
    match answer {
        Ok(()) => Ok("done".into()),
        Err(ClusterError::Supervisor(status)) => Ok(status.message().into()),
        Err(error) => Err(error.into()),
    }
}

async fn add_node(stage: &ChurnCluster, name: &str) -> Result<String> {
    asked(stage.cluster.add_nodes([name]).await)
}

pub(super) async fn remove_node(stage: &ChurnCluster, name: &str) -> Result<String> {
    asked(stage.cluster.remove_node(name).await)
}

async fn replace_node(stage: &ChurnCluster, name: &str) -> Result<String> {
    let removed = remove_node(stage, name).await?;
    stage.journal.note(format!("remove {name}: {removed}"));
    add_node(stage, name).await
}

/// Claims that no address of the node is in use, as its kubelet or somebody in its name may do, and
/// deletes its pods and its object, so that nobody can ask them any more.
async fn claim_empty(stage: &ChurnCluster, name: &str) -> Result<String> {
    let api = stage.cluster.client().all::<Node>();
    let ask = || async {
        let mut node = api.get(name).await?;
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(POD_IPS_ALLOCATED.into(), "0".into());
        api.update(&node).await
    };
    _ = answered("the claim is made", ask, ApiError::is_not_found).await?;
    let by_node = ListParams {
        field_selector: format!("spec.nodeName={name}"),
        ..ListParams::default()
    };
    let pods = stage.cluster.client().namespaced::<Pod>("default");
    let list = answered("pods are listed", || pods.list(&by_node), |_| false).await??;
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    for pod in list
        .items
        .iter()
        .filter_map(|pod| pod.metadata.name.as_deref())
    {
        let ask = || pods.delete(pod, &at_once);
        _ = answered("a pod is deleted by force", ask, ApiError::is_not_found).await?;
    }
    delete_node(stage, name).await
}

/// Deletes a node, asks for its block without a fence, and creates another node with it.
async fn snatch(stage: &ChurnCluster, name: &str) -> Result<String> {
    const THIEF: &str = "thief";
    let api = stage.cluster.client().all::<Node>();
    let node = answered("the node is read", || api.get(name), ApiError::is_not_found).await?;
    let blocks = node.as_ref().map(|node| pod_cidrs(node).to_vec());
    let Ok(cidrs) = blocks else {
        return Ok("there is no such node".into());
    };
    delete_node(stage, name).await?;
    let records = stage.cluster.client().blocks();
    let listed = answered("records are listed", || records.list(), |_| false).await??;
    let of_node = listed
        .blocks
        .into_iter()
        .filter(|record| record.node_name == name);
    for record in of_node {
        let update = BlockUpdate {
            cidr: record.cidr,
            node_name: record.node_name,
            node_uid: record.node_uid,
            change: Some(block_update::Change::Release(true)),
            ..BlockUpdate::default()
        };
        let ask = || records.update(vec![update.clone()]);
        let lasting = |error: &ApiError| error.reason != Reason::ServiceUnavailable;
        let released = answered("the record is released", ask, lasting).await?;
        stage
            .journal
            .note(format!("release of {}: {released:?}", update.cidr));
    }
    let created = create_node(stage, THIEF, Some(&cidrs)).await?;
    // Long enough for a snapshot.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    delete_node(stage, THIEF).await?;
    Ok(format!("another node with its block: {created}"))
}
