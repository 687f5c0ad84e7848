//! The steps that a trace lacks, as readers know them.

use podplane_api::trace::{DroppedAttempts, DroppedSteps};

use crate::trace;

impl From<DroppedAttempts> for trace::DroppedAttempts {
    fn from(attempts: DroppedAttempts) -> Self {
        let DroppedAttempts {
            name,
            process,
            count,
        } = attempts;
        Self {
            name,
            process,
            count,
        }
    }
}

impl trace::Trace {
    /// The steps that were dropped.
    pub fn dropped_steps(&self) -> DroppedSteps {
        let attempts = self.dropped_attempts.iter().map(|one| DroppedAttempts {
            name: one.name.clone(),
            process: one.process.clone(),
            count: one.count,
        });
        DroppedSteps {
            count: self.dropped_spans,
            attempts: attempts.collect(),
        }
    }
}
