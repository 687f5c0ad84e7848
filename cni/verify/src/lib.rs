//! Verification of any IPAM plugin: its answers, and its handling of addresses.
//!
//! The plugin is a black box. Its addresses are entered in a ledger, and leftovers are found by
//! asking for addresses until there are none: an address that does not come back has leaked, and
//! one that comes twice has been given twice. Every answer to any call is judged by the
//! specification.
//!
//! All choices come from a seed. With the same seed a check makes the same choices; the moment at
//! which a SIGKILL strikes, and the interleaving of concurrent calls, depend on the machine.
//!
//! Start at [`verify`]; a check is a function in `checks`, and an entry in its table.
#![warn(missing_docs)]

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

use podplane_cni::types::Version;

pub use report::{About, CheckOutcome, CheckReport, Finding, Severity, VerifyReport};
pub use step::CallLine;
pub use template::{Template, TemplateError};

use checks::{CHECKS, Check, CheckVerdict};
use session::Session;

/// The extent of the random checks.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    /// This number of rounds; the content of a round depends on the check.
    Rounds(u32),
    /// This time for all of them together, roughly.
    Time(Duration),
    /// As many checks as 10 s allow, the likeliest to find something first, with few addresses and
    /// rounds.
    Quick,
}

/// Keys of host-local's ranges (`ranges`, `rangeStart`, `rangeEnd`, `gateway`) that checks may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeKeys {
    /// The keys that the plugin is seen to follow.
    Auto,
    /// No key; results are also not judged by the configuration's ranges.
    None,
    /// All keys, which a plugin that replaces host-local must follow.
    HostLocal,
}

/// The parameters of a verification.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// The absolute path of the plugin.
    pub plugin: PathBuf,
    /// The template of its configurations.
    pub template: Template,
    /// An existing directory for data and logs.
    pub directory: PathBuf,
    /// The seed of all random choices.
    pub seed: u64,
    /// The extent of the random checks.
    pub amount: Amount,
    /// The number of concurrent calls.
    pub concurrency: u32,
    /// The keys of ranges that checks may use.
    pub range_keys: RangeKeys,
    /// The version of configurations; `None` for the newest that both the plugin and we know.
    pub cni_version: Option<Version>,
    /// The `CNI_NETNS`; `None` for a path that does not exist.
    pub netns: Option<PathBuf>,
    /// The time limit of one call.
    pub timeout: Duration,
    /// The number of addresses above which a range counts as endless.
    pub max_addresses: usize,
    /// The plugin keeps no state, so that two containers may have the same address.
    pub stateless: bool,
    /// Ends the verification early when it is set: the running call is killed after a second, and
    /// addresses in a store of the plugin's own are deleted.
    pub stop: Arc<AtomicBool>,
}

/// A report of progress.
#[derive(Debug)]
pub enum Event<'a> {
    /// The first calls are over, and the checks begin.
    Began {
        /// The plugin, and the parameters of its verification.
        about: &'a About,
        /// The number of checks to run.
        checks: usize,
        /// The approximate number of calls, including those made so far.
        calls: u64,
        /// The remaining time, if calls go on to take as long as the first ones. `None` if the
        /// first calls were stopped, so that no check is run.
        left: Option<Duration>,
    },
    /// A check begins.
    CheckBegan {
        /// The id of the check.
        id: &'static str,
        /// The remaining time for this check and all that follow, if calls go on to take as long.
        left: Duration,
    },
    /// A check is over.
    CheckEnded(&'a CheckReport),
}

/// The reason why the plugin cannot be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The program could not be run.
    #[error("run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The directory for data and logs cannot be used.
    #[error("write {}", path.display())]
    Directory {
        /// The path that could not be made.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Not even one address could be had, so nothing can be tested.
    #[error("the plugin does not work with this configuration: ADD answered {answer}\n{step}")]
    NotWorking {
        /// The plugin's answer.
        answer: String,
        /// The call.
        step: Box<CallLine>,
    },
}

/// The reason why a check did not end.
#[derive(Debug)]
enum Halt {
    /// The caller asked to stop, or the time is over.
    Stopped,
    /// The plugin cannot be verified any further.
    Broken(VerifyError),
}

impl From<VerifyError> for Halt {
    fn from(error: VerifyError) -> Self {
        Self::Broken(error)
    }
}

/// A check's description.
#[derive(Debug, Clone, Copy)]
pub struct CheckInfo {
    /// The id: stable, in kebab case.
    pub id: &'static str,
    /// The rule that holds if the check passes.
    pub title: &'static str,
    /// The place in the specification, or another reason why it matters.
    pub basis: &'static str,
    /// The check has no calls of its own: it looks at every answer to any call.
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

/// Runs the checks that `selected` chooses. If [`VerifyOptions::stop`] is set meanwhile, the report
/// says which checks were not run or not ended.
///
/// # Errors
/// [`VerifyError`]. What the plugin does wrong is a finding, not an error.
pub fn verify(
    options: VerifyOptions,
    selected: &dyn Fn(&str) -> bool,
    observer: &mut dyn FnMut(Event<'_>),
) -> Result<VerifyReport, VerifyError> {
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
                Err(Halt::Stopped) => CheckVerdict::Stopped,
                Err(Halt::Broken(error)) => return Err(error),
            };
            check_report(&session, check, verdict, begun.elapsed())
        };
        observer(Event::CheckEnded(&report));
        checks.push(report);
    }
    // The other checks are about all answers, so they end last.
    let is_stopped = session.options.stop.load(Ordering::Relaxed);
    for check in of_every_answer {
        let verdict = if is_stopped {
            CheckVerdict::Stopped
        } else {
            CheckVerdict::Done
        };
        let report = check_report(&session, check, verdict, Duration::ZERO);
        observer(Event::CheckEnded(&report));
        checks.push(report);
    }
    let is_partial = is_stopped
        && checks.iter().any(|check| {
            matches!(
                check.outcome,
                CheckOutcome::Stopped | CheckOutcome::NotRun(_)
            )
        });
    Ok(VerifyReport {
        about,
        checks,
        is_partial,
        calls: session.calls(),
        kills: session.kills(),
        took: started.elapsed(),
        left: session.left(),
    })
}

/// Makes the first calls, which determine the versions, whether the plugin works, its keys of
/// ranges, and its number of addresses. Returns hints for the user.
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
        outcome: CheckOutcome::NotRun(why),
        findings: Vec::new(),
        took: Duration::ZERO,
    }
}

fn check_report(
    session: &Session,
    check: &Check,
    verdict: CheckVerdict,
    took: Duration,
) -> CheckReport {
    let findings = session.findings(check.id);
    let counts = |finding: &Finding| finding.severity > Severity::Note;
    let outcome = match verdict {
        _ if findings.iter().any(counts) => CheckOutcome::Failed,
        CheckVerdict::Done => CheckOutcome::Passed,
        CheckVerdict::Skipped(why) => CheckOutcome::Skipped(why),
        CheckVerdict::Stopped => CheckOutcome::Stopped,
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
