//! The report as JUnit XML: a suite with a test case for each check.

use podplane_cni_verify::{CheckOutcome, CheckReport, Finding, Severity, VerifyReport};
use quick_junit::{NonSuccessKind, Property, SerializeError, TestCase, TestCaseStatus, TestSuite};

/// The report as JUnit XML.
pub(super) fn xml(report: &VerifyReport) -> Result<String, SerializeError> {
    let about = &report.about;
    let mut suite = TestSuite::new(about.program.to_string_lossy());
    suite.set_time(report.took);
    let properties = [
        ("seed", about.seed.to_string()),
        ("cniVersion", about.cni_version.clone()),
        ("supportedVersions", about.supported.join(",")),
        ("partial", report.is_partial.to_string()),
        ("calls", report.calls.to_string()),
        ("kills", report.kills.to_string()),
    ];
    suite.add_properties(properties.map(|(name, value)| Property::new(name, value)));
    suite.add_test_cases(report.checks.iter().map(case));
    let mut junit = quick_junit::Report::new("podplane cni verify");
    junit.set_time(report.took).add_test_suite(suite);
    junit.to_string()
}

fn case(check: &CheckReport) -> TestCase {
    let (counting, notes): (Vec<_>, Vec<_>) = check
        .findings
        .iter()
        .partition(|finding| finding.severity > Severity::Note);
    let status = match &check.outcome {
        CheckOutcome::Passed => TestCaseStatus::success(),
        CheckOutcome::Failed => failure(check, &counting),
        CheckOutcome::Skipped(why) => skipped(why),
        CheckOutcome::Stopped => skipped("stopped; nothing was found until then"),
        CheckOutcome::NotRun(why) => skipped(&format!("not run: {why}")),
    };
    let mut case = TestCase::new(check.id, status);
    case.set_classname("podplane.cni.verify")
        .set_time(check.took);
    case.add_property(("title", check.title));
    case.add_property(("basis", check.basis));
    if !notes.is_empty() {
        let notes: Vec<_> = notes.into_iter().map(described).collect();
        case.set_system_out(notes.join("\n"));
    }
    case
}

fn skipped(why: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(why);
    status
}

fn failure(check: &CheckReport, findings: &[&Finding]) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    if let Some(worst) = findings.iter().max_by_key(|finding| finding.severity) {
        status.set_message(&worst.seen);
        status.set_type(worst.severity.as_str());
    }
    let all: Vec<_> = findings.iter().copied().map(described).collect();
    status.set_description(format!("{}\n\n{}", check.basis, all.join("\n")));
    status
}

fn described(finding: &Finding) -> String {
    let Finding {
        severity,
        seen,
        expected,
        times,
        steps,
        commands,
        ..
    } = finding;
    let steps = steps.iter().map(|step| {
        let (title, interruption, answer) = (step.title(), step.interruption(), step.answer());
        format!("  {title}: {interruption} {answer}\n")
    });
    let steps: String = steps.collect();
    let stderr = finding
        .steps
        .last()
        .map(podplane_cni_verify::CallLine::stderr);
    let stderr = stderr.filter(|text| !text.is_empty());
    let stderr = stderr.map(|text| format!("  stderr: {text}\n"));
    format!(
        "{severity}: {seen}\n  expected: {expected}\n  times: {times}\n{steps}{}To repeat it, in a shell:\n{commands}",
        stderr.unwrap_or_default()
    )
}
