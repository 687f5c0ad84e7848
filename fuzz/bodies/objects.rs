//! Fuzzes objects of every kind: in JSON, in both protobuf encodings, and as the store has them.
//!
//! The input is a letter for the encoding, the plural of the kind, the byte 0x1e, and the object:
//! `j` JSON, `g` the message of gRPC, `k` Kubernetes' protobuf, `s` a value of the store.

use podplane_api::{
    any::kind_of,
    canonical::canonicalize,
    jiff::Timestamp,
    kinds::{self, KindVisitor},
    nesting::{self, MAX_DEPTH},
    schema::Type,
    selector::FieldSet,
    strategy::Strategy,
};
use podplane_proto::{codec, kubernetes};
use podplane_store::{FIRST_REVISION, Item, Key};
use serde_json::Value;

/// 2026-09-21: ages are computed from it.
const NOW: i64 = 1_790_000_000;

pub(crate) fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0x1e);
    let Some(at) = at else { return };
    let Some((letter, plural)) = data[..at].split_first() else {
        return;
    };
    kinds::visit(&mut EncodedObject {
        letter: *letter,
        plural,
        bytes: &data[at + 1..],
    });
}

struct EncodedObject<'a> {
    letter: u8,
    plural: &'a [u8],
    bytes: &'a [u8],
}

impl KindVisitor for EncodedObject<'_> {
    fn visit<K: Strategy>(&mut self) {
        if self.plural != K::PLURAL.as_bytes() {
            return;
        }
        let Self { letter, bytes, .. } = *self;
        match letter {
            b'j' => {
                podplane_api::duplicates(&mut serde_json::Deserializer::from_slice(bytes));
                if let Ok(document) = serde_json::from_slice(bytes) {
                    document_of::<K>(document);
                }
            }
            b'g' => {
                if let Ok(object) = codec::decode::<K>(bytes) {
                    accepted(&object);
                }
            }
            b'k' => {
                if let Ok(document) = kubernetes::decode(bytes) {
                    assert!(nesting::depth(&document) <= MAX_DEPTH);
                    document_of::<K>(document);
                }
            }
            b's' => stored::<K>(bytes),
            _ => {}
        }
    }
}

/// A document of a request, as the REST API takes it.
fn document_of<K: Strategy>(mut document: Value) {
    if let Some(ty) = Type::of::<K>() {
        canonicalize(ty, &mut document);
        let once = document.clone();
        canonicalize(ty, &mut document);
        assert_eq!(document, once, "a canonical document is not");
    }
    let Ok((object, unknown)) = K::from_json_noting(document.clone()) else {
        return;
    };
    assert_eq!(
        K::from_json(document).is_ok(),
        unknown.is_empty(),
        "strict decoding refuses unknown fields, and nothing else"
    );
    accepted(&object);
    written(object);
}

/// Every encoding of an object decodes to the same object.
fn accepted<K: Strategy>(object: &K) {
    let json = object.to_json().expect("a decoded object has JSON");
    let again = K::from_json(json.clone());
    assert_eq!(again.as_ref().ok(), Some(object), "{again:?}");
    let text = object.to_vec().expect("a decoded object has JSON");
    assert_eq!(K::from_slice(&text).ok().as_ref(), Some(object));

    let message = codec::encode(object).expect("a decoded object has a message");
    let decoded: K = codec::decode(&message).expect("an encoded object decodes");
    // An empty list is encoded as an absent one, so the object may have become another.
    let again = codec::encode(&decoded).expect("a decoded object has a message");
    let again: K = codec::decode(&again).expect("an encoded object decodes");
    assert_eq!(again, decoded, "decoding changed the object");
    let revised = codec::encode_any_at(&*kind_of::<K>(), &text, "7");
    let revised = revised.expect("an encoded object has a message");
    let mut revised: K = codec::decode(&revised).expect("an encoded object decodes");
    let mut expected = decoded;
    expected.metadata_mut().resource_version = None;
    revised.metadata_mut().resource_version = None;
    assert_eq!(revised, expected);

    if kubernetes::has(K::API_VERSION, K::KIND) {
        kubernetes_round_trip::<K>(&json);
    }
}

/// What Kubernetes' protobuf cannot hold is refused; what it holds decodes to the same message.
fn kubernetes_round_trip<K: Strategy>(json: &Value) {
    let Ok(bytes) = kubernetes::encode(json) else {
        return;
    };
    let decoded = kubernetes::decode(&bytes).expect("an encoded object decodes");
    let again = kubernetes::encode(&decoded).expect("a decoded object encodes");
    let decoded_again = kubernetes::decode(&again).expect("an encoded object decodes");
    assert_eq!(decoded_again, decoded);
    K::from_json(decoded).expect("a decoded object is of its kind");
}

/// What the registry does with an object before it stores it.
fn written<K: Strategy>(mut object: K) {
    let now = Timestamp::from_second(NOW).expect("a time");
    object.set_defaults();
    let once = object.clone();
    object.set_defaults();
    assert_eq!(object, once, "defaults are set twice");
    let _ = object.validate();
    object.prepare_for_create();
    if object.validate().is_empty() {
        accepted(&object);
        let unchanged = object.validate_update(&object);
        let revised = !object.resource_version().is_empty();
        assert!(
            unchanged.is_empty() || !revised,
            "a valid object is no valid update of itself: {unchanged:?}"
        );
    }
    shown(&mut object, now);
}

/// What reads of an object compute from it.
fn shown<K: Strategy>(object: &mut K, now: Timestamp) {
    assert_eq!(object.cells(now).len(), K::COLUMNS.len());
    FieldSet::of(object);
    object.delete_refusal();
    object.grace_period(None);
    object.journey_state();
    object.last_happened();
    object.begin_deletion();
    K::sort(std::slice::from_mut(object));
}

/// A value of the store, whoever wrote it: an object, or an error.
fn stored<K: Strategy>(bytes: &[u8]) {
    let key = Key::try_from(format!("/registry/{}/a/b", K::PLURAL)).expect("a key");
    let item = Item::new(key, bytes, FIRST_REVISION, FIRST_REVISION);
    let _ = podplane_apiserver::check_item(&item);
    let _ = codec::encode_any_at(&*kind_of::<K>(), bytes, "7");
    let Ok(mut object) = K::from_slice(bytes) else {
        return;
    };
    let _ = codec::encode(&object);
    let now = Timestamp::from_second(NOW).expect("a time");
    shown(&mut object, now);
    written(object);
}
