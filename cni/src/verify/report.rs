//! What a verification found, for people and for machines.

use std::{fmt, path::PathBuf, time::Duration};

use super::step::Step;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A departure from the letter of the specification that plugins made with the reference's library
    /// share, and that no runtime minds. It is told, and does not count.
    Note,
    /// The specification says "should" or leaves it open, but addresses leak, or operators are misled.
    Weakness,
    /// The specification says "must", or an address belongs to two attachments.
    Violation,
}

impl Severity {
    /// In lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Weakness => "weakness",
            Self::Violation => "violation",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that is not as it should be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The id of the check.
    pub check: &'static str,
    /// How much it matters.
    pub severity: Severity,
    /// What was seen.
    pub seen: String,
    /// What was expected instead.
    pub expected: String,
    /// The calls that show it, in order. Earlier ones of the same network are in `commands`.
    pub steps: Vec<Step>,
    /// Lines for a POSIX shell that repeat it from the beginning, and clean up; empty if it is about
    /// no call.
    pub commands: String,
    /// How often it was seen; the other fields are of the first time.
    pub times: u32,
}

/// What became of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was found, notes apart.
    Passed,
    /// There are findings that count.
    Failed,
    /// It could not be run on this plugin, and why.
    Skipped(String),
    /// It was begun and not ended; nothing was found until then.
    Stopped,
    /// It was not begun, and why.
    NotRun(String),
}

/// A check and what it found.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// Stable, in kebab case.
    pub id: &'static str,
    /// What holds if it passes.
    pub title: &'static str,
    /// Where the specification says so, or why else it matters.
    pub basis: &'static str,
    /// Whether it passed.
    pub outcome: Outcome,
    /// What was found, notes included.
    pub findings: Vec<Finding>,
    /// How long it took.
    pub took: Duration,
}

/// The plugin, and how it is verified.
#[derive(Debug, Clone)]
pub struct About {
    /// The plugin.
    pub program: PathBuf,
    /// What all random choices came from.
    pub seed: u64,
    /// The `cniVersion` of the configurations.
    pub cni_version: String,
    /// What the plugin says that it supports.
    pub supported: Vec<String>,
    /// What the user should know about this plugin before the findings are read.
    pub hints: Vec<String>,
}

/// A whole verification.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was verified.
    pub about: About,
    /// Each check, in order.
    pub checks: Vec<CheckReport>,
    /// How often the plugin was run.
    pub calls: u64,
    /// How often it was killed.
    pub kills: u64,
    /// How long it all took.
    pub took: Duration,
    /// Whether it was stopped before all checks had ended.
    pub is_partial: bool,
    /// Lines for a shell that delete what could not be deleted after a stop.
    pub left: Vec<String>,
}

impl Report {
    /// All findings, in the order of the checks.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.checks.iter().flat_map(|check| &check.findings)
    }

    /// Whether no check failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.outcome != Outcome::Failed)
    }
}
