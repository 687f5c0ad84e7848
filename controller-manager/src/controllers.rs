//! The controllers of a leader: their workers and writers.

use std::sync::Arc;

use podplane_api::ObjectKey;
use podplane_client::{
    Client, EventRecorder,
    leader::{Leadership, LeadershipLost},
};
use podplane_service_runtime::{Tasks, tasks::TaskEnd};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::CertificateRequests,
    daemon_set::DaemonSets,
    deployment::Deployments,
    disruption::{DisruptionWriter, Disruptions},
    endpoints::{EndpointCache, EndpointsController, SliceController},
    garbage::{Garbage, GarbageCollector},
    job::Jobs,
    node_lifecycle::{NodeLifecycle, NodeWriter},
    replica_set::ReplicaSets,
    root_ca::RootCaPublisher,
    service_accounts::ServiceAccounts,
    stateful_set::StatefulSets,
    work::{Latch, work},
    workloads::WorkloadCache,
};

/// Nodes reconciled at once.
const NODE_WORKERS: usize = 8;
/// Disruption budgets reconciled at once.
const BUDGET_WORKERS: usize = 4;

/// Requests for certificates reconciled at once.
const REQUEST_WORKERS: usize = 2;
/// Namespaces whose default account or root certificates are written at once.
const NAMESPACE_WORKERS: usize = 1;

/// The state that a standby keeps up to date, and a leader works on.
pub(crate) struct ObservedState {
    pub(crate) requests: Arc<CertificateRequests>,
    pub(crate) lifecycle: Arc<NodeLifecycle>,
    pub(crate) workloads: Arc<WorkloadCache>,
    pub(crate) addresses: Arc<EndpointCache>,
    pub(crate) disruptions: Arc<Disruptions>,
    pub(crate) accounts: Arc<ServiceAccounts>,
    pub(crate) root_ca: Arc<RootCaPublisher>,
    pub(crate) garbage: Arc<Garbage>,
    /// Opens once all first lists have been observed.
    pub(crate) ready: Arc<Latch>,
}

/// The numbers of objects reconciled at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerCounts {
    pub(crate) deployments: usize,
    pub(crate) replica_sets: usize,
    pub(crate) daemon_sets: usize,
    pub(crate) stateful_sets: usize,
    pub(crate) jobs: usize,
    pub(crate) slices: usize,
    pub(crate) endpoints: usize,
    pub(crate) garbage: usize,
}

