//! `test`: runs scenarios, each in its own cluster.

use std::{io::Write as _, num::NonZeroUsize, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Arg;
use podplane_cluster::{
    extra::ExtraFlag,
    services::{SERVICES, ServiceCatalog as _},
};
use podplane_scenario::{Catalog, HtmlOptions, PlannedCase, Problem, SuiteOptions, SuiteVerdict};
use podplane_service_runtime::shutdown;
use tokio::runtime;
use tokio_util::sync::CancellationToken;

use super::{trace, up};
use crate::{
    kind::ResourceKind,
    output::{self, page},
    report::{SIGNALLED, UNUSABLE, UnusableInput, UsageError},
    services::OwnServices,
};

/// The exit code of shells for a program that SIGINT ended.
const INTERRUPTED: u8 = SIGNALLED + 2;

/// Run test scenarios: YAML files with actions on a cluster and assertions
///
/// Each scenario runs in a temporary cluster. The logs and the recording of a failed run are kept,
/// and their path is printed; `podplane replay` shows a recording.
///
/// Exit codes: 0 all scenarios passed; 1 a scenario failed; 2 a file is invalid or something could
/// not be run; 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane test exhaustion.yaml\n  podplane test scenarios/ -j 4 --junit report.xml\n  podplane test scenarios/ --html report.html\n  podplane test flaky.yaml --repeat 20\n  podplane test --schema > scenario.schema.json"
)]
pub(crate) struct TestArgs {
    /// Run these scenario files, or the files of these directories; required unless --schema is
    /// given
    #[arg(value_name = "FILE|DIR", required_unless_present = "schema")]
    paths: Vec<PathBuf>,

    /// Also write a JUnit XML report to FILE
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Also write a report to FILE as one HTML page: the failures first, and of each run its steps
    /// and the traces of its pods
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Keep the clusters running, with all their files, after their scenarios until Ctrl-C
    #[arg(long)]
    keep: bool,

    /// Seed the random choices, of victims and delays, with N, to repeat a run [default: random,
    /// printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Run each scenario N times, with a new seed each time
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZeroUsize,

    /// Run up to N scenarios at once [default: the number of processors]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Keep the logs and recordings of every run, passed or failed, in DIR [default: of failed
    /// runs, in a temporary directory]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Run only scenarios whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Set a parameter of the scenarios that have it; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,

    /// Multiply all deadlines by FACTOR, for slow machines
    #[arg(long, env = "PODPLANE_TEST_PATIENCE", value_name = "FACTOR", default_value = "1", value_parser = patience)]
    patience: f64,

    /// List the scenarios without running them
    #[arg(long)]
    list: bool,

    /// Print the JSON schema of scenarios, for editors
    #[arg(long, conflicts_with = "paths")]
    schema: bool,
}

