//! Helpers for the tests of several programs.

use std::{fs, path::Path};

/// A stage of a rewrite, as visible in the files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RewriteStage {
    Copying,
    Switched,
    Cleaned,
}

impl RewriteStage {
    pub(crate) fn is_reached(self, dir: &Path, before: u64) -> bool {
        let data = |number: u64| match number {
            0 => dir.join("db"),
            number => dir.join(format!("data-{number}/db")),
        };
        match self {
            Self::Copying => data(before + 1).exists(),
            Self::Switched => current(dir) > before,
            Self::Cleaned => current(dir) > before && !data(before).exists(),
        }
    }
}

/// The number of the current generation.
pub(crate) fn current(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("current")).unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}
