//! Objects that could not be read make the checks that need them incomplete.

#![expect(clippy::unwrap_used, reason = "a test")]

use podplane_audit::{
    AuditReport, ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, UnreadResource, audit,
};

fn report(unread: &[&str]) -> AuditReport {
    let mut collector = DumpCollector::new(DumpScope::Fields);
    let text = include_str!("data/clean.yaml");
    collector.read(text.as_bytes()).unwrap();
    for resource in unread {
        collector.miss(UnreadResource {
            resource: (*resource).into(),
            reason: "403 Forbidden".into(),
        });
    }
    let dump = collector.finish(&ControllerFlags::default());
    audit(
        &dump,
        &ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap(),
    )
}

#[test]
fn names_the_checks_that_are_incomplete() {
    assert!(report(&[]).is_complete());
    let report = report(&["ciliumendpoints.cilium.io", "cninodes.vpcresources.k8s.aws"]);
    assert!(!report.is_complete());
    let checks = &report.summary.checks;
    for (code, want) in [
        ("duplicate-pod-cidr", "on"),
        (
            "leaked-allocation",
            "incomplete: cannot read ciliumendpoints.cilium.io (403 Forbidden)",
        ),
        (
            "orphaned-block",
            "incomplete: cannot read cninodes.vpcresources.k8s.aws (403 Forbidden)",
        ),
    ] {
        assert_eq!(checks[code], want, "{code}");
    }
}
