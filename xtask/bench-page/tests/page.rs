//! The program, run as `cargo xtask bench --html` does, and its page, read as a browser does.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    io::Write as _,
    process::{Command, Output, Stdio},
};

use podplane_test_page::Page;

const HOSTILE: &str = "<script>alert(1)</script>\\u001b[2J";

/// A benchmark with a line of each outcome; the first one has this name.
fn benchmark(name: &str) -> String {
    include_str!("benchmark.json").replace("FIRST", name)
}

/// Runs the program; returns its output, and the page that it wrote.
fn run(benchmark: &str) -> (Output, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let mut program = Command::new(env!("CARGO_BIN_EXE_xtask-bench-page"))
        .arg(&file)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    input.write_all(benchmark.as_bytes()).unwrap();
    drop(input);
    let output = program.wait_with_output().unwrap();
    (output, fs::read_to_string(file).ok())
}

fn page(benchmark: &str) -> Page {
    let (output, page) = run(benchmark);
    assert!(output.status.success(), "{output:?}");
    let page = Page::read(&page.unwrap());
    page.assert_sound();
    page
}

fn texts(page: &Page, element: &str) -> Vec<String> {
    page.all(element).map(|each| each.text()).collect()
}

#[test]
fn a_page_has_each_line_with_its_outcome_and_the_command() {
    let page = page(&benchmark("host-local"));
    let shown = page.text();
    for text in [
        "cargo xtask bench cni leases100",
        "2 cores. Times are p50",
        "not measured: exit status: 1",
    ] {
        assert!(shown.contains(text), "{text}");
    }
    let rows: Vec<_> = texts(&page, "tr")
        .into_iter()
        .filter(|row| row.contains("ms") || row.contains("KiB") || row.contains("measured:"))
        .collect();
    let [host_local, floor, memory, failed] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    assert!(host_local.contains("4.90×") && host_local.contains("reached"));
    assert!(floor.contains("missed") && memory.contains("reached"));
    assert!(failed.contains("not measured"));
    let counts = texts(&page, "li");
    for count in ["1 target missed", "2 targets reached", "1 without a target"] {
        assert!(counts.iter().any(|each| each == count), "{counts:?}");
    }
}

#[test]
fn each_axis_has_a_picture_with_its_table() {
    let page = page(&benchmark("host-local"));
    let figures: Vec<_> = page.all("figure").collect();
    let lines = ["host-local", "static C", "memory"];
    assert_eq!(figures.len(), lines.len());
    for (figure, line) in figures.iter().zip(lines) {
        for part in ["svg", "table"] {
            let part = figure.all(part).next().unwrap();
            assert!(part.text().contains(line), "{line}: {}", part.text());
        }
    }
    let peers = figures[0].all("svg").next().unwrap().text();
    assert!(peers.contains("✓ 4.90× (target ≥ 3.5×)"), "{peers}");
    assert!(peers.contains("10×"), "the axis: {peers}");
    let bounds = figures[1].all("svg").next().unwrap().text();
    assert!(bounds.contains("✗ 2.13×"), "{bounds}");
    let captions: std::collections::BTreeSet<_> = texts(&page, "caption").into_iter().collect();
    assert_eq!(captions.len(), figures.len(), "each has a name of its own");
    let few = texts(&page, "p");
    assert!(few.iter().any(|text| text.contains("fewer than 5 rounds")));
}

#[test]
fn names_are_texts() {
    let hostile = benchmark(HOSTILE);
    let page = page(&hostile);
    assert!(page.text().contains("<script>alert(1)</script>\\u{1b}[2J"));
}

#[test]
fn a_page_of_few_rounds_says_so() {
    let quick = benchmark("a").replace("\"is_quick\": false", "\"is_quick\": true");
    let notices = texts(&page(&quick), "p");
    assert!(
        notices[0].contains("the figures mean nothing"),
        "{notices:?}"
    );
}

#[test]
fn a_benchmark_with_an_unknown_field_is_refused() {
    let unknown = benchmark("a").replace("\"is_quick\"", "\"is_quack\"");
    let (output, page) = run(&unknown);
    assert!(!output.status.success() && page.is_none());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("is_quack"), "{error}");
}
