//! Injected faults: the first writes of node blocks fail, to show a controller's reaction.

use std::{
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use podplane_proto::error::{ApiError, Reason};

/// A fault and the number of writes that it still applies to; clones share the number.
#[derive(Clone, Debug)]
pub struct PatchFaults {
    fault: WriteFault,
    left: Arc<AtomicU32>,
}

/// A fault of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteFault {
    /// The write is not sent.
    Fail,
    /// The write is carried out, and its answer is lost.
    Timeout,
}

/// A text that does not describe a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid fault {0:?}: want fail:N for N writes that are not carried out, or timeout:N for N that are and whose answer is lost"
)]
pub struct InvalidFault(String);

impl FromStr for PatchFaults {
    type Err = InvalidFault;

    fn from_str(text: &str) -> Result<Self, InvalidFault> {
        let invalid = || InvalidFault(text.to_owned());
        let (fault, count) = text.split_once(':').ok_or_else(invalid)?;
        let fault = match fault {
            "fail" => WriteFault::Fail,
            "timeout" => WriteFault::Timeout,
            _ => return Err(invalid()),
        };
        let count = count.parse().map_err(|_| invalid())?;
        Ok(Self {
            fault,
            left: Arc::new(AtomicU32::new(count)),
        })
    }
}

impl PatchFaults {
    /// The fault of the next write; `None` if no fault is left.
    pub(crate) fn next(&self) -> Option<WriteFault> {
        let take = |left: u32| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.ok().map(|_| self.fault)
    }
}

impl WriteFault {
    pub(crate) fn error(self) -> ApiError {
        match self {
            Self::Fail => ApiError::new(Reason::InternalError, "injected: the write was not sent"),
            Self::Timeout => ApiError::new(
                Reason::ServiceUnavailable,
                "injected: no answer to the write",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injects_exactly_the_given_number_of_faults() {
        let faults: PatchFaults = "timeout:2".parse().unwrap();
        let clone = faults.clone();
        let seen = [faults.next(), clone.next(), faults.next()];
        assert_eq!(
            seen,
            [Some(WriteFault::Timeout), Some(WriteFault::Timeout), None]
        );
        for text in ["", "fail", "fail:", "fail:-1", "drop:1"] {
            assert_eq!(
                text.parse::<PatchFaults>().unwrap_err(),
                InvalidFault(text.into())
            );
        }
    }
}
