//! The controllers of workloads, nodes and endpoints: Deployments, ReplicaSets, DaemonSets,
//! StatefulSets, Jobs, EndpointSlices and Endpoints, disruption budgets, default service accounts,
//! root certificates, the garbage collector, and the node lifecycle.
//!
//! Decisions are in `{deployment,daemon_set,stateful_set,job}/plan.rs`, `rank.rs`,
//! `replica_set/status.rs`, `history.rs`, `endpoints/{slices,subsets}.rs`, `disruption/plan.rs`,
//! `node_lifecycle/plan.rs` and `garbage/graph.rs`, which are pure; the code around them observes,
//! writes and reports. A controller never creates a pod before it knows of all that it created
//! before. Pods whose node is deleted are collected by the ipam-controller.
//!
//! Several controller managers may run: one of them leads, with all its controllers, and the others
//! observe and write nothing. Start reading at [`run`].

#![warn(missing_docs)]

mod adopt;
mod certificates;
mod controllers;
mod daemon_set;
mod deployment;
mod disruption;
mod endpoints;
mod expectations;
mod garbage;
mod history;
mod index;
mod job;
mod node_lifecycle;
mod owner;
mod percent;
mod permissions;
mod pod_control;
mod pods;
mod rank;
mod replica_set;
mod root_ca;
mod service_accounts;
mod stateful_set;
mod template;
mod time;
mod unseen;
mod work;
mod workloads;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use clap::Args;
use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Object, Resource as _,
    apiextensions::CustomResourceDefinition,
    apps::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::Job,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::{
        ConfigMap, Endpoints, Namespace, Node, PersistentVolumeClaim, Pod, Service, ServiceAccount,
    },
    discovery::EndpointSlice,
    kinds::{self, KindVisitor},
    networking::ClusterCIDR,
    policy::PodDisruptionBudget,
    strategy::Strategy,
};
use podplane_client::{
    Cache, Client, ListParams, QueueMetrics, ServerError, ServerFlags,
    leader::{LeaderElection, LeaderError},
    reflector, start_check,
};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::Listen,
    serving::{ServingError, ServingFlags},
    tasks::{TaskEnd, TaskError},
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::CertificateRequests,
    controllers::{ObservedState, WorkerCounts},
    disruption::Disruptions,
    endpoints::{EndpointCache, EndpointInputs},
    garbage::{Garbage, TrackedObject},
    node_lifecycle::{LifecycleInputs, NodeLifecycle},
    root_ca::RootCaPublisher,
    service_accounts::ServiceAccounts,
    work::Latch,
    workloads::{WorkloadCache, WorkloadInputs},
};
pub use crate::{
    certificates::{SigningFlags, SigningFlagsError},
    root_ca::{RootCaFlags, RootCaFlagsError},
};

/// The name of the election.
const ELECTION: &str = "podplane-controller-manager";

/// Flags of the controllers.
#[derive(Args, Clone, Debug)]
pub struct ControllerManagerConfig {
    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,
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
    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,
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
    /// Reconcile up to N DaemonSets at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_DAEMONSET_SYNCS",
        value_name = "N",
        default_value_t = 2
    )]
    pub concurrent_daemonset_syncs: u16,
    /// Reconcile up to N StatefulSets at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_STATEFULSET_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_statefulset_syncs: u16,
    /// Reconcile up to N Jobs at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_JOB_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_job_syncs: u16,
    /// Write the EndpointSlices of up to N Services at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_SERVICE_ENDPOINT_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_service_endpoint_syncs: u16,
    /// Write the Endpoints of up to N Services at once
    #[arg(
        long,
        env = "PODPLANE_CONCURRENT_ENDPOINT_SYNCS",
        value_name = "N",
        default_value_t = 5
    )]
    pub concurrent_endpoint_syncs: u16,
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
    /// The authority that signs certificates.
    #[command(flatten)]
    pub signing: SigningFlags,
    /// The certificates by which pods verify the API server.
    #[command(flatten)]
    pub root_ca: RootCaFlags,
    /// The election.
    #[command(flatten)]
    pub leader_election: LeaderElection,
}

