//! The scale of an object, by the paths of its definition.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceSubresourceScale;
use podplane_api::{
    autoscaling::{Scale, ScaleSpec, ScaleStatus},
    meta::ObjectMeta,
    validation::{ErrorList, FieldPath},
};
use serde_json::{Map, Value};

use crate::columns::field;

/// An object whose scale cannot be told or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// The kind has no scale.
    #[error("the kind has no scale subresource")]
    None,
    /// A field has another type.
    #[error("{path}: want {want}, got {got}")]
    Field {
        /// The field.
        path: String,
        /// The type that it should have.
        want: &'static str,
        /// The value.
        got: String,
    },
}

fn number(object: &Value, path: &str) -> Result<Option<i32>, ScaleError> {
    let Some(value) = field(object, path).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let number = value.as_i64().and_then(|number| i32::try_from(number).ok());
    number.map(Some).ok_or_else(|| ScaleError::Field {
        path: path.to_owned(),
        want: "an integer",
        got: value.to_string(),
    })
}

pub(crate) fn read(
    paths: &CustomResourceSubresourceScale,
    object: &Value,
) -> Result<Scale, ScaleError> {
    let spec = number(object, &paths.spec_replicas_path)?;
    let status = number(object, &paths.status_replicas_path)?;
    let selector = match paths
        .label_selector_path
        .as_deref()
        .filter(|path| !path.is_empty())
    {
        None => None,
        Some(path) => match field(object, path).filter(|value| !value.is_null()) {
            None => None,
            Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
            Some(other) => {
                return Err(ScaleError::Field {
                    path: path.to_owned(),
                    want: "a string",
                    got: other.to_string(),
                });
            }
        },
    };
    let whole: ObjectMeta = object
        .get("metadata")
        .and_then(|metadata| serde_json::from_value(metadata.clone()).ok())
        .unwrap_or_default();
    Ok(Scale {
        metadata: ObjectMeta {
            name: whole.name,
            namespace: whole.namespace,
            uid: whole.uid,
            resource_version: whole.resource_version,
            creation_timestamp: whole.creation_timestamp,
            ..ObjectMeta::default()
        },
        spec: Some(ScaleSpec { replicas: spec }),
        status: Some(ScaleStatus {
            replicas: status.unwrap_or_default(),
            selector,
        }),
    })
}

pub(crate) fn write(
    paths: &CustomResourceSubresourceScale,
    object: &mut Value,
    scale: &Scale,
) -> Result<(), ScaleError> {
    let path = &paths.spec_replicas_path;
    let replicas = scale
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or_default();
    let mut at = object;
    for name in path.trim_start_matches('.').split('.') {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        let got = at.to_string();
        at = match at.as_object_mut() {
            Some(fields) => fields.entry(name.to_owned()).or_insert(Value::Null),
            None => {
                return Err(ScaleError::Field {
                    path: path.clone(),
                    want: "an object",
                    got,
                });
            }
        };
    }
    *at = replicas.into();
    Ok(())
}

/// Checks the fields that the scale is made of.
pub(crate) fn validate(
    paths: &CustomResourceSubresourceScale,
    object: &Value,
    with_spec: bool,
    errors: &mut ErrorList,
) {
    let mut replicas = |path: &str| {
        let Some(value) = field(object, path).filter(|value| !value.is_null()) else {
            return;
        };
        let shown = FieldPath::new(path);
        match value.as_i64() {
            None => {
                let detail = format!(
                    "{path} accessor error: {value} is of the type {}, expected int64",
                    kind(value)
                );
                errors.invalid(&shown, 0, &detail);
            }
            Some(number) if number < 0 => {
                errors.invalid(&shown, number, "should be a non-negative integer")
            }
            Some(number) if number > i64::from(i32::MAX) => {
                errors.invalid(
                    &shown,
                    number,
                    &format!("should be less than or equal to {}", i32::MAX),
                );
            }
            Some(_) => {}
        }
    };
    if with_spec {
        replicas(&paths.spec_replicas_path);
    }
    replicas(&paths.status_replicas_path);
    if let Some(path) = paths
        .label_selector_path
        .as_deref()
        .filter(|path| !path.is_empty())
        && let Some(value) =
            field(object, path).filter(|value| !value.is_string() && !value.is_null())
    {
        let detail = format!(
            "{path} accessor error: {value} is of the type {}, expected string",
            kind(value)
        );
        errors.invalid(&FieldPath::new(path), "", &detail);
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
