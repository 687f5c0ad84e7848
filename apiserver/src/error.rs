//! Errors in Kubernetes' words (source: `apimachinery/pkg/api/errors`).

use podplane_api::{
    Object, any::KindNames, selector::SelectorError, strict::StrictError, validation::ErrorList,
};
use podplane_proto::{
    codec::{DecodeError, EncodeError},
    error::{ApiError, FieldViolation, Reason},
};
use podplane_store::{Revision, StoreError};

/// `pods`, or with its group: `leases.coordination.k8s.io`.
pub(crate) fn resource<K: Object>() -> String {
    qualified(K::PLURAL, K::GROUP)
}

/// The same for a kind without its Rust type.
pub(crate) fn resource_in(names: &KindNames) -> String {
    qualified(&names.plural, &names.group)
}

/// A resource or kind with its group, if it has one.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

pub(crate) fn not_found<K: Object>(name: &str) -> ApiError {
    ApiError::not_found(&resource::<K>(), name)
}

pub(crate) fn not_found_in(names: &KindNames, name: &str) -> ApiError {
    ApiError::not_found(&resource_in(names), name)
}

pub(crate) fn already_exists_in(names: &KindNames, name: &str) -> ApiError {
    ApiError::new(
        Reason::AlreadyExists,
        format!("{} \"{name}\" already exists", resource_in(names)),
    )
}

/// `Operation cannot be fulfilled on pods "a": …`; `resource` may name a sub-resource.
pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> ApiError {
    ApiError::new(
        Reason::Conflict,
        format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"),
    )
}

/// The error for an object with another revision than the request expects.
pub(crate) fn modified<K: Object>(name: &str) -> ApiError {
    modified_of(&resource::<K>(), name)
}

/// The same for a kind without its Rust type.
pub(crate) fn modified_in(names: &KindNames, name: &str) -> ApiError {
    modified_of(&resource_in(names), name)
}

fn modified_of(resource: &str, name: &str) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(resource, name, why)
}

/// The error for an object with another UID than the request expects.
pub(crate) fn other_uid(resource: &str, name: &str, expected: &str, found: &str) -> ApiError {
    let why = format!(
        "Precondition failed: UID in precondition: {expected}, UID in object meta: {found}"
    );
    conflict(resource, name, &why)
}

pub(crate) fn forbidden<K: Object>(name: &str, why: &str) -> ApiError {
    forbidden_of(&resource::<K>(), name, why)
}

/// The same for a kind without its Rust type.
pub(crate) fn forbidden_in(names: &KindNames, name: &str, why: &str) -> ApiError {
    forbidden_of(&resource_in(names), name, why)
}

fn forbidden_of(resource: &str, name: &str, why: &str) -> ApiError {
    ApiError::new(
        Reason::Forbidden,
        format!("{resource} \"{name}\" is forbidden: {why}"),
    )
}

/// The beginning of the cause of a refusal by a policy, which has no reason of its own.
pub(crate) const REFUSED_BY_POLICY: &str = "ValidatingAdmissionPolicy '";

/// The beginning of the cause of a [`Reason::TooManyRequests`] about a disruption budget.
pub(crate) const DISRUPTION_BUDGET: &str = "The disruption budget ";

/// The error for a pod that its disruption budget protects now. `state` is said of the budget:
/// `needs 2 healthy pods and has 2 currently`.
pub(crate) fn protected(budget: &str, state: &str, retry_after_seconds: Option<u32>) -> ApiError {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let cause = FieldViolation {
        field: String::new(),
        description: format!("{DISRUPTION_BUDGET}{budget} {state}"),
    };
    ApiError {
        fields: vec![cause],
        retry_after_seconds,
        ..ApiError::new(Reason::TooManyRequests, message)
    }
}

pub(crate) fn bad_request(message: impl Into<String>) -> ApiError {
    ApiError::new(Reason::BadRequest, message)
}

/// `Pod "a" is invalid: spec.…`, with each field.
pub(crate) fn invalid<K: Object>(name: &str, errors: &ErrorList) -> ApiError {
    invalid_kind(&qualified(K::KIND, K::GROUP), name, errors)
}

/// The same for a kind without its Rust type.
pub(crate) fn invalid_in(names: &KindNames, name: &str, errors: &ErrorList) -> ApiError {
    invalid_of(&names.group, &names.kind, name, errors)
}

/// The same by the group and the name of the kind.
pub(crate) fn invalid_of(group: &str, kind: &str, name: &str, errors: &ErrorList) -> ApiError {
    invalid_kind(&qualified(kind, group), name, errors)
}

/// The same for the options of a request, which have no name: `ListOptions`.
pub(crate) fn invalid_options(kind: &str, errors: &ErrorList) -> ApiError {
    invalid_kind(&qualified(kind, "meta.k8s.io"), "", errors)
}

fn invalid_kind(kind: &str, name: &str, errors: &ErrorList) -> ApiError {
    let violation = |error: &podplane_api::validation::FieldError| FieldViolation {
        field: error.path.to_string(),
        description: error.body(),
    };
    let message = format!("{kind} \"{name}\" is invalid: {errors}");
    ApiError::new(Reason::Invalid, message).with_fields(errors.iter().map(violation).collect())
}

/// The error for bytes that are not a message of the kind.
pub(crate) fn undecodable(names: &KindNames, error: &DecodeError) -> ApiError {
    match error {
        DecodeError::Strict(error) => not_strict_in(names, error),
        DecodeError::TooManyValues => ApiError::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {error}"),
        ),
        DecodeError::Wire { source, .. } => bad_request(format!("{error}: {source}")),
    }
}

/// The error for a document that is not an object of the kind.
pub(crate) fn not_strict<K: Object>(error: &StrictError) -> ApiError {
    not_strictly(K::KIND, K::VERSION, error)
}

