//! The controllers of workloads and nodes: Deployments, ReplicaSets, disruption budgets, the
//! garbage collector, and the node lifecycle.
//!
//! Decisions are in `deployment/plan.rs`, `replica_set/{rank,status}.rs`, `disruption/plan.rs`,
//! `node_lifecycle/plan.rs` and `garbage/graph.rs`, which are pure; the code around them observes,
//! writes and reports. A ReplicaSet never creates a pod before it knows of all that it created
//! before. Pods whose node is deleted are collected by the ipam-controller. Start reading at
//! [`run`].

#![warn(missing_docs)]

mod adopt;
mod deployment;
mod disruption;
mod garbage;
mod index;
mod node_lifecycle;
mod owner;
mod percent;
mod replica_set;
mod time;
mod work;
mod workloads;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use clap::Args;
use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Object, ObjectKey,
    apps::{Deployment, ReplicaSet},
    coordination::Lease,
    core::{Node, Pod},
    kinds::{self, KindVisitor},
    policy::PodDisruptionBudget,
    strategy::Strategy,
};
use podplane_client::{
    Cache, Client, Endpoint, EventRecorder, ListParams, QueueMetrics, endpoint::EndpointError,
    reflector,
};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::{Listen, Listener, ServeError},
    tasks::TaskEnd,
};
use tokio_util::sync::CancellationToken;

use crate::{
    deployment::Deployments,
    disruption::Disruptions,
    garbage::Garbage,
    node_lifecycle::{LifecycleInputs, NodeLifecycle},
    replica_set::ReplicaSets,
    work::{Latch, work},
    workloads::WorkloadCache,
};

/// Nodes reconciled at once.
const NODE_WORKERS: usize = 8;
/// Disruption budgets reconciled at once.
const BUDGET_WORKERS: usize = 4;

/// Flags of the controllers.
#[derive(Args, Clone, Debug)]
pub struct ControllerManagerConfig {
    /// Connect to the API server at this address: HOST:PORT, a URL, or unix:PATH
    #[arg(long, env = "PODPLANE_SERVER", value_name = "ADDR")]
    pub server: Endpoint,
    /// Serve health (grpc.health.v1, /livez, /readyz) and /metrics at this address: IP:PORT (port
    /// 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,
    /// Host names that requests may be addressed to.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,
    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,
    /// Reconcile up to N Deployments at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_DEPLOYMENT_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_deployment_syncs: u16,
    /// Reconcile up to N ReplicaSets at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_REPLICASET_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_replicaset_syncs: u16,
    /// Garbage-collect up to N objects at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_GC_SYNCS",
        value_name = "N",
        default_value_t = 20
    )]
    pub concurrent_gc_syncs: u16,
    /// Mark a node unreachable, and evict its pods, after its kubelet has been silent for this
    /// long, such as 40s
    #[arg(
        long,
        env = "PODPLANE_NODE_MONITOR_GRACE_PERIOD",
        value_name = "DURATION",
        default_value = "40s"
    )]
    pub node_monitor_grace_period: humantime::Duration,
    /// Check a silent node at this interval, such as 5s
    #[arg(
        long,
        env = "PODPLANE_NODE_MONITOR_PERIOD",
        value_name = "DURATION",
        default_value = "5s"
    )]
    pub node_monitor_period: humantime::Duration,
}

