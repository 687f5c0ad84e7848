//! Runs as JUnit XML: a suite for each file, a case for each run.

use std::{collections::BTreeMap, time::Duration};

use quick_junit::{NonSuccessKind, SerializeError, TestCase, TestCaseStatus, TestSuite};

use crate::{
    console::{described_with_objects, seconds},
    runner::{RunOutcome, RunReport},
};

pub(crate) fn xml(reports: &[RunReport], took: Duration) -> Result<String, SerializeError> {
    let mut files: BTreeMap<_, Vec<&RunReport>> = BTreeMap::new();
    for report in reports {
        files.entry(&report.job.case.file).or_default().push(report);
    }
    let mut junit = quick_junit::Report::new("podplane test");
    junit.set_time(took);
    for (file, reports) in files {
        let mut suite = TestSuite::new(file.display().to_string());
        suite.set_time(reports.iter().map(|report| report.took).sum());
        suite.add_test_cases(reports.into_iter().map(case));
        junit.add_test_suite(suite);
    }
    junit.to_string()
}

fn skipped(why: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(why);
    status
}

fn case(report: &RunReport) -> TestCase {
    let status = match &report.outcome {
        RunOutcome::Passed => TestCaseStatus::success(),
        RunOutcome::Failed(failure) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(format!("step {}, {}", failure.step, failure.title));
            status.set_type("expectation");
            status.set_description(described_with_objects(report, failure));
            status
        }
        RunOutcome::Broken(why) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message("it could not be run");
            status.set_description(why);
            status
        }
        RunOutcome::Interrupted => skipped("interrupted"),
        RunOutcome::NotBegun => skipped("not begun"),
    };
    let mut case = TestCase::new(&*report.job.title, status);
    case.set_classname(&*report.job.case.name);
    case.set_time(report.took);
    case.add_property(("seed", report.job.seed.to_string().as_str()));
    for (name, took) in &report.timings {
        let (name, value) = (
            format!("timing.{name}"),
            format!("{:.3}", took.as_secs_f64()),
        );
        case.add_property((name.as_str(), value.as_str()));
    }
    let steps = report.steps.iter().enumerate();
    let mut lines: Vec<_> = steps
        .map(|(index, step)| format!("{} {} ({})", index + 1, step.title, seconds(step.took)))
        .collect();
    lines.extend(report.left.iter().cloned());
    case.set_system_out(lines.join("\n"));
    case
}
