//! How long a controller waits for an answer.

use std::{future::Future, time::Duration};

use tokio::time::timeout;

use crate::{ApiError, Reason};

/// An answer later than this counts as none. The write may have been carried out, so what it was about is read again.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The call's answer, or that there was none in time.
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
