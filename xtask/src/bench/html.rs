//! The page of a benchmark. The program `xtask-bench-page` writes it, which is compiled only then.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, absolute},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::{
    BenchOptions, name,
    report::{ReportLine, documents},
};
use crate::build;

const PROGRAM: &str = "xtask-bench-page";

/// Compiles the program, so that nothing but the page is missing when the benchmark has run.
pub(super) fn prepare(file: &Path) -> Result<()> {
    let file = absolute(file).context("invalid --html")?;
    let dir = file.parent().unwrap_or(&file);
    ensure!(
        dir.is_dir(),
        "--html {}: its directory does not exist: create it first",
        file.display()
    );
    writable(&file).with_context(|| format!("failed to write {}", file.display()))?;
    build::run(build::cargo().args(["build", "--package", PROGRAM]))
}

/// Checks that a file can be written. Leaves no file behind, and no file changed.
fn writable(file: &Path) -> io::Result<()> {
    match fs::File::create_new(file) {
        Ok(_) => fs::remove_file(file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::OpenOptions::new().write(true).open(file).map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Writes the page of a benchmark.
pub(super) fn write(file: &Path, benchmark: &Value) -> Result<()> {
    let mut program = build::tool(PROGRAM);
    write_with(
        program.arg(absolute(file).context("invalid --html")?),
        benchmark,
    )
    .with_context(|| format!("failed to write {}", file.display()))
}

fn write_with(program: &mut Command, benchmark: &Value) -> Result<()> {
    let started = program.stdin(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("failed to start {PROGRAM}"))?;
    let mut input = child.stdin.take().context("missing input")?;
    let passed = input.write_all(benchmark.to_string().as_bytes());
    drop(input);
    let status = child
        .wait()
        .with_context(|| format!("failed to wait for {PROGRAM}"))?;
    ensure!(status.success(), "{PROGRAM}: {status}");
    passed.with_context(|| format!("failed to pass the figures to {PROGRAM}"))
}

/// The input of the program.
pub(super) fn document<R: ValueEnum + Send + Sync + 'static>(
    bench: &str,
    options: &BenchOptions<R>,
    circumstances: &str,
    lines: &[ReportLine],
) -> Value {
    let rows = options.rows.iter().map(|row| name(row.clone()));
    let quick = options.quick.then(|| "--quick".to_owned());
    let words = ["cargo", "xtask", "bench", bench].map(str::to_owned);
    let words: Vec<String> = words.into_iter().chain(rows).chain(quick).collect();
    json!({
        "name": bench,
        "command": words.join(" "),
        "circumstances": circumstances,
        "is_quick": options.quick,
        "lines": documents(lines),
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use xtask_bench_page::{Axis, Benchmark, Verdict};

    use super::*;
    use crate::bench::{
        cni::CniRow,
        report::{Goal, ReportUnit},
        stats::Pairs,
    };

    fn line(goal: Goal, ours: &[f64], theirs: &[f64]) -> ReportLine {
        ReportLine {
            what: "what".to_owned(),
            unit: ReportUnit::Milliseconds,
            goal,
            measured: Ok(Pairs {
                ours: ours.to_vec(),
                theirs: theirs.to_vec(),
            }),
        }
    }

    fn read(lines: &[ReportLine]) -> Benchmark {
        let options = BenchOptions {
            rows: vec![CniRow::Leases100, CniRow::Crowd],
            quick: true,
            write: false,
            html: None,
            inside: None,
        };
        serde_json::from_value(document("cni", &options, "a machine", lines)).unwrap()
    }

    #[test]
    fn the_program_gets_the_command_and_the_outcomes() {
        let failed = ReportLine {
            measured: Err(anyhow!("no etcd")),
            ..line(Goal::Better(2.0), &[], &[])
        };
        let benchmark = read(&[
            line(Goal::Better(2.0), &[1.0, 1.0], &[3.0, 5.0]),
            line(Goal::Within(1.5), &[2.0], &[1.0]),
            line(Goal::None, &[2.0], &[]),
            failed,
        ]);
        assert_eq!(
            benchmark.command,
            "cargo xtask bench cni leases100 crowd --quick"
        );
        let verdicts: Vec<_> = benchmark.lines.iter().map(|line| line.verdict).collect();
        assert_eq!(
            verdicts,
            [
                Verdict::Reached,
                Verdict::Missed,
                Verdict::NoTarget,
                Verdict::NotMeasured
            ]
        );
        let [first, second, alone, failed] = benchmark.lines.as_slice() else {
            panic!("four lines")
        };
        let [plot] = first.plots.as_slice() else {
            panic!("{first:?}")
        };
        assert_eq!(plot.axis, Axis::TimesBetter);
        assert_eq!(plot.quartiles, [3.0, 3.5, 4.0, 4.5, 5.0]);
        assert_eq!((first.rounds, plot.target), (2, Some(2.0)));
        assert_eq!(second.plots[0].axis, Axis::TimesTheTime);
        assert_eq!(second.plots[0].value, "2.00× (target ≤ 1.5× the time)");
        assert!(alone.plots.is_empty() && failed.plots.is_empty());
        assert_eq!(failed.ratio, "not measured: no etcd");
    }

    #[test]
    fn a_value_stands_beside_its_target_and_beside_its_peer() {
        let benchmark = read(&[
            line(Goal::AtMost(60.0), &[30.0], &[15.0]),
            line(Goal::AtLeast(10.0), &[5.0], &[]),
        ]);
        let [both, alone] = benchmark.lines.as_slice() else {
            panic!("two lines")
        };
        let axes: Vec<_> = both.plots.iter().map(|plot| plot.axis).collect();
        assert_eq!(axes, [Axis::TimesBetter, Axis::Target]);
        assert_eq!(both.plots[0].target, None);
        assert_eq!(both.plots[0].verdict, Verdict::NoTarget);
        assert_eq!(both.plots[1].points, [2.0]);
        assert_eq!(alone.plots[0].points, [0.5]);
        assert_eq!(alone.plots[0].verdict, Verdict::Missed);
    }

    #[test]
    fn many_values_are_drawn_as_quantiles_and_infinite_ones_left_out() {
        let many: Vec<f64> = (0..5000).map(f64::from).collect();
        let benchmark = read(&[line(Goal::Better(1.0), &many, &[1.0; 5000])]);
        let plot = &benchmark.lines[0].plots[0];
        assert_eq!(plot.points.len(), 201);
        assert!(plot.points.iter().all(|point| point.is_finite()));
        assert_eq!(benchmark.lines[0].rounds, 5000);
    }
}