/// The same for a kind without its Rust type.
pub(crate) fn not_strict_in(names: &KindNames, error: &StrictError) -> ApiError {
    not_strictly(&names.kind, &names.version, error)
}

/// The same by the name and the version of the kind.
pub(crate) fn not_strictly(kind: &str, version: &str, error: &StrictError) -> ApiError {
    let violation = |field: &str, description: &str| FieldViolation {
        field: field.to_owned(),
        description: description.to_owned(),
    };
    let (why, fields) = match error {
        StrictError::Fields { unknown, duplicate } => {
            let unknown = unknown.iter().map(|path| violation(path, "unknown field"));
            let duplicate = duplicate.iter();
            let duplicate = duplicate.map(|path| violation(path, "duplicate field"));
            (
                "strict decoding error: ",
                unknown.chain(duplicate).collect(),
            )
        }
        StrictError::Malformed { path, .. } if path.is_empty() => ("", Vec::new()),
        StrictError::Malformed { path, message } => ("", vec![violation(path, message)]),
    };
    bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}{error}"
    ))
    .with_fields(fields)
}

/// The error for a kind without a published schema to patch by.
pub(crate) fn unpatchable(resource: &str) -> ApiError {
    bad_request(format!(
        "{resource} can be patched with application/json-patch+json or application/merge-patch+json only"
    ))
}

/// The error for a patch that can be read but not applied.
pub(crate) fn unprocessable(why: &str) -> ApiError {
    ApiError::new(
        Reason::Invalid,
        format!("the server rejected our request due to an error in our request: {why}"),
    )
}

/// True for Secrets, whose values are in no message: a client may show it to others, and the audit
/// log has it.
pub(crate) fn hides_content(names: &KindNames) -> bool {
    names.is("", "secrets")
}

/// The error for a patch that cannot be applied, without the text that may quote a Secret.
pub(crate) fn without_content(names: &KindNames, refused: ApiError) -> ApiError {
    match refused.reason {
        Reason::BadRequest | Reason::Invalid if hides_content(names) => ApiError {
            message: "the patch does not fit the Secret; the reason would quote its values".into(),
            fields: Vec::new(),
            ..refused
        },
        _ => refused,
    }
}

/// The error for a patch that adds fields that the kind does not have, or fields of a wrong type.
pub(crate) fn misfit(patch: &serde_json::Value, refused: &ApiError) -> ApiError {
    let unknown = refused.message.split_once("strict decoding error: ");
    let Some((_, unknown)) = unknown else {
        return refused.clone();
    };
    let mut errors = ErrorList::new();
    errors.invalid(
        &podplane_api::validation::FieldPath::new("patch"),
        patch.to_string(),
        &format!("strict decoding error: {unknown}"),
    );
    ApiError {
        message: format!(" \"\" is invalid: {errors}"),
        ..invalid::<podplane_api::core::Pod>("", &errors)
    }
}

pub(crate) fn unselectable(error: &SelectorError) -> ApiError {
    bad_request(error.to_string())
}

/// The error for an accepted object that cannot be encoded for the wire or the store, which is a
/// bug of this program.
pub(crate) fn unencodable(error: &EncodeError) -> ApiError {
    internal(error)
}

pub(crate) fn internal(error: &(dyn std::error::Error + 'static)) -> ApiError {
    tracing::error!(error, "internal error");
    ApiError::new(
        Reason::InternalError,
        format!("Internal error occurred: {error}"),
    )
}

pub(crate) fn expired(message: impl Into<String>) -> ApiError {
    ApiError::new(Reason::Expired, message)
}

/// The error for a revision that is no longer in the history.
pub(crate) fn too_old_revision(asked: Revision, oldest: Revision) -> ApiError {
    expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The message of the cause of a [`Reason::Timeout`] about a revision.
pub(crate) const TOO_LARGE_REVISION: &str = "Too large resource version";

/// The error for a revision that this server does not have yet, or never will.
pub(crate) fn too_large_revision(asked: Revision, current: u64) -> ApiError {
    let message = format!("Timeout: {TOO_LARGE_REVISION}: {asked}, current: {current}");
    let cause = FieldViolation {
        field: String::new(),
        description: TOO_LARGE_REVISION.to_owned(),
    };
    ApiError::new(Reason::Timeout, message).with_fields(vec![cause])
}

/// Maps an error of the store that does not depend on the request.
pub(crate) fn store(error: StoreError) -> ApiError {
    match &error {
        // Callers that guard a write handle a conflict themselves; this is for callers whose guards
        // only a bug can break.
        StoreError::Conflict { .. } => ApiError::new(Reason::Conflict, error.to_string()),
        StoreError::Compacted { .. } => {
            expired("The resourceVersion for the provided list is too old.")
        }
        StoreError::Future { asked, current } => too_large_revision(*asked, current.number()),
        StoreError::TooLarge { limit, size } => ApiError::new(
            Reason::RequestEntityTooLarge,
            format!(
                "Request entity too large: {limit} is {size}, limit is {}",
                limit.max()
            ),
        ),
        // A write that failed half-way may or may not be stored: the same code as for a broken
        // connection.
        StoreError::NoSpace { .. }
        | StoreError::QuotaReached
        | StoreError::Unavailable
        | StoreError::Unreachable { .. }
        | StoreError::Poisoned { .. } => {
            ApiError::new(Reason::ServiceUnavailable, error.to_string())
        }
        // Kubernetes' code for a write that may or may not have been done.
        StoreError::UnknownOutcome { .. } => ApiError::new(Reason::Timeout, error.to_string()),
        StoreError::DuplicateWrite { .. } | StoreError::Refused { .. } => internal(&error),
    }
}
