//! An apiserver that is only a map with revisions, and that can be told to fail: enough for the controller to run against.

mod blocks;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, future::BoxFuture, stream};
use podplane_api::{
    Object,
    core::{Event, Node, NodeSpec, Pod, PodSpec},
    meta::ObjectMeta,
};
use podplane_client::{ApiError, Reason, leader::LeaderElection};
use podplane_proto::{
    codec,
    error::FieldViolation,
    ipam::{self, BlockState, block_service_server::BlockServiceServer},
    transport::{Encoded, WireCodec},
    wire::{self, WatchEventType},
};
use prost::Message;
use tokio::sync::watch;
use tonic::{Request, Response, Status, body::Body, server::NamedService};

/// What happens to the next assignments of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is written, and the answer is lost.
    AnswerLost,
    /// It is not written, and nobody can tell.
    RequestLost,
    /// The node changes just before.
    Conflict,
    /// The server knows of something in the way that the controller does not.
    Refused,
    /// Another controller leads.
    FenceLost,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Vec<Fault>,
    /// Nodes that only a read of them finds: lists and watches are behind.
    pub(crate) unseen: Vec<String>,
    /// The records of blocks, by prefix and the name of the node.
    pub(crate) records: BTreeMap<(String, String), ipam::Block>,
    /// Nodes whose assignments are never answered.
    pub(crate) hanging: Vec<String>,
    /// How many nodes each call of AssignBlocks was about.
    pub(crate) batches: Vec<usize>,
    revision: u64,
    log: Vec<(u64, &'static str, WatchEventType, Bytes)>,
}

/// The server's state, and a signal for each change of it.
#[derive(Clone, Debug)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: watch::channel(0).0,
        }
    }
}

fn metadata(name: &str, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectMeta::default()
    }
}

