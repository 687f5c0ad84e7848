use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::Parser;
use podplane_request_audit::LogOptions;
use serde_json::Value;

use super::*;
use crate::ApiserverRunError;

#[derive(Debug, Parser)]
struct AuditProgram {
    #[command(flatten)]
    audit: AuditFlags,
}

fn recorder(dir: &std::path::Path) -> AuditRecorder {
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}";
    let setup = AuditSetup {
        policy: Policy::parse(policy).unwrap(),
        log: LogOptions {
            path: dir.join("audit.log"),
            max_bytes: None,
            max_backups: None,
            max_age: None,
        },
    };
    let auditor = Auditor::open(setup, &mut Registry::default()).unwrap();
    AuditRecorder(Arc::new(auditor))
}

async fn last_event(recorder: AuditRecorder, dir: &std::path::Path) -> Value {
    recorder.0.finish().await;
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn request() -> Request<Body> {
    Request::get("/api/v1/pods").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_panic_has_a_stage_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    let record = recorder.begin(&mut request());
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _record = record;
        panic!("of the test");
    }));
    panicked.unwrap_err();
    let event = last_event(recorder, dir.path()).await;
    assert_eq!(
        (&event["stage"], &event["responseStatus"]["code"]),
        (&"Panic".into(), &500.into())
    );
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = recorder(dir.path());
    drop(recorder.begin(&mut request()));
    let event = last_event(recorder, dir.path()).await;
    assert_eq!(event["stage"], "ResponseComplete");
    assert_eq!(
        event["responseStatus"]["message"],
        "Connection closed early"
    );
}

#[test]
fn policy_and_log_need_each_other() {
    for alone in ["--audit-log-path=a", "--audit-policy-file=a"] {
        AuditProgram::try_parse_from(["line", alone]).unwrap_err();
    }
    let alone = AuditFlags {
        audit_log_path: Some("a".into()),
        ..AuditFlags::default()
    };
    assert!(matches!(
        alone.setup(),
        Err(ApiserverRunError::IncompleteAudit)
    ));
    assert!(AuditFlags::default().setup().unwrap().is_none());
}

#[test]
fn flags_have_the_meanings_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.yaml");
    std::fs::write(
        &file,
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None}]}",
    )
    .unwrap();
    let line = format!(
        "line --audit-log-path=- --audit-policy-file={} --audit-log-maxsize=0 --audit-log-maxage=2",
        file.display()
    );
    let flags = AuditProgram::parse_from(line.split(' ')).audit;
    let AuditSetup { log, .. } = flags.setup().unwrap().unwrap();
    assert_eq!(
        log,
        LogOptions {
            path: "-".into(),
            max_bytes: Some(100 << 20),
            max_backups: None,
            max_age: Some(Duration::from_secs(2 * 86400)),
        }
    );
    std::fs::write(
        &file,
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Much}]}",
    )
    .unwrap();
    let error = flags.setup().unwrap_err();
    assert!(
        matches!(error, ApiserverRunError::AuditPolicy(_)),
        "{error}"
    );
}
