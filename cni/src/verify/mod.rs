//! Tests anybody's IPAM plugin: what it answers, and what it does to its addresses.
//!
//! The plugin is a black box. What it gives is entered in a ledger, and what it has left is found by
//! asking for addresses until there are none: an address that does not come back has leaked, one that
//! comes twice has been given twice. Every answer is judged by the specification, whatever was asked.
//!
//! All choices come from a seed. With the same seed a check makes the same choices; when a SIGKILL strikes
//! and how concurrent calls interleave is the machine's.
//!
//! Start at [`verify`]; a check is a function in `checks`, and an entry in its table.

mod checks;
mod conform;
mod exchange;
mod network;
mod report;
mod session;
mod template;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

pub use exchange::Step;
pub use report::{CheckReport, Finding, Outcome, Report, Severity};
pub use template::{Template, TemplateError};

use crate::types::Version;
use checks::{CHECKS, Check, Verdict};
use session::Session;

/// Over how many checks a time is spread.
const RANDOM_CHECKS: u32 = 8;

/// How much the random checks do.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    /// So many rounds; what a round is depends on the check.
    Rounds(u32),
    /// For so long in all, roughly.
    Time(Duration),
}

/// Keys of host-local's ranges (`ranges`, `rangeStart`, `rangeEnd`, `gateway`) that checks may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKeys {
    /// Those that the plugin is seen to follow.
    Auto,
    /// None; and results are not judged by the configuration's ranges.
    None,
    /// All of them, as a plugin must follow that takes host-local's place.
    HostLocal,
}

/// What is verified, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The plugin, as an absolute path.
    pub plugin: PathBuf,
    /// Its configuration.
    pub template: Template,
    /// A directory for data and logs, which exists.
    pub directory: PathBuf,
    /// What all random choices come from.
    pub seed: u64,
    /// How much the random checks do.
    pub amount: Amount,
    /// How many calls at a time.
    pub concurrency: u32,
    /// The keys of ranges that checks may use.
    pub range_keys: RangeKeys,
    /// The version of configurations; `None` is the newest that the plugin and we know.
    pub cni_version: Option<Version>,
    /// The `CNI_NETNS`; `None` is a path where nothing is.
    pub netns: Option<PathBuf>,
    /// How long one call may take.
    pub timeout: Duration,
    /// A range with more addresses is taken for one without end.
    pub max_addresses: usize,
}

/// Why nothing could be said about the plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The program could not be run.
    #[error("run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory for data and logs cannot be used.
    #[error("write {}", path.display())]
    Directory {
        /// What could not be made.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not even one address could be had, so that nothing can be tested.
    #[error("the plugin does not work with this configuration: ADD answered {answer}\n{step}")]
    NotWorking {
        /// What it said.
        answer: String,
        /// The call.
        step: Box<Step>,
    },
}

/// What is known of a check without running it.
#[derive(Debug, Clone, Copy)]
pub struct CheckInfo {
    /// Stable, in kebab case.
    pub id: &'static str,
    /// What holds if it passes.
    pub title: &'static str,
    /// Where the specification says so, or why else it matters.
    pub basis: &'static str,
    /// It has no calls of its own: every answer to any call is looked at.
    pub is_of_every_answer: bool,
}

/// All checks, in the order in which they are run.
pub fn list() -> impl Iterator<Item = CheckInfo> {
    CHECKS.iter().map(|check| CheckInfo {
        id: check.id,
        title: check.title,
        basis: check.basis,
        is_of_every_answer: check.run.is_none(),
    })
}

/// Runs the checks that `selected` names, telling `progress` the id of each before it is run.
///
/// # Errors
/// [`VerifyError`]; what the plugin does wrong is no error but a finding.
pub fn verify(
    options: Options,
    selected: &dyn Fn(&str) -> bool,
    progress: &mut dyn FnMut(&'static str),
) -> Result<Report, VerifyError> {
    let started = Instant::now();
    let mut session = Session::new(options)?;
    checks::answers::learn_versions(&mut session)?;
    checks::answers::first_attachment(&session)?;
    checks::dual::learn_range_keys(&mut session)?;
    let mut checks = Vec::new();
    for check in CHECKS.iter().filter(|check| selected(check.id)) {
        let Some(run) = check.run else { continue };
        progress(check.id);
        let begun = Instant::now();
        let verdict = run(&session)?;
        checks.push((check, verdict, begun.elapsed()));
    }
    // The others are about all answers, so they are over when all is.
    for check in CHECKS.iter().filter(|check| selected(check.id)) {
        if check.run.is_none() {
            checks.push((check, Verdict::Done, Duration::ZERO));
        }
    }
    let checks = checks
        .into_iter()
        .map(|(check, verdict, took)| check_report(&session, check, verdict, took));
    Ok(Report {
        checks: checks.collect(),
        program: session.options.plugin.clone(),
        seed: session.options.seed,
        cni_version: session.version.to_string(),
        supported: session.supported.clone(),
        calls: session.calls(),
        kills: session.kills(),
        took: started.elapsed(),
    })
}

fn check_report(session: &Session, check: &Check, verdict: Verdict, took: Duration) -> CheckReport {
    let findings = session.findings(check.id);
    let counts = |finding: &Finding| finding.severity > Severity::Note;
    let outcome = match verdict {
        _ if findings.iter().any(counts) => Outcome::Failed,
        Verdict::Done => Outcome::Passed,
        Verdict::Skipped(why) => Outcome::Skipped(why),
    };
    CheckReport {
        id: check.id,
        title: check.title,
        basis: check.basis,
        outcome,
        findings,
        took,
    }
}
