//! An API server in memory that can be told to fail: enough for the scheduler to run against.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    marker::PhantomData,
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use podplane_api::{
    Object,
    core::{Event, Node, Pod},
};
use podplane_client::{ApiError, Reason};
use podplane_proto::{
    codec,
    transport::{Encoded, WireCodec},
    wire::{self, WatchEventType},
};
use prost::Message;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};
use tonic::{Request, Response, Status, body::Body, server::NamedService};

/// What happens to a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is written, and the answer is lost.
    AnswerLost,
    /// It is not written, and nobody can tell.
    RequestLost,
    /// The pod changes just before.
    Conflict,
    /// Somebody else binds it just before, to this node.
    Usurped(&'static str),
    /// It is not written, and no answer comes.
    Hang,
}

type Change = (u64, &'static str, WatchEventType, Bytes);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) events: Vec<Event>,
    /// What happens to the next bindings.
    pub(crate) faults: VecDeque<Fault>,
    /// Every request to bind a pod that has a node already: a good scheduler makes none.
    pub(crate) bound_again: Vec<String>,
    pub(crate) bindings: u32,
    /// How often the status of a pod was written.
    pub(crate) status_writes: u32,
    revision: u64,
    log: Vec<Change>,
}

impl State {
    fn log<K: Object>(&mut self, r#type: WatchEventType, object: &mut K) {
        self.revision += 1;
        object.metadata_mut().resource_version = Some(self.revision.to_string());
        self.log
            .push((self.revision, K::KIND, r#type, encode(object)));
    }

    pub(crate) fn put_node(&mut self, node: Value) {
        let mut node: Node = serde_json::from_value(node).unwrap();
        self.log(WatchEventType::Modified, &mut node);
        self.nodes.insert(node.name().to_owned(), node);
    }

    pub(crate) fn put_pod(&mut self, mut pod: Pod) -> Pod {
        self.log(WatchEventType::Modified, &mut pod);
        self.pods.insert(pod.name().to_owned(), pod.clone());
        pod
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        let mut pod = self.pods.remove(name).unwrap();
        self.log(WatchEventType::Deleted, &mut pod);
    }

    fn pod(&self, name: &str) -> Result<Pod, ApiError> {
        let pod = self.pods.get(name).cloned();
        pod.ok_or_else(|| ApiError::not_found("pods", name))
    }

    fn bind(
        &mut self,
        request: &wire::BindPodRequest,
        fault: Option<Fault>,
    ) -> Result<Pod, ApiError> {
        let lost = || ApiError::new(Reason::ServiceUnavailable, "the connection broke");
        let mut pod = self.pod(&request.name)?;
        if node_of(&pod).is_some() {
            self.bound_again.push(request.name.clone());
        }
        match fault {
            Some(Fault::RequestLost | Fault::Hang) => return Err(lost()),
            Some(Fault::Conflict) => pod = self.put_pod(pod),
            Some(Fault::Usurped(node)) => {
                pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
                pod = self.put_pod(pod);
            }
            Some(Fault::AnswerLost) | None => {}
        }
        let expected = &request.resource_version;
        if node_of(&pod).is_some() || pod.uid() != request.uid || pod.resource_version() != expected
        {
            return Err(ApiError::new(Reason::Conflict, "the pod has changed"));
        }
        pod.spec.get_or_insert_default().node_name = Some(request.node_name.clone());
        let pod = self.put_pod(pod);
        self.bindings += 1;
        match fault {
            Some(Fault::AnswerLost) => Err(lost()),
            _ => Ok(pod),
        }
    }

    fn update_status(&mut self, pod: Pod) -> Result<Pod, ApiError> {
        let mut stored = self.pod(pod.name())?;
        if stored.resource_version() != pod.resource_version() {
            return Err(ApiError::new(Reason::Conflict, "the pod has changed"));
        }
        self.status_writes += 1;
        stored.status = pod.status;
        Ok(self.put_pod(stored))
    }

    fn put_event(&mut self, event: Event) -> Event {
        self.events.retain(|known| known.name() != event.name());
        self.events.push(event.clone());
        event
    }

    /// The names of the pods on the node.
    pub(crate) fn on(&self, node: &str) -> Vec<&str> {
        let pods = self.pods.values();
        let here = pods.filter(|pod| node_of(pod) == Some(node));
        here.map(Object::name).collect()
    }

    /// Reason and message of the PodScheduled condition of each pod that waits.
    pub(crate) fn waiting(&self) -> Vec<(String, String)> {
        let conditions = |pod: &Pod| pod.status.clone().unwrap_or_default().conditions;
        let waiting = self.pods.values().filter(|pod| node_of(pod).is_none());
        let conditions = waiting.flat_map(|pod| conditions(pod).unwrap_or_default());
        let conditions = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        conditions
            .map(|c| (c.reason.unwrap_or_default(), c.message.unwrap_or_default()))
            .collect()
    }

    /// The events with that reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<&Event> {
        let events = self.events.iter();
        events
            .filter(|e| e.reason.as_deref() == Some(reason))
            .collect()
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A node that offers plenty of everything but addresses.
pub(crate) fn node(name: &str, cidr: &str, pod_ips: u32) -> Value {
    let allocatable = json!({"cpu": "8", "memory": "32Gi", "pods": "110",
        "podplane.io/pod-ips": pod_ips.to_string()});
    json!({"metadata": {"name": name, "uid": name}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {"allocatable": allocatable}})
}

/// A pod that waits for a node, in `default`.
pub(crate) fn pod(name: &str) -> Pod {
    let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c"}]}});
    serde_json::from_value(pod).unwrap()
}

/// The server's state, and a signal for each change of it.
#[derive(Clone, Debug)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.send_replace(());
        result
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().unwrap())
    }

