//! Flow control: when each request is served, by its user and priority
//! ([ADR 0051](../../../docs/adr/0051-limits.md)).
//!
//! Every request that is authenticated has a flow schema ([`schema`]) and with it a priority level,
//! and takes a number of its level's seats ([`work`]). Which request is next is decided without a
//! clock or I/O ([`level`]); this module has the locks, the timers and the answers.

mod flags;
mod level;
mod metrics;
mod schema;
mod watches;
mod work;

pub use self::flags::LimitFlags;
pub(crate) use self::work::FlowKinds;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, future::ready};
use http::{Response, request::Parts};
use podplane_host::clock::{self, Instant};
use podplane_proto::error::{ApiError, Reason};
use podplane_service_runtime::{
    authentication::RequestContext,
    flow::{RequestAdmission, RequestFlow, RequestPermit},
    identity::ANONYMOUS,
    limits::{ClientAddress, ServerLimits},
    peer::{ConnectionState, Peer},
};
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tonic::body::Body;

use self::{
    level::{Arrival, Dispatched, LevelLimits, PriorityLevel, Ticket},
    metrics::{FlowMetrics, SchemaMetrics},
    schema::{FlowSchema, Level, classify},
    watches::{OpenWatches, WatchRefusal},
    work::{Extent, FlowRequest},
};
use crate::{rest, service};

/// The longest time that a request waits for its turn: a quarter of Kubernetes' request timeout, as
/// there.
const MAX_WAIT: Duration = Duration::from_secs(15);
/// The time after which a refused client should try again, in seconds, as in Kubernetes.
const RETRY_AFTER: u32 = 1;
/// The most waiting requests of a flow. More than a connection has streams in flight would only
/// take memory.
const QUEUE_OF_FLOW: usize = 2_000;
/// The most waiting requests of a level.
const QUEUE: usize = 20_000;

/// The bounds of flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowLimits {
    /// The seats of all priority levels together; 0 for no flow control.
    pub(crate) seats: u32,
    /// The most open watches of a user; 0 for no limit.
    pub(crate) watches_of_user: usize,
    /// True if requests tell who sends them. Otherwise all have one level, and each connection is a
    /// flow.
    pub(crate) has_users: bool,
}

impl Default for FlowLimits {
    fn default() -> Self {
        LimitFlags::default().flow(false)
    }
}

/// A flow: the requests that share a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Flow {
    /// Those of a user.
    User(String),
    /// Those of a client without a name.
    Client(ClientAddress),
    /// Those of a connection, where nobody has a name.
    Connection(SocketAddr),
    /// Those that came by no connection.
    Unknown,
}

impl Flow {
    fn of(context: &RequestContext, has_users: bool) -> Self {
        let identity = &context.identity;
        let address = context.peer.as_ref().and_then(Peer::tcp_address);
        match address {
            _ if identity.user != ANONYMOUS => Self::User(identity.user.clone()),
            Some(address) if has_users => Self::Client(ClientAddress::of_ip(address.ip())),
            Some(address) => Self::Connection(address),
            None => Self::Unknown,
        }
    }
}

/// The flow control of a server.
#[derive(Debug)]
pub(crate) struct FlowController {
    limits: FlowLimits,
    kinds: FlowKinds,
    /// Those with seats, in the order of [`Level::ALL`].
    levels: Vec<Option<Arc<SharedLevel>>>,
    metrics: FlowMetrics,
    watches: OpenWatches,
}

impl FlowController {
    pub(crate) fn new(
        limits: FlowLimits,
        server: ServerLimits,
        kinds: FlowKinds,
        registry: &mut Registry,
    ) -> Self {
        let metrics = FlowMetrics::new(registry);
        let level = |level: Level| {
            let seats = level.seats(limits.seats, limits.has_users)?;
            metrics.nominal(level.name(), seats);
            Some(Arc::new(SharedLevel::new(seats)))
        };
        Self {
            levels: Level::ALL.into_iter().map(level).collect(),
            watches: OpenWatches::new(
                limits.watches_of_user,
                server.max_watches_of_connection(),
                registry,
            ),
            limits,
            kinds,
            metrics,
        }
    }

