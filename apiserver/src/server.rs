//! The wiring of the server: the kinds, the extensions of some of them, and the order of the start.

mod builder;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use futures::future::BoxFuture;
use ipnet::IpNet;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::TraceServiceServer;
use podplane_api::{
    admissionregistration::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
    },
    apiextensions::CustomResourceDefinition,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::{Event, Namespace, Node, PersistentVolumeClaim, ServiceAccount},
    kinds,
    networking::IPAddress,
    pod_ips::PodIpFlags,
    policy::PodDisruptionBudget,
    rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    resource::ResourceSlice,
    scheduling::PriorityClass,
    storage::CSINode,
};
use podplane_host::task;
use podplane_ipam::NodePortRange;
use podplane_pki::PkiError;
use podplane_proto::{
    DESCRIPTORS, authentication::authentication_service_server::AuthenticationServiceServer,
    authorization::authorization_service_server::AuthorizationServiceServer, error::ApiError,
    ipam::block_service_server::BlockServiceServer, trace::trace_service_server,
};
use podplane_request_audit::OpenLogError;
use podplane_service_runtime::{
    Process, Tasks,
    flow::RequestFlow,
    gate::RequestGate,
    recorder::RequestRecorder,
    server::{Listen, Listener, ServeError},
    tasks::{TaskEnd, TaskError},
    tls::{TlsError, TlsFlagsError},
};
use podplane_store::{EtcdOpenError, EtcdStore, MemStore, OpenError, SledStore, Store, StoreError};
use podplane_tokens::KeyDirError;
use tokio_util::sync::CancellationToken;

use self::builder::{Extension, ServerBuilder};
use crate::{
    ApiserverConfig, AuthenticationMode, AuthorizationMode, HistoryBounds, HoldFlags, StoreKind,
    TokenFileError,
    admission::{
        AdmissionMetrics, BlockPolicy, ConfiguredRules, DefaultAccounts, ExpressionCheck, Fences,
        HeldAddresses, NodeBlockAdmission, PodAccount, PodAdmission, PodIpRules, PodPriority,
        ServiceAdmission, ServiceCidrAdmission, ServiceIndex, SingleDefaultClass,
    },
    audit::{AuditPolicyFileError, AuditRecorder, AuditSetup, Auditor},
    authentication::{AccountTokens, OwnCertificates, RequestAuthenticator, TokenObjects},
    authorization::{
        Gated, NodeRestriction, RequestJudge, ServiceRule, SignerCheck, aggregation,
        custom_objects, defaults,
    },
    custom::{CustomKinds, DefinitionRules},
    engine::Engine,
    flow::{FlowController, FlowLimits},
    journeys::{Journeys, TraceLimits},
    memory,
    metrics::ApiserverMetrics,
    rest::{
        self,
        bindings::{Bindings, PodActions},
        events::EventsV1,
        token_review::TokenReviews,
        tokens::AccountActions,
    },
    runtime_config::{self, ApiVersionSetting, UnknownApiVersion},
    served::ServedKinds,
    service::{
        AUTHENTICATION_RULES, AUTHORIZATION_RULES, AccessReviews, BLOCK_RULES, BlockRecords,
        COLLECTOR_RULES, IdentityReviews, Records, SpanCollector, Traces, of_certificate_requests,
        of_nodes, of_pods,
    },
    sockets::SocketFlags,
    summary,
    upkeep::{ServerEndpoints, ServiceUpkeep, Upkeep},
};

