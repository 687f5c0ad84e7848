//! The calls over gRPC, with messages that change nothing.

use podplane_api::{
    kinds::{self, KindVisitor},
    strategy::Strategy,
};
use podplane_client::Channel;
use podplane_client::endpoint;
use podplane_proto::{
    authentication::CreateTokenRequest,
    authorization::CreateLocalSubjectAccessReviewRequest,
    codec,
    ipam::{
        BlockUpdate, HoldChange, ListBlocksRequest, UpdateBlocksRequest, block_update,
        hold_change::Action,
    },
    store::BackupRequest,
    trace::GetPodTraceRequest,
    wire::{
        AssignPodCidrsRequest, BindPodRequest, DeleteRequest, GetRequest, ListRequest,
        PatchRequest, Preconditions, Verb, WatchRequest, WriteRequest, method_path,
    },
};
use tonic::{Code, client::Grpc};
use tonic_prost::ProstCodec;

use super::*;

/// The numbers of calls asked and skipped.
const COUNTS_OF_GRPC: (usize, usize) = (476, 96);

/// Makes the message of a call of a kind's method: the path, and the encoded request.
type MakeMessage = fn(&Call) -> Option<(String, Vec<u8>)>;

/// The kinds by group and plural.
#[derive(Default)]
struct KindCalls(Vec<(&'static str, &'static str, MakeMessage)>);

impl KindVisitor for KindCalls {
    fn visit<K: Strategy>(&mut self) {
        self.0.push((K::GROUP, K::PLURAL, message_of::<K>));
    }
}

fn message_of<K: Strategy>(call: &Call) -> Option<(String, Vec<u8>)> {
    use prost::Message as _;
    let (namespace, name) = match K::SCOPE {
        podplane_api::Scope::Cluster => (String::new(), call.name.to_owned()),
        podplane_api::Scope::Namespaced => (call.namespace.to_owned(), call.name.to_owned()),
    };
    let object = |is_named: bool| {
        let mut object = K::default();
        let meta = object.metadata_mut();
        meta.namespace = Some(namespace.clone()).filter(|namespace| !namespace.is_empty());
        if is_named {
            meta.name = Some(name.clone());
            meta.uid = Some(NO_UID.to_owned());
        }
        let object = Some(codec::encode(&object).unwrap());
        WriteRequest { object }.encode_to_vec()
    };
    let field_selector = call.selector.to_owned();
    let (verb, message) = match (call.verb, call.subresource) {
        ("get", "") if !name.is_empty() => {
            (Verb::Get, GetRequest { namespace, name }.encode_to_vec())
        }
        ("list", "") => {
            let request = ListRequest {
                namespace,
                field_selector,
                ..ListRequest::default()
            };
            (Verb::List, request.encode_to_vec())
        }
        ("watch", "") => {
            let request = WatchRequest {
                namespace,
                field_selector,
                resource_version: "x".to_owned(),
                ..WatchRequest::default()
            };
            (Verb::Watch, request.encode_to_vec())
        }
        ("create", "") => (Verb::Create, object(false)),
        ("update", "") => (Verb::Update, object(true)),
        ("update", "status") => (Verb::UpdateStatus, object(true)),
        ("patch", "" | "status") => {
            let request = PatchRequest {
                namespace,
                name,
                ..PatchRequest::default()
            };
            let verb = match call.subresource {
                "" => Verb::Patch,
                _ => Verb::PatchStatus,
            };
            (verb, request.encode_to_vec())
        }
        ("delete", "") => {
            let request = DeleteRequest {
                namespace,
                name,
                preconditions: Some(Preconditions {
                    uid: Some(NO_UID.to_owned()),
                    ..Preconditions::default()
                }),
                ..DeleteRequest::default()
            };
            (Verb::Delete, request.encode_to_vec())
        }
        _ => return None,
    };
    Some((method_path::<K>(&verb.method::<K>()), message))
}

