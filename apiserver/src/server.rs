//! Putting it together: one line for each kind, and the order in which things start.

use futures::future::BoxFuture;
use std::{future::Future, path::PathBuf, sync::Arc};

use ipnet::IpNet;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::TraceServiceServer;
use podplane_api::{
    apps::{ControllerRevision, Deployment, ReplicaSet},
    coordination::Lease,
    core::{Event, Namespace, Node, Pod, Service},
    networking::ClusterCIDR,
};
use podplane_proto::{
    DESCRIPTORS, error::ApiError, ipam::block_service_server::BlockServiceServer,
    store::store_service_server::StoreServiceServer, trace::trace_service_server,
};
use podplane_store::{MemStore, OpenError, SledStore, Store, StoreError};
use podplane_telemetry::{
    Process, Services, Tasks,
    server::{Listener, ServeError},
    tasks::{Ended, TaskError},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Bounds, Config, StoreKind,
    admission::{Addresses, Admission, Fences, NodeBlocks, Policy},
    cache::{Feeder, KindCache, Position, Sink},
    engine::Engine,
    journeys::{Journeys, Limits},
    metrics::Metrics,
    registry::Registry,
    rest::{
        self,
        bindings::Bindings,
        events::EventsV1,
        resource::{Resource, RestKind},
    },
    service::{Backups, BlockRecords, Collector, KindService, NarrowMethods, Traces},
    upkeep::{Kind, Upkeep},
};

