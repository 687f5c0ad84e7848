//! Every scenario of `tests/scenarios` and `examples`, through the command that users run.

use std::{env, fs, path::Path, process::Command};

use podplane_tests::{
    peers,
    programs::{Finished, finish, podplane},
};

/// Runs side by side. Groups are tests of their own, of which cargo runs as many at once as there are processors.
const JOBS: &str = "2";
/// How often each is run by `cargo xtask soak`.
const ROUNDS: &str = "5";

/// `podplane test` with these arguments, in the repository; what it said, and its JUnit file.
fn run(args: &[&str]) -> (Finished, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let junit = scratch.path().join("junit.xml");
    let mut command = podplane(["test", "-j", JOBS, "--junit"]);
    command.arg(&junit).current_dir(root).args(args);
    let done = finish(&mut command);
    (done, fs::read_to_string(&junit).unwrap_or_default())
}

/// All scenarios of a directory pass. Some have helpers in Python.
fn pass(directory: &str) {
    let python = Command::new("python3").arg("--version").output();
    let has_python = python.is_ok_and(|python| python.status.success());
    if !(peers::root() && peers::require("python", has_python, "apt-get install python3")) {
        return;
    }
    let rounds = env::var_os("PODPLANE_SOAK").map_or("1", |_| ROUNDS);
    let (done, junit) = run(&[directory, "--repeat", rounds]);
    done.ok();
    assert!(
        junit.contains("<testcase ") && junit.contains(r#"failures="0" errors="0""#),
        "{junit}"
    );
}

#[test]
fn story_a() {
    pass("tests/scenarios/a");
}

#[test]
fn story_b() {
    pass("tests/scenarios/b");
}

#[test]
fn story_c() {
    pass("tests/scenarios/c");
}

#[test]
fn failures() {
    pass("tests/scenarios/failures");
}

#[test]
fn examples() {
    pass("examples");
}

#[test]
fn one_that_does_not_hold_fails_and_says_what_was_there() {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let file = scratch.path().join("broken.yaml");
    let text = "
cluster: {nodes: 1, nodeCIDRMaskSize: 29}
steps:
- run: {command: podplane run web --replicas 6}
- name: all six run
  wait:
    within: 3s
    expect: [{count: pods, where: 'object.status.phase == \"Running\"', equals: 6}]
";
    fs::write(&file, text).expect("a file");
    let logs = scratch.path().join("logs").display().to_string();
    let (done, junit) = run(&[&file.display().to_string(), "--output", &logs]);
    assert_eq!(done.code, Some(1), "{done:?}");
    let said = format!("{}{}", done.stdout, done.stderr);
    for want in [
        "step 2, all six run: not within 3s",
        "expected: 6",
        "was:      5",
        "1 Insufficient pod IPs",
    ] {
        assert!(said.contains(want), "{want} in {said}");
    }
    assert!(
        junit.contains(r#"failures="1" errors="0""#) && junit.contains("all six run"),
        "{junit}"
    );
}
