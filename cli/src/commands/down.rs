//! `down`: stops the cluster that `up` started.

use std::process::ExitCode;

use anyhow::Context as _;
use podplane_cluster::{data_dir::DataDir, launch};
use podplane_progress::Progress;

use crate::global::{GlobalOptions, block_on};

/// Stop the cluster on this machine and keep its data; the next `up` resumes it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane down\n  podplane down --purge --data-dir ./rehearsal"
)]
pub(crate) struct DownArgs {
    /// Also delete the data directory, with all objects and logs, without confirmation; cannot be
    /// undone
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(args: DownArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    let name = dir.path().display();
    // A running cluster is stopped whatever happened to its files.
    if !dir.is_locked()? && !dir.is_ours()? {
        dir.ensure_no_remains()?;
        anstream::eprintln!("no cluster in {name}");
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new("stopping");
    let ran = block_on(launch::stop(&dir))?;
    let done = match ran {
        true => "stopped the cluster",
        false => "no cluster runs",
    };
    progress.done(&format!("{done} in {name}"));
    if args.purge {
        progress.work(&format!("removing {name}"));
        dir.purge()?;
        // The plugins' indexes of allocation files are outside of the directory.
        podplane_host_local::forget_below(dir.path())
            .context("failed to remove the indexes of host-local in /run/podplane")?;
        progress.done(&format!("removed {name}"));
    }
    Ok(ExitCode::SUCCESS)
}
