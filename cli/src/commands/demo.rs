//! `demo`: runs the scenarios of known failures of address management, and narrates them.

mod cidr_change;
mod exhaustion;

use std::{
    fs,
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use podplane_scenario::{PlannedCase, SuiteOptions, SuiteVerdict, Values};

use super::test;
use crate::{global::GlobalOptions, output};

/// The deadline of a step that has none in its scenario, which `--timeout` replaces.
const WITHIN: Duration = Duration::from_secs(60);

/// Run a demo on a temporary cluster: pod address exhaustion, or a change of the cluster CIDR
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo exhaustion --node-cidr-mask-size 30 --ip-policy off\n  podplane demo cidr-change"
)]
pub(crate) struct DemoArgs {
    #[command(subcommand)]
    demo: Demo,
}

#[derive(Debug, clap::Subcommand)]
enum Demo {
    Exhaustion(exhaustion::Exhaustion),
    CidrChange(cidr_change::CidrChange),
}

pub(crate) fn run(args: DemoArgs, _: &GlobalOptions) -> anyhow::Result<ExitCode> {
    match args.demo {
        Demo::Exhaustion(demo) => exhaustion::run(&demo),
        Demo::CidrChange(demo) => cidr_change::run(&demo),
    }
}

/// A file of a demo: its name and its text.
type File = (&'static str, &'static str);

/// Runs those cases of a scenario that `is_wanted` picks, one after another, and narrates them. The
/// scenario is the first of `files`; the others are scripts beside it.
fn play(
    files: &[File],
    set: &Values,
    timeout: Duration,
    is_wanted: impl Fn(&PlannedCase) -> bool,
) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let dir = tempfile::Builder::new()
        .prefix("podplane-demo-")
        .tempdir()
        .context("failed to make a directory for the demo's files")?;
    for (name, text) in files {
        write(&dir.path().join(name), text)?;
    }
    let scenario = files.iter().map(|(name, _)| dir.path().join(name)).take(1);
    let cases = match podplane_scenario::load(&scenario.collect::<Vec<_>>(), set, &test::catalog())
    {
        Ok(cases) => cases.into_iter().filter(is_wanted),
        Err(problems) => return Ok(test::unusable(problems)),
    };
    let factor = timeout.as_secs_f64() / WITHIN.as_secs_f64();
    let options = SuiteOptions {
        program: std::env::current_exe().context("failed to find the program's own file")?,
        junit: None,
        html: None,
        keep: false,
        seed: None,
        repeat: NonZeroUsize::MIN,
        jobs: NonZeroUsize::MIN,
        output: None,
        narrate: true,
    };
    let verdict = test::play(cases.map(|case| case.patient(factor)).collect(), options)?;
    Ok(match verdict {
        SuiteVerdict::Passed => {
            let seconds = begun.elapsed().as_secs();
            output::line(format_args!("all claims hold, after {seconds} s"))?;
            ExitCode::SUCCESS
        }
        SuiteVerdict::Failed | SuiteVerdict::Broken | SuiteVerdict::Interrupted => {
            ExitCode::FAILURE
        }
    })
}

/// Writes a file of a demo, which its owner may run.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)));
    written.with_context(|| format!("failed to write {}", path.display()))
}