/// Runs the controllers until `stop`. All their writes, events included, are under the fence.
///
/// # Errors
///
/// [`LeadershipLost`] if a write was refused because another process leads.
pub(crate) async fn lead(
    leading: Leadership,
    state: ObservedState,
    counts: WorkerCounts,
    stop: CancellationToken,
) -> Result<(), TaskEnd> {
    let Leadership { client, .. } = leading;
    let ObservedState {
        requests,
        lifecycle,
        workloads,
        addresses,
        disruptions,
        accounts,
        root_ca,
        garbage,
        ready,
    } = state;
    // A child, because the first task that ends stops the others, and not yet the process.
    let mut tasks = ControllerTasks {
        tasks: Tasks::new(stop.child_token()),
        client: client.clone(),
    };
    if stop.run_until_cancelled(ready.opened()).await.is_none() {
        return Ok(());
    }
    requests.open();
    lifecycle.open();
    workloads.open();
    addresses.open();
    disruptions.open();
    accounts.open();
    root_ca.open();
    garbage.open();

    let writer = NodeWriter {
        client: client.clone(),
        events: tasks.recorder("node-controller"),
        evictions: tasks.recorder("taint-eviction-controller"),
    };
    tasks.run("node lifecycle controller", async move {
        let reconcile = async |name: String| lifecycle.reconcile(&writer, &name).await;
        work("node", &lifecycle.queue, NODE_WORKERS, reconcile).await
    });

    let events = tasks.recorder("deployment-controller");
    let controller = Deployments::new(client.clone(), events);
    let cache = workloads.clone();
    tasks.run("deployment controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        let queue = &cache.deployments.queue;
        work("deployment", queue, counts.deployments, reconcile).await
    });

    let events = tasks.recorder("daemonset-controller");
    let controller = DaemonSets::new(client.clone(), events);
    let cache = workloads.clone();
    tasks.run("daemonset controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        let queue = &cache.daemon_sets.queue;
        work("daemonset", queue, counts.daemon_sets, reconcile).await
    });

    let events = tasks.recorder("statefulset-controller");
    let controller = StatefulSets::new(client.clone(), events);
    let cache = workloads.clone();
    tasks.run("statefulset controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        let queue = &cache.stateful_sets.queue;
        work("statefulset", queue, counts.stateful_sets, reconcile).await
    });

    let events = tasks.recorder("job-controller");
    let controller = Jobs::new(client.clone(), events);
    let cache = workloads.clone();
    tasks.run("job controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        work("job", &cache.jobs.queue, counts.jobs, reconcile).await
    });

    let events = tasks.recorder("replicaset-controller");
    let controller = ReplicaSets::new(client.clone(), events);
    tasks.run("replicaset controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&workloads, &key).await;
        let queue = &workloads.sets.queue;
        work("replicaset", queue, counts.replica_sets, reconcile).await
    });

    let writer = DisruptionWriter {
        client: client.clone(),
        events: tasks.recorder("disruption-controller"),
    };
    tasks.run("disruption controller", async move {
        let reconcile = async |key: ObjectKey| disruptions.reconcile(&writer, &key).await;
        work("disruption", &disruptions.queue, BUDGET_WORKERS, reconcile).await
    });

    let (controller, cache) = (SliceController::new(client.clone()), addresses.clone());
    tasks.run("endpointslice controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&cache, &key).await;
        work(
            "endpointslice",
            &cache.slice_queue,
            counts.slices,
            reconcile,
        )
        .await
    });

    let controller = EndpointsController::new(client.clone());
    tasks.run("endpoints controller", async move {
        let reconcile = async |key: ObjectKey| controller.reconcile(&addresses, &key).await;
        let queue = &addresses.endpoints_queue;
        work("endpoints", queue, counts.endpoints, reconcile).await
    });

    let writer = client.clone();
    tasks.run("service account controller", async move {
        let reconcile = async |name: String| accounts.reconcile(&writer, &name).await;
        work(
            "serviceaccount",
            &accounts.queue,
            NAMESPACE_WORKERS,
            reconcile,
        )
        .await
    });

    let writer = client.clone();
    tasks.run("root certificate publisher", async move {
        let reconcile = async |name: String| root_ca.reconcile(&writer, &name).await;
        work("rootca", &root_ca.queue, NAMESPACE_WORKERS, reconcile).await
    });

    let writer = client.clone();
    tasks.run("certificate controller", async move {
        let reconcile = async |name: String| requests.reconcile(&writer, &name).await;
        let queue = &requests.queue;
        work("certificate", queue, REQUEST_WORKERS, reconcile).await
    });

    let collector = GarbageCollector::new(garbage.clone(), &client);
    tasks.run("garbage collector", async move {
        let reconcile = async |uid: String| collector.reconcile(&uid).await;
        work("garbage", &garbage.queue, counts.garbage, reconcile).await
    });
    tasks.tasks.run().await
}

/// The tasks of the controllers.
struct ControllerTasks {
    tasks: Tasks,
    client: Client,
}

impl ControllerTasks {
    /// A recorder of events under that name.
    fn recorder(&mut self, component: &'static str) -> EventRecorder {
        let (events, write_events) = EventRecorder::new(self.client.clone(), component, "");
        self.tasks.follow(component, write_events);
        events
    }

    /// Starts a controller, which is cut off at the stop: the next leader begins with lists that
    /// show what its calls did.
    fn run(
        &mut self,
        name: &'static str,
        controller: impl Future<Output = Result<(), LeadershipLost>> + Send + 'static,
    ) {
        let stop = self.tasks.stop();
        self.tasks.spawn(name, async move {
            let ended = stop.run_until_cancelled_owned(controller).await;
            ended.unwrap_or(Ok(()))
        });
    }
}
