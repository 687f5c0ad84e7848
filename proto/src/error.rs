//! Errors on the wire: a status code, Kubernetes' reason, and the fields at fault.
//!
//! A status carries `google.rpc.ErrorInfo` (reason, domain `podplane.dev`) and, for invalid
//! objects, `google.rpc.BadRequest`. Both sides use one type, so that the client sees exactly the
//! error of the server.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// `google.rpc.ErrorInfo.domain` of every error of podplane.
pub const DOMAIN: &str = "podplane.dev";

/// The reason of a refusal, as in Kubernetes (`metav1.StatusReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The object or its namespace does not exist.
    NotFound,
    /// An object with that name exists.
    AlreadyExists,
    /// The object is not at the expected revision, or is another one. Read it again.
    Conflict,
    /// The object, or a field of the request, violates a rule; see the message and the field
    /// violations.
    Invalid,
    /// The request is malformed.
    BadRequest,
    /// The operation is forbidden for this object in its present state.
    Forbidden,
    /// The writer is no longer the leader: see [`crate::fence`]. Kubernetes has no such reason.
    FenceLost,
    /// The object to be removed is in use, such as a block whose node exists. Kubernetes has no
    /// such reason.
    InUse,
    /// The node has too few free addresses for the pod. Choose another node, or try again when
    /// addresses are free. Kubernetes has no such reason.
    InsufficientPodIps,
    /// The request would succeed later, such as an eviction that a disruption budget forbids now.
    TooManyRequests,
    /// The credentials of the request are not valid.
    Unauthorized,
    /// The revision is no longer in the history. List again.
    Expired,
    /// The request timed out, mostly because a requested revision has not been reached.
    Timeout,
    /// The request is larger than the server accepts.
    RequestEntityTooLarge,
    /// The server is temporarily unavailable; try again.
    ServiceUnavailable,
    /// An error of the server.
    InternalError,
}

impl Reason {
    const ALL: [Self; 16] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::Invalid,
        Self::BadRequest,
        Self::Forbidden,
        Self::FenceLost,
        Self::InUse,
        Self::InsufficientPodIps,
        Self::TooManyRequests,
        Self::Unauthorized,
        Self::Expired,
        Self::Timeout,
        Self::RequestEntityTooLarge,
        Self::ServiceUnavailable,
        Self::InternalError,
    ];

    /// The name, as in Kubernetes' `Status.reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::BadRequest => "BadRequest",
            Self::Forbidden => "Forbidden",
            Self::FenceLost => "FenceLost",
            Self::InUse => "InUse",
            Self::InsufficientPodIps => "InsufficientPodIPs",
            Self::TooManyRequests => "TooManyRequests",
            Self::Unauthorized => "Unauthorized",
            Self::Expired => "Expired",
            Self::Timeout => "Timeout",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::InternalError => "InternalError",
        }
    }

    /// The reason with that name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|reason| reason.as_str() == name)
    }

    /// The status code of the reason.
    pub fn code(self) -> Code {
        match self {
            Self::NotFound => Code::NotFound,
            Self::AlreadyExists => Code::AlreadyExists,
            Self::Conflict => Code::Aborted,
            Self::Invalid | Self::BadRequest => Code::InvalidArgument,
            Self::Forbidden => Code::PermissionDenied,
            Self::FenceLost | Self::InUse | Self::InsufficientPodIps => Code::FailedPrecondition,
            Self::Unauthorized => Code::Unauthenticated,
            Self::Expired => Code::OutOfRange,
            Self::Timeout => Code::DeadlineExceeded,
            Self::TooManyRequests | Self::RequestEntityTooLarge => Code::ResourceExhausted,
            Self::ServiceUnavailable => Code::Unavailable,
            Self::InternalError => Code::Internal,
        }
    }
}

/// A violation of a rule by a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field: `spec.podCIDRs[0]`.
    pub field: String,
    /// The violation, as Kubernetes describes it, without the field.
    pub description: String,
}

/// An error of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The reason.
    pub reason: Reason,
    /// The message for people.
    pub message: String,
    /// The invalid fields, if any.
    pub fields: Vec<FieldViolation>,
    /// For an expired list: the token with which its remainder can be listed, though not at the
    /// list's revision.
    pub continue_token: Option<String>,
    /// The time after which the request may succeed, in seconds, where the server knows one.
    pub retry_after_seconds: Option<u32>,
    /// The code and reason that REST answers with in place of those of `reason`: those that a rule
    /// of the cluster chose, such as an admission webhook. gRPC does not carry them.
    pub chosen_status: Option<Box<ChosenStatus>>,
}

/// The code and reason of a refusal that a rule of the cluster chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenStatus {
    /// The HTTP status code.
    pub code: u16,
    /// The reason; may be empty, and need not be one of [`Reason`].
    pub reason: String,
}

/// The key of [`ApiError::continue_token`] in the metadata of an `ErrorInfo`.
const CONTINUE: &str = "continue";

