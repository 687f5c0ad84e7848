//! `cargo xtask test` and `soak`: all tests, with the programs as `up` builds them.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Write as _},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use podplane_progress::{PlainLines, Progress};
use serde::Deserialize;

use crate::{
    build::{self, Profile, release_dir, run},
    outcome::TestOutcome,
    parts::Parts,
    peers,
};

/// Runs all tests once.
pub(crate) fn test(args: &[String]) -> Result<()> {
    all(Parts::of("test", PARTS), args, &[])
}

/// Runs the same tests, with more rounds where a test has rounds, and checks the size of the
/// published programs. `churn` is a separate target, for which nothing else is built.
pub(crate) fn soak(args: &[String]) -> Result<()> {
    let rounds = &[("PODPLANE_SOAK", "1")];
    if args == ["churn"] {
        let churn = ["--test", "churn", "--", "--nocapture"].map(str::to_owned);
        return all(Parts::of("soak", PARTS), &churn, rounds);
    }
    let mut parts = Parts::of("soak", build::PARTS + PARTS);
    build::dist(&mut parts)?;
    all(parts, args, rounds)
}

/// Writes the pictures of the documentation.
pub(crate) fn pictures() -> Result<()> {
    page(Parts::of("pictures", PARTS), "pictures", &[])
}

/// Measures the page; `output` is the path of a file for the figures.
pub(super) fn page_figures(output: &str, is_quick: bool) -> Result<()> {
    let mut variables = vec![("PODPLANE_BENCH_OUTPUT", output)];
    variables.extend(is_quick.then_some(("PODPLANE_BENCH_QUICK", "1")));
    page(Parts::of("bench", PARTS), "measurements", &variables)
}

/// Runs an ignored test of the page.
fn page(parts: Parts, test: &str, variables: &[(&str, &str)]) -> Result<()> {
    let args = [
        "--package",
        CLUSTERS,
        "--test",
        "page",
        "--",
        "--ignored",
        test,
    ];
    all(parts, &args.map(str::to_owned), variables)
}

/// The parts of [`all`].
const PARTS: usize = build::PARTS + 3;

/// Cargo's flag to build the tests alone, which it refuses to be given twice.
const NO_RUN: &str = "--no-run";

fn all(mut parts: Parts, args: &[String], variables: &[(&str, &str)]) -> Result<()> {
    parts.time("install peers", peers::install)?;
    build::programs(Profile::Release, &mut parts)?;
    parts.time("build tests", || run(&mut tests(&built_only(args))))?;
    if is_built_only(args) {
        parts.summary();
        return Ok(());
    }
    let outcome = parts.time("run tests", || match args {
        [] => side_by_side(variables),
        _ => watched(
            tests(args).envs(variables.iter().copied()),
            Printing::Lines,
            &progress(),
        ),
    })?;
    parts.summary();
    conclude(&outcome)
}

/// Returns true if the arguments of cargo, which end at `--`, have the flag to build alone.
fn is_built_only(args: &[String]) -> bool {
    let mut of_cargo = args.iter().take_while(|arg| *arg != "--");
    of_cargo.any(|arg| arg == NO_RUN)
}

/// The arguments with the flag to build alone, once.
fn built_only(args: &[String]) -> Vec<String> {
    match is_built_only(args) {
        true => args.to_vec(),
        false => [&[NO_RUN.to_owned()], args].concat(),
    }
}

/// The package with the tests of whole clusters, which mostly wait.
const CLUSTERS: &str = "podplane-tests";
/// The number of tests of clusters that run at the same time: one more than the cores of the
/// machines for which their deadlines were chosen.
const CLUSTERS_AT_ONCE: &str = "3";

