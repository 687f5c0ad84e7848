//! `down`: ends the cluster that `up` started.

use std::process::ExitCode;

use crate::{
    cluster::{data_dir::DataDir, launch, progress::Progress},
    global::{Global, block_on},
};

/// End the cluster on this machine; the next `up` resumes it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane down\n  podplane down --purge --data-dir ./rehearsal"
)]
pub(crate) struct Args {
    /// Remove the data directory too
    #[arg(long)]
    purge: bool,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let dir = DataDir::new(&global.data_dir)?;
    let name = dir.path().display();
    // One that runs is ended whatever became of its files.
    if !dir.is_locked()? && !dir.is_ours()? {
        dir.ensure_no_remains()?;
        anstream::eprintln!("no cluster in {name}");
        return Ok(ExitCode::SUCCESS);
    }
    let ran = block_on(async {
        let _progress = Progress::new("stopping");
        launch::stop(&dir).await
    })?;
    anstream::eprintln!(
        "{} in {name}",
        if ran {
            "stopped the cluster"
        } else {
            "no cluster runs"
        }
    );
    if args.purge {
        dir.purge()?;
        anstream::eprintln!("removed {name}");
    }
    Ok(ExitCode::SUCCESS)
}