impl State {
    fn log<K: Object>(&mut self, r#type: WatchEventType, object: &mut K) {
        self.revision += 1;
        object.metadata_mut().resource_version = Some(self.revision.to_string());
        let bytes = codec::encode(object).expect("the fake's objects are valid");
        self.log.push((self.revision, K::KIND, r#type, bytes));
    }

    fn store_node(&mut self, mut node: Node) -> Node {
        let present = self.nodes.contains_key(node.name());
        let r#type = if present {
            WatchEventType::Modified
        } else {
            WatchEventType::Added
        };
        self.log(r#type, &mut node);
        self.record(&node);
        self.nodes.insert(node.name().to_owned(), node.clone());
        node
    }

    /// Writes what a node has into the records.
    fn record(&mut self, node: &Node) {
        let cidrs = node.spec.iter().flat_map(|spec| spec.pod_cidrs.clone());
        for cidr in cidrs.flatten() {
            let key = (cidr.clone(), node.name().to_owned());
            let record = ipam::Block {
                cidr,
                state: BlockState::Assigned.into(),
                node_name: node.name().to_owned(),
                node_uid: node.uid().to_owned(),
                ..ipam::Block::default()
            };
            let kept = self.records.get(&key);
            if kept.is_none_or(|kept| kept.node_uid != node.uid()) {
                self.records.insert(key, record);
            }
        }
    }

    fn assign(&mut self, request: &wire::AssignPodCidrsRequest) -> Result<Node, ApiError> {
        let fault = if self.faults.is_empty() {
            None
        } else {
            Some(self.faults.remove(0))
        };
        let lost = || ApiError::new(Reason::ServiceUnavailable, "the connection broke");
        if fault == Some(Fault::RequestLost) {
            return Err(lost());
        }
        if fault == Some(Fault::FenceLost) {
            return Err(ApiError::new(Reason::FenceLost, "another leads"));
        }
        let mut node = self
            .nodes
            .get(&request.name)
            .cloned()
            .ok_or_else(|| ApiError::not_found("nodes", &request.name))?;
        if fault == Some(Fault::Refused) {
            return Err(ApiError {
                fields: vec![FieldViolation {
                    field: "spec.podCIDRs".into(),
                    description: "overlaps".into(),
                }],
                ..ApiError::new(Reason::Invalid, "the block is somebody else's")
            });
        }
        if fault == Some(Fault::Conflict) {
            node = self.store_node(node);
        }
        if node.uid() != request.uid || node.resource_version() != request.resource_version {
            return Err(ApiError::new(Reason::Conflict, "the node has changed"));
        }
        let spec = node.spec.get_or_insert_default();
        if spec
            .pod_cidrs
            .as_ref()
            .is_some_and(|cidrs| *cidrs != request.pod_cidrs)
        {
            return Err(ApiError::new(Reason::Conflict, "the node has other blocks"));
        }
        spec.pod_cidrs = Some(request.pod_cidrs.clone());
        let node = self.store_node(node);
        if fault == Some(Fault::AnswerLost) {
            Err(lost())
        } else {
            Ok(node)
        }
    }

    pub(crate) fn blocks(&self, node: &str) -> Vec<String> {
        let spec = self.nodes.get(node).and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.pod_cidrs.clone())
            .unwrap_or_default()
    }
}

impl World {
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().expect("no test panics in here"));
        self.changed.send_modify(|count| *count += 1);
        result
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().expect("no test panics in here"))
    }

    /// Waits until the state is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = changed.wait_for(|_| self.read(&wanted));
        if tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .is_err()
        {
            panic!(
                "not reached: {:#?}",
                self.read(|state| format!("{:?} {:?}", state.nodes, state.events))
            );
        }
    }

    pub(crate) fn add_node(&self, name: &str, uid: &str, blocks: &[&str]) {
        let pod_cidrs: Vec<String> = blocks.iter().map(ToString::to_string).collect();
        let spec = NodeSpec {
            pod_cidrs: Some(pod_cidrs).filter(|cidrs| !cidrs.is_empty()),
            ..NodeSpec::default()
        };
        let node = Node {
            metadata: metadata(name, uid),
            spec: Some(spec),
            ..Node::default()
        };
        self.change(|state| state.store_node(node));
    }

    pub(crate) fn remove_node(&self, name: &str) {
        self.change(|state| {
            let mut node = state.nodes.remove(name).expect("the node is there");
            for record in state.records.values_mut() {
                if record.node_uid == node.uid() {
                    record.set_state(BlockState::Draining);
                }
            }
            state.log(WatchEventType::Deleted, &mut node);
        });
    }

    pub(crate) fn record(&self, cidr: &str) -> Option<ipam::Block> {
        let of = |state: &State| {
            let mut records = state.records.values();
            records.find(|record| record.cidr == cidr).cloned()
        };
        self.read(of)
    }

    pub(crate) fn add_pod(&self, name: &str, node: &str) {
        let spec = PodSpec {
            node_name: Some(node.into()),
            ..PodSpec::default()
        };
        let metadata = ObjectMeta {
            namespace: Some("default".into()),
            ..metadata(name, name)
        };
        let mut pod = Pod {
            metadata,
            spec: Some(spec),
            ..Pod::default()
        };
        self.change(|state| {
            state.log(WatchEventType::Added, &mut pod);
            state.pods.insert(name.to_owned(), pod);
        });
    }

    fn answer(&self, method: &str, request: &Bytes) -> Result<Bytes, ApiError> {
        match method {
            "ListNodes" => Ok(self.read(|state| {
                list(
                    state,
                    state
                        .nodes
                        .values()
                        .filter(|node| !state.unseen.contains(&node.name().to_owned())),
                )
            })),
            "ListPods" => Ok(self.read(|state| list(state, state.pods.values()))),
            "GetNode" => {
                let wire::GetRequest { name, .. } = decode(request);
                let found = self.read(|state| state.nodes.get(&name).cloned());
                found
                    .map(|node| encode(&node))
                    .ok_or_else(|| ApiError::not_found("nodes", &name))
            }
            "UpdateNodeStatus" => {
                let wire::WriteRequest { object } = decode(request);
                let sent: Node = codec::decode(&object.expect("a node")).expect("a valid node");
                self.change(|state| {
                    let mut node = state.nodes.get(sent.name()).cloned();
                    let node = node
                        .as_mut()
                        .filter(|node| node.resource_version() == sent.resource_version());
                    let Some(node) = node else {
                        return Err(ApiError::new(Reason::Conflict, "the node has changed"));
                    };
                    node.status = sent.status;
                    Ok(encode(&state.store_node(node.clone())))
                })
            }
            "AssignPodCIDRs" => self
                .change(|state| state.assign(&decode(request)))
                .map(|node| encode(&node)),
            "DeletePod" => {
                let wire::DeleteRequest {
                    name,
                    grace_period_seconds,
                    ..
                } = decode(request);
                assert_eq!(
                    grace_period_seconds,
                    Some(0),
                    "nobody will report the end of an orphan"
                );
                self.change(|state| {
                    let mut pod = state
                        .pods
                        .remove(&name)
                        .ok_or_else(|| ApiError::not_found("pods", &name))?;
                    state.log(WatchEventType::Deleted, &mut pod);
                    Ok(encode(&pod))
                })
            }
            "CreateEvent" => {
                let wire::WriteRequest { object } = decode(request);
                let event: Event =
                    codec::decode(&object.expect("an event")).expect("a valid event");
                self.change(|state| state.events.push(event.clone()));
                Ok(encode(&event))
            }
            _ => Err(ApiError::new(
                Reason::BadRequest,
                format!("{method} is not faked"),
            )),
        }
    }

    fn watch(
        &self,
        kind: &'static str,
        request: &Bytes,
    ) -> impl Stream<Item = Result<Encoded, Status>> + Send + 'static {
        let request: wire::WatchRequest = decode(request);
        let after: u64 = request
            .resource_version
            .parse()
            .expect("the fake's revisions are numbers");
        let next = move |(world, mut changed, after): (Self, watch::Receiver<u64>, u64)| async move {
            loop {
                let found = world.read(|state| {
                    state
                        .log
                        .iter()
                        .find(|(revision, of, ..)| *revision > after && *of == kind)
                        .cloned()
                });
                if let Some((revision, _, r#type, object)) = found {
                    let event = wire::WatchEvent {
                        r#type: r#type.into(),
                        object: Some(object),
                    };
                    return Some((
                        Ok(Encoded(event.encode_to_vec().into())),
                        (world, changed, revision),
                    ));
                }
                changed.changed().await.ok()?;
            }
        };
        stream::unfold((self.clone(), self.changed.subscribe(), after), next)
    }

    /// Serves the world, and says where. It ends with the runtime of the test.
    pub(crate) async fn serve(&self, tasks: &mut tokio::task::JoinSet<()>) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let server = tonic::transport::Server::builder()
            .add_service(Fake::<NodeKind>(self.clone(), std::marker::PhantomData))
            .add_service(Fake::<PodKind>(self.clone(), std::marker::PhantomData))
            .add_service(BlockServiceServer::new(self.clone()))
            .add_service(Fake::<EventKind>(self.clone(), std::marker::PhantomData))
            .serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener));
        tasks.spawn(async move { server.await.expect("the fake serves") });
        address
    }
}

