//! Starting a cluster, and running the tests.

use std::{process::Command, thread};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;

use crate::{
    build::{self, release_dir, run},
    peers,
};

/// Builds, starts, and shows: nodes, pods, and one ping between nodes.
pub(crate) fn up() -> Result<()> {
    build::programs()?;
    let sample = build::root().join("deploy/sample.yaml");
    run(podplane()
        .args(["up", "--nodes", "3", "--wait", "-f"])
        .arg(sample))?;
    run(podplane().args(["get", "nodes", "-o", "wide"]))?;
    run(podplane().args(["get", "pods", "-o", "wide"]))?;
    ping()
}

/// One ping between pods on different nodes. In ledger mode the command itself says why there is none.
fn ping() -> Result<()> {
    let pods = podplane()
        .args(["get", "pods", "-o", "json"])
        .output()
        .context("list the pods")?;
    let pods: Value = serde_json::from_slice(&pods.stdout).context("read the list of pods")?;
    let mut placed = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| {
            let own_address = pod["spec"]["hostNetwork"] != Value::Bool(true);
            own_address.then_some((
                pod["metadata"]["name"].as_str()?,
                pod["spec"]["nodeName"].as_str()?,
            ))
        });
    let (from, node) = placed.next().context("no pod runs")?;
    let (to, _) = placed
        .find(|(_, other)| *other != node)
        .context("all pods are on one node")?;
    run(podplane().args(["ping", from, to, "--count", "1", "--verify"]))
}

fn podplane() -> Command {
    Command::new(release_dir().join("podplane"))
}

/// Every test, against the programs as built for users.
pub(crate) fn test(args: &[String]) -> Result<()> {
    peers::install()?;
    build_all(args)?;
    run(&mut tests(args))
}

/// The long forms: the same tests, with more rounds.
pub(crate) fn soak(args: &[String]) -> Result<()> {
    peers::install()?;
    build_all(args)?;
    run(tests(args).env("PODPLANE_SOAK", "1"))
}

/// The programs, and beside them the tests: the last step of the programs keeps one processor busy, for minutes.
fn build_all(args: &[String]) -> Result<()> {
    let mut tests = tests(&[&["--no-run".to_owned()], args].concat());
    thread::scope(|scope| {
        let tests = scope.spawn(|| run(&mut tests));
        let programs = build::programs();
        let tests = tests
            .join()
            .map_err(|_| anyhow!("building the tests panicked"))?;
        programs.and(tests)
    })
}

fn tests(args: &[String]) -> Command {
    let mut cargo = build::cargo();
    cargo.args(["test", "--workspace"]).args(args);
    cargo
        .env("PODPLANE_BIN_DIR", release_dir())
        .env("PODPLANE_PYTHONPATH", peers::python_path());
    cargo
}
