//! Bodies as JSON: REST documents of each media type, and the messages of gRPC calls.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use podplane_access::ResourceTarget;
use podplane_proto::{
    calls::{CallDescriptor, CallMessage},
    error::ApiError,
};
use podplane_request_audit::ResponseStatus;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::rest;

/// The form of a request's bodies.
#[derive(Clone, Debug)]
pub(super) enum BodyForm {
    /// Documents.
    Rest,
    /// Messages; without a descriptor they are not read.
    Grpc(Option<CallDescriptor>),
}

/// A body as JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BodyContent {
    /// An object.
    Object(Value),
    /// A patch or options.
    Other(Value),
}

impl BodyForm {
    pub(super) fn has_one_request(&self) -> bool {
        match self {
            Self::Rest => true,
            Self::Grpc(call) => call.as_ref().is_some_and(CallDescriptor::has_one_request),
        }
    }

    pub(super) fn has_one_answer(&self) -> bool {
        match self {
            Self::Rest => true,
            Self::Grpc(call) => call.as_ref().is_some_and(CallDescriptor::has_one_answer),
        }
    }

    /// The body of a request; `None` if it is empty or cannot be read.
    pub(super) fn request(
        &self,
        headers: &HeaderMap,
        body: &Bytes,
        target: &RequestedApi,
        verb: &str,
    ) -> Option<BodyContent> {
        match self {
            Self::Rest => {
                let is_object = matches!(verb, "create" | "update");
                let json = rest::body::readable(headers, body)?;
                Some(match is_object {
                    true => BodyContent::Object(json),
                    false => BodyContent::Other(json),
                })
            }
            Self::Grpc(call) => {
                let message = call.as_ref()?.request(message(body)?)?;
                Some(target.content(message))
            }
        }
    }

    /// The body of an answer; `None` if it is empty or cannot be read.
    pub(super) fn answer(
        &self,
        headers: &HeaderMap,
        body: &Bytes,
        target: &RequestedApi,
    ) -> Option<Value> {
        match self {
            Self::Rest => rest::body::readable(headers, body),
            Self::Grpc(call) => {
                let message = call.as_ref()?.answer(message(body)?)?;
                let (BodyContent::Object(json) | BodyContent::Other(json)) =
                    target.content(message);
                Some(json)
            }
        }
    }
}

/// The `apiVersion` of the requested objects.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestedApi(String);

impl RequestedApi {
    pub(super) fn of(target: &ResourceTarget<'_>) -> Self {
        Self(match target.group {
            "" => target.version.to_owned(),
            group => format!("{group}/{}", target.version),
        })
    }

    /// A message as a document of the REST API has it: an object says what it is.
    fn content(&self, message: CallMessage) -> BodyContent {
        match message {
            CallMessage::Object(kind, mut object) => {
                if let Some(fields) = object.as_object_mut() {
                    let version = fields.entry("apiVersion");
                    version.or_insert_with(|| self.0.clone().into());
                    fields.entry("kind").or_insert_with(|| kind.into());
                }
                BodyContent::Object(object)
            }
            CallMessage::Other(json) => BodyContent::Other(json),
        }
    }
}

/// The message of a unary call: behind a byte that says if it is compressed, which the server never
/// accepts, and four bytes with its length.
fn message(body: &Bytes) -> Option<&[u8]> {
    let (head, message) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes(head[1..].try_into().ok()?);
    let is_whole = usize::try_from(length).ok()? == message.len();
    (head[0] == 0 && is_whole).then_some(message)
}

/// The result of an answer over REST. A failure says more in its body, a `Status`.
pub(super) fn status_of_document(code: StatusCode, document: Option<&Value>) -> ResponseStatus {
    let status = document.filter(|document| document["kind"] == json!("Status"));
    let text = |field: &str| {
        let value = status.and_then(|status| status[field].as_str());
        value.unwrap_or_default().to_owned()
    };
    ResponseStatus {
        code: code.as_u16(),
        status: text("status"),
        message: text("message"),
        reason: text("reason"),
    }
}

/// The result of a gRPC call, as the same request over REST has it.
pub(super) fn status_of_call(status: &Status, verb: &str) -> ResponseStatus {
    if status.code() == Code::Ok {
        return ResponseStatus {
            code: success(verb).as_u16(),
            ..ResponseStatus::default()
        };
    }
    let error = ApiError::from(status);
    ResponseStatus {
        code: rest::status_code(error.reason).as_u16(),
        status: "Failure".to_owned(),
        reason: error.reason.as_str().to_owned(),
        message: error.message,
    }
}

/// The code of a successful call.
pub(super) fn success(verb: &str) -> StatusCode {
    match verb {
        "create" => StatusCode::CREATED,
        _ => StatusCode::OK,
    }
}
