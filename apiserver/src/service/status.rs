//! Converts an error to the status of a call.

use podplane_proto::error::{ApiError, FieldViolation};
use tonic::Status;

/// A status travels in HTTP headers, of which clients accept 16 KiB by default; it is
/// percent-encoded, and repeated in base64 with its details. An error that quotes a large object
/// must not cost the client its answer.
const MESSAGE_MAX_BYTES: usize = 2048;
const FIELDS_MAX_BYTES: usize = 3072;

/// The status of a refused call, cut to the limits.
pub(super) fn of(error: ApiError) -> Status {
    let ApiError {
        reason,
        message,
        fields,
        continue_token,
        retry_after_seconds,
        chosen_status: _,
    } = error;
    let mut left = FIELDS_MAX_BYTES;
    let mut shown = Vec::new();
    for FieldViolation { field, description } in fields {
        let violation = FieldViolation {
            field: cut(field, left),
            description: cut(description, left / 2),
        };
        left = left.saturating_sub(violation.field.len() + violation.description.len());
        shown.push(violation);
        if left < MESSAGE_MAX_BYTES / 8 {
            break;
        }
    }
    ApiError {
        reason,
        message: cut(message, MESSAGE_MAX_BYTES),
        fields: shown,
        continue_token,
        retry_after_seconds,
        chosen_status: None,
    }
    .into()
}

fn cut(mut text: String, max: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max.saturating_sub(ELLIPSIS.len())));
        text.push_str(ELLIPSIS);
    }
    text
}
