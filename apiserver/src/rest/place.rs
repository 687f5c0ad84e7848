//! The place of an object: its kind, namespace and name, which a request and its document both
//! state.

use podplane_api::Scope;
use podplane_proto::error::ApiError;
use serde_json::{Value, json};

use super::resource::KindNames;
use crate::error;

/// Completes a document with the kind, the namespace and the name that a request states.
///
/// An empty `name` leaves the document's.
///
/// # Errors
///
/// `BadRequest` if the document states others.
pub(crate) fn place(
    mut document: Value,
    names: &KindNames,
    namespace: &str,
    name: &str,
) -> Result<Value, ApiError> {
    if !document.is_object() {
        return Err(error::bad_request(
            "the body of the request is not an object",
        ));
    }
    let expected = names.api_version();
    let says = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (says("apiVersion"), says("kind"));
    if !version.is_empty() && version != expected {
        return Err(error::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_empty() && kind != names.kind {
        return Err(error::bad_request(format!(
            "the kind in the data ({kind}) does not match the expected kind ({})",
            names.kind
        )));
    }
    document["apiVersion"] = expected.into();
    document["kind"] = (&*names.kind).into();
    if document["metadata"].is_null() {
        document["metadata"] = json!({});
    }
    let Some(metadata) = document["metadata"].as_object_mut() else {
        return Err(error::bad_request("metadata: must be an object"));
    };
    let stated = |field: &str| {
        let text = metadata.get(field).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let (stated_namespace, stated_name) = (stated("namespace"), stated("name"));
    if names.scope == Scope::Namespaced {
        if !stated_namespace.is_empty() && stated_namespace != namespace {
            return Err(error::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    if !name.is_empty() {
        if !stated_name.is_empty() && stated_name != name {
            return Err(error::bad_request(format!(
                "the name of the object ({stated_name}) does not match the name on the URL ({name})"
            )));
        }
        metadata.insert("name".to_owned(), name.into());
    }
    Ok(document)
}