/// Whoever runs leads.
pub(crate) fn no_election() -> LeaderElection {
    LeaderElection {
        leader_elect: false,
        leader_elect_lease_duration: Duration::from_secs(15),
        leader_elect_renew_deadline: Duration::from_secs(10),
        leader_elect_retry_period: Duration::from_secs(2),
        leader_elect_resource_name: None,
        leader_elect_resource_namespace: "kube-system".to_owned(),
        leader_elect_identity: None,
    }
}

fn encode<K: Object>(object: &K) -> Bytes {
    codec::encode(object).expect("the fake's objects are valid")
}

fn decode<M: Message + Default>(request: &Bytes) -> M {
    M::decode(request.clone()).expect("the client's requests are valid")
}

fn list<'a, K: Object>(state: &State, items: impl Iterator<Item = &'a K>) -> Bytes {
    let metadata = wire::ListMeta {
        resource_version: Some(state.revision.to_string()),
        ..wire::ListMeta::default()
    };
    let items = items.map(encode).collect();
    wire::ObjectList {
        metadata: Some(metadata),
        items,
    }
    .encode_to_vec()
    .into()
}

pub(crate) trait Kind: Clone + Send + Sync + 'static {
    const SERVICE: &'static str;
    const KIND: &'static str;
}

macro_rules! kind {
    ($name:ident, $kind:literal) => {
        #[derive(Clone, Debug)]
        pub(crate) struct $name;
        impl Kind for $name {
            const SERVICE: &'static str = concat!("podplane.core.v1.", $kind, "Service");
            const KIND: &'static str = $kind;
        }
    };
}

kind!(NodeKind, "Node");
kind!(PodKind, "Pod");
kind!(EventKind, "Event");

#[derive(Clone, Debug)]
struct Fake<K>(World, std::marker::PhantomData<K>);

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
        let method = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut grpc = tonic::server::Grpc::new(WireCodec::<Encoded, Encoded>::default());
        Box::pin(async move {
            Ok(if method.starts_with("Watch") {
                let watch = move |request: Request<Encoded>| {
                    let events = world.watch(K::KIND, &request.into_inner().0).boxed();
                    std::future::ready(Ok::<_, Status>(Response::new(events)))
                };
                grpc.server_streaming(tower::service_fn(watch), request)
                    .await
            } else {
                let answer = async |request: Request<Encoded>| {
                    let request = request.into_inner().0;
                    if method == "AssignPodCIDRs" {
                        let asked: wire::AssignPodCidrsRequest = decode(&request);
                        world.hang(&asked.name).await;
                    }
                    let answer = world.answer(&method, &request);
                    answer
                        .map(|bytes| Response::new(Encoded(bytes)))
                        .map_err(Status::from)
                };
                grpc.unary(tower::service_fn(answer), request).await
            })
        })
    }
}