/// Runs all tests: those of whole clusters beside all others.
fn side_by_side(variables: &[(&str, &str)]) -> Result<TestOutcome> {
    let Targets {
        clusters,
        others,
        programs,
    } = Targets::of(&metadata()?);
    let progress = progress();
    progress.count("test programs", programs);
    let flags = |targets: &BTreeSet<String>| {
        let flags = targets.iter().flat_map(|name| ["--test", name]);
        flags.map(str::to_owned).collect::<Vec<_>>()
    };
    let (clusters, mut others) = (flags(&clusters), flags(&others));
    others.extend(["--lib", "--bins", "--examples"].map(str::to_owned));
    let run = |mut tests: Command, printing| {
        watched(tests.envs(variables.iter().copied()), printing, &progress)
    };
    let (clusters, others) = thread::scope(|scope| {
        // A few programs with hundreds of tests: their lines say how far it is.
        let mut clusters = tests(&clusters);
        clusters.env("RUST_TEST_THREADS", CLUSTERS_AT_ONCE);
        let clusters = scope.spawn(|| run(clusters, Printing::Lines));
        let others = run(with_own_mounts(&tests(&others)), Printing::Programs);
        // Cargo takes no other targets beside examples in documentation.
        let examples = || run(tests(&["--doc".to_owned()]), Printing::Programs);
        let others = others.and_then(|outcome| Ok((outcome, examples()?)));
        (clusters.join(), others)
    });
    let mut outcome = clusters.map_err(|_panic| anyhow!("a thread panicked"))??;
    let (others, examples) = others?;
    outcome.add(others);
    outcome.add(examples);
    Ok(outcome)
}

/// The command in a mount namespace of its own, if this user may have one: the tests of clusters
/// compare the machine's mounts before and after.
fn with_own_mounts(command: &Command) -> Command {
    let cargo = command.get_program();
    let mut apart = match rustix::process::geteuid().is_root() {
        true => {
            let mut unshare = Command::new("unshare");
            unshare.arg("--mount").arg(cargo);
            unshare
        }
        false => Command::new(cargo),
    };
    apart.args(command.get_args()).current_dir(build::root());
    for (name, value) in command.get_envs() {
        // A variable without a value is one that is removed.
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    apart
}

/// The output of `cargo metadata`, as far as it is used.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    test: bool,
}

fn metadata() -> Result<Metadata> {
    let mut cargo = build::cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = cargo.output().context("failed to start cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    serde_json::from_slice(&output.stdout).context("invalid output of cargo metadata")
}

/// The names of the integration tests.
#[derive(Debug, PartialEq, Eq)]
struct Targets {
    /// Those of [`CLUSTERS`], and others of the same names.
    clusters: BTreeSet<String>,
    others: BTreeSet<String>,
    /// The number of all test programs, and of crates with examples in their documentation.
    programs: u64,
}

impl Targets {
    fn of(metadata: &Metadata) -> Self {
        let names = |is_of_clusters: bool| -> BTreeSet<String> {
            let packages = metadata.packages.iter();
            packages
                .filter(|package| (package.name == CLUSTERS) == is_of_clusters)
                .flat_map(|package| &package.targets)
                .filter(|target| target.kind.iter().any(|kind| kind == "test"))
                .map(|target| target.name.clone())
                .collect()
        };
        let (clusters, others) = (names(true), names(false));
        let others = others.difference(&clusters).cloned().collect();
        let all = metadata
            .packages
            .iter()
            .flat_map(|package| &package.targets);
        let programs = all.map(Target::programs).sum();
        Self {
            clusters,
            others,
            programs,
        }
    }
}

impl Target {
    /// The number of test programs that cargo makes of it.
    fn programs(&self) -> u64 {
        let is = |kind: &str| self.kind.iter().any(|each| each == kind);
        // `--examples` and `--doc` test also where the manifest does not ask for it.
        u64::from(self.test || is("example")) + u64::from(is("lib"))
    }
}

/// The progress of test programs.
fn progress() -> Progress {
    Progress::with_lines("run tests", PlainLines::IfSlow)
}

fn tests(args: &[String]) -> Command {
    let mut cargo = build::cargo();
    // A failure must not hide those after it.
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(args);
    cargo
        .env("PODPLANE_BIN_DIR", release_dir())
        .env("PODPLANE_PYTHONPATH", peers::python_path());
    cargo
}

/// How output is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printing {
    /// Each line at once.
    Lines,
    /// All lines of a test program together, when it has ended.
    Programs,
}

