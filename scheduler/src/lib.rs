//! The scheduler: assigns each pod to a node that can run it, with a free address for it.
//!
//! It never binds a pod to a node without a free address (unless [`IpPolicy::Off`] says so), never
//! binds a pod twice, and keeps no state that a successor could not read from the API server.
//! Several may run: one of them leads, and the others follow all changes and write nothing.
//!
//! All decisions are pure: [`scheduler::Scheduler`] takes events and the time, and returns
//! attempts; the choice of a node is [`plan::plan`], which runs the [`plugins`] of a [`framework`].
//! [`explain`] has the same decision in full. Around that, [`driver`] feeds it and binds,
//! [`report`] writes events and conditions, and [`service`] answers questions. Start reading at
//! [`scheduler`].

#![forbid(unsafe_code)]

use futures::future::BoxFuture;
use podplane_api::{
    apps::ReplicaSet,
    core::{Namespace, Node, Pod, Service},
    pod_ips::PodIpFlags,
    policy::PodDisruptionBudget,
};
use podplane_client::{
    EventRecorder, ListParams, ServerError,
    leader::{LeaderError, Leadership},
    reflector, start_check, transforming_reflector,
};
use podplane_proto::scheduler::scheduler_service_server::SchedulerServiceServer;
use podplane_service_runtime::{
    Process, Services, Tasks,
    serving::ServingError,
    tasks::{TaskEnd, TaskError},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub mod bind;
pub mod cache;
pub mod capacity;
pub mod cluster;
pub mod columns;
pub mod config;
pub mod constraints;
pub mod driver;
pub mod event;
pub mod explain;
pub mod fit_error;
pub mod framework;
pub mod images;
mod interner;
pub mod metrics;
pub mod names;
pub mod node;
pub mod node_gauges;
mod permissions;
pub mod plan;
pub mod plugins;
pub mod pod;
pub mod pod_index;
pub mod preemption;
pub mod queue;
pub mod remedy;
pub mod report;
pub mod resources;
pub mod scheduler;
pub mod score;
pub mod service;
#[cfg(test)]
mod testing;
mod trace;
mod unplaceable;
pub mod workloads;

pub use config::{IpPolicy, PlacementPolicy, SchedulerConfig};
use node_gauges::NodeAddressCollector;
use pod::PodReader;

/// The name of the election.
const ELECTION: &str = "podplane-scheduler";

/// The reasons why the scheduler ended without a request to stop.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerRunError {
    /// The API server's address is invalid.
    #[error("failed to prepare the connection to the API server")]
    Server(#[from] ServerError),
    /// The flags of the election are invalid.
    #[error(transparent)]
    Election(#[from] LeaderError),
    /// The scheduler's own address cannot be served as its flags say.
    #[error("failed to start the server")]
    Serve(#[from] ServingError),
    /// One of its tasks ended.
    #[error("failed to run the scheduler")]
    Task(#[from] TaskEnd),
}

/// Schedules pods until `shutdown` is cancelled. Waits for an unreachable API server.
///
/// # Errors
///
/// See [`SchedulerRunError`].
pub fn run(
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), SchedulerRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(
    config: SchedulerConfig,
    shutdown: CancellationToken,
) -> Result<(), SchedulerRunError> {
    let SchedulerConfig {
        server,
        scheduler_name,
        listen,
        allowed_hosts,
        serving,
        address_file,
        pod_ips: PodIpFlags {
            ip_policy,
            pod_ip_resource,
        },
        pod_ips_score_weight,
        seed,
        leader_election,
    } = config;
    let client = server.connect().await?;
    let candidate = leader_election.candidate(client.clone(), ELECTION)?;
    let listeners = serving.listeners(&listen, allowed_hosts, address_file.as_deref());
    let listeners = listeners.await?;
    tracing::info!(%server, scheduler_name, ?ip_policy, %pod_ip_resource, "scheduling");

    let mut tasks = Tasks::new(shutdown);
    let mut reader = PodReader::new(pod_ip_resource.clone());
    let (pods, pods_driver) = transforming_reflector(
        client.all::<Pod>(),
        ListParams::default(),
        move |pod: Pod| reader.read(&pod),
    );
    let (nodes, nodes_driver) = reflector(client.all::<Node>(), ListParams::default());
    let (namespaces, namespaces_driver) =
        reflector(client.all::<Namespace>(), ListParams::default());
    let (budgets, budgets_driver) =
        reflector(client.all::<PodDisruptionBudget>(), ListParams::default());
    let (workload_services, services_driver) =
        reflector(client.all::<Service>(), ListParams::default());
    let (replica_sets, replica_sets_driver) = transforming_reflector(
        client.all::<ReplicaSet>(),
        ListParams::default(),
        workloads::without_template,
    );
    tasks.follow("pod reflector", pods_driver);
    tasks.follow("node reflector", nodes_driver);
    tasks.follow("namespace reflector", namespaces_driver);
    tasks.follow("disruption budget reflector", budgets_driver);
    tasks.follow("service reflector", services_driver);
    tasks.follow("ReplicaSet reflector", replica_sets_driver);

    let (service, questions) =
        service::PlacementService::new(client.clone(), pods.clone(), pod_ip_resource.clone());
    let mut services = Services::default();
    services.add(SchedulerServiceServer::new(service));
    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    process.serve_at(listeners, services);
    process.trace("scheduler", client.channel());
    process.ready_when("pods", pods.synced());
    process.ready_when("nodes", nodes.synced());
    process.ready_when("namespaces", namespaces.synced());
    process.ready_when("disruption budgets", budgets.synced());
    process.ready_when("services", workload_services.synced());
    process.ready_when("ReplicaSets", replica_sets.synced());
    let metrics = metrics::SchedulerMetrics::new(&scheduler_name, process.registry());
    candidate.register(process.registry());
    let addresses = NodeAddressCollector::new(nodes.clone(), pods.clone(), pod_ip_resource.clone());
    process.registry().register_collector(Box::new(addresses));
    process.start(&mut tasks).await;

    let needed = [permissions::NEEDED, &candidate.permissions()].concat();
    let check = start_check(client, server, needed, tasks.stop());
    tasks.spawn("start check", check);
    let (terms, begun) = mpsc::channel(1);
    let policy = PlacementPolicy {
        scheduler_name: scheduler_name.clone(),
        ips: ip_policy,
        pod_ip_resource,
        pod_ips_weight: pod_ips_score_weight,
        seed,
    };
    let driver = driver::Driver {
        policy,
        pods,
        nodes,
        namespaces,
        budgets,
        services: workload_services,
        replica_sets,
        terms: begun,
        questions,
        metrics,
    };
    tasks.spawn("driver", driver.run(tasks.stop()));
    let stop = tasks.stop();
    tasks.spawn("leader", async move {
        // A scheduler that lost the lead ends, so that none of its assumptions is used later.
        candidate
            .lead(&stop, |leading| lead(leading, &scheduler_name, terms))
            .await?;
        stop.cancelled().await;
        Ok::<_, TaskError>(())
    });
    Ok(tasks.run().await?)
}

/// Lets the driver bind, and reports what it does, until it has ended. All writes are under the
/// fence.
async fn lead(leading: Leadership, scheduler_name: &str, terms: mpsc::Sender<driver::LeaderTerm>) {
    let client = leading.client;
    let (recorder, write_events) = EventRecorder::new(client.clone(), scheduler_name, "");
    let reporter = report::Reporter::new(client.clone(), recorder);
    let write_conditions = reporter.clone().run();
    // An error means that the driver has ended.
    _ = terms.send(driver::LeaderTerm { client, reporter }).await;
    // The writers never end. What they have not written is computed again by the next leader.
    tokio::select! {
        () = terms.closed() => {}
        () = write_events => {}
        () = write_conditions => {}
    }
}
