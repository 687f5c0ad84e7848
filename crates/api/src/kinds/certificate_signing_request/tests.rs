use serde_json::{Value, json};

use super::*;
use crate::selector::{FieldSelector, field::FieldSet};

/// `-----BEGIN CERTIFICATE REQUEST-----`, `AAAA` and its end.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KQUFBQQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K";
const CLIENTS: &str = "kubernetes.io/kube-apiserver-client";

fn request(spec: Value) -> CertificateSigningRequest {
    let mut whole = json!({"request": REQUEST, "signerName": CLIENTS, "usages": ["client auth"]});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    let document = json!({"metadata": {"name": "a"}, "spec": whole});
    let mut request = CertificateSigningRequest::from_json(document).unwrap();
    request.prepare_for_create();
    request
}

fn with_status(status: Value) -> CertificateSigningRequest {
    let mut request = request(json!({}));
    request.status = serde_json::from_value(status).unwrap();
    request
}

fn decided(types: &[&str]) -> CertificateSigningRequest {
    let condition = |type_: &&str| json!({"type": type_, "status": "True"});
    with_status(json!({"conditions": types.iter().map(condition).collect::<Vec<_>>()}))
}

#[test]
fn the_server_says_who_asks() {
    let spec = json!({"username": "admin", "groups": ["system:masters"], "uid": "1", "extra": {"a": ["b"]}});
    let mut asked = request(spec);
    asked.status = decided(&[APPROVED]).status;
    asked.prepare_for_create();
    let made = json!(asked);
    assert_eq!(
        made["spec"],
        json!({"request": REQUEST, "signerName": CLIENTS, "usages": ["client auth"], "username": "system:anonymous", "groups": ["system:unauthenticated"]})
    );
    assert_eq!(made["status"], json!({}));
    assert!(asked.validate().is_empty());
}

