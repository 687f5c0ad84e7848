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
mod plan;
mod report;
mod script;
mod session;
mod shell;
mod step;
mod template;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

pub use report::{About, CheckReport, Finding, Outcome, Report, Severity};
pub use step::Step;
pub use template::{Template, TemplateError};

use crate::types::Version;
use checks::{CHECKS, Check, Verdict};
use session::Session;

/// How much the random checks do.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    /// So many rounds; what a round is depends on the check.
    Rounds(u32),
    /// For so long in all, roughly.
    Time(Duration),
    /// As many checks as 10 s allow, in the order of what they are likely to find, with few
    /// addresses and rounds.
    Quick,
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
    /// Whether the plugin keeps no state, so that two containers may have the same address.
    pub stateless: bool,
    /// Set at any time to end early: the call that runs is killed after a second, and what was
    /// asked of a store of the plugin's own is deleted.
    pub stop: Arc<AtomicBool>,
}

/// What a verification tells while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// The first calls are over, and the checks begin.
    Began {
        /// What is verified.
        about: &'a About,
        /// How many checks are to be run.
        checks: usize,
        /// About how many calls they make, with those before.
        calls: u64,
        /// How long they take, if calls go on to take as long as the first did. `None` if the
        /// first calls were stopped, so that no check is run.
        left: Option<Duration>,
    },
    /// A check begins.
    CheckBegan {
        /// The check.
        id: &'static str,
        /// How long this and all that follow take, if calls go on to take as long as before.
        left: Duration,
    },
    /// A check is over.
    CheckEnded(&'a CheckReport),
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

/// Why a check did not come to its end.
#[derive(Debug)]
enum Halt {
    /// The caller asks to stop, or the time is over.
    Stopped,
    /// Nothing more can be said about the plugin.
    Broken(VerifyError),
}

impl From<VerifyError> for Halt {
    fn from(error: VerifyError) -> Self {
        Self::Broken(error)
    }
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

/// Runs the checks that `selected` names. Whenever [`Options::stop`] is set, the report says which
/// checks were not run or not ended.
///
/// # Errors
/// [`VerifyError`]; what the plugin does wrong is no error but a finding.
pub fn verify(
    options: Options,
    selected: &dyn Fn(&str) -> bool,
    observer: &mut dyn FnMut(Event<'_>),
) -> Result<Report, VerifyError> {
    let started = Instant::now();
    let mut session = Session::new(options)?;
    let learned = match learn(&mut session) {
        Ok(hints) => Some(hints),
        Err(Halt::Stopped) => None,
        Err(Halt::Broken(error)) => return Err(error),
    };
    let is_ready = learned.is_some();
    let about = About {
        program: session.options.plugin.clone(),
        seed: session.options.seed,
        cni_version: session.version.to_string(),
        supported: session.supported.clone(),
        hints: learned.unwrap_or_default(),
    };
    let mut left: Vec<_> = CHECKS.iter().filter(|check| selected(check.id)).collect();
    let of_every_answer: Vec<_> = left.extract_if(.., |check| check.run.is_none()).collect();
    if session.is_quick() {
        left.sort_by_key(|check| plan::quick_place(check.id));
    }
    let time_of = |checks: &[&Check]| plan::estimate(&session, checks.iter().map(|check| check.id));
    let all = time_of(&left);
    observer(Event::Began {
        about: &about,
        checks: left.len(),
        calls: session.calls() + plan::calls_of(&session, left.iter().map(|check| check.id)),
        left: is_ready.then(|| session.time_left().map_or(all, |limit| limit.min(all))),
    });
    let mut checks = Vec::new();
    for (number, check) in left.iter().enumerate() {
        let Some(run) = check.run else { continue };
        let begun = Instant::now();
        let own = time_of(&left[number..=number]);
        let report = if session.is_stopped() && !session.is_out_of_time() {
            not_run(check, "stopped before".to_owned())
        } else if session.time_left().is_some_and(|left| own > left) {
            not_run(check, format!("no time is left; it takes about {own:.1?}"))
        } else {
            let all = time_of(&left[number..]);
            let left = session.time_left().map_or(all, |limit| limit.min(all));
            observer(Event::CheckBegan { id: check.id, left });
            let verdict = match run(&session) {
                Ok(verdict) => verdict,
                Err(Halt::Stopped) => Verdict::Stopped,
                Err(Halt::Broken(error)) => return Err(error),
            };
            check_report(&session, check, verdict, begun.elapsed())
        };
        observer(Event::CheckEnded(&report));
        checks.push(report);
    }
    // The others are about all answers, so they are over when all is.
    let is_stopped = session.options.stop.load(Ordering::Relaxed);
    for check in of_every_answer {
        let verdict = if is_stopped {
            Verdict::Stopped
        } else {
            Verdict::Done
        };
        let report = check_report(&session, check, verdict, Duration::ZERO);
        observer(Event::CheckEnded(&report));
        checks.push(report);
    }
    let is_partial = is_stopped
        && checks
            .iter()
            .any(|check| matches!(check.outcome, Outcome::Stopped | Outcome::NotRun(_)));
    Ok(Report {
        about,
        checks,
        is_partial,
        calls: session.calls(),
        kills: session.kills(),
        took: started.elapsed(),
        left: session.left(),
    })
}

/// Makes the first calls: versions, whether the plugin works, its keys of ranges, its addresses.
/// Returns hints for the user.
fn learn(session: &mut Session) -> Result<Vec<String>, Halt> {
    checks::answers::learn_versions(session)?;
    checks::answers::first_attachment(session)?;
    checks::dual::learn_range_keys(session)?;
    checks::answers::learn_capacity(session)
}

fn not_run(check: &Check, why: String) -> CheckReport {
    CheckReport {
        id: check.id,
        title: check.title,
        basis: check.basis,
        outcome: Outcome::NotRun(why),
        findings: Vec::new(),
        took: Duration::ZERO,
    }
}

fn check_report(session: &Session, check: &Check, verdict: Verdict, took: Duration) -> CheckReport {
    let findings = session.findings(check.id);
    let counts = |finding: &Finding| finding.severity > Severity::Note;
    let outcome = match verdict {
        _ if findings.iter().any(counts) => Outcome::Failed,
        Verdict::Done => Outcome::Passed,
        Verdict::Skipped(why) => Outcome::Skipped(why),
        Verdict::Stopped => Outcome::Stopped,
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
