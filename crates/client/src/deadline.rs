//! The deadline of a controller's calls.

use std::{future::Future, time::Duration};

use podplane_host::clock::timeout;

use crate::{ApiError, Reason};

/// The time after which an answer counts as missing. The write may have been carried out, so the
/// caller reads its object again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for the call's answer until the deadline.
///
/// # Errors
///
/// Those of the call; [`Reason::ServiceUnavailable`] if it does not end in time.
pub async fn answered<T>(call: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer,
        Err(_) => Err(ApiError::new(
            Reason::ServiceUnavailable,
            format!("no answer within {CALL_TIMEOUT:?}"),
        )),
    }
}
