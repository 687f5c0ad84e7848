//! `completion`: a script that makes a shell complete podplane's commands and flags.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Cli, global::Global, output};

/// Print a script that completes commands and flags
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane completion bash > ~/.local/share/bash-completion/completions/podplane\n  source <(podplane completion zsh)"
)]
pub(crate) struct Args {
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: Args, _: &Global) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "podplane", &mut script);
    output::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
