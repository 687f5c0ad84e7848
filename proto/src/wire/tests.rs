use podplane_api::{
    Scope,
    kinds::{self, KindVisitor},
    strategy::Strategy,
};
use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};

use super::*;
use crate::codec::POOL;

/// A message with every field set, so that its encoding shows each number and wire type.
trait SampleMessage: Message + Default + PartialEq + std::fmt::Debug {
    fn full() -> Self;
}

fn text() -> String {
    "text".into()
}

fn object() -> Option<Bytes> {
    Some(Bytes::new())
}

impl SampleMessage for WriteRequest {
    fn full() -> Self {
        Self { object: object() }
    }
}
impl SampleMessage for GetRequest {
    fn full() -> Self {
        Self {
            namespace: text(),
            name: text(),
        }
    }
}
impl SampleMessage for ListRequest {
    fn full() -> Self {
        Self {
            namespace: text(),
            label_selector: text(),
            field_selector: text(),
            limit: 1,
            r#continue: text(),
            resource_version: text(),
            resource_version_match: text(),
        }
    }
}
impl SampleMessage for ObjectList {
    fn full() -> Self {
        let metadata = ListMeta {
            r#continue: Some(text()),
            remaining_item_count: Some(1),
            resource_version: Some(text()),
        };
        Self {
            metadata: Some(metadata),
            items: vec![Bytes::new()],
        }
    }
}
impl SampleMessage for WatchRequest {
    fn full() -> Self {
        Self {
            namespace: text(),
            label_selector: text(),
            field_selector: text(),
            resource_version: text(),
            allow_watch_bookmarks: true,
        }
    }
}
impl SampleMessage for WatchEvent {
    fn full() -> Self {
        Self {
            r#type: WatchEventType::Bookmark.into(),
            object: object(),
        }
    }
}
impl SampleMessage for PatchRequest {
    fn full() -> Self {
        Self {
            namespace: text(),
            name: text(),
            r#type: PatchType::Apply.into(),
            patch: text(),
            field_manager: text(),
            force: true,
        }
    }
}
impl SampleMessage for DeleteRequest {
    fn full() -> Self {
        let preconditions = Preconditions {
            resource_version: Some(text()),
            uid: Some(text()),
        };
        Self {
            namespace: text(),
            name: text(),
            grace_period_seconds: Some(1),
            preconditions: Some(preconditions),
            propagation_policy: Some(text()),
        }
    }
}
impl SampleMessage for BindPodRequest {
    fn full() -> Self {
        Self {
            namespace: text(),
            name: text(),
            uid: text(),
            node_name: text(),
            resource_version: text(),
        }
    }
}
impl SampleMessage for AssignPodCidrsRequest {
    fn full() -> Self {
        Self {
            name: text(),
            uid: text(),
            resource_version: text(),
            pod_cidrs: vec![text()],
        }
    }
}

/// Checks that every field that the struct sets exists in the published message, with the same
/// number, type and name, and that the published message has no others, except for those in
/// `except`.
fn same<M: SampleMessage>(message: &MessageDescriptor) {
    let decoded = DynamicMessage::decode(message.clone(), &*M::full().encode_to_vec()).unwrap();
    assert_eq!(
        decoded.unknown_fields().count(),
        0,
        "{}",
        message.full_name()
    );
    for field in message.fields() {
        assert!(
            decoded.has_field(&field),
            "{} has no {} here",
            message.full_name(),
            field.name()
        );
        if field.kind() == Kind::String && !field.is_list() {
            assert_eq!(
                decoded.get_field(&field).as_str(),
                Some("text"),
                "{}",
                field.full_name()
            );
        }
    }
    assert_eq!(M::decode(&*decoded.encode_to_vec()).unwrap(), M::full());
}

fn uniform<K: Object>() {
    let service = POOL.get_service_by_name(&service_name::<K>()).unwrap();
    for verb in Verb::ALL {
        let name = verb.method::<K>();
        let method = service
            .methods()
            .find(|m| m.name() == name)
            .unwrap_or_else(|| panic!("{name}"));
        let input = method.input();
        match verb {
            Verb::Create | Verb::Update | Verb::UpdateStatus => same::<WriteRequest>(&input),
            Verb::Get => scoped::<K, GetRequest>(&input),
            Verb::List => {
                scoped::<K, ListRequest>(&input);
                list_of::<K>(&method.output());
            }
            Verb::Watch => {
                scoped::<K, WatchRequest>(&input);
                same::<WatchEvent>(&method.output());
            }
            Verb::Patch | Verb::PatchStatus => scoped::<K, PatchRequest>(&input),
            Verb::Delete => scoped::<K, DeleteRequest>(&input),
        }
        assert_eq!(method.is_server_streaming(), verb == Verb::Watch);
    }
}

/// `selfLink` is deprecated and never written; all other fields of a list are present.
fn list_of<K: Object>(message: &MessageDescriptor) {
    let decoded =
        DynamicMessage::decode(message.clone(), &*ObjectList::full().encode_to_vec()).unwrap();
    assert_eq!(decoded.unknown_fields().count(), 0, "{}", K::KIND);
    assert!(
        message.fields().all(|field| decoded.has_field(&field)),
        "{}",
        K::KIND
    );
}

/// Requests for cluster-scoped kinds have no namespace, so it is the only unknown field there.
fn scoped<K: Object, M: SampleMessage>(message: &MessageDescriptor) {
    match K::SCOPE {
        Scope::Namespaced => same::<M>(message),
        Scope::Cluster => {
            let decoded =
                DynamicMessage::decode(message.clone(), &*M::full().encode_to_vec()).unwrap();
            let unknown: Vec<_> = decoded
                .unknown_fields()
                .map(|field| field.number())
                .collect();
            assert_eq!(unknown, [1], "{}", message.full_name());
            assert!(
                message.fields().all(|field| decoded.has_field(&field)),
                "{}",
                message.full_name()
            );
        }
    }
}

struct Uniform;

impl KindVisitor for Uniform {
    fn visit<K: Strategy>(&mut self) {
        assert_eq!(K::SERVICE, service_name::<K>());
        uniform::<K>();
    }
}

#[test]
fn structs_match_the_descriptors() {
    kinds::visit(&mut Uniform);
    same::<BindPodRequest>(
        &POOL
            .get_message_by_name("podplane.core.v1.BindPodRequest")
            .unwrap(),
    );
    same::<DeleteRequest>(
        &POOL
            .get_message_by_name("podplane.core.v1.EvictPodRequest")
            .unwrap(),
    );
    same::<AssignPodCidrsRequest>(
        &POOL
            .get_message_by_name("podplane.core.v1.AssignPodCIDRsRequest")
            .unwrap(),
    );
}

#[test]
fn list_meta_matches_the_descriptor() {
    let published = POOL
        .get_message_by_name("podplane.meta.v1.ListMeta")
        .unwrap();
    let numbers: Vec<_> = published
        .fields()
        .map(|f| (f.number(), f.json_name().to_owned()))
        .collect();
    assert_eq!(
        numbers,
        [
            (1, "continue"),
            (2, "remainingItemCount"),
            (3, "resourceVersion"),
            (4, "selfLink"),
            // Never set: there are no shards.
            (5, "shardInfo"),
        ]
        .map(|(n, s)| (n, s.to_owned()))
    );
}