/// Runs the tests, passes on their output, and parses the failures in it.
fn watched(tests: &mut Command, printing: Printing, progress: &Progress) -> Result<TestOutcome> {
    // One pipe for both, so that cargo's lines stay between those of the tests that they are about.
    let (reader, writer) = io::pipe().context("failed to create a pipe")?;
    tests
        .stdout(writer.try_clone().context("failed to copy the pipe")?)
        .stderr(writer);
    let mut child = tests.spawn().context("failed to start cargo test")?;
    // Drops the command's ends of the pipe, without which the reader would never end.
    tests
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut outcome = TestOutcome::default();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let mut text = Vec::new();
    // A program has ended when the next one begins.
    let mut is_running = false;
    while reader
        .read_until(b'\n', &mut line)
        .context("failed to read the tests' output")?
        > 0
    {
        let said = String::from_utf8_lossy(&line);
        let begins = begins_a_program(&said);
        if printing == Printing::Lines || begins {
            progress.suspend(|| print(&mut text))?;
        }
        if begins && std::mem::replace(&mut is_running, true) {
            progress.advance(1);
        }
        outcome.line(&said);
        text.append(&mut line);
    }
    progress.suspend(|| print(&mut text))?;
    if is_running {
        progress.advance(1);
    }
    outcome.succeeded = child
        .wait()
        .context("failed to wait for cargo test")?
        .success();
    Ok(outcome)
}

/// Returns true for the line with which cargo announces a test program, or the examples of a crate.
fn begins_a_program(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Running ") || line.starts_with("Doc-tests ")
}

/// Prints all of `text`, and empties it.
fn print(text: &mut Vec<u8>) -> Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text).and_then(|()| out.flush());
    text.clear();
    printed.context("failed to pass on the tests' output")
}

/// Prints the failures, and one line for all tests in the form of those for each program.
#[expect(clippy::print_stdout, reason = "as cargo test does")]
fn conclude(outcome: &TestOutcome) -> Result<()> {
    print!("{outcome}");
    if !outcome.succeeded {
        bail!("cargo test failed; the lines above name each test that did");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_to_build_alone_is_passed_once() {
        let args = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for (line, want, is_alone) in [
            ("", "--no-run", false),
            ("--no-run", "--no-run", true),
            ("--test web --no-run", "--test web --no-run", true),
            ("-- --no-run", "--no-run -- --no-run", false),
        ] {
            assert_eq!(built_only(&args(line)), args(want), "{line}");
            assert_eq!(is_built_only(&args(line)), is_alone, "{line}");
        }
    }

    #[test]
    fn a_command_with_own_mounts_has_the_same_environment() {
        let mut command = Command::new("cargo");
        command.env("RUST_TEST_THREADS", "3");
        command.env_remove("CARGO_PKG_NAME");
        let apart = with_own_mounts(&command);
        assert!(apart.get_envs().eq(command.get_envs()), "{apart:?}");
    }

    #[test]
    fn each_integration_test_is_in_one_half() {
        let target = |name: &str, kind: &str| serde_json::json!({"name": name, "kind": [kind], "test": kind != "bench"});
        let metadata: Metadata = serde_json::from_value(serde_json::json!({"packages": [
            {"name": "podplane-tests", "targets": [
                target("podplane_tests", "lib"), target("churn", "test"), target("kubectl", "test")]},
            {"name": "podplane-audit", "targets": [
                target("kubectl", "test"), target("oracle", "test"), target("time", "bench")]},
        ]}))
        .unwrap();
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(
            Targets::of(&metadata),
            Targets {
                clusters: set(&["churn", "kubectl"]),
                others: set(&["oracle"]),
                programs: 6,
            }
        );
    }
}