    /// Waits until the state is as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let reached = changed.wait_for(|()| self.read(&wanted));
        let limit = Duration::from_secs(20);
        if tokio::time::timeout(limit, reached).await.is_err() {
            panic!(
                "{what}: not within {limit:?}; {:#?}",
                self.read(State::waiting)
            );
        }
    }

    /// Serves the world, and says where.
    pub(crate) async fn serve(&self, tasks: &mut JoinSet<()>) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(Fake::<NodeService>::of(self))
            .add_service(Fake::<PodService>::of(self))
            .add_service(Fake::<EventService>::of(self));
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        tasks.spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
        address
    }

    async fn answer(self, method: String, request: Bytes) -> Result<Bytes, ApiError> {
        let written = |request: &Bytes| decode::<wire::WriteRequest>(request).object.unwrap();
        match method.as_str() {
            "ListNodes" => Ok(self.read(|state| list(state, state.nodes.values()))),
            "ListPods" => Ok(self.read(|state| list(state, state.pods.values()))),
            "GetPod" => {
                let wire::GetRequest { name, .. } = decode(&request);
                self.read(|state| state.pod(&name)).map(|pod| encode(&pod))
            }
            "BindPod" => {
                let fault = self.change(|state| state.faults.pop_front());
                let bound = self.change(|state| state.bind(&decode(&request), fault));
                if fault == Some(Fault::Hang) {
                    std::future::pending::<()>().await;
                }
                bound.map(|pod| encode(&pod))
            }
            "UpdatePodStatus" => {
                let pod = codec::decode(&written(&request)).unwrap();
                self.change(|state| state.update_status(pod))
                    .map(|pod| encode(&pod))
            }
            "CreateEvent" | "UpdateEvent" => {
                let event = codec::decode(&written(&request)).unwrap();
                Ok(encode(&self.change(|state| state.put_event(event))))
            }
            _ => Err(ApiError::new(
                Reason::BadRequest,
                format!("{method} is not faked"),
            )),
        }
    }

    fn watch(
        self,
        kind: &'static str,
        request: &Bytes,
    ) -> BoxStream<'static, Result<Encoded, Status>> {
        let request: wire::WatchRequest = decode(request);
        let after: u64 = request.resource_version.parse().unwrap();
        let changed = self.changed.subscribe();
        let next = move |(world, mut changed, after): (Self, watch::Receiver<()>, u64)| async move {
            loop {
                let found = world.read(|state| {
                    let mut later = state.log.iter().filter(|change| change.0 > after);
                    later.find(|change| change.1 == kind).cloned()
                });
                if let Some((revision, _, r#type, object)) = found {
                    let event = wire::WatchEvent {
                        r#type: r#type.into(),
                        object: Some(object),
                    };
                    let event = Encoded(event.encode_to_vec().into());
                    return Some((Ok(event), (world, changed, revision)));
                }
                changed.changed().await.ok()?;
            }
        };
        stream::unfold((self, changed, after), next).boxed()
    }
}

fn encode<K: Object>(object: &K) -> Bytes {
    codec::encode(object).unwrap()
}

fn decode<M: Message + Default>(request: &Bytes) -> M {
    M::decode(request.clone()).unwrap()
}

fn list<'a, K: Object>(state: &State, items: impl Iterator<Item = &'a K>) -> Bytes {
    let metadata = wire::ListMeta {
        resource_version: Some(state.revision.to_string()),
        ..wire::ListMeta::default()
    };
    let list = wire::ObjectList {
        metadata: Some(metadata),
        items: items.map(encode).collect(),
    };
    list.encode_to_vec().into()
}

trait Kind: Clone + Send + Sync + 'static {
    const SERVICE: &'static str;
    const KIND: &'static str;
}

macro_rules! service {
    ($name:ident, $kind:literal) => {
        #[derive(Clone, Debug)]
        struct $name;
        impl Kind for $name {
            const SERVICE: &'static str = concat!("podplane.core.v1.", $kind, "Service");
            const KIND: &'static str = $kind;
        }
    };
}

service!(NodeService, "Node");
service!(PodService, "Pod");
service!(EventService, "Event");

#[derive(Clone, Debug)]
struct Fake<K>(World, PhantomData<K>);

impl<K> Fake<K> {
    fn of(world: &World) -> Self {
        Self(world.clone(), PhantomData)
    }
}

impl<K: Kind> NamedService for Fake<K> {
    const NAME: &'static str = K::SERVICE;
}

impl<K: Kind> tower::Service<http::Request<Body>> for Fake<K> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let world = self.0.clone();
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let mut grpc = tonic::server::Grpc::new(WireCodec::<Encoded, Encoded>::default());
        async move {
            let watches = method.starts_with("Watch");
            let watch = {
                let world = world.clone();
                move |request: Request<Encoded>| {
                    let events = world.clone().watch(K::KIND, &request.into_inner().0);
                    std::future::ready(Ok::<_, Status>(Response::new(events)))
                }
            };
            let answer = move |request: Request<Encoded>| {
                let answer = world.clone().answer(method.clone(), request.into_inner().0);
                async { Ok::<_, Status>(Response::new(Encoded(answer.await?))) }
            };
            Ok(match watches {
                true => {
                    grpc.server_streaming(tower::service_fn(watch), request)
                        .await
                }
                false => grpc.unary(tower::service_fn(answer), request).await,
            })
        }
        .boxed()
    }
}
