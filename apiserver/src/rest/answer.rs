//! Answers: objects, and errors as `Status`.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use podplane_api::printable;
use podplane_proto::{
    error::{ApiError, ChosenStatus, FieldViolation, Reason},
    kubernetes,
};
use podplane_service_runtime::boundary::failure_status;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512};

use super::resource::KindNames;
use crate::error;

pub(crate) type RestAnswer = Response<Body>;

/// The media type of documents in YAML.
pub(super) const YAML: &str = "application/yaml";
/// The media ranges that match JSON.
pub(super) const JSON_RANGES: [&str; 3] = ["application/json", "application/*", "*/*"];

/// A document with a status code.
pub(super) fn document(code: StatusCode, document: &Value) -> RestAnswer {
    typed(code, "application/json", document)
}

/// A document with a status code, of another media type.
pub(super) fn typed(code: StatusCode, content_type: &'static str, document: &Value) -> RestAnswer {
    body(code, content_type, document.to_string())
}

/// A document that rarely changes, or 304 if the client's copy is current. Its hash is computed if
/// it is not given.
pub(super) fn unchanged(
    headers: &HeaderMap,
    content_type: &'static str,
    content: Bytes,
    hash: Option<&str>,
) -> RestAnswer {
    let tag = format!(
        "\"{}\"",
        hash.map_or_else(|| self::hash(&content), str::to_owned)
    );
    let held = headers.get(header::IF_NONE_MATCH);
    let held = held.and_then(|held| held.to_str().ok()).unwrap_or_default();
    let mut answer = match held.split(',').any(|held| held.trim() == tag) {
        true => {
            let mut answer = body(StatusCode::NOT_MODIFIED, content_type, Body::empty());
            answer.headers_mut().remove(header::CONTENT_TYPE);
            answer
        }
        false => body(StatusCode::OK, content_type, content),
    };
    let fields = answer.headers_mut();
    fields.insert(header::VARY, HeaderValue::from_static("Accept"));
    fields.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        fields.insert(header::ETAG, tag);
    }
    answer
}

/// The hash of a content, as Kubernetes makes it.
pub(super) fn hash(content: &[u8]) -> String {
    let digest: [u8; 64] = Sha512::digest(content).into();
    format!("{:X}", Bytes::copy_from_slice(&digest))
}

/// A text for people.
pub(super) fn text(code: StatusCode, text: &str) -> RestAnswer {
    body(code, "text/plain; charset=utf-8", text.to_owned())
}

pub(super) fn body(
    code: StatusCode,
    content_type: &'static str,
    content: impl Into<Body>,
) -> RestAnswer {
    let mut answer = Response::new(content.into());
    *answer.status_mut() = code;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Adds warnings, one header each (RFC 7234 §5.5, as in Kubernetes' API server).
pub(super) fn warn(answer: &mut RestAnswer, warnings: &[String]) {
    for value in warning_values(warnings) {
        answer.headers_mut().append(header::WARNING, value);
    }
}

/// The values of the headers of warnings.
pub(crate) fn warning_values(warnings: &[String]) -> impl Iterator<Item = HeaderValue> {
    warnings.iter().filter_map(|warning| {
        let warning = printable::line(warning);
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()).ok()
    })
}

/// The subject of a refusal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RefusalSubject<'a> {
    pub(super) names: Option<&'a KindNames>,
    pub(super) name: &'a str,
}

/// The answer for an error.
pub(super) fn refusal(error: &ApiError, about: RefusalSubject<'_>) -> RestAnswer {
    of_status(&status(error, about))
}

/// The answer for an error in the options of a request, which are a kind themselves: `ListOptions`.
pub(super) fn refusal_of_options(error: &ApiError, kind: &str) -> RestAnswer {
    let mut status = status(error, RefusalSubject::default());
    status["details"]["group"] = "meta.k8s.io".into();
    status["details"]["kind"] = kind.into();
    of_status(&status)
}

/// The answer to a request that was refused before its kind was looked at. `about` has the API
/// group, resource and name.
pub(super) fn refusal_of_gate(error: &ApiError, about: [&str; 3]) -> RestAnswer {
    let mut status = status(error, RefusalSubject::default());
    for (field, text) in ["group", "kind", "name"].into_iter().zip(about) {
        if !text.is_empty() {
            status["details"][field] = text.into();
        }
    }
    of_status(&status)
}