/// The reason why the API server could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ApiserverRunError {
    /// The sled store needs a directory.
    #[error("--store sled needs --data-dir")]
    NoDataDir,
    /// The data directory cannot be made.
    #[error("failed to make the data directory {}", dir.display())]
    DataDir {
        /// The directory.
        dir: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Without authentication only this machine may reach the server.
    #[error(
        "--authentication=none needs a loopback address or a unix socket, and --listen is {0}: choose --authentication=credentials, or an address such as 127.0.0.1:7080"
    )]
    NotLoopback(Listen),
    /// Tokens would have no effect.
    #[error("--token-auth-file needs --authentication=credentials")]
    UnusedTokens,
    /// The flags of TLS contradict each other.
    #[error(transparent)]
    TlsFlags(#[from] TlsFlagsError),
    /// A unix socket has no TLS.
    #[error("--tls-cert-file needs a TCP address, and --listen is {0}")]
    TlsOnSocket(Listen),
    /// Nothing proves who the server is.
    #[error(
        "no certificate for the server: give --data-dir, where it makes its own, or --tls-cert-file and --tls-private-key-file; or choose --authentication=none"
    )]
    NoCertificates,
    /// The server's own certificates, or its kubeconfig, cannot be made.
    #[error("failed to make the server's certificates")]
    OwnCertificates(#[from] PkiError),
    /// A certificate, key or authority cannot be used.
    #[error("failed to serve with TLS")]
    Tls(#[from] TlsError),
    /// Without identities there is nothing to decide by.
    #[error(
        "--authorization-mode=Node,RBAC needs --authentication=credentials: without it every client over TCP is the same user"
    )]
    NobodyToAuthorize,
    /// An audit log without a policy, or the reverse.
    #[error("--audit-log-path and --audit-policy-file need each other")]
    IncompleteAudit,
    /// The audit policy cannot be used.
    #[error("failed to read the audit policy")]
    AuditPolicy(#[from] AuditPolicyFileError),
    /// The audit log cannot be opened.
    #[error("failed to open the audit log")]
    AuditLog(#[from] OpenLogError),
    /// The token file cannot be used.
    #[error("failed to read bearer tokens")]
    Tokens(#[from] TokenFileError),
    /// The keys that sign tokens cannot be read or made.
    #[error("failed to open the signing keys")]
    SigningKeys(#[from] KeyDirError),
    /// The store cannot be opened.
    #[error("failed to open the store in {}", dir.display())]
    Open {
        /// Its directory.
        dir: PathBuf,
        /// The cause, with a remedy.
        #[source]
        source: OpenError,
    },
    /// The store in etcd cannot be opened.
    #[error(transparent)]
    OpenEtcd(#[from] EtcdOpenError),
    /// The thread that opened the store panicked.
    #[error("failed to open the store")]
    OpenPanicked(#[source] tokio::task::JoinError),
    /// The content of the store cannot be read.
    #[error("failed to read the store")]
    Store(#[from] StoreError),
    /// The system namespaces or the built-in priority classes cannot be created.
    #[error("failed to create the system namespaces and priority classes")]
    SystemObjects(#[source] ApiError),
    /// The custom resource definitions cannot be read.
    #[error("failed to read the custom resource definitions")]
    CustomKinds(#[source] ApiError),
    /// The reservations of addresses and node ports of Services cannot be completed.
    #[error("failed to complete the reservations of services")]
    Services(#[source] ApiError),
    /// The default roles and bindings cannot be written.
    #[error("failed to complete the default roles and bindings")]
    DefaultRoles(#[source] ApiError),
    /// The server cannot listen, or cannot publish its address.
    #[error("failed to serve")]
    Serve(#[from] ServeError),
    /// `--runtime-config` names a version that no kind has.
    #[error(transparent)]
    ApiVersion(#[from] UnknownApiVersion),
    /// A task ended unexpectedly.
    #[error("failed to run")]
    Ended(#[from] TaskEnd),
}

/// Serves until `shutdown`.
///
/// # Errors
///
/// [`ApiserverRunError`] names the step of the start that failed, or the task that ended.
pub fn run(
    config: ApiserverConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), ApiserverRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(
    config: ApiserverConfig,
    shutdown: CancellationToken,
) -> Result<(), ApiserverRunError> {
    let ApiserverConfig {
        listen,
        allowed_hosts,
        authentication,
        account_tokens,
        tls,
        own_certificates,
        authorization,
        audit,
        limits,
        address_file,
        data_dir,
        store,
        etcd,
        service_cluster_ip_range,
        service_node_port_range,
        advertise_address,
        cluster_cidr,
        compat,
        pod_ips: PodIpFlags {
            ip_policy,
            pod_ip_resource,
        },
        cluster: HoldFlags { release_after },
        bounds,
        runtime_config,
    } = config;
    let blocks = BlockPolicy {
        service_ranges: service_cluster_ip_range,
        cluster_cidrs: cluster_cidr.iter().map(IpNet::trunc).collect(),
        lenient: compat.is_lenient(),
        release_after: Some(release_after).filter(|after| !after.is_zero()),
    };
    blocks.announce();
    let mut rules = ServerRules {
        blocks,
        node_ports: service_node_port_range,
        advertise: advertise_address,
        pod_ips: PodIpRules {
            policy: ip_policy,
            resource: pod_ip_resource,
        },
        bounds,
        tokens: None,
        authenticator: None,
        authorization: authorization.mode(&authentication)?,
        own_certificates: None,
        audit: audit.setup()?,
        flow: FlowLimits::default(),
        api_versions: runtime_config,
    };
    let authenticator = authentication.authenticator(&listen, rules.authorization)?;
    let has_users = authenticator.mode() == AuthenticationMode::Credentials;
    rules.flow = limits.flow(has_users);
    let tokens = match authenticator.mode() {
        AuthenticationMode::None => None,
        AuthenticationMode::Credentials => {
            let dir = data_dir.as_deref().filter(|_| store != StoreKind::Memory);
            Some(account_tokens.issuer(dir)?)
        }
    };
    let authenticator = Arc::new(authenticator.with_accounts(tokens.clone()));
    rules.authenticator = tokens.is_some().then(|| Arc::clone(&authenticator));
    rules.tokens = tokens;
    let sockets = SocketFlags {
        listen,
        allowed_hosts,
        tls,
        own_certificates,
        address_file,
        data_dir: data_dir.clone(),
        limits: limits.server(),
    };
    let sockets = sockets.bind(&authentication, authenticator, store).await?;
    rules.own_certificates = sockets.own_certificates;
    let (listeners, announcement) = (sockets.listeners, sockets.announcement);
    let ready = move |server: &Listener| announcement.publish(server);
    match store {
        StoreKind::Memory => serve(MemStore::new(), rules, listeners, ready, shutdown).await,
        StoreKind::Etcd => {
            let store = EtcdStore::open(&etcd).await?;
            serve(store, rules, listeners, ready, shutdown).await
        }
        StoreKind::Sled => {
            let dir = data_dir.ok_or(ApiserverRunError::NoDataDir)?.join("store");
            let open = {
                let dir = dir.clone();
                task::spawn_blocking(move || SledStore::open(dir))
            };
            let store = open
                .await
                .map_err(ApiserverRunError::OpenPanicked)?
                .map_err(|source| ApiserverRunError::Open { dir, source })?;
            serve(store, rules, listeners, ready, shutdown).await
        }
    }
}

/// The rules of a server, by its flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerRules {
    pub(crate) blocks: BlockPolicy,
    /// The node ports of Services.
    pub(crate) node_ports: NodePortRange,
    /// The address at which others reach the server; `None`: that of its socket.
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) pod_ips: PodIpRules,
    pub(crate) bounds: HistoryBounds,
    /// The issuer of ServiceAccounts' tokens, if there is one.
    pub(crate) tokens: Option<Arc<AccountTokens>>,
    /// The judge of tokens, if they say anything.
    pub(crate) authenticator: Option<Arc<RequestAuthenticator>>,
    pub(crate) authorization: AuthorizationMode,
    /// The certificates that the server renews.
    pub(crate) own_certificates: Option<OwnCertificates>,
    /// The audit log, if there is one.
    pub(crate) audit: Option<AuditSetup>,
    pub(crate) flow: FlowLimits,
    /// The versions that are not served.
    pub(crate) api_versions: Vec<ApiVersionSetting>,
}

/// Serves a store on these sockets. `ready` is called with the first one once requests will be
/// answered.
pub(crate) async fn serve(
    store: impl Store,
    rules: ServerRules,
    listeners: Vec<Listener>,
    ready: impl FnOnce(&Listener) -> Result<(), ApiserverRunError> + Send,
    shutdown: CancellationToken,
) -> Result<(), ApiserverRunError> {
    let ServerRules {
        blocks,
        node_ports,
        advertise,
        pod_ips,
        bounds,
        tokens,
        authenticator,
        authorization,
        own_certificates,
        audit,
        flow,
        api_versions,
    } = rules;
    let cluster_cidrs = blocks.cluster_cidrs.clone();
    let resource = pod_ips.resource.clone();
    let engine = Engine::new(store).await?.expiring(bounds.event_ttl);
    let service_ranges = blocks.service_ranges.clone();
    let blocks = Arc::new(NodeBlockAdmission::open(engine.clone(), blocks).await?);
    let pods = Arc::new(PodAdmission::open(engine.clone(), pod_ips).await?);
    let mut process = Process::new(DESCRIPTORS);
    let metrics = ApiserverMetrics::new(process.registry());
    let auditor = match audit {
        Some(setup) => Some(Arc::new(Auditor::open(setup, process.registry())?)),
        None => None,
    };
    let mut server = ServerBuilder::new(
        engine.clone(),
        metrics.clone(),
        authorization,
        shutdown.clone(),
    );
    let gate = server.gate.clone();
    let served = ServedKinds::default();
    let admission = AdmissionMetrics::new(process.registry());
    let others = served.others();
    let configured = ConfiguredRules::new(&mut server.feeder, others, gate.clone(), admission);
    server.configured = Some(Arc::new(configured));
    server.add_checked::<MutatingWebhookConfiguration>(ExpressionCheck::shared());
    server.add_checked::<ValidatingWebhookConfiguration>(ExpressionCheck::shared());
    server.add_checked::<ValidatingAdmissionPolicy>(ExpressionCheck::shared());
    let budgets = server.add::<PodDisruptionBudget>();
    let classes = server.add_extended::<PriorityClass>(Extension {
        admission: Some(Arc::new(SingleDefaultClass::new(engine.clone()))),
        ..Extension::default()
    });
    let pods = server.add_extended(Extension {
        mutations: vec![
            Arc::new(PodAccount::new(engine.clone())),
            Arc::new(PodPriority::new(engine.clone())),
        ],
        checks: vec![Arc::new(NodeRestriction::new(&gate))],
        allocation: None,
        admission: Some(pods),
        actions: Some(Arc::new(PodActions::new(budgets.clone()))),
        methods: Some(of_pods(budgets)),
    });
    let bindings = Bindings::new(pods.clone());
    server.resources.push(Arc::new(bindings));
    let journeys = Journeys::new(TraceLimits::DEFAULT);
    let collector = SpanCollector(Gated::new(journeys.clone()));
    server.serve(
        TraceServiceServer::new(collector),
        ServiceRule::Methods(&COLLECTOR_RULES),
    );
    let traces = Traces {
        gate: gate.clone(),
        journeys: Gated::new(journeys.clone()),
        pods: Gated::new(Arc::new(pods.any().clone())),
    };
    let shown_traces = traces.clone();
    server.serve(
        trace_service_server::TraceServiceServer::new(traces),
        ServiceRule::ByMessage,
    );
    let nodes = server.add_extended::<Node>(Extension {
        checks: vec![Arc::new(NodeRestriction::new(&gate))],
        admission: Some(blocks.clone()),
        methods: Some(of_nodes()),
        ..Extension::default()
    });
    let records = Records {
        nodes: nodes.clone(),
        blocks: blocks.clone(),
    };
    let block_service = BlockServiceServer::new(BlockRecords {
        gate: gate.clone(),
        records: Gated::new(records.clone()),
    });
    server.serve(block_service, ServiceRule::Methods(&BLOCK_RULES));
    let namespaces = server.add_extended::<Namespace>(Extension {
        admission: Some(Arc::new(DefaultAccounts::new(engine.clone()))),
        ..Extension::default()
    });
    let accounts = server.add_extended::<ServiceAccount>(Extension {
        actions: Some(Arc::new(AccountActions {
            restriction: NodeRestriction::new(&gate),
            pods: pods.clone(),
            nodes: nodes.clone(),
            tokens: tokens.clone(),
        })),
        ..Extension::default()
    });
    if let Some(tokens) = &tokens {
        tokens.look_up_in(TokenObjects {
            accounts: accounts.for_reading(),
            pods: pods.for_reading(),
            nodes: nodes.for_reading(),
        });
    }
    let events = server.add::<Event>();
    server.resources.push(Arc::new(EventsV1::new(events)));
    let reviews = Arc::new(TokenReviews::new(authenticator));
    server.resources.push(reviews.clone());
    let identities = AuthenticationServiceServer::new(IdentityReviews {
        gate: gate.clone(),
        tokens: Gated::new(reviews),
        accounts: Gated::new(accounts.clone()),
    });
    server.serve(identities, ServiceRule::Methods(&AUTHENTICATION_RULES));
    server.add_extended::<CertificateSigningRequest>(Extension {
        checks: vec![
            Arc::new(NodeRestriction::new(&gate)),
            Arc::new(SignerCheck::new(&gate)),
        ],
        methods: Some(of_certificate_requests()),
        ..Extension::default()
    });
    server.add_restricted::<PersistentVolumeClaim>();
    server.add_restricted::<CSINode>();
    server.add_restricted::<ResourceSlice>();
    server.add_granting::<Role>();
    server.add_granting::<RoleBinding>();
    let cluster_roles = server.add_granting::<ClusterRole>();
    let cluster_bindings = server.add_granting::<ClusterRoleBinding>();
    let leases = server.add_extended::<Lease>(Extension {
        checks: vec![Arc::new(NodeRestriction::new(&gate))],
        admission: Some(Arc::new(Fences)),
        ..Extension::default()
    });
    let definitions = server.add_extended::<CustomResourceDefinition>(Extension {
        checks: vec![Arc::new(DefinitionRules)],
        ..Extension::default()
    });
    let index = ServiceIndex::follow(&mut server.feeder);
    let (position, flag) = (server.position.clone(), service_ranges);
    let services = ServiceAdmission::new(
        engine.clone(),
        position.clone(),
        index.clone(),
        &flag,
        node_ports,
    );
    services
        .repair(&blocks)
        .await
        .map_err(ApiserverRunError::Services)?;
    let services = Arc::new(services);
    let ranges = ServiceCidrAdmission::new(engine.clone(), position, index.clone(), blocks);
    let ranges = Arc::new(ranges);
    let service_upkeep = Arc::new(ServiceUpkeep {
        services: server.add_extended(Extension {
            allocation: Some(services.clone()),
            admission: Some(services),
            ..Extension::default()
        }),
        ranges: server.add_extended(Extension {
            allocation: Some(ranges.clone()),
            admission: Some(ranges),
            ..Extension::default()
        }),
        endpoints: ServerEndpoints::new(engine.clone(), leases, server.add(), server.add()),
        index,
        flag,
    });
    server.add_extended::<IPAddress>(Extension {
        admission: Some(Arc::new(HeldAddresses::new(engine.clone()))),
        ..Extension::default()
    });
    let sources = summary::Sources {
        pods: pods.clone(),
        nodes: nodes.clone(),
        services: service_upkeep.services.clone(),
        service_cidrs: service_upkeep.ranges.clone(),
        cluster_cidrs: server.add(),
        records,
        sinks: server.feeder.sinks(),
        ranges: cluster_cidrs,
        resource,
    };
    kinds::visit(&mut server);
    server.resources = rest::with_unstored(server.resources, &served, &gate);
    server.resources = runtime_config::served(server.resources, &api_versions)?;
    let custom = Arc::new(CustomKinds::new(
        engine.clone(),
        &server.feeder,
        served.clone(),
        server.configured.clone(),
        definitions,
    ));
    let reviews = AccessReviews::among(&server.resources, gate.clone());
    server.serve(
        AuthorizationServiceServer::new(reviews),
        ServiceRule::Methods(&AUTHORIZATION_RULES),
    );
    let ServerBuilder {
        mut feeder,
        position,
        services,
        rules,
        kinds,
        resources,
        flow_kinds,
        renderers,
        stop: end_watches,
        ..
    } = server;

    process.trace_to("apiserver", {
        let journeys = journeys.clone();
        move |spans| journeys.take(spans)
    });
    let model = summary::Model::new();
    let summarized = summary::routes(summary::SummaryContext {
        gate: gate.clone(),
        model: Gated::new(model.clone()),
        traces: shown_traces,
        renderers: renderers.clone(),
        metrics: metrics.clone(),
        stop: end_watches.clone(),
    });
    let summary_renderers = renderers.clone();
    let shared = rest::RestContext {
        journeys,
        gate: gate.clone(),
        renderers,
        stop: end_watches,
        tokens: tokens.clone(),
    };
    let registry = process.registry();
    served.serve_own(resources, kinds);
    let kinds = served.clone();
    let rest = rest::router(served.clone(), position.clone(), shared, metrics, registry);
    process.with_http(rest.merge(summarized));
    custom
        .install_stored(&mut feeder)
        .await
        .map_err(ApiserverRunError::CustomKinds)?;
    let feed = feeder.fill(&engine).await?;
    // What loading took besides what it made. It fails only if it panics, and is tried again later.
    let _ = task::spawn_blocking(memory::give_back).await;
    let mut tasks = Tasks::new(shutdown);
    spawn(&mut tasks, "watch cache", feed.run());
    let upkeep = Arc::new(Upkeep {
        engine,
        position,
        namespaces,
        accounts,
        classes,
        kinds,
        bounds,
    });
    upkeep
        .create_system_objects()
        .await
        .map_err(ApiserverRunError::SystemObjects)?;
    upkeep.create_default_accounts().await;
    let address = listeners.first().and_then(|main| match main.address() {
        Listen::Tcp(address) => Some(*address),
        Listen::Unix(_) => None,
    });
    let address =
        address.map(|address| SocketAddr::new(advertise.unwrap_or(address.ip()), address.port()));
    service_upkeep.begin(address).await;
    let kept = Arc::clone(&service_upkeep).keep_endpoints(address);
    spawn(&mut tasks, "endpoints", kept);
    spawn(&mut tasks, "services", service_upkeep.keep(address));
    if gate.has_rules() {
        defaults::reconcile(&upkeep.engine, &cluster_roles, &cluster_bindings)
            .await
            .map_err(ApiserverRunError::DefaultRoles)?;
        let kept = aggregation::keep(upkeep.engine.clone(), cluster_roles.clone());
        spawn(&mut tasks, "role aggregation", kept);
        let kept = custom_objects::keep(served.subscribe(), cluster_roles);
        spawn(&mut tasks, "rights to custom objects", kept);
    }
    let kept = model.keep(sources, summary_renderers);
    spawn(&mut tasks, "summary", kept);
    spawn(&mut tasks, "custom kinds", custom.follow());
    spawn(&mut tasks, "store", Arc::clone(&upkeep).report_failure());
    spawn(
        &mut tasks,
        "namespace lifecycle",
        Arc::clone(&upkeep).end_namespaces(),
    );
    spawn(&mut tasks, "expiry", Arc::clone(&upkeep).sweep());
    spawn(&mut tasks, "event limit", Arc::clone(&upkeep).limit());
    spawn(&mut tasks, "compaction", upkeep.compact());
    if let Some(tokens) = tokens {
        spawn(&mut tasks, "signing keys", tokens.rotate());
    }
    let limits = listeners.first().map(Listener::limits).unwrap_or_default();
    if let Some(main) = listeners.first() {
        if let Some(own) = own_certificates {
            spawn(&mut tasks, "certificates", own.keep(main.client_address()));
        }
        ready(main)?;
    }
    let judge: Arc<dyn RequestGate> = Arc::new(RequestJudge::new(gate, rules));
    let listeners = listeners.into_iter();
    let recorder = auditor.as_ref().map(|auditor| {
        let recorder: Arc<dyn RequestRecorder> = Arc::new(AuditRecorder(Arc::clone(auditor)));
        recorder
    });
    let flow = FlowController::new(flow, limits, flow_kinds, process.registry());
    let flow: Arc<dyn RequestFlow> = Arc::new(flow);
    let listeners = listeners.map(|listener| {
        let listener = listener.controlled(Arc::clone(&flow));
        let listener = listener.behind(Arc::clone(&judge));
        match &recorder {
            Some(recorder) => listener.recording(Arc::clone(recorder)),
            None => listener,
        }
    });
    process.serve_at(listeners.collect(), services);
    process.start(&mut tasks).await;
    let ended = tasks.run().await;
    if let Some(auditor) = auditor {
        auditor.finish().await;
    }
    Ok(ended?)
}

/// Spawns a task that can be dropped when the server stops.
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