/// The message of a method that is not one of the uniform ones.
fn own_message(call: &Call) -> Option<(String, Vec<u8>)> {
    use prost::Message as _;
    let (namespace, name) = (call.namespace.to_owned(), call.name.to_owned());
    let uid = NO_UID.to_owned();
    Some(match (call.verb, call.resource, call.subresource) {
        ("create", "pods", "binding") => {
            let request = BindPodRequest {
                namespace,
                name,
                uid,
                node_name: "n1".to_owned(),
                ..BindPodRequest::default()
            };
            (method_path::<Pod>("BindPod"), request.encode_to_vec())
        }
        ("create", "pods", "eviction") => {
            let preconditions = Preconditions {
                uid: Some(uid),
                ..Preconditions::default()
            };
            let request = DeleteRequest {
                namespace,
                name,
                preconditions: Some(preconditions),
                ..DeleteRequest::default()
            };
            (method_path::<Pod>("EvictPod"), request.encode_to_vec())
        }
        ("update", "nodes", "podcidrs") => {
            let request = AssignPodCidrsRequest {
                name,
                uid,
                ..AssignPodCidrsRequest::default()
            };
            let path = method_path::<Node>("AssignPodCIDRs");
            (path, request.encode_to_vec())
        }
        ("get", "pods", "trace") => {
            let request = GetPodTraceRequest {
                namespace,
                name,
                ..GetPodTraceRequest::default()
            };
            let path = "/podplane.trace.v1.TraceService/GetPodTrace".to_owned();
            (path, request.encode_to_vec())
        }
        ("list", "blocks", "") => (
            "/podplane.ipam.v1.BlockService/ListBlocks".to_owned(),
            ListBlocksRequest { node_name: name }.encode_to_vec(),
        ),
        ("update" | "delete", "blocks", part) => {
            let action = match call.verb {
                "delete" => Action::Forget,
                _ => Action::End,
            };
            let change = match part {
                "hold" => block_update::Change::Hold(HoldChange {
                    action: action.into(),
                    ..HoldChange::default()
                }),
                _ => block_update::Change::Release(true),
            };
            let update = BlockUpdate {
                node_name: name,
                change: Some(change),
                ..BlockUpdate::default()
            };
            let updates = vec![update];
            let path = "/podplane.ipam.v1.BlockService/UpdateBlocks".to_owned();
            (path, UpdateBlocksRequest { updates }.encode_to_vec())
        }
        ("create", "backups", "") => (
            "/podplane.store.v1.StoreService/Backup".to_owned(),
            BackupRequest::default().encode_to_vec(),
        ),
        ("create", "selfsubjectreviews", "") => (
            "/podplane.authentication.v1.AuthenticationService/CreateSelfSubjectReview".to_owned(),
            Vec::new(),
        ),
        ("create", "tokenreviews", "") => (
            "/podplane.authentication.v1.AuthenticationService/CreateTokenReview".to_owned(),
            Vec::new(),
        ),
        ("create", "serviceaccounts", "token") => {
            let request = CreateTokenRequest {
                namespace,
                name,
                ..CreateTokenRequest::default()
            };
            let path = "/podplane.authentication.v1.AuthenticationService/CreateToken".to_owned();
            (path, request.encode_to_vec())
        }
        ("create", "localsubjectaccessreviews", "") => {
            let request = CreateLocalSubjectAccessReviewRequest {
                namespace,
                ..CreateLocalSubjectAccessReviewRequest::default()
            };
            (access_review("LocalSubjectAccess"), request.encode_to_vec())
        }
        ("create", "selfsubjectaccessreviews", "") => {
            (access_review("SelfSubjectAccess"), Vec::new())
        }
        ("create", "subjectaccessreviews", "") => (access_review("SubjectAccess"), Vec::new()),
        ("create", "selfsubjectrulesreviews", "") => {
            (access_review("SelfSubjectRules"), Vec::new())
        }
        _ => return None,
    })
}

fn access_review(of: &str) -> String {
    format!("/podplane.authorization.v1.AuthorizationService/Create{of}Review")
}

/// A message that is encoded already.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw(Vec<u8>);

impl prost::Message for Raw {
    fn encode_raw(&self, buffer: &mut impl prost::bytes::BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: prost::encoding::WireType,
        buffer: &mut impl prost::bytes::Buf,
        context: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {}
}

/// Calls a method; a stream is dropped when it begins.
pub(in crate::tests::authorization) async fn call_grpc(
    channel: &Channel,
    identity: &str,
    path: &str,
    message: Vec<u8>,
) -> Result<(), tonic::Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(Raw(message));
    if identity != "anonymous" {
        let bearer = format!("Bearer {}", token(identity));
        request
            .metadata_mut()
            .insert("authorization", bearer.parse().unwrap());
    }
    let codec = ProstCodec::<Raw, Raw>::default();
    let called = grpc.server_streaming(request, path.parse().unwrap(), codec);
    within(called).await.map(drop)
}

#[tokio::test]
async fn every_call_of_the_table_has_its_answer_over_grpc() {
    let server = GatedServer::with_cluster().await;
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let mut kinds = KindCalls::default();
    kinds::visit(&mut kinds);
    let (mut wrong, mut skipped, mut asked) = (Vec::new(), 0, 0);
    for call in calls() {
        let is_kind = |(group, plural, _): &&(&str, &str, MakeMessage)| {
            (*group, *plural) == (call.group, call.resource)
        };
        let found = kinds.0.iter().find(is_kind);
        let message = found.and_then(|(_, _, make)| make(&call));
        let Some((path, message)) = message.or_else(|| own_message(&call)) else {
            skipped += 1;
            continue;
        };
        asked += 1;
        let answer = call_grpc(&channel, call.identity, &path, message).await;
        let refused = answer.as_ref().err();
        let is_refused = refused.is_some_and(|status| {
            status.code() == Code::PermissionDenied && status.message().contains(" cannot ")
        });
        let is_broken = refused.is_some_and(|status| {
            matches!(
                status.code(),
                Code::Unimplemented | Code::Internal | Code::Unauthenticated | Code::Unknown
            )
        });
        if is_refused == call.is_allowed || is_broken {
            wrong.push(format!("{}: {answer:?}", call.line));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Paths, verbs and kinds that gRPC does not have.
    assert_eq!((asked, skipped), COUNTS_OF_GRPC);
    drop(channel);
    server.stop().await;
}
