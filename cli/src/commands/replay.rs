//! `replay`: what was recorded of a run, step by step.

use std::{io::IsTerminal as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{ValueEnum, builder::PossibleValuesParser};
use console::{Key, Term};
use podplane_testkit::recording::{
    What,
    replay::{self, Filter, Recording},
};

use crate::{output, report};

/// Show a recorded run step by step: what happened, and what became of nodes and pods
///
/// On a terminal a key goes on to the next step, and q ends it. Requests that went well are left out unless they are asked for with --kind, and so are whole objects: their changes are
/// shown by field. What is whole of a damaged recording is shown, and the command fails with the lines that are not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane replay ./runs/exhaustion\n  podplane replay recording.jsonl --pod default/web-1\n  podplane replay recording.jsonl --step 3 --kind request,decision"
)]
pub(crate) struct Args {
    /// recording.jsonl, or the directory that it is in
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,

    /// Only this step
    #[arg(long, value_name = "N")]
    step: Option<u64>,

    /// Only what is about this pod: NAME, or NAMESPACE/NAME
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,

    /// Only entries of these kinds, separated by commas
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(What::KINDS))]
    kind: Vec<String>,

    /// Text for people, or one document of JSON
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One object
    Json,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args {
        path,
        step,
        pod,
        kind,
        output,
    } = args;
    let filter = Filter {
        step,
        pod,
        kinds: kind,
    };
    let recording = replay::read(&path)?;
    if let Some(step) = step
        && !recording.steps.iter().any(|each| each.number == step)
    {
        let steps: Vec<_> = recording
            .steps
            .iter()
            .map(|step| step.number.to_string())
            .collect();
        anyhow::bail!(
            "the recording has no step {step}; it has {}",
            steps.join(", ")
        );
    }
    let recording = recording.filtered(&filter);
    match output {
        Format::Json => output::json(&serde_json::to_value(&recording)?)?,
        Format::Text => show(&recording)?,
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

fn show(recording: &Recording) -> anyhow::Result<()> {
    let is_for_people = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let terminal = is_for_people.then(Term::stdout);
    let last = recording.steps.len().saturating_sub(1);
    for (index, step) in recording.steps.iter().enumerate() {
        output::line(step)?;
        let Some(terminal) = terminal.as_ref().filter(|_| index < last) else {
            continue;
        };
        let failed = "ask for a key";
        terminal
            .write_str("any key: the next step, q: end")
            .context(failed)?;
        let key = terminal.read_key().context(failed)?;
        terminal.clear_line().context(failed)?;
        if matches!(key, Key::Char('q') | Key::Escape | Key::CtrlC) {
            return Ok(());
        }
    }
    Ok(())
}