    fn level(&self, schema: FlowSchema) -> Option<&Arc<SharedLevel>> {
        self.levels.get(schema.level().index())?.as_ref()
    }
}

impl RequestFlow for FlowController {
    fn admit(self: Arc<Self>, parts: &Parts) -> RequestAdmission {
        let context = RequestContext::of(&parts.extensions);
        let request = self.kinds.read(parts);
        let flow = Flow::of(&context, self.limits.has_users);
        let mut permit = RequestPermit::default();
        if request.extent == Extent::Watch {
            let connection = parts.extensions.get::<ConnectionState>();
            match self.watches.open(&flow, connection) {
                Ok(watch) => permit.until_end = Some(Box::new(watch)),
                Err(refusal) => return refused(parts, &watch_refused(refusal)),
            }
        }
        let schema = classify(&context.identity, &request, self.limits.has_users);
        let metrics = self.metrics.of(schema);
        let Some(level) = self.level(schema) else {
            metrics.dispatched(Duration::ZERO);
            return RequestAdmission::Now(permit);
        };
        let FlowRequest { seats, extent, .. } = request;
        match level.arrive(flow, seats, metrics) {
            Reception::Seated(seated) => RequestAdmission::Now(seated.kept_in(permit, extent)),
            Reception::Full => {
                metrics.rejected("queue-full");
                refused(parts, &too_many())
            }
            Reception::Queued(queued) => {
                let refusal = refusal(parts, &too_many());
                let turn = async move {
                    match queued.turn().await {
                        Some(seated) => Ok(seated.kept_in(permit, extent)),
                        None => Err(refusal),
                    }
                };
                RequestAdmission::Later(turn.boxed())
            }
        }
    }
}

fn too_many() -> ApiError {
    ApiError {
        retry_after_seconds: Some(RETRY_AFTER),
        ..ApiError::new(
            Reason::TooManyRequests,
            "too many requests, please try again later",
        )
    }
}

fn watch_refused(refusal: WatchRefusal) -> ApiError {
    ApiError {
        retry_after_seconds: Some(RETRY_AFTER),
        ..ApiError::new(Reason::TooManyRequests, refusal.to_string())
    }
}

fn refused(parts: &Parts, error: &ApiError) -> RequestAdmission {
    RequestAdmission::Later(ready(Err(refusal(parts, error))).boxed())
}

/// The answer to a refused request.
fn refusal(parts: &Parts, error: &ApiError) -> Response<Body> {
    let media = rest::body::media_type(&parts.headers);
    match media.starts_with("application/grpc") {
        true => service::refused(error.clone()),
        false => rest::refused(error, [""; 3]).map(Body::new),
    }
}

/// A priority level, with those who wait for it.
#[derive(Debug)]
struct SharedLevel(Mutex<LevelState>);

#[derive(Debug)]
struct LevelState {
    level: PriorityLevel<Flow>,
    waiting: HashMap<Ticket, oneshot::Sender<u32>>,
}

enum Reception {
    Seated(SeatedRequest),
    Queued(QueuedRequest),
    Full,
}