/// The reasons why the controllers do not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerManagerRunError {
    /// The apiserver's address or its TLS material is invalid.
    #[error("failed to prepare the connection to the apiserver")]
    Server(#[from] EndpointError),
    /// The address to listen on cannot be used.
    #[error("failed to start the server")]
    Listen(#[from] ServeError),
    /// A task of the process ended.
    #[error("failed to run the controllers")]
    Ended(#[from] TaskEnd),
}

/// Runs until `stop` is cancelled.
///
/// # Errors
///
/// Everything that [`ControllerManagerRunError`] names. An unreachable apiserver is not an error:
/// the controllers wait for it.
pub fn run(
    config: ControllerManagerConfig,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), ControllerManagerRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(
    config: ControllerManagerConfig,
    stop: CancellationToken,
) -> Result<(), ControllerManagerRunError> {
    let client = Client::connect(&config.server)?;
    let listener = Listener::published(&config.listen, config.address_file.as_deref()).await?;
    let listener = listener.allowing(config.allowed_hosts.clone());
    let mut kinds = KindRegistry {
        tasks: Tasks::new(stop),
        client: client.clone(),
        garbage: Garbage::default(),
        follow: Vec::new(),
        watched: BTreeSet::new(),
    };
    let deployments = kinds.watch::<Deployment>();
    let sets = kinds.watch::<ReplicaSet>();
    let pods = kinds.watch::<Pod>();
    let leases = kinds.watch::<Lease>();
    let nodes = kinds.watch::<Node>();
    let budgets = kinds.watch::<PodDisruptionBudget>();
    kinds::visit(&mut kinds);
    let KindRegistry {
        mut tasks,
        garbage,
        follow,
        ..
    } = kinds;

    let (garbage, cache) = (Arc::new(garbage), Arc::new(WorkloadCache::default()));
    let ready = Arc::new(Latch::new(follow.len() + 3));
    let is_ready = ready.clone();
    for follow in follow {
        tasks.follow("owners", follow(garbage.clone(), ready.clone()));
    }
    let watched = LifecycleInputs {
        nodes,
        leases,
        pods: pods.clone(),
        grace: config.node_monitor_grace_period.into(),
        period: config.node_monitor_period.into(),
    };
    let (events, write_events) = EventRecorder::new(client.clone(), "disruption-controller", "");
    tasks.follow("events of disruption budgets", write_events);
    let disruptions = Disruptions::new(client.clone(), events, sets.clone(), deployments.clone());
    let disruptions = Arc::new(disruptions);
    let (known, is_known, seen) = (disruptions.clone(), ready.clone(), pods.clone());
    tasks.follow("disruption budgets", async move {
        known.follow(budgets, seen, &is_known).await;
    });

    let (known, is_known) = (cache.clone(), ready.clone());
    tasks.follow("workloads", async move {
        known.follow(deployments, sets, pods, &is_known).await;
    });

    let (events, write_events) = EventRecorder::new(client.clone(), "node-controller", "");
    tasks.follow("events of nodes", write_events);
    let (evictions, write_events) =
        EventRecorder::new(client.clone(), "taint-eviction-controller", "");
    tasks.follow("events of evictions", write_events);
    let lifecycle = Arc::new(NodeLifecycle::new(
        client.clone(),
        events,
        evictions,
        watched,
    ));
    let (known, is_known) = (lifecycle.clone(), ready.clone());
    tasks.follow("signs of life", async move {
        known.follow(&is_known).await;
    });
    let (nodes, workloads, collected) = (lifecycle.clone(), cache.clone(), garbage.clone());
    let (sets, budgets) = (cache.clone(), disruptions.clone());
    // Kubernetes' names.
    let queues = QueueMetrics::default()
        .with("node_lifecycle_controller", move || nodes.queue.stats())
        .with("deployment", move || workloads.deployment_queue.stats())
        .with("replicaset", move || sets.set_queue.stats())
        .with("disruption", move || budgets.queue.stats())
        .with("garbage_collector_attempt_to_delete", move || {
            collected.queue.stats()
        });

    let is_known = ready.clone();
    tasks.follow("node lifecycle controller", async move {
        is_known.opened().await;
        let reconcile = async |name: String| lifecycle.reconcile(&name).await;
        work("node", &lifecycle.queue, NODE_WORKERS, reconcile).await;
    });

    let (events, write_events) = EventRecorder::new(client.clone(), "deployment-controller", "");
    tasks.follow("events of deployments", write_events);
    let controller = Deployments::new(client.clone(), events);
    let (known, is_known) = (cache.clone(), ready.clone());
    let workers = config.concurrent_deployment_syncs.into();
    tasks.follow("deployment controller", async move {
        is_known.opened().await;
        let reconcile = async |key: ObjectKey| controller.reconcile(&known, &key).await;
        work("deployment", &known.deployment_queue, workers, reconcile).await;
    });

    let (events, write_events) = EventRecorder::new(client.clone(), "replicaset-controller", "");
    tasks.follow("events of replicasets", write_events);
    let controller = ReplicaSets::new(client, events);
    let is_known = ready.clone();
    let workers = config.concurrent_replicaset_syncs.into();
    tasks.follow("replicaset controller", async move {
        is_known.opened().await;
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        work("replicaset", &cache.set_queue, workers, reconcile).await;
    });

    let is_known = ready.clone();
    tasks.follow("disruption controller", async move {
        is_known.opened().await;
        let reconcile = async |key: ObjectKey| disruptions.reconcile(&key).await;
        work("disruption", &disruptions.queue, BUDGET_WORKERS, reconcile).await;
    });

    let workers = config.concurrent_gc_syncs.into();
    tasks.follow("garbage collector", async move {
        ready.opened().await;
        let reconcile = async |uid: String| garbage.reconcile(&uid).await;
        work("garbage", &garbage.queue, workers, reconcile).await;
    });

    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    process.registry().register_collector(Box::new(queues));
    process.serve(listener, Services::default());
    process.ready_when("objects", async move { is_ready.opened().await });
    process.start(&mut tasks).await;
    Ok(tasks.run().await?)
}

/// The task that observes the changes of a kind, once all kinds are registered.
type FollowTask = Box<dyn FnOnce(Arc<Garbage>, Arc<Latch>) -> BoxFuture<'static, ()> + Send>;

/// The watched kinds. All of them are garbage-collected.
struct KindRegistry {
    tasks: Tasks,
    client: Client,
    garbage: Garbage,
    follow: Vec<FollowTask>,
    watched: BTreeSet<&'static str>,
}

impl KindRegistry {
    fn watch<K: Object>(&mut self) -> Cache<K> {
        let (cache, watch) = reflector(self.client.all::<K>(), ListParams::default());
        self.tasks.follow(K::KIND, watch);
        let kind = self.garbage.add::<K>(&self.client);
        let followed = cache.clone();
        let follow =
            move |garbage: Arc<Garbage>, ready| garbage.follow(kind, followed, ready).boxed();
        self.follow.push(Box::new(follow));
        self.watched.insert(K::PLURAL);
        cache
    }
}

/// Watches the kinds whose objects only the garbage collector needs.
impl KindVisitor for KindRegistry {
    fn visit<K: Strategy>(&mut self) {
        if K::IS_COLLECTED && !self.watched.contains(K::PLURAL) {
            self.watch::<K>();
        }
    }
}
