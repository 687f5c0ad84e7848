//! The report as JUnit XML: a test case for each code, which fails if a finding counts.

use podplane_audit::{AuditReport, Code, Finding, Severity};
use quick_junit::{NonSuccessKind, SerializeError, TestCase, TestCaseStatus, TestSuite};

/// One suite. Findings below `fail_on` are listed and do not fail their case.
pub(super) fn xml(report: &AuditReport, fail_on: Severity) -> Result<String, SerializeError> {
    let mut suite = TestSuite::new("podplane audit");
    suite.add_test_cases(Code::ALL.map(|code| case(report, code, fail_on)));
    let mut junit = quick_junit::Report::new("podplane audit");
    junit.add_test_suite(suite);
    junit.to_string()
}

fn case(report: &AuditReport, code: Code, fail_on: Severity) -> TestCase {
    let findings = report
        .findings
        .iter()
        .filter(|finding| finding.code == code);
    let (counting, others): (Vec<_>, Vec<_>) =
        findings.partition(|finding| finding.severity >= fail_on);
    let check = report
        .summary
        .checks
        .get(code.as_str())
        .map_or("on", String::as_str);
    let status = match counting.first() {
        Some(worst) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(&worst.message);
            status.set_type(worst.severity.as_str());
            status.set_description(described(&counting));
            status
        }
        None if check.starts_with("incomplete") => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message(check);
            status
        }
        None if check.starts_with("off") => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(check);
            status
        }
        None => TestCaseStatus::success(),
    };
    let mut case = TestCase::new(code.as_str(), status);
    case.set_classname("podplane.audit");
    case.add_property(("check", check));
    if !others.is_empty() {
        case.set_system_out(described(&others));
    }
    case
}

fn described(findings: &[&Finding]) -> String {
    let each = findings.iter().map(|finding| {
        let objects = finding.objects.join(" ");
        format!(
            "{}: {}\n  objects: {objects}\n  repair: {}\n",
            finding.severity, finding.message, finding.repair
        )
    });
    each.collect()
}
