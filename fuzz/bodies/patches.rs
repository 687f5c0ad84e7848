//! Fuzzes patches of objects of every kind.
//!
//! The input is parts separated by the byte 0x1e: the plural of a kind, the stored object, and
//! patches. The first byte of a patch is its type: `j` JSON patch, `m` merge patch, `s` strategic
//! merge patch, `a` apply, `A` apply with force, `u` an update to the whole object.

use podplane_api::{
    jiff::Timestamp,
    kinds::{self, KindVisitor},
    patch::{
        self, FieldSet,
        apply::{self, Conflicts, Writer},
    },
    schema::Type,
    strategy::Strategy,
};
use serde_json::Value;

/// The most patches of an input.
const MOST_PATCHES: usize = 4;

const NOW: i64 = 1_790_000_000;

pub(crate) fn run(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0x1e);
    let plural = parts.next().unwrap_or_default();
    let object = parts.next().unwrap_or_default();
    let patches: Vec<_> = parts.take(MOST_PATCHES).collect();
    let Ok(stored) = serde_json::from_slice(object) else {
        return;
    };
    kinds::visit(&mut PatchedObject {
        plural,
        stored,
        patches,
    });
}

struct PatchedObject<'a> {
    plural: &'a [u8],
    stored: Value,
    patches: Vec<&'a [u8]>,
}

impl KindVisitor for PatchedObject<'_> {
    fn visit<K: Strategy>(&mut self) {
        if self.plural != K::PLURAL.as_bytes() {
            return;
        }
        let Some(mut document) = decoded::<K>(self.stored.take()) else {
            return;
        };
        for text in &self.patches {
            let Some((letter, text)) = text.split_first() else {
                return;
            };
            let Ok(patch) = serde_json::from_slice(text) else {
                return;
            };
            let patched = patched::<K>(*letter, &document, patch);
            match patched.and_then(decoded::<K>) {
                Some(patched) => document = patched,
                None => return,
            }
        }
    }
}

/// The document of an object that the kind's decoder accepts.
fn decoded<K: Strategy>(document: Value) -> Option<Value> {
    let (object, _) = K::from_json_noting(document).ok()?;
    Some(object.to_json().expect("a decoded object has JSON"))
}

fn patched<K: Strategy>(letter: u8, document: &Value, patch: Value) -> Option<Value> {
    let nothing = FieldSet::of_fields(&[]);
    let writer = Writer {
        manager: "fuzz",
        api_version: K::API_VERSION,
        subresource: "",
        now: Timestamp::from_second(NOW).expect("a time"),
        ignored: &nothing,
    };
    let ty = Type::of::<K>();
    match letter {
        b'j' => patch::json(document.clone(), patch).ok(),
        b'm' => {
            let once = patch::merge(document.clone(), patch.clone()).ok()?;
            let twice = patch::merge(once.clone(), patch);
            assert_eq!(twice.as_ref(), Ok(&once), "a merge patch is idempotent");
            Some(once)
        }
        b's' => patch::strategic(ty?, document.clone(), patch).ok(),
        b'a' => applied(ty?, document, &patch, &writer, Conflicts::Refuse),
        b'A' => applied(ty?, document, &patch, &writer, Conflicts::Take),
        b'u' => Some(apply::track(ty?, Some(document), &patch, &writer)),
        _ => None,
    }
}

/// Applies a configuration twice: the second time changes nothing. Where the manager has applied
/// something before, the first time may remove the contents of an object and leave null, as in
/// Kubernetes, and the second time puts an empty object there; then the third changes nothing.
fn applied(
    ty: Type,
    document: &Value,
    config: &Value,
    writer: &Writer<'_>,
    conflicts: Conflicts,
) -> Option<Value> {
    let before = document.pointer("/metadata/managedFields");
    let has_applied = before.and_then(Value::as_array).is_some_and(|entries| {
        let own =
            |entry: &Value| entry["manager"] == writer.manager && entry["operation"] == "Apply";
        entries.iter().any(own)
    });
    let mut once = apply::apply(ty, Some(document), config, writer, conflicts).ok()?;
    assert!(conflicts == Conflicts::Take || once.conflicts.is_empty());
    if has_applied {
        once = apply::apply(ty, Some(&once.object), config, writer, Conflicts::Take)
            .expect("what was applied can be applied again");
    }
    let twice = apply::apply(ty, Some(&once.object), config, writer, conflicts)
        .expect("what was applied can be applied again");
    assert!(!twice.changed, "{} and {}", once.object, twice.object);
    // An object without managers gets one for what it had before its first apply.
    if once.object.pointer("/metadata/managedFields").is_some() {
        assert_eq!(twice.object, once.object, "an apply is idempotent");
    }
    let _ = apply::apply(ty, None, config, writer, conflicts);
    Some(once.object)
}
