//! The traces of webhooks and policies in the audit log.

use podplane_request_audit::{LogOptions, Policy};

use super::*;
use crate::audit::AuditSetup;

#[tokio::test]
async fn annotations_of_webhooks_and_policies_are_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata, resources: [{group: '', resources: [configmaps]}]}]}";
    let audit = AuditSetup {
        policy: Policy::parse(policy).unwrap(),
        log: LogOptions {
            path: path.clone(),
            max_bytes: None,
            max_backups: None,
            max_age: None,
        },
    };
    let rules = ServerRules {
        audit: Some(audit),
        ..uncounted()
    };
    let server = TestServer::at("127.0.0.1:0", rules, MemStore::new()).await;
    let webhook = Webhook::start(|_| json!({"auditAnnotations": {"looked": "yes"}})).await;
    let maps = &["configmaps"];
    let hooks = json!([hook(&webhook, "a.example.com", maps, json!({}))]);
    server.configure(MUTATING, "m", hooks).await;
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": maps}]},
        "validations": [{"expression": "has(object.data)", "message": "no data"}],
        "auditAnnotations": [{"key": "name", "valueExpression": "string(object.metadata.name)"}],
    });
    let kinds = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "p"}, "spec": spec});
    server
        .make(&format!("{kinds}/validatingadmissionpolicies"), &policy)
        .await;
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Audit"]}});
    server
        .make(
            &format!("{kinds}/validatingadmissionpolicybindings"),
            &binding,
        )
        .await;
    server
        .make(CONFIG_MAPS, &json!({"metadata": {"name": "m"}}))
        .await;
    server.stop().await;
    let text = std::fs::read_to_string(path).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [event] = &*events else {
        panic!("{events:#?}");
    };
    let annotations = &event["annotations"];
    assert_eq!(annotations["a.example.com/looked"], "yes");
    assert_eq!(annotations["p/name"], "m");
    let mutation = &annotations["mutation.webhook.admission.k8s.io/round_0_index_0"];
    let mutation: Value = serde_json::from_str(mutation.as_str().unwrap()).unwrap();
    assert_eq!(
        mutation,
        json!({"configuration": "m", "webhook": "a.example.com", "mutated": false})
    );
    let failures = &annotations["validation.policy.admission.k8s.io/validation_failure"];
    let failures: Value = serde_json::from_str(failures.as_str().unwrap()).unwrap();
    assert_eq!(
        failures,
        json!([{"message": "no data", "policy": "p", "binding": "b", "expressionIndex": 0, "validationActions": ["Audit"]}])
    );
}