impl ApiError {
    /// Creates an error without invalid fields.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            fields: Vec::new(),
            continue_token: None,
            retry_after_seconds: None,
            chosen_status: None,
        }
    }

    /// Sets the code and reason that REST answers with.
    #[must_use]
    pub fn with_status(self, code: u16, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self {
            chosen_status: Some(Box::new(ChosenStatus { code, reason })),
            ..self
        }
    }

    /// Adds invalid fields.
    #[must_use]
    pub fn with_fields(self, fields: Vec<FieldViolation>) -> Self {
        Self { fields, ..self }
    }

    /// True if the object, or its namespace, does not exist.
    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    /// True if an object with that name exists already.
    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// True if the write was based on an outdated state: observe again.
    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }

    /// True if another process leads by now: stop.
    pub fn is_fence_lost(&self) -> bool {
        self.reason == Reason::FenceLost
    }

    /// True if the node has too few free addresses for the pod.
    pub fn is_insufficient_pod_ips(&self) -> bool {
        self.reason == Reason::InsufficientPodIps
    }

    /// True if the revision has left the history: list again.
    pub fn is_expired(&self) -> bool {
        self.reason == Reason::Expired
    }

    /// True if no answer arrived. A write **may have been carried out**: read before deciding.
    pub fn is_unavailable(&self) -> bool {
        self.reason == Reason::ServiceUnavailable
    }

    /// Creates the error for a malformed field of the request; `description` as in Kubernetes.
    pub fn bad_field(field: &str, description: String) -> Self {
        let violation = FieldViolation {
            field: field.to_owned(),
            description,
        };
        let message = format!("{field}: {}", violation.description);
        Self::new(Reason::BadRequest, message).with_fields(vec![violation])
    }

    /// Creates the error `pods "a" not found`.
    pub fn not_found(plural: &str, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("{plural} \"{name}\" not found"))
    }
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Self {
        let mut details = ErrorDetails::new();
        let token = error.continue_token.map(|token| (CONTINUE.into(), token));
        let metadata: std::collections::HashMap<String, String> = token.into_iter().collect();
        details.set_error_info(error.reason.as_str(), DOMAIN, metadata);
        if let Some(seconds) = error.retry_after_seconds {
            details.set_retry_info(Some(Duration::from_secs(seconds.into())));
        }
        for FieldViolation { field, description } in error.fields {
            details.add_bad_request_violation(field, description);
        }
        Self::with_error_details(error.reason.code(), error.message, details)
    }
}

impl From<&Status> for ApiError {
    /// Reads the details; a status without them, such as one of the transport, gets its reason from
    /// its code.
    fn from(status: &Status) -> Self {
        let details = status.get_error_details();
        let named = details.error_info();
        let named = named.and_then(|info| Reason::parse(&info.reason));
        let violations = details
            .bad_request()
            .map(|bad| bad.field_violations.as_slice())
            .unwrap_or_default();
        let token = details
            .error_info()
            .and_then(|info| info.metadata.get(CONTINUE));
        let retry_after = details.retry_info().and_then(|info| info.retry_delay);
        let seconds = retry_after.and_then(|delay| u32::try_from(delay.as_secs()).ok());
        Self {
            continue_token: token.cloned(),
            retry_after_seconds: seconds,
            chosen_status: None,
            reason: named.unwrap_or_else(|| from_code(status.code())),
            message: status.message().to_owned(),
            fields: violations
                .iter()
                .map(|v| FieldViolation {
                    field: v.field.clone(),
                    description: v.description.clone(),
                })
                .collect(),
        }
    }
}

/// The reason of a status without our details. All errors of our servers have details, so these
/// come from the transport or from a peer that is not our server.
fn from_code(code: Code) -> Reason {
    match code {
        Code::NotFound => Reason::NotFound,
        Code::AlreadyExists => Reason::AlreadyExists,
        Code::Aborted | Code::FailedPrecondition => Reason::Conflict,
        Code::InvalidArgument | Code::Unimplemented => Reason::BadRequest,
        Code::PermissionDenied => Reason::Forbidden,
        Code::Unauthenticated => Reason::Unauthorized,
        Code::OutOfRange => Reason::Expired,
        Code::ResourceExhausted => Reason::RequestEntityTooLarge,
        // A cancelled or timed-out call, like a lost connection, may have been carried out: the
        // caller reads again. tonic reports a connection that breaks in the middle of a call as
        // Unknown or Internal.
        Code::Unavailable
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unknown
        | Code::Internal => Reason::ServiceUnavailable,
        Code::Ok | Code::DataLoss => Reason::InternalError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_the_wire() {
        for reason in Reason::ALL {
            let error = ApiError {
                reason,
                message: "Pod \"a\" is invalid".into(),
                fields: vec![FieldViolation {
                    field: "spec.nodeName".into(),
                    description: "Required value".into(),
                }],
                continue_token: Some("abc".into()),
                retry_after_seconds: Some(10),
                chosen_status: None,
            };
            assert_eq!(ApiError::from(&Status::from(error.clone())), error);
        }
    }
}
