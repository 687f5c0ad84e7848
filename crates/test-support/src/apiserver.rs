//! A fake API server in memory: nodes, pods, namespaces, events, Leases and disruption budgets, over
//! gRPC on a port of its own.

use std::{
    convert::Infallible,
    fmt,
    marker::PhantomData,
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use podplane_client::ApiError;
use podplane_proto::{
    transport::{Encoded, WireCodec},
    wire,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tonic::{
    Request, Response, Status,
    body::Body,
    server::NamedService,
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::{ChangeLog, decode};

/// The time after which a test fails that waits for a state.
const PATIENCE: Duration = Duration::from_secs(20);

/// The objects of a fake, and its faults.
pub trait FakeState: Default + fmt::Debug + Send + 'static {
    /// The log of changes, from which watches are answered.
    fn log(&self) -> &ChangeLog;

    /// Answers a call that is not a watch.
    fn answer(
        fake: FakeApiserver<Self>,
        method: String,
        request: Bytes,
    ) -> impl Future<Output = Result<Bytes, ApiError>> + Send;
}

/// A fake's state, and a signal for each change of it.
#[derive(Debug)]
pub struct FakeApiserver<S> {
    state: Arc<Mutex<S>>,
    changed: watch::Sender<()>,
}

impl<S> Clone for FakeApiserver<S> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            changed: self.changed.clone(),
        }
    }
}

impl<S: Default> Default for FakeApiserver<S> {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl<S: FakeState> FakeApiserver<S> {
    /// Changes the state, and wakes all who wait for it.
    pub fn change<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let result = change(&mut self.state.lock().expect("no test panics in here"));
        self.changed.send_replace(());
        result
    }

    /// Reads the state.
    pub fn read<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.state.lock().expect("no test panics in here"))
    }

    /// Waits until the state satisfies `wanted`. Panics with the state after 20 s.
    pub async fn until(&self, what: &str, wanted: impl Fn(&S) -> bool) {
        let mut changed = self.changed.subscribe();
        let reached = changed.wait_for(|()| self.read(&wanted));
        let is_reached = timeout(PATIENCE, reached).await.is_ok();
        assert!(
            is_reached,
            "{what}: not within {PATIENCE:?}; {:#?}",
            self.state
        );
    }

    /// Serves the fake and more services on a free port, and returns its address.
    pub async fn serve(&self, more: Routes, tasks: &mut JoinSet<()>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let routes = more
            .add_service(KindService::<S, NodeKind>::of(self))
            .add_service(KindService::<S, PodKind>::of(self))
            .add_service(KindService::<S, NamespaceKind>::of(self))
            .add_service(KindService::<S, EventKind>::of(self))
            .add_service(KindService::<S, LeaseKind>::of(self))
            .add_service(KindService::<S, BudgetKind>::of(self))
            .add_service(KindService::<S, ServiceKind>::of(self))
            .add_service(KindService::<S, ReplicaSetKind>::of(self));
        let server = Server::builder().add_routes(routes);
        let served = server.serve_with_incoming(TcpIncoming::from(listener));
        tasks.spawn(async move { served.await.expect("the fake serves") });
        address
    }

    fn watch(
        self,
        kind: &'static str,
        request: &Bytes,
    ) -> BoxStream<'static, Result<Encoded, Status>> {
        let request: wire::WatchRequest = decode(request);
        let after = request.resource_version.parse();
        let after: usize = after.expect("the fake's revisions are numbers");
        let changed = self.changed.subscribe();
        let next = move |(fake, mut changed, after): (Self, watch::Receiver<()>, usize)| async move {
            loop {
                let found = fake.read(|state| state.log().event_after(after, kind));
                if let Some((revision, event)) = found {
                    return Some((Ok(Encoded(event)), (fake, changed, revision)));
                }
                changed.changed().await.ok()?;
            }
        };
        stream::unfold((self, changed, after), next).boxed()
    }
}

trait FakedKind: Clone + Send + Sync + 'static {
    const SERVICE: &'static str;
    const KIND: &'static str;
}

macro_rules! kind {
    ($name:ident, $package:literal, $kind:literal) => {
        #[derive(Clone, Debug)]
        struct $name;
        impl FakedKind for $name {
            const SERVICE: &'static str = concat!("podplane.", $package, ".", $kind, "Service");
            const KIND: &'static str = $kind;
        }
    };
}

kind!(NodeKind, "core.v1", "Node");
kind!(PodKind, "core.v1", "Pod");
kind!(NamespaceKind, "core.v1", "Namespace");
kind!(EventKind, "core.v1", "Event");
kind!(LeaseKind, "core.v1", "Lease");
kind!(BudgetKind, "policy.v1", "PodDisruptionBudget");
kind!(ServiceKind, "core.v1", "Service");
kind!(ReplicaSetKind, "apps.v1", "ReplicaSet");

/// The service of one kind.
struct KindService<S, K>(FakeApiserver<S>, PhantomData<fn() -> K>);

impl<S, K> KindService<S, K> {
    fn of(fake: &FakeApiserver<S>) -> Self {
        Self(fake.clone(), PhantomData)
    }
}

impl<S, K> Clone for KindService<S, K> {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl<S, K: FakedKind> NamedService for KindService<S, K> {
    const NAME: &'static str = K::SERVICE;
}

impl<S: FakeState, K: FakedKind> tower::Service<http::Request<Body>> for KindService<S, K> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let fake = self.0.clone();
        let path = request.uri().path();
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut grpc = tonic::server::Grpc::new(WireCodec::<Encoded, Encoded>::default());
        async move {
            if method.starts_with("Watch") {
                let watch = move |request: Request<Encoded>| {
                    let events = fake.clone().watch(K::KIND, &request.into_inner().0);
                    std::future::ready(Ok::<_, Status>(Response::new(events)))
                };
                return Ok(grpc
                    .server_streaming(tower::service_fn(watch), request)
                    .await);
            }
            let answer = move |request: Request<Encoded>| {
                let answer = S::answer(fake.clone(), method.clone(), request.into_inner().0);
                async { Ok::<_, Status>(Response::new(Encoded(answer.await?))) }
            };
            Ok(grpc.unary(tower::service_fn(answer), request).await)
        }
        .boxed()
    }
}
