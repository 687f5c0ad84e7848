//! Failed steps.

use std::io;

/// The reason why a program was not started.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step}: {source}")]
pub struct LaunchError {
    /// The failed step, with the paths that it is about.
    pub step: String,
    /// The operating system's reason.
    pub source: io::Error,
}

/// Names the step that failed.
pub(crate) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, LaunchError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, LaunchError> {
        self.map_err(|source| LaunchError {
            step: step(),
            source: source.into(),
        })
    }
}