/// The reasons why the controllers do not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerManagerRunError {
    /// The apiserver's address or its TLS material is invalid.
    #[error("failed to prepare the connection to the apiserver")]
    Server(#[from] ServerError),
    /// The authority that signs certificates cannot be used.
    #[error(transparent)]
    Signing(#[from] SigningFlagsError),
    /// The root certificates cannot be used.
    #[error(transparent)]
    RootCa(#[from] RootCaFlagsError),
    /// The flags of the election are invalid.
    #[error(transparent)]
    Election(#[from] LeaderError),
    /// The address to listen on cannot be used.
    #[error("failed to start the server")]
    Listen(#[from] ServingError),
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
    let client = config.server.connect().await?;
    let candidate = config.leader_election.candidate(client.clone(), ELECTION)?;
    let authority = config.signing.authority()?;
    let root_ca = config.root_ca.certificates()?;
    let mut needed = permissions::needed(authority.is_some());
    needed.extend(candidate.permissions());
    let (hosts, file) = (config.allowed_hosts.clone(), config.address_file.as_deref());
    let listeners = config
        .serving
        .listeners(&config.listen, hosts, file)
        .await?;
    let mut tasks = Tasks::new(stop);
    let check = start_check(client.clone(), config.server.clone(), needed, tasks.stop());
    tasks.spawn("start check", check);
    let mut kinds = KindRegistry {
        tasks,
        client,
        garbage: Garbage::new(),
        follow: Vec::new(),
        watched: BTreeSet::new(),
    };
    let deployments = kinds.watch::<Deployment>();
    let sets = kinds.watch::<ReplicaSet>();
    let pods = kinds.watch::<Pod>();
    let leases = kinds.watch::<Lease>();
    let nodes = kinds.watch::<Node>();
    let (daemon_sets, stateful_sets) = (kinds.watch::<DaemonSet>(), kinds.watch::<StatefulSet>());
    let (jobs, revisions) = (kinds.watch::<Job>(), kinds.watch::<ControllerRevision>());
    let claims = kinds.watch::<PersistentVolumeClaim>();
    let budgets = kinds.watch::<PodDisruptionBudget>();
    let namespaces = kinds.watch::<Namespace>();
    let accounts = kinds.watch::<ServiceAccount>();
    let requests = kinds.watch::<CertificateSigningRequest>();
    let maps = kinds.watch::<ConfigMap>();
    let (services, slices) = (kinds.watch::<Service>(), kinds.watch::<EndpointSlice>());
    let endpoints = kinds.watch::<Endpoints>();
    let definitions = kinds.watch::<CustomResourceDefinition>();
    kinds::visit(&mut kinds);
    let KindRegistry {
        mut tasks,
        client,
        garbage,
        follow,
        ..
    } = kinds;

    let (garbage, workloads) = (Arc::new(garbage), Arc::new(WorkloadCache::new()));
    // Open once everyone who shares it has arrived, and this function.
    let ready = Arc::new(Latch::new(1));
    for follow in follow {
        tasks.follow("owners", follow(garbage.clone(), ready.share()));
    }
    let custom = garbage::custom::follow(garbage.clone(), client, definitions, ready.share());
    tasks.follow("custom objects", custom);
    let watched = LifecycleInputs {
        nodes: nodes.clone(),
        leases,
        pods: pods.clone(),
        grace: config.node_monitor_grace_period.into(),
        period: config.node_monitor_period.into(),
    };
    let scales = (sets.clone(), deployments.clone(), stateful_sets.clone());
    let disruptions = Arc::new(Disruptions::new(scales.0, scales.1, scales.2));
    let (known, is_known, seen) = (disruptions.clone(), ready.share(), pods.clone());
    tasks.follow("disruption budgets", async move {
        known.follow(budgets, seen, &is_known).await;
    });
    let addresses = Arc::new(EndpointCache::new());
    let (known, is_known) = (addresses.clone(), ready.share());
    let inputs = EndpointInputs {
        services,
        pods: pods.clone(),
        nodes: nodes.clone(),
        slices,
        endpoints,
    };
    tasks.follow("endpoints", async move {
        known.follow(inputs, &is_known).await;
    });
    let (known, is_known) = (workloads.clone(), ready.share());
    let inputs = WorkloadInputs {
        deployments,
        sets,
        daemon_sets,
        stateful_sets,
        jobs,
        revisions,
        claims,
        nodes,
        pods,
    };
    tasks.follow("workloads", async move {
        known.follow(inputs, &is_known).await;
    });
    let lifecycle = Arc::new(NodeLifecycle::new(watched));
    let (known, is_known) = (lifecycle.clone(), ready.share());
    tasks.follow("signs of life", async move {
        known.follow(&is_known).await;
    });
    let root_ca = Arc::new(RootCaPublisher::new(namespaces.clone(), maps, root_ca));
    let (known, is_known) = (root_ca.clone(), ready.share());
    tasks.follow("root certificates", async move {
        known.follow(&is_known).await;
    });
    let accounts = Arc::new(ServiceAccounts::new(namespaces, accounts));
    let (known, is_known) = (accounts.clone(), ready.share());
    tasks.follow("service accounts", async move {
        known.follow(&is_known).await;
    });
    let longest = config.signing.cluster_signing_duration.into();
    let requests = Arc::new(CertificateRequests::new(requests, authority, longest));
    let (known, is_known) = (requests.clone(), ready.share());
    tasks.follow("certificate signing requests", async move {
        known.follow(&is_known).await;
    });
    ready.arrive();
    let state = ObservedState {
        requests,
        lifecycle,
        workloads,
        addresses,
        disruptions,
        accounts,
        root_ca,
        garbage,
        ready: ready.clone(),
    };

    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    let queues = Box::new(queues(&state));
    process.registry().register_collector(queues);
    candidate.register(process.registry());
    process.serve_at(listeners, Services::default());
    process.ready_when("objects", async move { ready.opened().await });
    process.start(&mut tasks).await;

    // Only a leader writes. What it needs is observed while standing by, too.
    let counts = WorkerCounts {
        deployments: config.concurrent_deployment_syncs.into(),
        replica_sets: config.concurrent_replicaset_syncs.into(),
        daemon_sets: config.concurrent_daemonset_syncs.into(),
        stateful_sets: config.concurrent_statefulset_syncs.into(),
        jobs: config.concurrent_job_syncs.into(),
        slices: config.concurrent_service_endpoint_syncs.into(),
        endpoints: config.concurrent_endpoint_syncs.into(),
        garbage: config.concurrent_gc_syncs.into(),
    };
    let stop = tasks.stop();
    tasks.spawn("leader", async move {
        let end = stop.clone();
        let led = candidate.lead(&stop, |leading| {
            controllers::lead(leading, state, counts, end)
        });
        // A process that lost the lead ends, so that none of its state is used later.
        Box::pin(led).await?.transpose()?;
        Ok::<_, TaskError>(())
    });
    Ok(tasks.run().await?)
}

/// The metrics of the queues, by Kubernetes' names.
fn queues(state: &ObservedState) -> QueueMetrics {
    let nodes = state.lifecycle.clone();
    let (deployments, sets) = (state.workloads.clone(), state.workloads.clone());
    let (daemons, stateful) = (state.workloads.clone(), state.workloads.clone());
    let jobs = state.workloads.clone();
    let (slices, endpoints) = (state.addresses.clone(), state.addresses.clone());
    let (budgets, garbage) = (state.disruptions.clone(), state.garbage.clone());
    let (accounts, requests) = (state.accounts.clone(), state.requests.clone());
    let root_ca = state.root_ca.clone();
    QueueMetrics::default()
        .with("node_lifecycle_controller", move || nodes.queue.stats())
        .with("deployment", move || deployments.deployments.queue.stats())
        .with("replicaset", move || sets.sets.queue.stats())
        .with("daemonset", move || daemons.daemon_sets.queue.stats())
        .with("statefulset", move || stateful.stateful_sets.queue.stats())
        .with("job", move || jobs.jobs.queue.stats())
        .with("endpoint_slice", move || slices.slice_queue.stats())
        .with("endpoint", move || endpoints.endpoints_queue.stats())
        .with("disruption", move || budgets.queue.stats())
        .with("serviceaccount", move || accounts.queue.stats())
        .with("root_ca_cert_publisher", move || root_ca.queue.stats())
        .with("certificate", move || requests.queue.stats())
        .with("garbage_collector_attempt_to_delete", move || {
            garbage.queue.stats()
        })
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
        let kind = self.garbage.add::<K>();
        let followed = cache.clone();
        let follow = move |garbage: Arc<Garbage>, ready: Arc<Latch>| {
            async move {
                let track = |object: &K| TrackedObject::new(kind, object.metadata());
                garbage.follow(followed, track, || ready.arrive()).await;
            }
            .boxed()
        };
        self.follow.push(Box::new(follow));
        self.watched.insert(K::PLURAL);
        cache
    }
}

/// Watches the kinds whose objects only the garbage collector needs.
impl KindVisitor for KindRegistry {
    fn visit<K: Strategy>(&mut self) {
        // Kubernetes serves ClusterCIDRs as custom objects, if at all. Those are followed as such.
        let is_custom = self.client.channel().is_none() && K::GROUP == ClusterCIDR::GROUP;
        if K::IS_COLLECTED && !is_custom && !self.watched.contains(K::PLURAL) {
            self.watch::<K>();
        }
    }
}
