//! `cargo xtask test` and `soak`: all tests, with the programs as `up` builds them.

use std::{
    io::{self, BufRead, BufReader, Write as _},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    build::{self, Profile, release_dir, run},
    outcome::TestOutcome,
    parts::Parts,
    peers,
};

/// Runs all tests once.
pub(crate) fn test(args: &[String]) -> Result<()> {
    all(Parts::of("test"), args, None)
}

/// Runs the same tests, with more rounds where a test has rounds, and checks the size of the
/// published programs. `churn` is a separate target, for which nothing else is built.
pub(crate) fn soak(args: &[String]) -> Result<()> {
    let mut parts = Parts::of("soak");
    let rounds = Some(("PODPLANE_SOAK", "1"));
    if args == ["churn"] {
        let churn = ["--test", "churn", "--", "--nocapture"].map(str::to_owned);
        return all(parts, &churn, rounds);
    }
    build::dist(&mut parts)?;
    all(parts, args, rounds)
}

fn all(mut parts: Parts, args: &[String], variable: Option<(&str, &str)>) -> Result<()> {
    parts.time("install peers", peers::install)?;
    build::programs(Profile::Release, &mut parts)?;
    parts.time("build tests", || {
        let no_run = ["--no-run".to_owned()];
        run(&mut tests(&[&no_run, args].concat()))
    })?;
    let mut tests = tests(args);
    tests.envs(variable);
    let outcome = parts.time("run tests", || watched(&mut tests))?;
    parts.summary();
    conclude(&outcome)
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

/// Runs the tests, passes on their output, and parses the failures in it.
fn watched(tests: &mut Command) -> Result<TestOutcome> {
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
    let mut out = io::stdout().lock();
    while reader
        .read_until(b'\n', &mut line)
        .context("failed to read the tests' output")?
        > 0
    {
        out.write_all(&line)
            .context("failed to pass on the tests' output")?;
        out.flush().context("failed to pass on the tests' output")?;
        outcome.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    outcome.succeeded = child
        .wait()
        .context("failed to wait for cargo test")?
        .success();
    Ok(outcome)
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