pub(crate) fn run(args: TestArgs) -> anyhow::Result<ExitCode> {
    if args.schema {
        output::json(&podplane_scenario::format::schema())?;
        return Ok(ExitCode::SUCCESS);
    }
    let set = args.set.into_iter().collect();
    let cases = match podplane_scenario::load(&args.paths, &set, &catalog()) {
        Ok(cases) => {
            let cases = cases.into_iter().map(|case| case.patient(args.patience));
            only(cases.collect(), args.only.as_deref())?
        }
        Err(problems) => return Ok(unusable(problems)),
    };
    if args.list {
        for case in &cases {
            output::line(format_args!("{}: {}", case.file.display(), case.title()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    page::check(args.junit.iter().chain(&args.html))?;
    args.output.as_deref().map_or(Ok(()), page::make_dir)?;
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = SuiteOptions {
        program: std::env::current_exe().context("failed to find the program's own file")?,
        junit: args.junit,
        html: args.html.map(|file| HtmlOptions {
            file,
            facts: page::circumstances(page::files(&args.paths)),
            traces: trace::html::sections,
        }),
        keep: args.keep,
        seed: args.seed,
        repeat: args.repeat,
        jobs: args.jobs.unwrap_or(processors),
        output: args.output,
        narrate: false,
    };
    let verdict = play(cases, options).map_err(UnusableInput)?;
    Ok(match verdict {
        SuiteVerdict::Passed => ExitCode::SUCCESS,
        SuiteVerdict::Failed => ExitCode::FAILURE,
        SuiteVerdict::Broken => ExitCode::from(UNUSABLE),
        SuiteVerdict::Interrupted => ExitCode::from(INTERRUPTED),
    })
}

/// Prints problems in the form of compilers, so that editors find the places.
pub(super) fn unusable(problems: Vec<Problem>) -> ExitCode {
    for problem in problems {
        anstream::eprintln!("{problem}");
    }
    ExitCode::from(UNUSABLE)
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("want NAME=VALUE".into()),
    }
}

fn patience(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if factor > 0.0 && factor < 1e6 => Ok(factor),
        _ => Err("want a number such as 3 or 1.5".into()),
    }
}

/// The cases whose name contains the text.
fn only(mut cases: Vec<PlannedCase>, text: Option<&str>) -> anyhow::Result<Vec<PlannedCase>> {
    let Some(text) = text else { return Ok(cases) };
    cases.retain(|case| case.title().contains(text));
    if cases.is_empty() {
        let message = format!("no scenario has {text:?} in its name: see --list");
        Err(UsageError(message))?;
    }
    Ok(cases)
}

/// Runs the cases. A first signal ends them in order, a second one at once, unless it is SIGHUP.
pub(super) fn play(cases: Vec<PlannedCase>, options: SuiteOptions) -> anyhow::Result<SuiteVerdict> {
    let runtime = runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let verdict = runtime.block_on(async {
        let cancel = CancellationToken::new();
        let mut played = Box::pin(podplane_scenario::run(cases, options, cancel.clone()));
        let mut requests = shutdown::Requests::listen().context("failed to wait for signals")?;
        tokio::select! {
            verdict = &mut played => return verdict,
            signal = requests.next() => {
                notice(&format!("{signal}: taking all clusters down"));
                cancel.cancel();
            }
        }
        // When a terminal is closed its shell sends SIGHUP, and the kernel does again after the
        // shell's end.
        let insists = async {
            loop {
                match requests.next().await {
                    "SIGHUP" => {}
                    signal => break signal,
                }
            }
        };
        tokio::select! {
            verdict = &mut played => verdict,
            signal = insists => {
                notice(&format!("{signal}: leaving at once; the clusters end by themselves"));
                // Dropping it would wait for its tasks.
                std::mem::forget(played);
                Ok(SuiteVerdict::Interrupted)
            }
        }
    });
    runtime.shutdown_background();
    let verdict = verdict?;
    // The directories of the clusters are gone; the plugins' indexes of them are elsewhere.
    let temporary = std::env::temp_dir();
    let temporary = temporary.canonicalize().unwrap_or(temporary);
    podplane_host_local::forget_below(&temporary)
        .context("failed to remove the indexes of host-local in /run/podplane")?;
    Ok(verdict)
}

/// Writes a line to standard error, which may be closed: after SIGHUP the terminal is gone.
fn notice(line: &str) {
    _ = writeln!(anstream::stderr(), "{line}");
}

/// The names that scenarios may use: kinds, and the flags of services, from the parsers of their
/// command lines.
pub(super) fn catalog() -> Catalog {
    let flags = |service: &str| {
        let command = OwnServices.command(service);
        let flags = command.iter().flat_map(clap::Command::get_arguments);
        flags.filter_map(Arg::get_long).map(Into::into).collect()
    };
    Catalog {
        kinds: ResourceKind::words()
            .map(|(word, kind)| (word, kind.fields()))
            .collect(),
        flags: SERVICES
            .map(|service| (service.to_owned(), flags(service)))
            .into(),
        value: |service, flag, value| {
            let given = ExtraFlag::new(service, flag, value).check(&OwnServices);
            given.map_err(|error| error.to_string())
        },
        up: |flags| {
            let line = flags
                .iter()
                .map(|flag| format!("{}={}", flag.name, flag.value));
            up::check(line).map_err(|error| error.to_string())
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{Args as _, Command};
    use podplane_scenario::{Values, format::Flag};

    use super::*;

    #[test]
    fn schema_and_up_accept_the_same_values() {
        let schema = podplane_scenario::format::schema();
        let up = up::UpArgs::augment_args(Command::new("up"));
        for (name, flag) in [
            ("IpPolicy", "ip-policy"),
            ("Compat", "compat"),
            ("CidrAllocatorType", "cidr-allocator-type"),
            ("CniTemplate", "cni-template"),
            ("Network", "network"),
        ] {
            let each = schema["$defs"][name]["anyOf"][0]["oneOf"].as_array();
            let listed: Vec<_> = each
                .into_iter()
                .flatten()
                .filter_map(|each| each["const"].as_str())
                .collect();
            let arg = up.get_arguments().find(|arg| arg.get_long() == Some(flag));
            let mut taken: Vec<_> = arg
                .into_iter()
                .flat_map(Arg::get_possible_values)
                .map(|value| value.get_name().to_owned())
                .collect();
            if flag == "compat" {
                taken = podplane_ipam::Compat::ALL
                    .map(|system| system.name().into())
                    .into();
            }
            // Values that `FromStr` parses are not listed.
            assert!(
                taken.iter().all(|taken| listed.contains(&&**taken)),
                "{name}: {taken:?}"
            );
            assert!(!listed.is_empty(), "{name}");
            for value in listed {
                let line = [
                    format!("--{flag}={value}"),
                    "--cloud-endpoint=unix:/cloud.sock".into(),
                ];
                up::check(line.into_iter()).unwrap();
            }
        }
    }

    #[test]
    fn names_the_flag_with_a_value_that_up_refuses() {
        let refused = |name: &'static str, value: &str| {
            let flag = Flag {
                key: "",
                name,
                value: value.into(),
            };
            (catalog().up)(&[flag]).unwrap_err()
        };
        for (name, value) in [
            ("--node-cidr-mask-size", "8"),
            ("--service-cluster-ip-range", "10.244.0.0/12"),
            ("--cri-endpoint", "cri.sock"),
            ("--cloud-endpoint", "cloud"),
            ("--nodes-per-process", "0"),
        ] {
            let error = refused(name, value);
            assert!(error.contains(name), "{name}: {error}");
        }
        let value = catalog().value;
        assert!(value("kubelet", "max-pods", "many").is_err());
        assert!(value("kubelet", "max-pods", "3").is_ok());
        assert!(value("cri", "listen", "unix:/x").is_err(), "up decides");
    }

    #[test]
    fn every_scenario_of_the_repository_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let paths = ["tests/scenarios", "examples", "cli/demos"].map(|dir| root.join(dir));
        match podplane_scenario::load(&paths, &Values::new(), &catalog()) {
            Ok(cases) => assert!(cases.len() > 20, "{}", cases.len()),
            Err(problems) => {
                let each: Vec<_> = problems.iter().map(ToString::to_string).collect();
                panic!("{}", each.join("\n"));
            }
        }
    }
}
