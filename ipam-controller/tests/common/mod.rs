//! The state of the API server of the controller's tests, and its service of blocks.

mod blocks;

use std::{collections::BTreeMap, net::SocketAddr, ops::Deref, time::Duration};

use bytes::Bytes;
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
    wire::{self, WatchEventType},
};
use podplane_test_support::{ChangeLog, FakeState, decode, encode};
use tokio::task::JoinSet;
use tonic::service::Routes;

/// A fault of the next assignments of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AssignmentFault {
    /// The write is done, and its answer is lost.
    AnswerLost,
    /// The write is not done, and the answer is the same as if it were lost.
    RequestLost,
    /// The node changes just before the write.
    Conflict,
    /// The server refuses the block for a reason that the controller does not know.
    Refused,
    /// Another controller leads.
    FenceLost,
}

#[derive(Debug, Default)]
pub(crate) struct ControllerState {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Vec<AssignmentFault>,
    /// Nodes that only a read finds, since lists and watches are behind.
    pub(crate) unseen: Vec<String>,
    /// The records of blocks, by prefix and the name of the node.
    pub(crate) records: BTreeMap<(String, String), ipam::Block>,
    /// Nodes whose assignments are never answered.
    pub(crate) hanging: Vec<String>,
    /// The number of nodes in each call of AssignBlocks.
    pub(crate) batches: Vec<usize>,
    log: ChangeLog,
}

/// The API server of these tests, with the service of blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct IpamApiserver(podplane_test_support::FakeApiserver<ControllerState>);

impl Deref for IpamApiserver {
    type Target = podplane_test_support::FakeApiserver<ControllerState>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

fn metadata(name: &str, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectMeta::default()
    }
}

impl ControllerState {
    fn store_node(&mut self, mut node: Node) -> Node {
        let present = self.nodes.contains_key(node.name());
        let r#type = if present {
            WatchEventType::Modified
        } else {
            WatchEventType::Added
        };
        self.log.push(r#type, &mut node);
        self.record(&node);
        self.nodes.insert(node.name().to_owned(), node.clone());
        node
    }

    /// Writes the node's blocks into the records.
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
        if fault == Some(AssignmentFault::RequestLost) {
            return Err(lost());
        }
        if fault == Some(AssignmentFault::FenceLost) {
            return Err(ApiError::new(Reason::FenceLost, "another leads"));
        }
        let mut node = self
            .nodes
            .get(&request.name)
            .cloned()
            .ok_or_else(|| ApiError::not_found("nodes", &request.name))?;
        if fault == Some(AssignmentFault::Refused) {
            return Err(ApiError {
                fields: vec![FieldViolation {
                    field: "spec.podCIDRs".into(),
                    description: "overlaps".into(),
                }],
                ..ApiError::new(Reason::Invalid, "the block has another owner")
            });
        }
        if fault == Some(AssignmentFault::Conflict) {
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
        if fault == Some(AssignmentFault::AnswerLost) {
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

impl IpamApiserver {
    /// Waits until the state satisfies `wanted`.
    pub(crate) async fn until(&self, wanted: impl Fn(&ControllerState) -> bool) {
        self.0.until("the wanted state", wanted).await;
    }

    /// Serves the fake and returns its address.
    pub(crate) async fn serve(&self, tasks: &mut JoinSet<()>) -> SocketAddr {
        let blocks = Routes::new(BlockServiceServer::new(self.clone()));
        self.0.serve(blocks, tasks).await
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
            state.log.push(WatchEventType::Deleted, &mut node);
        });
    }

    pub(crate) fn record(&self, cidr: &str) -> Option<ipam::Block> {
        let of = |state: &ControllerState| {
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
            state.log.push(WatchEventType::Added, &mut pod);
            state.pods.insert(name.to_owned(), pod);
        });
    }
}

impl FakeState for ControllerState {
    fn log(&self) -> &ChangeLog {
        &self.log
    }

    async fn answer(
        fake: podplane_test_support::FakeApiserver<Self>,
        method: String,
        request: Bytes,
    ) -> Result<Bytes, ApiError> {
        match method.as_str() {
            "ListNodes" => Ok(fake.read(|state| {
                let is_seen = |node: &&Node| !state.unseen.contains(&node.name().to_owned());
                state.log.list(state.nodes.values().filter(is_seen))
            })),
            "ListPods" => Ok(fake.read(|state| state.log.list(state.pods.values()))),
            "GetNode" => {
                let wire::GetRequest { name, .. } = decode(&request);
                let found = fake.read(|state| state.nodes.get(&name).cloned());
                found
                    .map(|node| encode(&node))
                    .ok_or_else(|| ApiError::not_found("nodes", &name))
            }
            "UpdateNodeStatus" => {
                let wire::WriteRequest { object } = decode(&request);
                let sent: Node = codec::decode(&object.expect("a node")).expect("a valid node");
                fake.change(|state| {
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
            "AssignPodCIDRs" => {
                let asked: wire::AssignPodCidrsRequest = decode(&request);
                IpamApiserver(fake.clone()).hang(&asked.name).await;
                fake.change(|state| state.assign(&asked))
                    .map(|node| encode(&node))
            }
            "DeletePod" => {
                let wire::DeleteRequest {
                    name,
                    grace_period_seconds,
                    ..
                } = decode(&request);
                assert_eq!(
                    grace_period_seconds,
                    Some(0),
                    "nobody will report the end of an orphan"
                );
                fake.change(|state| {
                    let mut pod = state
                        .pods
                        .remove(&name)
                        .ok_or_else(|| ApiError::not_found("pods", &name))?;
                    state.log.push(WatchEventType::Deleted, &mut pod);
                    Ok(encode(&pod))
                })
            }
            "CreateEvent" => {
                let wire::WriteRequest { object } = decode(&request);
                let event: Event =
                    codec::decode(&object.expect("an event")).expect("a valid event");
                fake.change(|state| state.events.push(event.clone()));
                Ok(encode(&event))
            }
            _ => Err(ApiError::new(
                Reason::BadRequest,
                format!("{method} is not faked"),
            )),
        }
    }
}

/// Flags of an election without rivals.
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
