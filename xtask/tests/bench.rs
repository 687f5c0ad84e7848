//! `cargo xtask bench` with a cargo that measures nothing, on a terminal and without one.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs::{self, File},
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use tempfile::TempDir;

/// Answers `bench` with figures, where `SHOWN` names a file once that is there, and writes down
/// what the page's program gets.
const CARGO: &str = r#"#!/bin/sh
case "$1" in
bench)
    for _ in $(seq 400); do [ -e "${SHOWN:-.}" ] && break; sleep 0.05; done
    echo '{"ours": [40, 45], "theirs": []}' ;;
build) ;;
run) for file; do :; done; cat > "$file" ;;
esac
"#;

fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cargo = dir.path().join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// `cargo xtask bench ipam fill one-free`.
fn bench(dir: &Path) -> Command {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask
        .args(["bench", "ipam", "fill", "one-free"])
        .current_dir(dir)
        .env("CARGO", dir.join("cargo"))
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null());
    xtask
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn rows_are_plain_lines_without_a_terminal() {
    let dir = directory();
    let Output {
        status,
        stdout,
        stderr,
    } = bench(dir.path()).output().unwrap();
    assert!(status.success(), "{}", text(&stderr));
    assert_eq!(
        text(&stderr),
        "bench: fill (1 of 2)\nbench: one-free (2 of 2)\n"
    );
    assert!(text(&stdout).contains("| 42 ns"), "{}", text(&stdout));
}

#[test]
fn rows_are_counted_on_a_terminal() {
    let dir = directory();
    let (mut ours, theirs) = terminal();
    let is_shown = dir.path().join("shown");
    let mut command = bench(dir.path());
    command.env("SHOWN", &is_shown).stdout(Stdio::piped());
    let child = command.stderr(theirs).spawn().unwrap();
    // The command keeps the program's side of the terminal, whose end would never come.
    drop(command);
    let mut shown = String::new();
    let mut part = [0; 4096];
    // A terminal ends with an error when its program does.
    while let Ok(length @ 1..) = ours.read(&mut part) {
        shown.push_str(&text(&part[..length]));
        // Quick work has no bar: the rows take until it is there.
        if shown.contains("of 2 (") {
            fs::write(&is_shown, "").unwrap();
        }
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("| 42 ns"));
    assert!(shown.contains("bench: one-free (2 of 2)\r\n"), "{shown:?}");
    let last = shown.rfind("of 2 (").expect("a bar");
    assert!(shown[last..].contains("\u{1b}[2K"), "cleared: {shown:?}");
}

#[test]
fn the_page_gets_the_figures_and_a_relative_name() {
    let dir = directory();
    let output = bench(dir.path()).args(["--html", "page.html"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let passed = fs::read(dir.path().join("page.html")).unwrap();
    let benchmark: xtask_bench_page::Benchmark = serde_json::from_slice(&passed).unwrap();
    assert_eq!(benchmark.command, "cargo xtask bench ipam fill one-free");
    assert_eq!(benchmark.lines.len(), 2);
    assert_eq!(benchmark.lines[0].plots[0].points.len(), 2);
}

#[test]
fn a_page_that_could_not_be_written_is_refused_before_the_benchmark() {
    let dir = directory();
    let output = bench(dir.path())
        .args(["--html", "none/page.html"])
        .output();
    let output = output.unwrap();
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(
        error.contains("create it first") && !error.contains("fill"),
        "{error}"
    );
}

/// A pseudo-terminal: our side, and that of a program.
fn terminal() -> (File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    (ours.into(), theirs)
}
