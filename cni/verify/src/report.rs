//! The report of a verification, for people and for machines.

use std::{fmt, path::PathBuf, time::Duration};

use super::step::CallLine;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A departure from the letter of the specification that plugins made with the reference's
    /// library share, and that no runtime minds. It is reported, but does not count.
    Note,
    /// The specification says "should" or leaves it open, but addresses leak, or operators are
    /// misled.
    Weakness,
    /// The specification says "must", or an address belongs to two attachments.
    Violation,
}

impl Severity {
    /// The name in lower case.
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

/// A fault that a check found.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The id of the check.
    pub check: &'static str,
    /// The weight of the finding.
    pub severity: Severity,
    /// The observation.
    pub seen: String,
    /// The expectation.
    pub expected: String,
    /// The calls that show it, in order. Earlier calls of the same network are in `commands`.
    pub steps: Vec<CallLine>,
    /// Lines for a POSIX shell that repeat the finding from the beginning, and clean up; empty if
    /// it is not about a call.
    pub commands: String,
    /// The number of times it was seen; the other fields describe the first time.
    pub times: u32,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckOutcome {
    /// Nothing was found, notes apart.
    Passed,
    /// There are findings that count.
    Failed,
    /// The check could not be run on this plugin, for this reason.
    Skipped(String),
    /// The check was begun and not ended; nothing was found until then.
    Stopped,
    /// The check was not begun, for this reason.
    NotRun(String),
}

/// A check and its findings.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// The id: stable, in kebab case.
    pub id: &'static str,
    /// The rule that holds if the check passes.
    pub title: &'static str,
    /// The place in the specification, or another reason why it matters.
    pub basis: &'static str,
    /// The outcome.
    pub outcome: CheckOutcome,
    /// The findings, notes included.
    pub findings: Vec<Finding>,
    /// The time it took.
    pub took: Duration,
}

/// The plugin, and the parameters of its verification.
#[derive(Debug, Clone)]
pub struct About {
    /// The path of the plugin.
    pub program: PathBuf,
    /// The seed of all random choices.
    pub seed: u64,
    /// The `cniVersion` of the configurations.
    pub cni_version: String,
    /// The versions that the plugin claims to support.
    pub supported: Vec<String>,
    /// Facts about this plugin that the user should know before reading the findings.
    pub hints: Vec<String>,
}

/// The result of a whole verification.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// The plugin, and the parameters of its verification.
    pub about: About,
    /// The checks, in order.
    pub checks: Vec<CheckReport>,
    /// The number of times that the plugin was run.
    pub calls: u64,
    /// The number of times that it was killed.
    pub kills: u64,
    /// The time of the whole verification.
    pub took: Duration,
    /// Set if the verification was stopped before all checks had ended.
    pub is_partial: bool,
    /// Lines for a shell that delete what could not be deleted after a stop.
    pub left: Vec<String>,
}

impl VerifyReport {
    /// All findings, in the order of the checks.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.checks.iter().flat_map(|check| &check.findings)
    }

    /// Returns true if no check failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.outcome != CheckOutcome::Failed)
    }
}
