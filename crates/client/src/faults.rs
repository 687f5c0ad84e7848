//! Faults on purpose: what goes wrong with the first writes of node blocks, so that one can see what a controller makes of it.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use podplane_proto::error::{ApiError, Reason};

/// What goes wrong, and how often; all clones count together.
#[derive(Clone, Debug)]
pub struct PatchFaults {
    fault: Fault,
    left: Arc<AtomicU32>,
}

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is not sent.
    Fail,
    /// It is carried out, and its answer is lost.
    Timeout,
}

/// Not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no fault: want fail:N for N writes that are not carried out, or timeout:N for N that are and whose answer is lost"
)]
pub struct InvalidFault(String);

impl FromStr for PatchFaults {
    type Err = InvalidFault;

    fn from_str(text: &str) -> Result<Self, InvalidFault> {
        let invalid = || InvalidFault(text.to_owned());
        let (fault, count) = text.split_once(':').ok_or_else(invalid)?;
        let fault = match fault {
            "fail" => Fault::Fail,
            "timeout" => Fault::Timeout,
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
    /// The fault of the next write, if it has one.
    pub(crate) fn next(&self) -> Option<Fault> {
        let take = |left: u32| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.ok().map(|_| self.fault)
    }
}

impl Fault {
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
    fn so_many_writes_go_wrong_and_no_more() {
        let faults: PatchFaults = "timeout:2".parse().unwrap();
        let clone = faults.clone();
        let seen = [faults.next(), clone.next(), faults.next()];
        assert_eq!(seen, [Some(Fault::Timeout), Some(Fault::Timeout), None]);
        for text in ["", "fail", "fail:", "fail:-1", "drop:1"] {
            assert_eq!(
                text.parse::<PatchFaults>().unwrap_err(),
                InvalidFault(text.into())
            );
        }
    }
}