fn of_status(status: &Value) -> RestAnswer {
    let code = status["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    let code = code.and_then(|code| StatusCode::from_u16(code).ok());
    let mut answer = document(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), status);
    if let Some(seconds) = status["details"]["retryAfterSeconds"].as_u64() {
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

pub(crate) fn code(reason: Reason) -> StatusCode {
    match reason {
        Reason::NotFound => StatusCode::NOT_FOUND,
        Reason::AlreadyExists | Reason::Conflict => StatusCode::CONFLICT,
        Reason::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        Reason::BadRequest => StatusCode::BAD_REQUEST,
        Reason::Forbidden => StatusCode::FORBIDDEN,
        // As Kubernetes answers a failed precondition; the reason tells the leader.
        Reason::FenceLost | Reason::InUse => StatusCode::CONFLICT,
        // Clients that do not know the reason go by the code.
        Reason::InsufficientPodIps => StatusCode::CONFLICT,
        Reason::Unauthorized => StatusCode::UNAUTHORIZED,
        Reason::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        Reason::Expired => StatusCode::GONE,
        Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Reason::RequestEntityTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Reason::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Reason::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// metav1.Status.
pub(super) fn status(error: &ApiError, about: RefusalSubject<'_>) -> Value {
    let ApiError {
        reason,
        message,
        fields,
        continue_token,
        retry_after_seconds,
        chosen_status,
    } = error;
    let mut details = json!({});
    let of_object = matches!(
        reason,
        Reason::NotFound
            | Reason::AlreadyExists
            | Reason::Conflict
            | Reason::Invalid
            | Reason::Forbidden
            | Reason::FenceLost
            | Reason::InUse
            | Reason::InsufficientPodIps
    );
    if let Some(names) = about.names.filter(|_| of_object) {
        // For an invalid object the details name the kind, otherwise the resource.
        // A refusal by a rule of the cluster is one of the request.
        let kind = match reason {
            Reason::Invalid if chosen_status.is_none() => &names.kind,
            _ => &names.plural,
        };
        details["kind"] = (&**kind).into();
        if !names.group.is_empty() {
            details["group"] = (&*names.group).into();
        }
    }
    if of_object && !about.name.is_empty() {
        details["name"] = about.name.into();
    }
    if !fields.is_empty() {
        details["causes"] = fields.iter().map(cause).collect();
    }
    if *reason == Reason::Timeout {
        details["retryAfterSeconds"] = 1.into();
    }
    if let Some(seconds) = retry_after_seconds {
        details["retryAfterSeconds"] = (*seconds).into();
    }
    if *reason == Reason::InternalError {
        details["causes"] = json!([{"message": message}]);
    }
    // Clients read the details of these reasons without checking that there are any.
    let details = Some(details).filter(|details| of_object || details != &json!({}));
    let mut status = failure(code(*reason), reason.as_str(), message, details);
    if let Some(chosen) = chosen_status {
        let ChosenStatus { code, reason } = &**chosen;
        status["code"] = (*code).into();
        status["reason"] = reason.as_str().into();
    }
    if let Some(token) = continue_token {
        status["metadata"]["continue"] = token.as_str().into();
    }
    status
}

/// metav1.Status for an error that only HTTP has.
pub(super) fn failure(
    code: StatusCode,
    reason: &str,
    message: &str,
    details: Option<Value>,
) -> Value {
    let mut status = failure_status(code, reason, message);
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}

/// metav1.StatusCause. The reason follows from the beginning of Kubernetes' text for it
/// (`field.ErrorType.String`).
fn cause(violation: &FieldViolation) -> Value {
    const REASONS: [(&str, &str); 12] = [
        ("Required value", "FieldValueRequired"),
        ("Duplicate value", "FieldValueDuplicate"),
        ("Unsupported value", "FieldValueNotSupported"),
        ("Not found", "FieldValueNotFound"),
        ("Forbidden", "FieldValueForbidden"),
        ("Too long", "FieldValueTooLong"),
        ("Too many", "FieldValueTooMany"),
        ("Invalid value", "FieldValueInvalid"),
        ("Internal error", "InternalError"),
        ("conflict with", "FieldManagerConflict"),
        (error::TOO_LARGE_REVISION, "ResourceVersionTooLarge"),
        (error::DISRUPTION_BUDGET, "DisruptionBudget"),
    ];
    let FieldViolation { field, description } = violation;
    let reason = REASONS
        .into_iter()
        .find(|(text, _)| description.starts_with(text))
        .map_or("FieldValueInvalid", |(_, reason)| reason);
    let mut cause = json!({"reason": reason, "message": description});
    if description.starts_with(error::REFUSED_BY_POLICY) {
        return json!({"message": description});
    }
    if !field.is_empty() {
        cause["field"] = field.as_str().into();
    }
    cause
}

/// A refusal at the level of HTTP.
pub(super) fn refuse(code: StatusCode, reason: &str, message: &str) -> RestAnswer {
    document(code, &failure(code, reason, message, None))
}

/// A refusal of a path or a method. As in Kubernetes it has empty details: `kubectl debug` tells by
/// their name whether the pod or its sub-resource is missing.
pub(super) fn refuse_path(code: StatusCode, reason: &str, message: &str) -> RestAnswer {
    document(code, &failure(code, reason, message, Some(json!({}))))
}

/// The answer for a path at which nothing is served.
pub(super) fn no_such_path() -> RestAnswer {
    refuse_path(
        StatusCode::NOT_FOUND,
        "NotFound",
        "the server could not find the requested resource",
    )
}

/// The answer for a client that accepts none of the served media types.
pub(super) fn not_acceptable(forms: &[&str]) -> RestAnswer {
    let forms = forms.join(", ");
    let why = format!("only the following media types are accepted: {forms}");
    refuse(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", &why)
}

/// The answer for a method that the resource at the path does not allow.
pub(super) fn not_allowed() -> RestAnswer {
    refuse_path(
        StatusCode::METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
}

/// The form of the returned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectForm {
    /// Whole objects, as JSON.
    Whole,
    /// Rows of a table, of this version of meta.k8s.io.
    Table(&'static str),
    /// Only the metadata, of this version of meta.k8s.io.
    Metadata(&'static str),
    /// Whole objects, in Kubernetes' protobuf encoding.
    Protobuf,
}

impl ObjectForm {
    /// The first accepted form that is served; `None` if there is none. Not every kind
    /// `has_protobuf`.
    pub(super) fn accepted(headers: &HeaderMap, has_protobuf: bool) -> Option<Self> {
        let ranges = ranges(headers);
        for range in &ranges {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameter = |name: &str| {
                range
                    .split(';')
                    .filter_map(|parameter| parameter.trim().split_once('='))
                    .find_map(|(key, value)| (key == name).then_some(value))
            };
            if media == kubernetes::MEDIA_TYPE {
                // Metadata and tables are JSON; clients that ask for them in protobuf accept that.
                if has_protobuf && parameter("as").is_none() {
                    return Some(Self::Protobuf);
                }
                continue;
            }
            if !JSON_RANGES.contains(&media) && media != YAML {
                continue;
            }
            let version = match parameter("v") {
                Some("v1beta1") => "meta.k8s.io/v1beta1",
                _ => "meta.k8s.io/v1",
            };
            match (parameter("as"), parameter("g")) {
                (None, _) => return Some(Self::Whole),
                (Some("Table"), Some("meta.k8s.io")) => return Some(Self::Table(version)),
                (
                    Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                    Some("meta.k8s.io"),
                ) => {
                    return Some(Self::Metadata(version));
                }
                _ => {}
            }
        }
        ranges.is_empty().then_some(Self::Whole)
    }

    /// Encodes a document that is in this form.
    pub(super) fn answer(self, code: StatusCode, document: &Value) -> RestAnswer {
        if self != Self::Protobuf {
            return self::document(code, document);
        }
        match kubernetes::encode(document) {
            Ok(bytes) => body(code, kubernetes::MEDIA_TYPE, bytes),
            Err(error) => refusal(&error::internal(&error), RefusalSubject::default()),
        }
    }
}

/// Returns true if the client prefers YAML to JSON.
pub(super) fn wants_yaml(headers: &HeaderMap) -> bool {
    let ranges = ranges(headers);
    let mut media = ranges
        .iter()
        .map(|range| range.split(';').next().unwrap_or_default().trim());
    media.find(|media| JSON_RANGES.contains(media) || *media == YAML) == Some(YAML)
}

/// The media ranges that a client accepts, in its order of preference.
pub(super) fn ranges(headers: &HeaderMap) -> Vec<&str> {
    let ranges = accepted(headers).split(',').map(str::trim);
    let quality = |range: &str| {
        let mut parameters = range.split(';').map(str::trim);
        let quality = parameters.find_map(|parameter| parameter.strip_prefix("q="));
        quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0))
    };
    let ranges = ranges.filter(|range| !range.is_empty());
    let mut ranges: Vec<(f32, &str)> = ranges.map(|range| (quality(range), range)).collect();
    ranges.retain(|(quality, _)| *quality > 0.0);
    ranges.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    ranges.into_iter().map(|(_, range)| range).collect()
}

/// The `Accept` header, or an empty text.
pub(super) fn accepted(headers: &HeaderMap) -> &str {
    let accept = headers.get(header::ACCEPT);
    accept
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// The answer of a watch: a stream of its events.
pub(super) fn stream(
    form: ObjectForm,
    events: impl futures::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static,
) -> RestAnswer {
    let content_type = match form {
        ObjectForm::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        ObjectForm::Whole | ObjectForm::Table(_) | ObjectForm::Metadata(_) => "application/json",
    };
    body(StatusCode::OK, content_type, Body::from_stream(events))
}
