//! Strict decoding: refuses unknown and repeated fields.
//!
//! `k8s-openapi` ignores unknown fields, as Go's decoder does. A misspelt field that is silently
//! dropped is the worst kind of error, so every object that enters podplane passes through here:
//! each unknown field and the first wrong type is named by its path, with the messages of
//! Kubernetes' strict decoder.

use serde::{Deserializer, de::DeserializeOwned};

/// An error of decoding an object.
#[derive(Debug, thiserror::Error)]
pub enum StrictError {
    /// A value has the wrong type or form. `path` is empty when the document as a whole is wrong.
    #[error("{path}: {message}")]
    Malformed {
        /// The path, for example `spec.containers[0].ports[0].containerPort`.
        path: String,
        /// The problem.
        message: String,
    },
    /// Fields that the kind does not have, or that the document has more than once.
    #[error("{}", display_fields(.unknown, .duplicate))]
    Fields {
        /// The paths of unknown fields, in the order of the document.
        unknown: Vec<String>,
        /// The paths of repeated fields.
        duplicate: Vec<String>,
    },
}

impl StrictError {
    /// The error for unknown fields.
    pub fn unknown(paths: Vec<String>) -> Self {
        Self::Fields {
            unknown: paths,
            duplicate: Vec::new(),
        }
    }

    /// The path of the first invalid field.
    pub fn path(&self) -> &str {
        match self {
            Self::Malformed { path, .. } => path,
            Self::Fields { unknown, duplicate } => {
                let mut paths = unknown.iter().chain(duplicate);
                paths.next().map_or("", String::as_str)
            }
        }
    }
}

fn display_fields(unknown: &[String], duplicate: &[String]) -> String {
    field_faults(unknown, duplicate)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The message for each unknown or repeated field, as in Kubernetes' strict decoder and in its
/// warnings.
pub fn field_faults<'a>(
    unknown: &'a [String],
    duplicate: &'a [String],
) -> impl Iterator<Item = String> + 'a {
    let unknown = unknown
        .iter()
        .map(|path| format!("unknown field \"{path}\""));
    let duplicate = duplicate
        .iter()
        .map(|path| format!("duplicate field \"{path}\""));
    unknown.chain(duplicate)
}

/// Decodes one object from any serde format and refuses unknown fields.
///
/// # Errors
///
/// [`StrictError::Malformed`] for the first value of a wrong type or form, [`StrictError::Fields`]
/// naming all unknown fields.
pub fn decode<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    document: D,
) -> Result<T, StrictError> {
    match decode_noting(document)? {
        (object, unknown) if unknown.is_empty() => Ok(object),
        (_, paths) => Err(StrictError::unknown(paths)),
    }
}

/// Decodes one object, and returns the paths of unknown fields, which are dropped.
///
/// # Errors
///
/// [`StrictError::Malformed`] for the first value of a wrong type or form.
pub fn decode_noting<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    document: D,
) -> Result<(T, Vec<String>), StrictError> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let document = serde_path_to_error::Deserializer::new(document, &mut track);
    // One callback type for all kinds, or each `T` would have its own decoders for all nested
    // types.
    let note: &mut dyn FnMut(serde_ignored::Path<'_>) = &mut |path| unknown.push(dotted(&path));
    let decoded = serde_ignored::deserialize(document, note);
    let decoded = decoded.map_err(|error| {
        let path = match track.path().to_string() {
            whole if whole == "." => String::new(),
            path => path,
        };
        StrictError::Malformed {
            path,
            message: error.to_string(),
        }
    })?;
    Ok((decoded, unknown))
}

/// Formats a path as Kubernetes does: `spec.containers[0].imaage`, where `serde_ignored` would
/// print `spec.containers.0.imaage` and a `?` for each `Option`.
fn dotted(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", dotted(parent)),
        Path::Map { parent, key } => match dotted(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => dotted(parent),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_named_by_path() {
        let pod = json!({"metadata": {"name": "a", "lables": {}}, "spec": {"containers": [{"name": "c", "imaage": "i"}]}});
        let error = decode::<Pod, _>(pod).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"unknown field "metadata.lables", unknown field "spec.containers[0].imaage""#
        );
        assert_eq!(error.path(), "metadata.lables");
    }

    #[test]
    fn a_wrong_type_is_named_by_path() {
        let pod = json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": "eighty"}]}]}});
        let error = decode::<Pod, _>(pod).unwrap_err();
        assert_eq!(error.path(), "spec.containers[0].ports[0].containerPort");
    }

    #[test]
    fn every_field_of_the_schema_is_kept() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"hostNetwork": false, "containers": [{"name": "c", "livenessProbe": {"httpGet": {"port": "http"}}}],
                     "volumes": [{"name": "v", "emptyDir": {}}]}});
        let decoded: Pod = decode(pod.clone()).unwrap();
        assert_eq!(serde_json::to_value(decoded).unwrap(), pod);
    }
}