#[test]
fn refuses_requests_that_no_signer_could_answer() {
    let cases = [
        (
            json!({"request": "AAAA"}),
            r#"spec.request: Invalid value: "AAAA": PEM block type must be CERTIFICATE REQUEST"#,
        ),
        (json!({"usages": []}), "spec.usages: Required value"),
        (
            json!({"usages": ["any", "any"]}),
            r#"spec.usages[1]: Duplicate value: "any""#,
        ),
        (json!({"signerName": ""}), "spec.signerName: Required value"),
        (
            json!({"signerName": LEGACY_SIGNER}),
            r#"spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version"#,
        ),
        (
            json!({"signerName": "a.b/c/d"}),
            r#"spec.signerName: Invalid value: "a.b/c/d": must be a fully qualified domain and path of the form 'example.com/signer-name'"#,
        ),
        (
            json!({"signerName": "example/a"}),
            r#"spec.signerName: Invalid value: "example": should be a domain with at least two segments separated by dots"#,
        ),
        (
            json!({"expirationSeconds": 599}),
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(request(spec).validate().to_string(), expected);
    }
    let unknown = request(json!({"usages": ["flying"]}))
        .validate()
        .to_string();
    let begin =
        r#"spec.usages[0]: Unsupported value: "flying": supported values: "any", "cert sign""#;
    assert!(unknown.starts_with(begin), "{unknown}");
    let label = request(json!({"signerName": "A.b.C/d"})).validate();
    assert_eq!(label.iter().count(), 1, "{label}");
    let label = label.to_string();
    let begin = r#"spec.signerName: Invalid value: "A.b.C": validating label "A": a lowercase"#;
    assert!(label.starts_with(begin), "{label}");
    let long = request(json!({"signerName": format!("a.b/{}", ["a"; 400].join("."))}));
    assert_eq!(
        long.validate().to_string(),
        "spec.signerName: Too long: may not be more than 571 bytes"
    );
}

#[test]
fn the_spec_is_immutable() {
    let old = request(json!({}));
    let mut new = request(json!({"signerName": "example.com/mine", "username": "me"}));
    new.status = decided(&[APPROVED]).status;
    new.prepare_for_update(&old);
    assert_eq!(new, old);
}

#[test]
fn a_status_has_at_most_one_decision() {
    let cases = [
        (
            json!([{"type": "", "status": "True"}]),
            "status.conditions[0].type: Required value",
        ),
        (
            json!([{"type": "A", "status": ""}]),
            "status.conditions[0].status: Required value",
        ),
        (
            json!([{"type": "Failed", "status": "False"}]),
            r#"status.conditions[0].status: Unsupported value: "False": supported values: "True""#,
        ),
        (
            json!([{"type": "A", "status": "Maybe"}]),
            r#"status.conditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown""#,
        ),
        (
            json!([{"type": "A", "status": "True"}, {"type": "A", "status": "False"}]),
            r#"status.conditions[1].type: Duplicate value: "A""#,
        ),
    ];
    for (conditions, expected) in cases {
        let request = with_status(json!({"conditions": conditions}));
        assert_eq!(request.validate().to_string(), expected);
    }
    for both in [[APPROVED, DENIED], [DENIED, APPROVED]] {
        assert_eq!(
            decided(&both).validate().to_string(),
            format!(
                "status.conditions: Invalid value: {:?}: Approved and Denied conditions are mutually exclusive",
                both[1]
            )
        );
    }
}

#[test]
fn a_write_of_the_status_makes_no_decision() {
    let refused = |old: &[&str], new: &[&str]| {
        let (old, update) = (decided(old), decided(new));
        let mut new = old.clone();
        new.set_status(&update);
        new.validate_update(&old).to_string()
    };
    assert_eq!(refused(&[], &[FAILED]), "[]");
    assert_eq!(
        refused(&[], &[APPROVED]),
        r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#
    );
    assert_eq!(
        refused(&[DENIED], &[]),
        r#"status.conditions: Forbidden: updates may not remove a condition of type "Denied""#
    );
    assert_eq!(
        refused(&[FAILED], &[]),
        r#"status.conditions: Forbidden: updates may not remove a condition of type "Failed""#
    );

    let old = decided(&[APPROVED]);
    let mut update = old.clone();
    for condition in update
        .status
        .iter_mut()
        .flat_map(|s| &mut s.conditions)
        .flatten()
    {
        condition.message = Some("not mine".into());
    }
    let mut new = old.clone();
    new.set_status(&update);
    assert_eq!(new, old);
}

#[test]
fn a_certificate_is_set_once() {
    let certificate = |text: &str| {
        let mut request = request(json!({}));
        let status = request.status.get_or_insert_default();
        status.certificate = Some(k8s_openapi::ByteString(text.into()));
        request
    };
    let pending = request(json!({}));
    let block = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    let issued = certificate(&block("CERTIFICATE").repeat(2));
    assert!(issued.validate_update(&pending).is_empty());
    assert!(issued.validate_update(&issued).is_empty());
    let other = certificate(&block("CERTIFICATE"));
    assert_eq!(
        other.validate_update(&issued).to_string(),
        "status.certificate: Forbidden: updates may not modify existing certificate content"
    );
    let refused = |text: &str| certificate(text).validate_update(&pending).to_string();
    assert_eq!(
        refused("mine"),
        r#"status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block"#
    );
    assert_eq!(
        refused(&block("PRIVATE KEY")),
        r#"status.certificate: Invalid value: "<certificate data>": only CERTIFICATE PEM blocks are allowed, found "PRIVATE KEY""#
    );
}

#[test]
fn shows_signer_requestor_and_state() {
    let shown = |request: &CertificateSigningRequest| request.cells(Timestamp::UNIX_EPOCH);
    let asked = request(json!({"expirationSeconds": 3600}));
    assert_eq!(
        shown(&asked),
        [
            "a",
            "<unknown>",
            CLIENTS,
            "system:anonymous",
            "60m",
            "Pending"
        ]
    );
    assert_eq!(shown(&decided(&[]))[4], NONE);
    assert_eq!(shown(&decided(&[APPROVED]))[5], "Approved");
    let mut failed = decided(&[DENIED, FAILED]);
    let status = failed.status.get_or_insert_default();
    status.certificate = Some(k8s_openapi::ByteString("x".into()));
    assert_eq!(shown(&failed)[5], "Denied,Failed,Issued");
}

#[test]
fn is_selected_by_signer() {
    let selector = format!("spec.signerName={CLIENTS}");
    let selector = FieldSelector::parse::<CertificateSigningRequest>(&selector).unwrap();
    assert!(selector.matches(&FieldSet::of(&request(json!({})))));
    let other = request(json!({"signerName": "example.com/a"}));
    assert!(!selector.matches(&FieldSet::of(&other)));
}
