//! `replay`: shows a recorded run, step by step.

mod page;
pub(crate) mod timeline;

use std::{
    fs::{self, Metadata},
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{ValueEnum, builder::PossibleValuesParser};
use console::{Key, Term};
use podplane_progress::{PlainLines, Progress};
use podplane_test_cluster::recording::{
    EntryEvent,
    replay::{self, Filter, Recording},
};
use podplane_ui::{Session, SessionSource};

use self::timeline::Timeline;
use crate::{
    global::block_on,
    output,
    page::{PageArgs, serve},
    report::{self, UnusableInput, UsageError},
};

/// Replay a recorded run step by step, with the resulting state of nodes and pods
///
/// On a terminal, press any key for the next step and q to quit. Successful requests and whole
/// objects are hidden unless --kind names them; changes of objects are shown per field. If the
/// recording is damaged, its valid entries are shown, the invalid lines are listed, and the command
/// exits with 1.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane replay ./runs/exhaustion\n  podplane replay recording.jsonl --pod default/web-1\n  podplane replay recording.jsonl --step 3 --kind request,decision\n  podplane replay ./runs/exhaustion --ui"
)]
pub(crate) struct ReplayArgs {
    /// Read this recording.jsonl, or the one in this directory, as kept by `podplane test` for
    /// failed runs and with --output
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,

    /// Show only step N
    #[arg(long, value_name = "N")]
    step: Option<u64>,

    /// Show only entries about this pod: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,

    /// Show only entries of these kinds, separated by commas [default: all but objects and
    /// successful requests]
    ///
    /// step: a step began or ended; request: a call between services; object: a change of an
    /// object; event: a Kubernetes event; decision: a decision of a service; fault: an injected
    /// fault; violation: a broken invariant; log: a log line. Steps, faults and violations are
    /// always shown.
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(EntryEvent::KINDS))]
    kind: Vec<String>,

    /// Print in this format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: ReplayFormat,

    /// Show the recording on a page in a browser, with a slider for its time
    #[arg(long, conflicts_with_all = ["step", "pod", "kind", "output"])]
    ui: bool,

    #[command(flatten)]
    page: PageArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReplayFormat {
    /// Text for people
    Text,
    /// One JSON document
    Json,
}

impl ReplayFormat {
    const fn plain_lines(self) -> PlainLines {
        match self {
            Self::Text => PlainLines::IfSlow,
            Self::Json => PlainLines::Never,
        }
    }
}

pub(crate) fn run(args: ReplayArgs) -> anyhow::Result<ExitCode> {
    let ReplayArgs {
        path,
        step,
        pod,
        kind,
        output,
        ui,
        page,
    } = args;
    let filter = Filter {
        step,
        pod,
        kinds: kind,
    };
    let recording = read(&path, output.plain_lines())?;
    if page.is_given() && !ui {
        return Err(UsageError("--port and --no-open need --ui".into()).into());
    }
    if ui {
        return show_page(&path, recording, &page);
    }
    if let Some(step) = step
        && !recording.steps.iter().any(|each| each.number == step)
    {
        let steps: Vec<_> = recording
            .steps
            .iter()
            .map(|step| step.number.to_string())
            .collect();
        return Err(UsageError(format!(
            "invalid --step `{step}`: the recording has the steps {}",
            steps.join(", ")
        ))
        .into());
    }
    let recording = recording.filtered(&filter);
    match output {
        ReplayFormat::Json => output::json(&serde_json::to_value(&recording)?)?,
        ReplayFormat::Text => show(&recording)?,
    }
    for damage in &recording.damage {
        report::print(&anyhow::anyhow!("{}: {damage}", path.display()));
    }
    Ok(if recording.damage.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads a recording, with its progress.
pub(super) fn read(path: &Path, lines: PlainLines) -> anyhow::Result<Recording> {
    let there = fs::metadata(path).with_context(|| format!("failed to read {}", path.display()));
    there.map_err(UnusableInput)?;
    let progress = Progress::with_lines("reading", lines);
    let recording = replay::read_through(path, |file| {
        let metadata = file.metadata().ok().filter(Metadata::is_file);
        let total = metadata.map(|metadata| metadata.len());
        progress.bytes(&format!("reading {}", path.display()), total);
        progress.counted(file)
    });
    recording.map_err(|error| UnusableInput(error.into()).into())
}

/// Serves the page of a recording until the command is interrupted.
fn show_page(path: &Path, recording: Recording, args: &PageArgs) -> anyhow::Result<ExitCode> {
    let is_damaged = !recording.damage.is_empty();
    for damage in &recording.damage {
        report::print(&anyhow::anyhow!("{}: {damage}", path.display()));
    }
    let timeline = Timeline::new(path.display().to_string(), recording);
    let session = Session {
        source: SessionSource::Recording,
        user: None,
        server: timeline.name().to_owned(),
    };
    block_on(serve(args, session, page::routes(timeline)))?;
    Ok(match is_damaged {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn show(recording: &Recording) -> anyhow::Result<()> {
    let is_for_people = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let terminal = is_for_people.then(Term::stdout);
    let last = recording.steps.len().saturating_sub(1);
    for (index, step) in recording.steps.iter().enumerate() {
        output::line(step)?;
        let Some(terminal) = terminal.as_ref().filter(|_| index < last) else {
            continue;
        };
        let failed = "failed to read a key";
        terminal
            .write_str("any key: next step, q: quit")
            .context(failed)?;
        let key = terminal.read_key().context(failed)?;
        terminal.clear_line().context(failed)?;
        if matches!(key, Key::Char('q') | Key::Escape | Key::CtrlC) {
            return Ok(());
        }
    }
    Ok(())
}
