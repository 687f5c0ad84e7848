//! Objects that earlier versions stored read back unchanged.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::{
    kinds::{self, KindVisitor},
    strategy::Strategy,
};
use serde_json::Value;

/// An object of each kind that was stored with the schema of Kubernetes 1.33, with every field of
/// that schema.
const OF_1_33: &str = include_str!("stored/kubernetes-1.33.jsonl");

/// Reads the stored objects of each kind.
struct Reader(BTreeMap<(String, String), String>);

impl KindVisitor for Reader {
    fn visit<K: Strategy>(&mut self) {
        let kind = (K::API_VERSION.to_owned(), K::KIND.to_owned());
        let Some(stored) = self.0.remove(&kind) else {
            return;
        };
        let object = K::from_slice(stored.as_bytes()).unwrap();
        let before: Value = serde_json::from_str(&stored).unwrap();
        assert_eq!(object.to_json().unwrap(), before, "{kind:?}");
        // As a client writes it, too: no field is unknown.
        assert_eq!(K::from_json(before).unwrap(), object, "{kind:?}");
    }
}

#[test]
fn objects_of_kubernetes_1_33_keep_every_field() {
    let lines = OF_1_33.lines().map(|line| {
        let object: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        ((text("apiVersion"), text("kind")), line.to_owned())
    });
    let mut reader = Reader(lines.collect());
    assert_eq!(reader.0.len(), 18);
    kinds::visit(&mut reader);
    assert!(reader.0.is_empty(), "{:?}", reader.0.keys());
}

/// The key of a stored object begins with the plural alone.
#[test]
fn no_two_kinds_share_a_plural() {
    struct Plurals(BTreeSet<&'static str>);

    impl KindVisitor for Plurals {
        fn visit<K: Strategy>(&mut self) {
            assert!(self.0.insert(K::PLURAL), "{}", K::PLURAL);
        }
    }

    kinds::visit(&mut Plurals(BTreeSet::new()));
}
