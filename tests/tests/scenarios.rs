//! Every scenario of `tests/scenarios` and `examples`, through the command that users run.

use std::{env, path::Path, process::Command};

use podplane_tests::{
    peers,
    programs::{finish, podplane},
};

const DIRECTORIES: [&str; 2] = ["tests/scenarios", "examples"];

/// The number of scenarios that run at the same time.
const JOBS: &str = "2";

/// The number of rounds in `cargo xtask soak`.
const ROUNDS: &str = "5";

fn test() -> Command {
    let mut command = podplane(["test"]);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(DIRECTORIES);
    command
}

#[test]
fn lists_the_scenarios_of_every_directory() {
    let listed = finish(test().arg("--list")).ok();
    for directory in DIRECTORIES {
        assert!(listed.contains(directory), "{directory} in {listed}");
    }
}

/// The output is printed as it comes, so that a run that never ends can be seen in a log of CI.
#[test]
fn every_scenario_passes() {
    if !peers::python3() {
        return;
    }
    let mut command = test();
    if !peers::root() {
        command.args(["--only", "network=ledger"]);
    }
    if env::var_os("PODPLANE_SOAK").is_some() {
        command.args(["--repeat", ROUNDS]);
    }
    let status = command.args(["-j", JOBS]).status().expect("start podplane");
    assert!(status.success(), "{status}: see what it printed");
}
