//! The answers of the summary.

use axum::{body::Body, response::IntoResponse};
use http::{HeaderValue, Response, header};
use podplane_proto::error::ApiError;
use serde::Serialize;

use crate::{error, rest};

pub(super) type Answer = Response<Body>;

/// A document as JSON, with a line break: it is also a line of a stream.
pub(super) fn json(document: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let mut text = serde_json::to_vec(document).map_err(|error| error::internal(&error))?;
    text.push(b'\n');
    Ok(text)
}

/// The answer with a document.
pub(super) fn document(json: Vec<u8>) -> Answer {
    of_type("application/json", Body::from(json))
}

/// The answer with a stream of documents.
pub(super) fn of_type(media_type: &'static str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    answer
}

/// The refusal of a request.
#[derive(Debug)]
pub(super) struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Answer {
        refused(&self.0)
    }
}

/// The answer to a request that is refused, as Kubernetes' `Status`.
pub(super) fn refused(error: &ApiError) -> Answer {
    rest::refused(error, [""; 3])
}
