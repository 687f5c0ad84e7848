//! Normalizes documents to the form that Go's types give them, since clients compare the stored
//! object with what they sent.
//!
//! Go omits an empty list or map of an optional field (`omitempty`), which our types keep. Go's
//! times are of the years 0 to 9999; protobuf's begin with the year 1, and [`jiff`]'s end 26 hours
//! before the end of the year 9999.

use jiff::{Timestamp, fmt::temporal::Pieces};
use serde_json::Value;

use crate::schema::{TypeRef, TypeStructure};

/// The definitions of time types.
const TIMES: [&str; 2] = [
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
];

/// The first second of a protobuf timestamp.
const EARLIEST: &str = "0001-01-01T00:00:00Z";

/// [`EARLIEST`] in seconds since 1970.
const EARLIEST_SECOND: i64 = -62_135_596_800;

/// The last second of a [`Timestamp`].
const LATEST: &str = "9999-12-30T22:00:00Z";

/// Omits empty lists and maps of optional fields, and moves times of the year 0 and of the last
/// hours of the year 9999 to the nearest time that can be stored. Returns a warning for each such
/// time.
pub fn canonicalize(ty: TypeRef<'_>, document: &mut Value) -> Vec<String> {
    let mut pass = Canonicalizer::default();
    pass.value(ty, document);
    pass.warnings
}

#[derive(Default)]
struct Canonicalizer {
    path: Vec<String>,
    warnings: Vec<String>,
}

impl Canonicalizer {
    fn value(&mut self, ty: TypeRef<'_>, value: &mut Value) {
        match (ty.kind(), value) {
            (TypeStructure::Struct(fields), Value::Object(object)) => {
                object.retain(|name, value| {
                    let Some(field) = fields.field(name) else {
                        return true;
                    };
                    let ty = field.ty();
                    self.at(name, ty, value);
                    field.required || !is_empty(ty, value)
                });
            }
            (TypeStructure::Map(values), Value::Object(object)) => {
                for (name, value) in object {
                    self.at(name, values, value);
                }
            }
            (TypeStructure::List(list), Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.at(&format!("[{index}]"), list.items(), item);
                }
            }
            (TypeStructure::Scalar, Value::String(text)) if is_time(ty) => {
                if let Some((kept, which)) = nearest(text) {
                    let path = self.path.concat();
                    let path = path.trim_start_matches('.');
                    self.warnings.push(format!(
                        "{path}: the time {text:?} is kept as {kept:?}, the {which} that can be"
                    ));
                    kept.clone_into(text);
                }
            }
            _ => {}
        }
    }

    fn at(&mut self, name: &str, ty: TypeRef<'_>, value: &mut Value) {
        self.path.push(match name.starts_with('[') {
            true => name.to_owned(),
            false => format!(".{name}"),
        });
        self.value(ty, value);
        self.path.pop();
    }
}

fn is_empty(ty: TypeRef<'_>, value: &Value) -> bool {
    match (ty.kind(), value) {
        (TypeStructure::Map(_), Value::Object(fields)) => fields.is_empty(),
        (TypeStructure::List(_), Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

fn is_time(ty: TypeRef<'_>) -> bool {
    ty.definition().is_some_and(|name| TIMES.contains(&name))
}

/// The nearest time that can be stored, if `text` is outside of the range, and `earliest` or
/// `latest`.
fn nearest(text: &str) -> Option<(&'static str, &'static str)> {
    match text.parse::<Timestamp>() {
        // A year before 0 has a sign.
        Ok(time) => {
            let is_early = time.as_second() < EARLIEST_SECOND && !text.starts_with('-');
            is_early.then_some((EARLIEST, "earliest"))
        }
        Err(_) => {
            let is_of_last_year = |pieces: Pieces<'_>| {
                let is_whole = pieces.time().is_some() && pieces.offset().is_some();
                is_whole && pieces.date().year() == 9999
            };
            let is_late = Pieces::parse(text).is_ok_and(is_of_last_year);
            is_late.then_some((LATEST, "latest"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::{Event, Pod};
    use crate::schema::Type;

    #[test]
    fn leaves_out_empty_lists_and_maps_of_optional_fields() {
        let mut pod = json!({
            "metadata": {"name": "a", "annotations": {}, "labels": {"a": ""}, "finalizers": [],
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {}}}}]},
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {},
                "securityContext": {"sysctls": []}, "tolerations": [{}]},
            "unknown": {},
        });
        let warnings = canonicalize(Type::of::<Pod>().unwrap(), &mut pod);
        let want = json!({
            "metadata": {"name": "a", "labels": {"a": ""},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:annotations": {}}}}]},
            "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}],
                "securityContext": {}, "tolerations": [{}]},
            "unknown": {},
        });
        assert_eq!((pod, warnings), (want, Vec::new()));
    }

    #[test]
    fn clamps_times_outside_the_representable_range() {
        for (text, kept) in [
            ("0000-05-01T00:00:00Z", EARLIEST),
            ("0001-01-01T00:00:00+14:00", EARLIEST),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("-000001-05-01T00:00:00Z", "-000001-05-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", LATEST),
            ("9999-12-31T23:59:59.999999+14:00", LATEST),
            ("9999-12-30T22:00:00Z", "9999-12-30T22:00:00Z"),
            ("10000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"),
            ("9999-12-31", "9999-12-31"),
            ("nonsense", "nonsense"),
        ] {
            let mut event = json!({"lastTimestamp": text, "eventTime": text, "message": text});
            let warnings = canonicalize(Type::of::<Event>().unwrap(), &mut event);
            assert_eq!(
                event,
                json!({"lastTimestamp": kept, "eventTime": kept, "message": text})
            );
            assert_eq!(warnings.len(), if text == kept { 0 } else { 2 }, "{text}");
        }
        assert!(LATEST.parse::<Timestamp>().is_ok());
        let earliest: Timestamp = EARLIEST.parse().unwrap();
        assert_eq!(earliest.as_second(), EARLIEST_SECOND);
    }
}
