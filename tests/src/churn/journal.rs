//! The journal of a churn: everything that was done and seen, with times that can be compared with
//! the logs of services.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::Mutex,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use podplane_api::jiff::Timestamp;

use super::lock;

/// The time before a finding whose notes are shown with it.
const BEFORE: Duration = Duration::from_secs(12);
/// The number of findings that are shown; more are only counted.
const SHOWN: usize = 10;

/// A file in which each line begins with a time.
#[derive(Debug)]
pub struct Journal(Mutex<JournalState>);

#[derive(Debug)]
struct JournalState {
    file: File,
    /// The steps that were done; revisions are left out, since they are many.
    notes: Vec<(Timestamp, String)>,
    findings: Vec<(Timestamp, String)>,
}

impl Journal {
    /// Creates an empty journal.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(Mutex::new(JournalState {
            file,
            notes: Vec::new(),
            findings: Vec::new(),
        })))
    }

    /// Writes a step that was done.
    pub fn note(&self, line: impl Into<String>) {
        let line = line.into();
        let mut inner = lock(&self.0);
        let now = inner.write("", &line);
        inner.notes.push((now, line));
    }

    /// Writes a revision that a watch brought.
    pub fn revision(&self, line: &str) {
        lock(&self.0).write("  ", line);
    }

    /// Writes a finding: something that is wrong.
    pub fn find(&self, finding: impl Into<String>) {
        self.find_of(
            Timestamp::try_from(SystemTime::now()).unwrap_or_default(),
            finding,
        );
    }

    /// Writes a finding of another time.
    pub fn find_of(&self, at: Timestamp, finding: impl Into<String>) {
        let finding = finding.into();
        let mut inner = lock(&self.0);
        inner.write("FOUND ", &finding);
        inner.findings.push((at, finding));
    }

    /// All findings, each with the notes before it; empty if there are none.
    pub fn findings(&self) -> String {
        let inner = lock(&self.0);
        let mut lines = Vec::new();
        for (at, finding) in inner.findings.iter().take(SHOWN) {
            lines.push(format!("- {finding}\n"));
            let shown = inner.notes.iter().filter(|(time, _)| {
                let before = at.duration_since(*time);
                !before.is_negative() && before.unsigned_abs() <= BEFORE
            });
            lines.extend(shown.map(|(time, line)| format!("      {time:.3} {line}\n")));
        }
        if let Some(more @ 1..) = inner.findings.len().checked_sub(SHOWN) {
            lines.push(format!("- and {more} more\n"));
        }
        lines.concat()
    }
}

impl JournalState {
    fn write(&mut self, mark: &str, line: &str) -> Timestamp {
        let now = Timestamp::now();
        // A full disk is the least trouble of the journal's reader.
        _ = writeln!(self.file, "{now:.3} {mark}{line}");
        now
    }
}
