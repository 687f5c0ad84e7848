//! Every service is killed again and again while pods come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result};
use podplane_api::{
    Object as _,
    core::{Container, Pod, PodSpec},
    meta::ObjectMeta,
};
use podplane_client::{Change, Client, DeleteParams, ListParams, reflector};
use podplane_tests::{Cluster, Network, builder, eventually, pods::running};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;

/// Pods that come and go while the services die.
const PODS: usize = 200;
/// Pods that are there at a time.
const ALIVE: usize = 40;

/// How many times each service is killed.
fn kills() -> usize {
    if std::env::var_os("PODPLANE_SOAK").is_some() {
        100
    } else {
        20
    }
}

fn pod(name: &str) -> Pod {
    let container = Container {
        name: "c".into(),
        image: Some("pause".into()),
        ..Container::default()
    };
    let spec = PodSpec {
        containers: vec![container],
        termination_grace_period_seconds: Some(1),
        ..PodSpec::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        ..Pod::default()
    }
}

/// Creates and deletes pods until told to stop, and at least [`PODS`]; returns those that must be there in the end.
async fn churn(client: Client, stop: Arc<AtomicBool>) -> BTreeSet<String> {
    let pods = client.namespaced::<Pod>("default");
    let mut alive = BTreeSet::new();
    let mut order = std::collections::VecDeque::new();
    let mut made = 0;
    while made < PODS || !stop.load(Ordering::Relaxed) {
        let name = format!("p-{made}");
        // An answer that did not come: the pod may be there or not. Asking again settles it.
        let create = || async { pods.create(&pod(&name)).await };
        let settled = eventually("a pod is created", create, |r| {
            r.as_ref().is_ok() || r.as_ref().is_err_and(|e| e.is_already_exists())
        })
        .await;
        assert!(settled.is_ok() || settled.is_err_and(|error| error.is_already_exists()));
        alive.insert(name.clone());
        order.push_back(name);
        made += 1;
        if order.len() > ALIVE {
            let oldest = order.pop_front().unwrap_or_default();
            let phase = || async { pods.get(&oldest).await.map(|pod| running(&[pod])) };
            let ran = eventually("the pod has run", phase, |running| running == &Ok(1)).await;
            assert_eq!(ran, Ok(1));
            let delete = || async { pods.delete(&oldest, &DeleteParams::default()).await };
            let gone = |r: &Result<Pod, podplane_client::ApiError>| {
                r.is_ok() || r.as_ref().is_err_and(|e| e.is_not_found())
            };
            let accepted = eventually("a pod's deletion is accepted", delete, gone).await;
            assert!(gone(&accepted));
            alive.remove(&oldest);
        }
    }
    alive
}

/// Every pod's node as it was first seen, against every later one.
async fn watch_binds(client: Client, stop: Arc<AtomicBool>) -> Vec<String> {
    let (cache, driver) = reflector(client.all::<Pod>(), ListParams::default());
    let mut changes = cache.subscribe();
    let mut nodes = BTreeMap::<String, String>::new();
    let mut twice = Vec::new();
    let observe = async {
        while !stop.load(Ordering::Relaxed) {
            let Change::Applied { new, .. } = changes.next().await else {
                continue;
            };
            let Some(node) = new.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
                continue;
            };
            let first = nodes
                .entry(new.uid().into())
                .or_insert_with(|| node.clone());
            if *first != node {
                twice.push(format!("{} on {first} and {node}", new.key()));
            }
        }
    };
    tokio::select! {
        () = driver => {}
        () = observe => {}
    }
    assert!(nodes.len() >= PODS, "{} binds seen", nodes.len());
    twice
}

/// Kills one process of a kind that is alive.
async fn kill(cluster: &Cluster, kind: &str, round: usize) -> Result<()> {
    let strike = || async {
        let services = cluster.status().await?.services;
        let of_kind = services
            .into_iter()
            .filter(|service| service.name.starts_with(kind));
        let alive: Vec<_> = of_kind.filter_map(|service| service.pid).collect();
        anyhow::ensure!(!alive.is_empty(), "no {kind} runs");
        let pid = i32::try_from(alive[round % alive.len()])?;
        kill_process(Pid::from_raw(pid).context("a process id")?, Signal::KILL)?;
        Ok(())
    };
    // Right after the kill before, there may be none, or one that ends before it is struck.
    eventually("one is killed", strike, Result::is_ok).await
}

/// How often the supervisor had to start processes of a kind again.
async fn restarts(cluster: &Cluster, kind: &str) -> Result<usize> {
    let services = cluster.status().await?.services;
    let of_kind = services
        .iter()
        .filter(|service| service.name.starts_with(kind));
    Ok(usize::try_from(
        of_kind.map(|service| service.restarts).sum::<u32>(),
    )?)
}

const KINDS: [&str; 6] = [
    "apiserver",
    "ipam-controller",
    "controller-manager",
    "scheduler",
    "kubelet",
    "cri",
];

async fn chaos(network: Network) -> Result<()> {
    let Some(cluster) = Cluster::up(builder(network)).await? else {
        return Ok(());
    };
    let (stop, end) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let mut churning = JoinSet::new();
    churning.spawn(churn(cluster.client().clone(), stop.clone()));
    let mut watching = JoinSet::new();
    watching.spawn(watch_binds(cluster.client().clone(), end.clone()));
    for round in 0..kills() {
        for kind in KINDS {
            kill(&cluster, kind, round).await?;
            // Let it get somewhere before the next one dies: the pods go on.
            let answers = || async { cluster.pods().await.is_ok() };
            eventually("the apiserver answers", answers, |answers| *answers).await;
        }
    }
    for kind in KINDS {
        let count = || restarts(&cluster, kind);
        eventually("every killed process is started again", count, |n| {
            n.as_ref().is_ok_and(|n| *n >= kills())
        })
        .await?;
    }
    stop.store(true, Ordering::Relaxed);
    let alive = churning.join_next().await.context("the churn")??;
    let names = |pods: &[Pod]| {
        pods.iter()
            .map(|pod| pod.name().to_owned())
            .collect::<BTreeSet<_>>()
    };
    let pods = cluster
        .pods_until("the pods that should be run", |pods| {
            names(pods) == alive && running(pods) == alive.len()
        })
        .await;
    assert_eq!(names(&pods), alive, "every acknowledged write");
    end.store(true, Ordering::Relaxed);
    cluster.podplane("run last --wait").ok(); // An event for the watcher to see the end.
    let twice = watching.join_next().await.context("the watch")??;
    assert!(twice.is_empty(), "bound twice: {twice:?}");

    cluster.check().await?;
    cluster.podplane("delete pods --all").ok();
    cluster
        .pods_until("all pods are gone", <[Pod]>::is_empty)
        .await;
    eventually(
        "no address is held",
        || cluster.world(),
        |world| {
            world
                .as_ref()
                .is_ok_and(|w| w.allocations.is_empty() && w.sandboxes.is_empty())
        },
    )
    .await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel() -> Result<()> {
    chaos(Network::Kernel).await
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger() -> Result<()> {
    chaos(Network::Ledger).await
}
