//! The parts of the server under construction: each kind with its cache, registry, service and
//! resource.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use axum::response::IntoResponse;
use podplane_api::{kinds::KindVisitor, strategy::Strategy};
use podplane_proto::store::store_service_server::StoreServiceServer;
use podplane_service_runtime::Services;
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, codegen::Service, server::NamedService};

use crate::{
    AuthorizationMode,
    admission::{Admission, Allocation, ConfiguredAdmission, MutatingAdmission, WriteCheck},
    authorization::{Gate, Gated, GrantCheck, NodeRestriction, ServiceRule},
    cache::{Feeder, KindCache, Position},
    engine::Engine,
    flow::FlowKinds,
    metrics::ApiserverMetrics,
    registry::{KindRegistry, Registry, SubresourceActions},
    renderers::Renderers,
    rest::resource::Resource,
    service::{Backups, KindService, NarrowMethods, STORE_RULES},
    upkeep::UpkeepKind,
};

/// The parts of the server under construction.
pub(super) struct ServerBuilder {
    pub(super) engine: Engine,
    pub(super) metrics: ApiserverMetrics,
    pub(super) feeder: Feeder,
    pub(super) position: Position,
    pub(super) services: Services,
    /// The rules of the services, by their names.
    pub(super) rules: HashMap<&'static str, ServiceRule>,
    pub(super) gate: Gate,
    /// The admission by rules that are objects, for all kinds.
    pub(super) configured: Option<Arc<dyn ConfiguredAdmission>>,
    pub(super) kinds: Vec<Arc<dyn UpkeepKind>>,
    pub(super) resources: Vec<Arc<dyn Resource>>,
    pub(super) flow_kinds: FlowKinds,
    pub(super) renderers: Renderers,
    pub(super) stop: CancellationToken,
}

impl ServerBuilder {
    pub(super) fn new(
        engine: Engine,
        metrics: ApiserverMetrics,
        authorization: AuthorizationMode,
        stop: CancellationToken,
    ) -> Self {
        let mut feeder = Feeder::new();
        let position = feeder.position();
        let backups = Backups(Gated::new(engine.clone()));
        let mut server = Self {
            gate: Gate::new(authorization, &engine, &mut feeder),
            engine,
            metrics,
            feeder,
            position,
            services: Services::default(),
            rules: HashMap::new(),
            configured: None,
            kinds: Vec::new(),
            resources: Vec::new(),
            flow_kinds: FlowKinds::default(),
            renderers: Renderers::default(),
            stop,
        };
        let rules = ServiceRule::Methods(&STORE_RULES);
        server.serve(StoreServiceServer::new(backups), rules);
        server
    }

    /// Serves a service to those whom its rule allows.
    pub(super) fn serve<S>(&mut self, service: S, rule: ServiceRule)
    where
        S: Service<http::Request<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.services.add(service);
        self.rules.insert(S::NAME, rule);
    }

    pub(super) fn add<K: Strategy>(&mut self) -> Registry<K> {
        self.add_extended(Extension::default())
    }

    /// Adds a kind whose objects grant rights.
    pub(super) fn add_granting<K: Strategy>(&mut self) -> Registry<K>
    where
        GrantCheck: WriteCheck<K>,
    {
        let check = GrantCheck::new(&self.gate);
        self.add_extended(Extension {
            checks: vec![Arc::new(check)],
            ..Extension::default()
        })
    }

    /// Adds a kind of which nodes may write some objects.
    pub(super) fn add_restricted<K: Strategy>(&mut self) -> Registry<K>
    where
        NodeRestriction: WriteCheck<K>,
    {
        let check = NodeRestriction::new(&self.gate);
        self.add_checked(Arc::new(check))
    }

    /// Adds a kind whose writes are checked.
    pub(super) fn add_checked<K: Strategy>(
        &mut self,
        check: Arc<dyn WriteCheck<K>>,
    ) -> Registry<K> {
        self.add_extended(Extension {
            checks: vec![check],
            ..Extension::default()
        })
    }

    /// Adds a kind: its cache, its registry, its service and its upkeep.
    pub(super) fn add_extended<K: Strategy>(&mut self, extension: Extension<K>) -> Registry<K> {
        let Extension {
            mutations,
            checks,
            allocation,
            admission,
            actions,
            methods,
        } = extension;
        let cache = Registry::<K>::cache();
        let registry = Registry::new(
            self.engine.clone(),
            Arc::clone(&cache),
            self.position.clone(),
        );
        let registry = registry.completing(mutations).admitting(admission);
        let registry = registry.allocating(allocation);
        let registry = registry.checking(checks).acting(actions);
        let registry = registry.configured_by(self.configured.clone());
        self.serve_kind(cache, registry.any(), methods);
        registry
    }

    /// Serves the objects of a registry.
    fn serve_kind(
        &mut self,
        cache: Arc<KindCache>,
        registry: &KindRegistry,
        methods: Option<NarrowMethods>,
    ) {
        self.feeder.add(cache);
        let kind = registry.kind();
        if let Some(name) = kind.service() {
            let service = KindService::new(
                registry.clone(),
                self.gate.clone(),
                methods,
                self.renderers.clone(),
                self.stop.clone(),
                self.metrics.clone(),
            );
            self.services.add_named(name, service);
            self.rules.insert(name, ServiceRule::ByMessage);
        }
        let resource: Arc<dyn Resource> = Arc::new(registry.clone());
        self.flow_kinds.add(kind, Arc::clone(&resource));
        self.resources.push(resource);
        self.kinds.push(Arc::new(registry.clone()));
    }
}

/// Adds the kinds that nothing else here needs.
impl KindVisitor for ServerBuilder {
    fn visit<K: Strategy>(&mut self) {
        let is_this = |resource: &Arc<dyn Resource>| {
            let names = resource.names();
            names.is(K::GROUP, K::PLURAL)
        };
        if !self.resources.iter().any(is_this) {
            self.add::<K>();
        }
    }
}

/// The behaviour of a kind that is not a function of its objects alone. Most kinds have none.
pub(super) struct Extension<K> {
    /// The completions of new objects, in order.
    pub(super) mutations: Vec<Arc<dyn MutatingAdmission<K>>>,
    /// The checks of who writes what.
    pub(super) checks: Vec<Arc<dyn WriteCheck<K>>>,
    pub(super) allocation: Option<Arc<dyn Allocation<K>>>,
    pub(super) admission: Option<Arc<dyn Admission<K>>>,
    /// The subresources that act on an object.
    pub(super) actions: Option<Arc<dyn SubresourceActions>>,
    /// The methods of its gRPC service besides the uniform ones.
    pub(super) methods: Option<NarrowMethods>,
}

impl<K> Default for Extension<K> {
    fn default() -> Self {
        Self {
            mutations: Vec::new(),
            checks: Vec::new(),
            allocation: None,
            admission: None,
            actions: None,
            methods: None,
        }
    }
}
