//! `completion`: prints a script by which a shell completes commands, flags and names.
//!
//! The script asks this program for each word, so that names come from the cluster: see
//! [`candidates`].

pub(crate) mod candidates;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::{CompleteEnv, Shell, env::Shells};

use crate::{Cli, global::GlobalOptions, output};

/// The environment variable with which the script asks; its value is the shell.
const VARIABLE: &str = "PODPLANE_COMPLETE";

/// Print a script that completes commands, flags and the names of objects
///
/// Names of objects are completed from the running cluster, as selected by --data-dir, --server and
/// --namespace on the line that is completed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane completion bash > ~/.local/share/bash-completion/completions/podplane\n  source <(podplane completion zsh)"
)]
pub(crate) struct CompletionArgs {
    /// Print the script for this shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: CompletionArgs, _: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let shells = Shells::builtins();
    let shell = args.shell.to_string();
    let shell = shells
        .completer(&shell)
        .with_context(|| format!("{shell} does not support completion by a program"))?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "podplane", "podplane", "podplane", &mut script)
        .context("failed to write the script")?;
    output::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Answers a shell that asks for candidates, and then exits. To be called first.
pub(crate) fn answer() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}
