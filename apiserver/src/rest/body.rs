//! Bodies of requests.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use podplane_proto::{
    MAX_VALUES,
    error::{ApiError, Reason},
    kubernetes,
};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;
use tonic::{Code, Status};

use super::{
    answer::{self, RestAnswer},
    call::CallRefusal,
};
use crate::error;

/// The size limit of a body, as in Kubernetes.
const MAX_BYTES: usize = 3 << 20;

/// The number of bytes read from a body that is too large: a client that is still writing would not
/// see the answer.
const DISCARDED: usize = 64 << 20;

/// The depth limit of YAML. Half of `serde_json`'s for JSON: each level takes ten frames of the
/// reader's stack.
const YAML_DEPTH: usize = 64;

/// The media types of documents.
const DOCUMENTS: [&str; 3] = [
    "application/json",
    "application/yaml",
    kubernetes::MEDIA_TYPE,
];

/// The media type, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let text = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    text.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// The media type of a document. One without a type is JSON, as in Kubernetes (`kubectl scale` and
/// the Python client send none), unless a browser sends it: a page of any web site can do that.
fn document_type(headers: &HeaderMap) -> String {
    let is_untyped = !headers.contains_key(header::CONTENT_TYPE);
    let is_of_browser = headers.contains_key(header::ORIGIN)
        || ["sec-fetch-site", "sec-fetch-mode"]
            .iter()
            .any(|name| headers.contains_key(*name));
    match is_untyped && !is_of_browser {
        true => "application/json".to_owned(),
        false => media_type(headers),
    }
}

/// Reads a whole body.
pub(super) async fn read(mut body: Body) -> Result<Bytes, RestAnswer> {
    match Limited::new(&mut body, MAX_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(too_large(&format!("limit is {MAX_BYTES}")))
        }
        Err(error) => Err(match late(&*error) {
            Some(late) => answer::refuse(StatusCode::REQUEST_TIMEOUT, "Timeout", late.message()),
            None => answer::refuse(
                StatusCode::BAD_REQUEST,
                "BadRequest",
                &format!("the body of the request ended early: {error}"),
            ),
        }),
    }
}

/// Reads and discards the rest of a body, up to a limit.
async fn discard(mut body: Body) {
    let mut left = DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// The status of a body that did not arrive in time, if that is the error.
fn late<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Status> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .find_map(|error| error.downcast_ref::<Status>())
        .filter(|status| status.code() == Code::DeadlineExceeded)
}

/// Parses the document of a body; null if the body is empty.
pub(super) fn document(headers: &HeaderMap, body: &Bytes) -> Result<Value, CallRefusal> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    match document_type(headers).as_str() {
        "application/json" => {
            check_values(body)?;
            serde_json::from_slice(body).map_err(|error| unreadable(&error).into())
        }
        "application/yaml" => Ok(yaml(body)?),
        kubernetes::MEDIA_TYPE => kubernetes::decode(body).map_err(|error| match error {
            kubernetes::DecodeError::TooManyValues => too_large(&error.to_string()).into(),
            error => unreadable(&error).into(),
        }),
        _ => Err(unsupported(headers, &DOCUMENTS).into()),
    }
}

/// A document or patch that was sent or answered; `None` if there is none, or if it cannot be read.
pub(crate) fn readable(headers: &HeaderMap, body: &Bytes) -> Option<Value> {
    let media = match &*media_type(headers) {
        "application/apply-patch+yaml" => "application/yaml",
        patch if patch.ends_with("+json") => "application/json",
        _ if body.is_empty() => return None,
        _ => return document(headers, body).ok(),
    };
    let media = (header::CONTENT_TYPE, HeaderValue::from_static(media));
    document(&HeaderMap::from_iter([media]), body).ok()
}

/// Refuses a body whose type is not that of a document, and a browser's body without a type: any
/// web page's form can send one. A browser's requests that create or change something need a type
/// even without a body.
pub(super) fn check_type(
    method: &Method,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(), CallRefusal> {
    if headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        let why = "the body of the request has a Content-Encoding: send it as it is";
        return Err(unsupported_type(why).into());
    }
    let needed = match *method {
        Method::POST | Method::PUT => true,
        Method::DELETE => !body.is_empty(),
        // The types of patches are checked by the patch methods.
        _ => false,
    };
    if needed && !DOCUMENTS.contains(&document_type(headers).as_str()) {
        return Err(unsupported(headers, &DOCUMENTS).into());
    }
    Ok(())
}

/// Parses a YAML document; JSON is a subset.
pub(super) fn yaml(body: &Bytes) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| unreadable(&error))?;
    serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| unreadable(&error))
}

fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // As in JSON. [`duplicates`] finds them for warnings.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        // The lines around an error may be those of a Secret.
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: YAML_DEPTH,
            max_nodes: MAX_VALUES,
            flow_nesting_limit: YAML_DEPTH,
        },
    }
}

/// The fields that occur more than once in a readable document or patch. Protobuf messages have
/// none.
pub(super) fn duplicates(headers: &HeaderMap, body: &Bytes) -> Vec<String> {
    match document_type(headers).as_str() {
        kubernetes::MEDIA_TYPE => Vec::new(),
        "application/yaml" | "application/apply-patch+yaml" => duplicates_of_yaml(body),
        _ => duplicates_of_json(body),
    }
}

pub(crate) fn duplicates_of_json(text: &[u8]) -> Vec<String> {
    podplane_api::duplicates(&mut serde_json::Deserializer::from_slice(text))
}

pub(crate) fn duplicates_of_yaml(text: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let found =
        |document: serde_saphyr::Deserializer<'_, '_>| Ok(podplane_api::duplicates(document));
    serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(), found)
        .unwrap_or_default()
}

fn too_large(why: &str) -> RestAnswer {
    let why = format!("Request entity too large: {why}");
    answer::refuse(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &why)
}

/// Refuses JSON with too many values before they take memory.
pub(super) fn check_values(json: &[u8]) -> Result<(), ApiError> {
    let (mut values, mut in_text) = (0_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if in_text => _ = bytes.next(),
            b'"' => in_text = !in_text,
            // Each begins a value.
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    match values {
        ..=MAX_VALUES => Ok(()),
        _ => Err(ApiError::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: limit of values is {MAX_VALUES}"),
        )),
    }
}

/// Refuses the media type of a body, or a missing one.
pub(super) fn unsupported(headers: &HeaderMap, supported: &[&str]) -> RestAnswer {
    let what = match headers.get(header::CONTENT_TYPE) {
        Some(_) => "the body of the request was in an unknown format",
        None => "the request has no Content-Type",
    };
    let supported = supported.join(", ");
    unsupported_type(&format!(
        "{what} - accepted media types include: {supported}"
    ))
}

fn unsupported_type(why: &str) -> RestAnswer {
    let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    answer::refuse(code, "UnsupportedMediaType", why)
}

fn unreadable(error: &dyn std::fmt::Display) -> ApiError {
    error::bad_request(format!("the body of the request cannot be read: {error}"))
}