/// Why the API server does not run, or runs no more.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The sled store needs a directory.
    #[error("--store sled needs --data-dir")]
    NoDataDir,
    /// The store cannot be opened.
    #[error("open the store in {}", dir.display())]
    Open {
        /// Its directory.
        dir: PathBuf,
        /// What is wrong, and what to do.
        #[source]
        source: OpenError,
    },
    /// The thread that opened the store panicked.
    #[error("open the store")]
    OpenPanicked(#[source] tokio::task::JoinError),
    /// What is in the store cannot be read.
    #[error("read the store")]
    Store(#[from] StoreError),
    /// The namespaces that are always there cannot be made.
    #[error("create the system namespaces")]
    SystemNamespaces(#[source] ApiError),
    /// It cannot serve.
    #[error("serve")]
    Serve(#[from] ServeError),
    /// A part of it ended.
    #[error("run")]
    Ended(#[from] Ended),
}

/// Serves until `shutdown`.
///
/// # Errors
///
/// [`RunError`] says which step of starting failed, or which part ended.
pub fn run(
    config: Config,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), RunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let Config {
        listen,
        allowed_hosts,
        address_file,
        data_dir,
        store,
        service_cluster_ip_range,
        cluster_cidr,
        compat,
        release_after,
        bounds,
    } = config;
    let policy = Policy {
        service_ranges: service_cluster_ip_range,
        cluster_cidrs: cluster_cidr.iter().map(IpNet::trunc).collect(),
        lenient: compat.is_lenient(),
        release_after: Some(release_after).filter(|after| !after.is_zero()),
    };
    policy.announce();
    // Bound first, so that a port in use is found before a large store is read.
    let listener = Listener::bind(&listen).await?.allowing(allowed_hosts);
    // Where clients look for the server of a data directory.
    let default_file = match store {
        StoreKind::Sled => data_dir.as_ref().map(|dir| dir.join("apiserver.address")),
        StoreKind::Memory => None,
    };
    let address_file = address_file.or(default_file);
    let ready =
        move |listener: &Listener| address_file.map_or(Ok(()), |file| listener.publish(&file));
    match store {
        StoreKind::Memory => {
            serve(MemStore::new(), policy, bounds, listener, ready, shutdown).await
        }
        StoreKind::Sled => {
            let dir = data_dir.ok_or(RunError::NoDataDir)?.join("store");
            let open = {
                let dir = dir.clone();
                tokio::task::spawn_blocking(move || SledStore::open(dir))
            };
            let store = open
                .await
                .map_err(RunError::OpenPanicked)?
                .map_err(|source| RunError::Open { dir, source })?;
            serve(store, policy, bounds, listener, ready, shutdown).await
        }
    }
}

/// Serves a store on a socket. `ready` is called when requests will be answered.
pub(crate) async fn serve(
    store: impl Store,
    policy: Policy,
    bounds: Bounds,
    listener: Listener,
    ready: impl FnOnce(&Listener) -> Result<(), ServeError> + Send,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let engine = Engine::new(store).await?;
    let blocks = Arc::new(NodeBlocks::open(engine.clone(), policy).await?);
    let addresses = Arc::new(Addresses::open(&engine).await?);
    let mut process = Process::new(DESCRIPTORS);
    let metrics = Metrics::new(process.registry());
    let mut server = Server::new(engine.clone(), metrics.clone(), shutdown.clone());
    let pods = Arc::new(server.add_admitting::<Pod>(Some(addresses)));
    let bindings = Bindings::new(Registry::clone(&pods));
    server.resources.push(Arc::new(bindings));
    let journeys = Journeys::new(Limits::DEFAULT);
    let collector = Collector(journeys.clone());
    server.services.add(TraceServiceServer::new(collector));
    let traces = Traces {
        journeys: journeys.clone(),
        pods,
    };
    server
        .services
        .add(trace_service_server::TraceServiceServer::new(traces));
    let nodes = server.add_admitting::<Node>(Some(blocks.clone()));
    let records = BlockServiceServer::new(BlockRecords { nodes, blocks });
    server.services.add(records);
    let namespaces = server.add::<Namespace>();
    let events = server.add::<Event>();
    server.resources.push(Arc::new(EventsV1::new(events)));
    server.add_admitting::<Lease>(Some(Arc::new(Fences)));
    server.add::<Service>();
    server.add::<Deployment>();
    server.add::<ReplicaSet>();
    server.add::<ControllerRevision>();
    server.add::<ClusterCIDR>();
    let Server {
        feeder,
        position,
        services,
        kinds,
        resources,
        stop: end_watches,
        ..
    } = server;

    process.trace_to("apiserver", {
        let journeys = journeys.clone();
        move |spans| journeys.take(spans)
    });
    let shared = rest::Shared {
        journeys,
        stop: end_watches,
    };
    let registry = process.registry();
    let rest = rest::router(resources, position.clone(), shared, metrics, registry);
    process.with_http(rest);
    let feed = feeder.fill(&engine).await?;
    let mut tasks = Tasks::new(shutdown);
    spawn(&mut tasks, "watch cache", feed.run());
    let upkeep = Arc::new(Upkeep {
        engine,
        position,
        namespaces,
        kinds,
        bounds,
    });
    upkeep
        .create_system_namespaces()
        .await
        .map_err(RunError::SystemNamespaces)?;
    spawn(&mut tasks, "store", Arc::clone(&upkeep).report_failure());
    spawn(
        &mut tasks,
        "namespace lifecycle",
        Arc::clone(&upkeep).end_namespaces(),
    );
    spawn(&mut tasks, "expiry", Arc::clone(&upkeep).sweep());
    spawn(&mut tasks, "event limit", Arc::clone(&upkeep).limit());
    spawn(&mut tasks, "compaction", upkeep.compact());
    ready(&listener)?;
    process.serve(listener, services);
    process.start(&mut tasks).await;
    Ok(tasks.run().await?)
}

/// Starts a task that has nothing to finish when it is asked to stop.
fn spawn<E: Into<TaskError> + Send + 'static>(
    tasks: &mut Tasks,
    name: &'static str,
    task: impl Future<Output = Result<(), E>> + Send + 'static,
) {
    let stop = tasks.stop();
    tasks.spawn(name, async move {
        stop.run_until_cancelled_owned(task).await.unwrap_or(Ok(()))
    });
}

/// What is there for every kind.
struct Server {
    engine: Engine,
    metrics: Metrics,
    feeder: Feeder,
    position: Position,
    services: Services,
    kinds: Vec<Arc<dyn Kind>>,
    resources: Vec<Arc<dyn Resource>>,
    stop: CancellationToken,
}

impl Server {
    fn new(engine: Engine, metrics: Metrics, stop: CancellationToken) -> Self {
        let feeder = Feeder::new();
        let position = feeder.position();
        let mut services = Services::default();
        services.add(StoreServiceServer::new(Backups(engine.clone())));
        Self {
            engine,
            metrics,
            feeder,
            position,
            services,
            kinds: Vec::new(),
            resources: Vec::new(),
            stop,
        }
    }

    /// Adds a kind: its cache, its registry, its service, and what upkeep does for it.
    fn add<K: NarrowMethods + RestKind>(&mut self) -> Registry<K> {
        self.add_admitting(None)
    }

    fn add_admitting<K: NarrowMethods + RestKind>(
        &mut self,
        admission: Option<Arc<dyn Admission<K>>>,
    ) -> Registry<K> {
        let cache = Arc::new(KindCache::<K>::new());
        self.feeder.add(Arc::clone(&cache) as Arc<dyn Sink>);
        let registry = Registry::new(self.engine.clone(), cache, self.position.clone());
        let registry = registry.admitting(admission);
        self.services.add(KindService::new(
            registry.clone(),
            self.stop.clone(),
            self.metrics.clone(),
        ));
        self.kinds.push(Arc::new(registry.clone()));
        self.resources.push(Arc::new(registry.clone()));
        registry
    }
}
