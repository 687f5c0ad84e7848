//! `cni verify`: tests anybody's IPAM plugin, and reports.

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
use podplane_cni::{
    Version,
    verify::{self, Amount, CheckInfo, Event, Options, RangeKeys, Report, Template},
};
use rustix::process::Signal;

use crate::{
    cluster::progress::Progress,
    commands::duration,
    output::{self, table::Table},
    report::{self, OutputClosed, UsageError},
};

/// Exit code when nothing can be said about the plugin.
const COULD_NOT_RUN: u8 = 2;
/// As a shell reports a program that a signal ended, the signal's number and this.
const SIGNALLED: u8 = 128;

/// Test an IPAM plugin: no address given twice, none lost, every answer as the specification says
///
/// Runs the program with ADD, DEL, CHECK, GC, STATUS and VERSION: in order, at random, many at a time, with SIGKILL at random moments, with full ranges, and
/// with nonsense. It needs no root if the plugin needs none. The plugin gets a directory of its own for its addresses if its configuration has ipam.dataDir, or
/// ${dataDir} in any string; otherwise its own store is used, in networks named verify-..., which are cleared by DEL.
///
/// A line for each check is printed as it ends. Ctrl-C and SIGTERM end it early, with a report of what was done until then.
///
/// Exits with 0 if nothing was found, 1 if something was, 2 if the plugin could not be tested, and with 130 after Ctrl-C or 143 after SIGTERM.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane cni verify ./my-ipam\n  podplane cni verify ./my-ipam --config net.json --rounds 1000 --junit report.xml\n  podplane cni verify /usr/lib/cni/host-local --seed 7 --only kill"
)]
pub(super) struct Args {
    /// The plugin's program
    #[arg(value_name = "PLUGIN", required_unless_present = "list")]
    plugin: Option<PathBuf>,

    /// The plugin's network configuration, JSON with an ipam section and few addresses. Default: one as host-local's, with a /28
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where random choices come from. Default: a random one, which the report tells
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// How many rounds the random checks have
    #[arg(long, value_name = "N", default_value_t = 100)]
    rounds: u32,

    /// How long the random checks take in all, as in 5m, instead of --rounds
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "rounds")]
    duration: Option<Duration>,

    /// Take at most 10 s: run the checks that are likely to find something first, and tell which were left out
    #[arg(long, conflicts_with_all = ["rounds", "duration"])]
    quick: bool,

    /// How many calls at a time, where calls are concurrent
    #[arg(short = 'j', long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=512))]
    concurrency: u32,

    /// Also write the report as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Only the checks with this in their id. May be repeated
    #[arg(long, value_name = "CHECK")]
    only: Vec<String>,

    /// Not the checks with this in their id. May be repeated
    #[arg(long, value_name = "CHECK")]
    skip: Vec<String>,

    /// List the checks, and where the specification says what they check
    #[arg(long)]
    list: bool,

    /// Keys of host-local's ranges that checks may use: those that the plugin is seen to follow, none, or all
    #[arg(long, value_name = "KEYS", value_enum, default_value_t = Keys::Auto)]
    range_keys: Keys,

    /// The cniVersion of configurations. Default: the newest that the plugin supports
    #[arg(long, value_name = "VERSION")]
    cni_version: Option<Version>,

    /// The CNI_NETNS that the plugin is given, for one that needs a real one. Default: a path where nothing is
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,

    /// How long one call may take before the plugin counts as hanging
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    timeout: Duration,

    /// A range with more addresses is taken for one that cannot be exhausted
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_addresses: usize,

    /// The plugin keeps no state, as the reference's static: do without the checks that need some
    #[arg(long)]
    stateless: bool,

    /// Keep the directory with the plugin's data, with calls.log, which has every call, and with the commands that repeat each finding
    #[arg(long)]
    keep: bool,
}

/// What is known of the plugin's keys for ranges.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Keys {
    /// Ask the plugin: a key that it does not follow is not used
    Auto,
    /// Use none, and do not judge results by the configured ranges
    None,
    /// Use ranges, rangeStart, rangeEnd and gateway, for a plugin that takes host-local's place
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

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list {
        return list().map(|()| ExitCode::SUCCESS);
    }
    let stop = Stop::default();
    stop.listen().context("listen for signals")?;
    match verified(&args, &stop) {
        Ok(report) if report.is_partial => Ok(ExitCode::from(stop.exit_code())),
        Ok(report) if report.passed() => Ok(ExitCode::SUCCESS),
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(error) if error.is::<OutputClosed>() => Err(error),
        Err(error) => {
            report::print(&error);
            Ok(ExitCode::from(COULD_NOT_RUN))
        }
    }
}

/// That a signal has asked for the end.
#[derive(Debug, Default)]
struct Stop {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// From now on SIGINT and SIGTERM stop the verification; a second one ends the process.
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
    let rows = verify::list().map(|check| {
        let columns = [check.id, check.title, check.basis];
        columns.map(str::to_owned).into()
    });
    output::line(Table::new(vec!["CHECK", "WHAT HOLDS", "BASIS"]).rows(rows))
}

fn verified(args: &Args, stop: &Stop) -> anyhow::Result<Report> {
    let selected = selection(args)?;
    let plugin = program(args.plugin.as_deref().unwrap_or(Path::new("")))?;
    let directory = tempfile::Builder::new()
        .prefix("podplane-verify-")
        .tempdir()
        .context("make a directory for the plugin's data")?;
    let options = Options {
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
    let outcome = verify::verify(options, &is_selected, &mut |event| screen.show(&event));
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
        let xml = junit::xml(&report).context("write JUnit XML")?;
        fs::write(path, xml).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(report)
}

/// Prints the head, and each check as it ends.
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
                self.line(text::Head {
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
                self.line(text::Line { check, width })
            }
        };
        if let Err(error) = printed {
            // Nobody reads on.
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

/// Writes the commands of each finding beside the log of calls.
fn write_commands(report: &Report, directory: &Path) -> anyhow::Result<()> {
    for (number, (_, finding)) in (1..).zip(text::counting(report)) {
        let path = directory.join(format!("finding-{number}.sh"));
        fs::write(&path, &finding.commands).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// The checks that are run. Those of every answer belong to whatever is run, unless they are to be skipped.
fn selection(args: &Args) -> anyhow::Result<Vec<CheckInfo>> {
    let all: Vec<_> = verify::list().collect();
    for pattern in args.only.iter().chain(&args.skip) {
        if !all.iter().any(|check| check.id.contains(pattern.as_str())) {
            let message = format!("no check has {pattern:?} in its id; --list tells them");
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
    let found = fs::canonicalize(path).with_context(|| format!("find {}", path.display()))?;
    if !found.is_file() {
        return Err(UsageError(format!("{} is not a program", path.display())).into());
    }
    // As it was named: a program may be told by its name what to do.
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}

fn template(args: &Args, plugin: &Path) -> anyhow::Result<Template> {
    match &args.config {
        Some(path) => {
            let read = || format!("read {}", path.display());
            let text = fs::read(path).with_context(read)?;
            Template::parse(&text).with_context(read)
        }
        None => {
            let name = plugin.file_name().unwrap_or_default();
            Ok(Template::host_local(&name.to_string_lossy()))
        }
    }
}
