//! The errors of the REST API, and the events of kube-rs' watches.

use kube::core::{Status, WatchEvent};
use podplane_error_chain::one_line;
use podplane_proto::error::{ApiError, FieldViolation, Reason};

use crate::api::ObjectEvent;

/// The error of a call of the REST API.
#[must_use]
pub fn refused(error: kube::Error) -> ApiError {
    match error {
        kube::Error::Api(status) => of_status(&status),
        // A refusal by this client itself.
        kube::Error::Service(error) => match error.downcast::<ApiError>() {
            Ok(error) => *error,
            Err(error) => ApiError::new(Reason::ServiceUnavailable, one_line(&*error)),
        },
        other => ApiError::new(Reason::ServiceUnavailable, other.to_string()),
    }
}

/// An event of a watch of kube-rs.
pub(crate) fn observed<K>(
    event: Result<WatchEvent<K>, kube::Error>,
) -> Result<ObjectEvent<K>, ApiError> {
    Ok(match event.map_err(refused)? {
        WatchEvent::Added(object) => ObjectEvent::Added(object),
        WatchEvent::Modified(object) => ObjectEvent::Modified(object),
        WatchEvent::Deleted(object) => ObjectEvent::Deleted(object),
        WatchEvent::Bookmark(bookmark) => ObjectEvent::Bookmark(bookmark.metadata.resource_version),
        WatchEvent::Error(status) => return Err(refused(kube::Error::Api(status))),
    })
}

/// The beginning of the message about a path at which nothing is served.
const NOT_SERVED: &str = "the kind is not served";

/// Returns true if the server does not know the kind, such as one of a definition that nobody
/// installed. It may be installed later, so the reason is `ServiceUnavailable`.
#[must_use]
pub fn is_unserved_kind(error: &ApiError) -> bool {
    error.is_unavailable() && error.message.starts_with(NOT_SERVED)
}

fn of_status(status: &Status) -> ApiError {
    let details = status.details.as_ref();
    // The answer for a path at which nothing is served names no object.
    if status.code == 404 && details.is_none_or(|details| details.name.is_empty()) {
        let why = format!("{NOT_SERVED}: {}", status.message);
        return ApiError::new(Reason::ServiceUnavailable, why);
    }
    let causes = details.map(|details| details.causes.as_slice());
    let violations = causes
        .unwrap_or_default()
        .iter()
        .map(|cause| FieldViolation {
            field: cause.field.clone(),
            description: cause.message.clone(),
        });
    let retry_after = details.map(|details| details.retry_after_seconds);
    let metadata = status.metadata.as_ref();
    ApiError {
        retry_after_seconds: retry_after.filter(|seconds| *seconds > 0),
        continue_token: metadata.and_then(|metadata| metadata.continue_.clone()),
        ..ApiError::new(reason(status), status.message.clone())
    }
    .with_fields(violations.collect())
}

fn reason(status: &Status) -> Reason {
    match Reason::parse(&status.reason) {
        // The server does not know the result of the request.
        Some(Reason::Timeout | Reason::InternalError) => Reason::ServiceUnavailable,
        Some(reason) => reason,
        None => match status.code {
            401 => Reason::Unauthorized,
            403 => Reason::Forbidden,
            404 => Reason::NotFound,
            409 => Reason::Conflict,
            410 => Reason::Expired,
            413 => Reason::RequestEntityTooLarge,
            422 => Reason::Invalid,
            429 => Reason::TooManyRequests,
            500.. => Reason::ServiceUnavailable,
            _ => Reason::BadRequest,
        },
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn status(code: u16, reason: &str, name: &str) -> Status {
        Status {
            code,
            reason: reason.into(),
            details: Some(StatusDetails {
                name: name.into(),
                group: "example.com".into(),
                kind: "gadgets".into(),
                uid: String::new(),
                causes: Vec::new(),
                retry_after_seconds: 0,
            }),
            ..Status::default()
        }
    }

    fn refused(status: Status) -> ApiError {
        super::refused(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_path_that_is_not_served_is_no_missing_object() {
        assert!(refused(status(404, "NotFound", "a")).is_not_found());
        let not_served = refused(status(404, "NotFound", ""));
        assert_eq!(not_served.reason, Reason::ServiceUnavailable);
        let bare = Status {
            details: None,
            ..status(404, "NotFound", "a")
        };
        assert_eq!(refused(bare).reason, Reason::ServiceUnavailable);
    }

    #[test]
    fn reasons_are_those_of_the_status_or_of_its_code() {
        for (code, reason, want) in [
            (409, "AlreadyExists", Reason::AlreadyExists),
            (409, "Conflict", Reason::Conflict),
            (409, "InsufficientPodIPs", Reason::InsufficientPodIps),
            (410, "Gone", Reason::Expired),
            (422, "Invalid", Reason::Invalid),
            (504, "Timeout", Reason::ServiceUnavailable),
            (500, "InternalError", Reason::ServiceUnavailable),
            (415, "UnsupportedMediaType", Reason::BadRequest),
        ] {
            assert_eq!(refused(status(code, reason, "a")).reason, want, "{reason}");
        }
    }

    #[test]
    fn details_are_kept() {
        let mut found = status(422, "Invalid", "a");
        let details = found.details.as_mut().unwrap();
        details.retry_after_seconds = 3;
        details.causes.push(StatusCause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: "spec.nodeName".into(),
        });
        let error = refused(found);
        assert_eq!(error.retry_after_seconds, Some(3));
        assert_eq!(error.fields[0].field, "spec.nodeName");
    }

    #[test]
    fn a_refusal_by_this_client_stays_what_it_is() {
        let own = ApiError::new(Reason::FenceLost, "the term is over");
        let error = super::refused(kube::Error::Service(Box::new(own.clone())));
        assert_eq!(error, own);
    }
}
