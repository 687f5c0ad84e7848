//! The time during which a leader may write.

use std::sync::{Arc, Mutex, PoisonError};

use podplane_host::clock::Instant;
use podplane_proto::error::{ApiError, Reason};

/// The end of a leader's term by its own clock: the renew deadline after the last renewal of its
/// Lease. Clones share it.
///
/// Others may take the Lease only a lease duration after they saw that renewal, which is later. A
/// write that is sent before the end of the term has the difference to arrive.
#[derive(Clone, Debug)]
pub(crate) struct LeaseTerm(Arc<Mutex<Instant>>);

impl LeaseTerm {
    pub(crate) fn until(end: Instant) -> Self {
        Self(Arc::new(Mutex::new(end)))
    }

    /// Sets a later end.
    pub(crate) fn extend(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = end;
    }

    /// Refuses a write after the end.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match Instant::now() < end {
            true => Ok(()),
            false => Err(ApiError::new(
                Reason::FenceLost,
                "the lease was not renewed in time; another process may lead",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_unless_it_is_extended() {
        let second = Duration::from_secs(1);
        let term = LeaseTerm::until(Instant::now() + second);
        term.check().unwrap();
        tokio::time::advance(second).await;
        assert!(term.check().unwrap_err().is_fence_lost());
        term.clone().extend(Instant::now() + second);
        term.check().unwrap();
    }
}
