//! `demo`: plays known failures of address management on its own cluster, and podplane's remedies.

mod cidr_change;
mod exhaustion;

use std::process::ExitCode;

use crate::global::GlobalOptions;

/// Run a demo on a temporary cluster: pod address exhaustion, or a change of the cluster CIDR
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

pub(crate) fn run(args: Args, _: &GlobalOptions) -> anyhow::Result<ExitCode> {
    match args.demo {
        Demo::Exhaustion(demo) => exhaustion::run(&demo),
        Demo::CidrChange(demo) => cidr_change::run(&demo),
    }
}
