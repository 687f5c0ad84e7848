//! `cni verify`: tests any IPAM plugin, and reports.

mod junit;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use podplane_cni::Version;
use podplane_cni_verify::{
    Amount, CheckInfo, Event, RangeKeys, Template, VerifyOptions, VerifyReport,
};
use podplane_progress::Progress;
use rustix::process::Signal;

use crate::{
    commands::duration,
    output::{self, table::TextTable},
    report::{SIGNALLED, UnusableInput, UsageError},
};

/// Test an IPAM plugin for duplicate and leaked addresses and for conformance to the CNI
/// specification
///
/// Runs the program with ADD, DEL, CHECK, GC, STATUS and VERSION: in order, at random, many at a
/// time, with SIGKILL at random moments, with full ranges, and with invalid input. Needs no root if
/// the plugin needs none.
///
/// If the configuration has ipam.dataDir, or ${dataDir} in any string, the plugin keeps its
/// addresses in a temporary directory. WARNING: otherwise its real store is used; the test networks
/// are named verify-... and are cleared by DEL.
///
/// Prints a line for each check as it ends. Ctrl-C and SIGTERM end the test early, with a report of
/// the checks so far.
///
/// Exit codes: 0 no findings; 1 findings; 2 the plugin could not be tested; 130 after Ctrl-C; 143
/// after SIGTERM.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane cni verify ./my-ipam\n  podplane cni verify ./my-ipam --config net.json --rounds 1000 --junit report.xml\n  podplane cni verify /usr/lib/cni/host-local --seed 7 --only kill"
)]
pub(super) struct VerifyArgs {
    /// Test this program; required unless --list is given
    #[arg(value_name = "PLUGIN", required_unless_present = "list")]
    plugin: Option<PathBuf>,

    /// Use this network configuration, JSON with an ipam section and few addresses [default: a
    /// host-local configuration with a /28 range]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Seed the random choices with N, to repeat a run [default: random, printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Run the random checks for N rounds
    #[arg(long, value_name = "N", default_value_t = 100)]
    rounds: u32,

    /// Run the random checks for this long in all, such as 5m, instead of --rounds
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "rounds")]
    duration: Option<Duration>,

    /// Run for at most 10 s, most effective checks first; list the checks left out
    #[arg(long, conflicts_with_all = ["rounds", "duration"])]
    quick: bool,

    /// Make up to N calls at a time in concurrent checks
    #[arg(short = 'j', long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    concurrency: u32,

    /// Also write a JUnit XML report to FILE
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Run only checks whose id contains TEXT; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,

    /// Skip checks whose id contains TEXT; may be repeated
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,

    /// List the checks, with the parts of the specification that they check
    #[arg(long)]
    list: bool,

    /// Set the keys of host-local's ranges that the checks rely on: auto (those that the plugin
    /// supports), none, or host-local (all)
    #[arg(long, value_name = "KEYS", value_enum, default_value_t = Keys::Auto)]
    range_keys: Keys,

    /// Use this cniVersion in configurations [default: the newest that the plugin supports]
    #[arg(long, value_name = "VERSION")]
    cni_version: Option<Version>,

    /// Pass this path as CNI_NETNS, for plugins that need a real namespace [default: a path that
    /// does not exist]
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,

    /// Report the plugin as hanging if a call takes longer than this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    timeout: Duration,

    /// Skip exhaustion checks for ranges with more than N addresses
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_addresses: usize,

    /// Skip the checks that need state, for a plugin that keeps none, such as the reference plugin
    /// `static`
    #[arg(long)]
    stateless: bool,

    /// Keep the temporary directory, whose path is printed
    ///
    /// It has the plugin's data, calls.log with every call, and the commands that reproduce each
    /// finding.
    #[arg(long)]
    keep: bool,
}

/// Keys of host-local's ranges that the plugin follows.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Keys {
    /// Detect the keys that the plugin supports, and use only these
    Auto,
    /// Use no keys, and do not check results against the configured ranges
    None,
    /// Use ranges, rangeStart, rangeEnd and gateway, for a plugin that replaces host-local
    HostLocal,
}

impl From<Keys> for RangeKeys {
    fn from(keys: Keys) -> Self {
        match keys {
            Keys::Auto => Self::Auto,
            Keys::None => Self::None,
            Keys::HostLocal => Self::HostLocal,
        }
    }
}

pub(super) fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        return list().map(|()| ExitCode::SUCCESS);
    }
    let stop = Stop::default();
    stop.listen().context("failed to listen for signals")?;
    let report = verified(&args, &stop).map_err(UnusableInput)?;
    Ok(if report.is_partial {
        ExitCode::from(stop.exit_code())
    } else if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A request to stop, set by a signal.
#[derive(Debug, Default)]
struct Stop {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Lets SIGINT and SIGTERM stop the verification from now on; a second signal ends the process.
    fn listen(&self) -> std::io::Result<()> {
        for signal in [Signal::INT, Signal::TERM] {
            let raw = signal.as_raw();
            let code = i32::from(SIGNALLED) + raw;
            // In this order: a first signal finds the flag unset.
            signal_hook::flag::register_conditional_shutdown(raw, code, self.is_set.clone())?;
            let number = usize::try_from(raw).unwrap_or_default();
            signal_hook::flag::register_usize(raw, self.signal.clone(), number)?;
            signal_hook::flag::register(raw, self.is_set.clone())?;
        }
        Ok(())
    }

    fn exit_code(&self) -> u8 {
        let signal = self.signal.load(Ordering::Relaxed);
        SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or_default())
    }
}

fn list() -> anyhow::Result<()> {
    let rows = podplane_cni_verify::list().map(|check| {
        let columns = [check.id, check.title, check.basis];
        columns.map(str::to_owned).into()
    });
    output::line(TextTable::new(vec!["CHECK", "WHAT HOLDS", "BASIS"]).rows(rows))
}