impl SharedLevel {
    fn new(seats: u32) -> Self {
        let level = PriorityLevel::new(LevelLimits {
            seats,
            // A quarter is left for others, who then need not wait until a list has ended.
            seats_of_flow: (seats - seats / 4).max(1),
            queue_of_flow: QUEUE_OF_FLOW,
            queue: QUEUE,
        });
        Self(Mutex::new(LevelState {
            level,
            waiting: HashMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, LevelState> {
        // Only code that does not panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(self: &Arc<Self>, flow: Flow, seats: u32, metrics: &Arc<SchemaMetrics>) -> Reception {
        let mut state = self.lock();
        match state.level.arrive(&flow, seats) {
            Arrival::Executed(seats) => {
                drop(state);
                let place = FlowPlace {
                    level: Arc::clone(self),
                    flow,
                    metrics: Arc::clone(metrics),
                };
                Reception::Seated(SeatedRequest::begin(place, seats, Duration::ZERO))
            }
            Arrival::Waits(ticket) => {
                let (sender, turn) = oneshot::channel();
                state.waiting.insert(ticket, sender);
                drop(state);
                metrics.inqueue.inc();
                Reception::Queued(QueuedRequest {
                    place: Some(FlowPlace {
                        level: Arc::clone(self),
                        flow,
                        metrics: Arc::clone(metrics),
                    }),
                    ticket,
                    turn,
                    since: Instant::now(),
                })
            }
            Arrival::Full => Reception::Full,
        }
    }
}

impl LevelState {
    /// Tells requests that their turn has come.
    fn wake(&mut self, dispatched: Vec<Dispatched>) {
        for Dispatched { ticket, seats } in dispatched {
            // One that has given up is no longer among those that wait for the level.
            if let Some(sender) = self.waiting.remove(&ticket) {
                _ = sender.send(seats);
            }
        }
    }
}

/// The place of a request: its level and flow.
struct FlowPlace {
    level: Arc<SharedLevel>,
    flow: Flow,
    metrics: Arc<SchemaMetrics>,
}

/// A request that waits for its turn.
struct QueuedRequest {
    /// `None` once it is seated.
    place: Option<FlowPlace>,
    ticket: Ticket,
    turn: oneshot::Receiver<u32>,
    since: Instant,
}

impl QueuedRequest {
    /// Waits for the turn; `None` if that takes too long.
    async fn turn(mut self) -> Option<SeatedRequest> {
        let seats = clock::timeout(MAX_WAIT, &mut self.turn).await.ok()?.ok()?;
        let place = self.place.take()?;
        place.metrics.inqueue.dec();
        Some(SeatedRequest::begin(place, seats, self.since.elapsed()))
    }
}

impl Drop for QueuedRequest {
    /// For a request that has waited too long, or whose client has gone.
    fn drop(&mut self) {
        let Some(FlowPlace {
            level,
            flow,
            metrics,
        }) = self.place.take()
        else {
            return;
        };
        metrics.inqueue.dec();
        let waited = self.since.elapsed();
        metrics.gave_up(
            waited,
            match waited >= MAX_WAIT {
                true => "time-out",
                false => "cancelled",
            },
        );
        let mut state = level.lock();
        let dispatched = match state.waiting.remove(&self.ticket) {
            Some(_) => state.level.give_up(&flow, self.ticket),
            // Its turn came at this moment.
            None => match self.turn.try_recv() {
                Ok(seats) => state.level.finish(&flow, seats, Duration::ZERO),
                Err(_) => Vec::new(),
            },
        };
        state.wake(dispatched);
    }
}

/// A request that occupies seats until this is dropped.
struct SeatedRequest {
    place: FlowPlace,
    seats: u32,
    since: Instant,
}

impl SeatedRequest {
    fn begin(place: FlowPlace, seats: u32, waited: Duration) -> Self {
        place.metrics.dispatched(waited);
        place.metrics.executing.inc();
        place.metrics.seats.inc_by(seats.into());
        Self {
            place,
            seats,
            since: Instant::now(),
        }
    }

    /// A permit that keeps the seats as long as the request needs them: a watch only until it has
    /// started.
    fn kept_in(self, permit: RequestPermit, extent: Extent) -> RequestPermit {
        match extent {
            Extent::UntilEnd => RequestPermit {
                until_end: Some(Box::new(self)),
                ..permit
            },
            Extent::UntilAnswer | Extent::Watch => RequestPermit {
                until_answer: Some(Box::new(self)),
                ..permit
            },
        }
    }
}

impl Drop for SeatedRequest {
    fn drop(&mut self) {
        let FlowPlace {
            level,
            flow,
            metrics,
        } = &self.place;
        let took = self.since.elapsed();
        metrics.executing.dec();
        metrics.seats.dec_by(self.seats.into());
        metrics.execution.observe(took.as_secs_f64());
        let mut state = level.lock();
        let dispatched = state.level.finish(flow, self.seats, took);
        state.wake(dispatched);
    }
}
