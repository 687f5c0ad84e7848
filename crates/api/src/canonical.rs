//! Documents as Go's types would have them: what clients compare with what they sent.
//!
//! Go leaves out an empty list or map of an optional field (`omitempty`), which our types keep.
//! Go's times last until the end of the year 9999; [`jiff`]'s end 26 hours before it.

use jiff::{Timestamp, fmt::temporal::Pieces};
use serde_json::Value;

use crate::schema::{Kind, Type};

/// The types of times.
const TIMES: [&str; 2] = [
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
];

/// The last second of a [`Timestamp`].
const LATEST: &str = "9999-12-30T22:00:00Z";

/// Leaves out empty lists and maps of optional fields, and brings times of the last hours of the
/// year 9999 forward to the latest one that can be kept. Returns a warning for each such time.
pub fn canonicalize(ty: Type, document: &mut Value) -> Vec<String> {
    let mut pass = Pass::default();
    pass.value(ty, document);
    pass.warnings
}

#[derive(Default)]
struct Pass {
    path: Vec<String>,
    warnings: Vec<String>,
}

impl Pass {
    fn value(&mut self, ty: Type, value: &mut Value) {
        match (ty.kind(), value) {
            (Kind::Struct(fields), Value::Object(object)) => {
                object.retain(|name, value| {
                    let Some(field) = fields.field(name) else {
                        return true;
                    };
                    let ty = field.ty();
                    self.at(name, ty, value);
                    field.required || !is_empty(ty, value)
                });
            }
            (Kind::Map(values), Value::Object(object)) => {
                for (name, value) in object {
                    self.at(name, values, value);
                }
            }
            (Kind::List(list), Value::Array(items)) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.at(&format!("[{index}]"), list.items(), item);
                }
            }
            (Kind::Scalar, Value::String(text)) if is_time(ty) && is_too_late(text) => {
                let path = self.path.concat();
                let path = path.trim_start_matches('.');
                self.warnings.push(format!(
                    "{path}: the time {text:?} is kept as {LATEST:?}, the latest that can be"
                ));
                LATEST.clone_into(text);
            }
            _ => {}
        }
    }

    fn at(&mut self, name: &str, ty: Type, value: &mut Value) {
        self.path.push(match name.starts_with('[') {
            true => name.to_owned(),
            false => format!(".{name}"),
        });
        self.value(ty, value);
        self.path.pop();
    }
}

fn is_empty(ty: Type, value: &Value) -> bool {
    match (ty.kind(), value) {
        (Kind::Map(_), Value::Object(fields)) => fields.is_empty(),
        (Kind::List(_), Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

fn is_time(ty: Type) -> bool {
    ty.definition().is_some_and(|name| TIMES.contains(&name))
}

fn is_too_late(text: &str) -> bool {
    let is_of_last_year = |pieces: Pieces<'_>| {
        let is_whole = pieces.time().is_some() && pieces.offset().is_some();
        is_whole && pieces.date().year() == 9999
    };
    text.parse::<Timestamp>().is_err() && Pieces::parse(text).is_ok_and(is_of_last_year)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::{Event, Pod};

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
    fn keeps_times_of_the_end_of_9999_as_the_latest() {
        for (text, kept) in [
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
    }
}