fn verified(args: &VerifyArgs, stop: &Stop) -> anyhow::Result<VerifyReport> {
    output::page::check(&args.junit)?;
    let selected = selection(args)?;
    let plugin = program(args.plugin.as_deref().unwrap_or(Path::new("")))?;
    let directory = tempfile::Builder::new()
        .prefix("podplane-verify-")
        .tempdir()
        .context("failed to make a directory for the plugin's data")?;
    let options = VerifyOptions {
        template: template(args, &plugin)?,
        plugin,
        directory: directory.path().to_owned(),
        seed: args.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        amount: match args.duration {
            _ if args.quick => Amount::Quick,
            Some(time) => Amount::Time(time),
            None => Amount::Rounds(args.rounds),
        },
        concurrency: args.concurrency,
        range_keys: args.range_keys.into(),
        cni_version: args.cni_version,
        netns: args.netns.clone(),
        timeout: args.timeout,
        max_addresses: args.max_addresses,
        stateless: args.stateless,
        stop: stop.is_set.clone(),
    };
    let mut screen = Screen {
        progress: Progress::new("verify: the first calls"),
        width: selected
            .iter()
            .map(|check| check.id.len())
            .max()
            .unwrap_or(0),
        is_quick: args.quick,
        ended: 0,
        checks: 0,
        failure: None,
        stop: stop.is_set.clone(),
    };
    let is_selected = |id: &str| selected.iter().any(|check| check.id == id);
    let outcome =
        podplane_cni_verify::verify(options, &is_selected, &mut |event| screen.show(&event));
    let Screen { failure, .. } = screen;
    let report = outcome?;
    failure.map_or(Ok(()), Err)?;
    output::line(text::Findings(&report))?;
    if args.keep {
        write_commands(&report, directory.path())?;
        output::line(format_args!("\nKept: {}", directory.path().display()))?;
        _ = directory.keep();
    }
    if let Some(path) = &args.junit {
        let xml = junit::xml(&report).context("failed to write JUnit XML")?;
        output::page::write(path, xml)?;
    }
    Ok(report)
}

/// Prints the head of the report, and each check as it ends.
struct Screen {
    progress: Progress,
    width: usize,
    is_quick: bool,
    ended: usize,
    checks: usize,
    failure: Option<anyhow::Error>,
    stop: Arc<AtomicBool>,
}

impl Screen {
    fn show(&mut self, event: &Event<'_>) {
        let printed = match event {
            Event::Began {
                about,
                checks,
                left,
                ..
            } => {
                self.checks = *checks;
                let (left, is_quick) = (*left, self.is_quick);
                let checks = *checks;
                self.line(text::ReportHead {
                    about,
                    checks,
                    left,
                    is_quick,
                })
                .and_then(|()| self.line(""))
            }
            Event::CheckBegan { id, left } => {
                let (number, of) = (self.ended + 1, self.checks);
                let left = text::rounded(*left);
                let doing = format!("verify: {number} of {of}, {id}; about {left} left");
                self.progress.changes(&doing);
                Ok(())
            }
            Event::CheckEnded(check) => {
                self.ended += 1;
                let width = self.width;
                self.line(text::CheckLine { check, width })
            }
        };
        if let Err(error) = printed {
            // The reader of the output is gone.
            self.failure.get_or_insert(error);
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn line(&self, line: impl std::fmt::Display) -> anyhow::Result<()> {
        if self.failure.is_some() {
            return Ok(());
        }
        self.progress.suspend(|| output::line(line))
    }
}

/// Writes the commands of each finding into the directory with the log of calls.
fn write_commands(report: &VerifyReport, directory: &Path) -> anyhow::Result<()> {
    for (number, (_, finding)) in (1..).zip(text::counting(report)) {
        let path = directory.join(format!("finding-{number}.sh"));
        fs::write(&path, &finding.commands)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

/// The selected checks. Those of every answer run with any other, unless they are skipped.
fn selection(args: &VerifyArgs) -> anyhow::Result<Vec<CheckInfo>> {
    let all: Vec<_> = podplane_cni_verify::list().collect();
    for pattern in args.only.iter().chain(&args.skip) {
        if !all.iter().any(|check| check.id.contains(pattern.as_str())) {
            let message = format!("no check has {pattern:?} in its id: see --list");
            return Err(UsageError(message).into());
        }
    }
    let names = |patterns: &[String], id: &str| {
        let mut patterns = patterns.iter();
        patterns.any(|pattern| id.contains(pattern.as_str()))
    };
    let selected = all.into_iter().filter(|check| {
        let wanted =
            args.only.is_empty() || check.is_of_every_answer || names(&args.only, check.id);
        wanted && !names(&args.skip, check.id)
    });
    Ok(selected.collect())
}

fn program(path: &Path) -> anyhow::Result<PathBuf> {
    let found =
        fs::canonicalize(path).with_context(|| format!("failed to read {}", path.display()))?;
    if !found.is_file() {
        return Err(UsageError(format!(
            "invalid plugin {}: must be a program",
            path.display()
        ))
        .into());
    }
    // The path as given, without following links: a program may depend on its own name.
    std::path::absolute(path).with_context(|| format!("failed to read {}", path.display()))
}

fn template(args: &VerifyArgs, plugin: &Path) -> anyhow::Result<Template> {
    match &args.config {
        Some(path) => {
            let read = || format!("failed to read {}", path.display());
            let text = fs::read(path).with_context(read)?;
            Template::parse(&text).with_context(read)
        }
        None => {
            let name = plugin.file_name().unwrap_or_default();
            Ok(Template::host_local(&name.to_string_lossy()))
        }
    }
}
