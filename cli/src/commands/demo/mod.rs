//! `demo`: shows on a cluster of its own what goes wrong elsewhere, and what podplane makes of it.

mod cidr_change;
mod exhaustion;

use std::process::ExitCode;

use crate::global::Global;

/// Show a problem, and what solves it, on a cluster of its own
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo exhaustion --node-cidr-mask-size 30 --ip-policy off\n  podplane demo cidr-change"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    demo: Demo,
}

#[derive(Debug, clap::Subcommand)]
enum Demo {
    Exhaustion(exhaustion::Exhaustion),
    CidrChange(cidr_change::CidrChange),
}

pub(crate) fn run(args: Args, _: &Global) -> anyhow::Result<ExitCode> {
    match args.demo {
        Demo::Exhaustion(demo) => exhaustion::run(&demo),
        Demo::CidrChange(demo) => cidr_change::run(&demo),
    }
}
