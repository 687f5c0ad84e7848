use std::{fs, process::Command};

use podplane_api::ByteString;
use serde_json::json;

use super::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const NODE: &str = "/O=system:nodes/CN=system:node:n1";

fn now() -> Timestamp {
    "2026-11-23T12:00:00Z".parse().unwrap()
}

/// A request of OpenSSL, in PEM.
#[expect(
    clippy::disallowed_methods,
    reason = "a test, outside of the seam to the machine"
)]
fn pem(subject: &str, names: &str) -> ByteString {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("csr.pem");
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-new", "-nodes", "-newkey", "ec", "-pkeyopt"]);
    openssl.args(["ec_paramgen_curve:P-256", "-keyout", "/dev/null", "-subj"]);
    openssl.arg(subject).arg("-out").arg(&out);
    if !names.is_empty() {
        openssl
            .arg("-addext")
            .arg(format!("subjectAltName={names}"));
    }
    let answer = openssl.output();
    let answer = answer.expect("openssl is installed: apt install openssl");
    let why = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{why}");
    ByteString(fs::read(&out).unwrap())
}

fn request(signer: &str, usages: &[&str], subject: &str, names: &str) -> CertificateSigningRequest {
    let mut request: CertificateSigningRequest = serde_json::from_value(json!({
        "metadata": {"name": "a", "creationTimestamp": now()},
        "spec": {"signerName": signer, "usages": usages, "request": ""},
    }))
    .unwrap();
    request.spec.request = pem(subject, names);
    request
}

fn asked_by(
    mut request: CertificateSigningRequest,
    user: &str,
    groups: &[&str],
) -> CertificateSigningRequest {
    request.spec.username = Some(user.to_owned());
    request.spec.groups = Some(groups.iter().map(|group| (*group).to_owned()).collect());
    request
}

fn with(mut request: CertificateSigningRequest, type_: &str) -> CertificateSigningRequest {
    let condition = json!({"type": type_, "status": "True", "lastUpdateTime": now()});
    let status = request.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(serde_json::from_value(condition).unwrap());
    request
}

fn node_client(subject: &str, names: &str) -> CertificateSigningRequest {
    let usages = ["digital signature", "client auth"];
    request(NODE_CLIENT_SIGNER, &usages, subject, names)
}

/// The step, in words.
fn step(request: &CertificateSigningRequest, now: Timestamp) -> String {
    match plan(request, YEAR, now) {
        CertificateStep::Approve(why) => format!("approve: {why}"),
        CertificateStep::Sign(terms) => format!("sign for {:?}", terms.lifetime),
        CertificateStep::Fail(why) => format!("fail: {why}"),
        CertificateStep::Delete(why) => format!("delete: {why}"),
        CertificateStep::Wait(_) => "wait".to_owned(),
    }
}

#[test]
fn nodes_get_their_own_certificates_and_no_others() {
    let groups = |group| [group, "system:authenticated"];
    for (user, group, subject, names, want) in [
        (
            "b",
            "system:bootstrappers",
            NODE,
            "",
            "approve: client certificate of a node that joins",
        ),
        (
            "b",
            "system:bootstrappers:rack1",
            NODE,
            "",
            "approve: client certificate of a node that joins",
        ),
        (
            "system:node:n1",
            NODES,
            NODE,
            "",
            "approve: renewal of the node's own client certificate",
        ),
        // Another node's.
        ("system:node:n2", NODES, NODE, "", "wait"),
        ("ada", "dev", NODE, "", "wait"),
        ("b", "system:bootstrapper", NODE, "", "wait"),
        (
            "b",
            "system:bootstrappers",
            "/O=system:masters/CN=system:node:n1",
            "",
            "wait",
        ),
        (
            "b",
            "system:bootstrappers",
            "/CN=system:node:n1",
            "",
            "wait",
        ),
        (
            "b",
            "system:bootstrappers",
            "/O=system:nodes/CN=admin",
            "",
            "wait",
        ),
        (
            "b",
            "system:bootstrappers",
            "/O=system:nodes/CN=system:node:",
            "",
            "wait",
        ),
        ("b", "system:bootstrappers", NODE, "DNS:other", "wait"),
    ] {
        let asked = asked_by(node_client(subject, names), user, &groups(group));
        assert_eq!(
            step(&asked, now()),
            want,
            "{user} {group} {subject} {names}"
        );
    }
    let usages = ["digital signature", "client auth"];
    let other = request(CLIENT_SIGNER, &usages, NODE, "");
    let other = asked_by(other, "b", &groups("system:bootstrappers"));
    assert_eq!(step(&other, now()), "wait");
}

#[test]
fn signers_answer_what_they_are_for() {
    let server = ["digital signature", "server auth"];
    let client = ["client auth"];
    for (signer, usages, subject, names, want) in [
        (CLIENT_SIGNER, &client[..], "/O=dev/CN=ada", "", "sign for"),
        (
            CLIENT_SIGNER,
            &client,
            "/O=dev/O=ops/CN=ada",
            "",
            "sign for",
        ),
        (
            CLIENT_SIGNER,
            &client,
            "/O=dev+O=system:masters/CN=ada",
            "",
            "fail: use of kubernetes.io/kube-apiserver-client signer with system:masters",
        ),
        (
            CLIENT_SIGNER,
            &client,
            "/CN=ada",
            "email:ada@example.com",
            "sign for",
        ),
        (
            CLIENT_SIGNER,
            &client,
            "/O=system:masters/CN=ada",
            "",
            "fail: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
        ),
        (
            CLIENT_SIGNER,
            &client,
            "/O=dev",
            "",
            "fail: subject has no common name",
        ),
        (
            CLIENT_SIGNER,
            &server,
            "/CN=ada",
            "",
            "fail: usages did not match",
        ),
        (
            CLIENT_SIGNER,
            &["digital signature"],
            "/CN=ada",
            "",
            "fail: usages did not match",
        ),
        (
            CLIENT_SIGNER,
            &["client auth", "cert sign"],
            "/CN=ada",
            "",
            "fail: usages did not match",
        ),
        (
            NODE_CLIENT_SIGNER,
            &client,
            NODE,
            "",
            "fail: usages did not match",
        ),
        (
            NODE_SERVER_SIGNER,
            &server,
            NODE,
            "IP:192.0.2.1",
            "sign for",
        ),
        (
            NODE_SERVER_SIGNER,
            &server,
            NODE,
            "",
            "fail: DNS or IP subjectAltName is required",
        ),
        (
            NODE_SERVER_SIGNER,
            &server,
            NODE,
            "DNS:a,URI:https://a",
            "fail: only DNS and IP",
        ),
        (
            NODE_SERVER_SIGNER,
            &server,
            "/O=dev/CN=system:node:n1",
            "DNS:a",
            "fail: subject organization is not system:nodes",
        ),
        (
            NODE_SERVER_SIGNER,
            &["digital signature", "client auth"],
            NODE,
            "DNS:a",
            "fail: usages did not match",
        ),
        ("example.com/mine", &client, "/CN=ada", "", "wait"),
    ] {
        let open = request(signer, usages, subject, names);
        assert_eq!(step(&open, now()), "wait", "{signer} {subject}");
        let got = step(&with(open, APPROVED), now());
        assert!(
            got.starts_with(want),
            "{signer} {usages:?} {subject} {names}: {got}"
        );
    }
}

#[test]
fn only_approved_requests_are_signed_and_once() {
    let open = request(CLIENT_SIGNER, &["client auth"], "/CN=ada", "");
    assert_eq!(step(&with(open.clone(), DENIED), now()), "wait");
    let approved = with(open, APPROVED);
    assert_eq!(step(&approved, now()), "sign for 31536000s");
    assert_eq!(step(&with(approved.clone(), FAILED), now()), "wait");
    let mut issued = approved.clone();
    issued.status.as_mut().unwrap().certificate = Some(ByteString(b"x".to_vec()));
    assert_eq!(step(&issued, now()), "wait");
    for (seconds, want) in [(1, "600s"), (7200, "7200s"), (i32::MAX, "31536000s")] {
        let mut asked = approved.clone();
        asked.spec.expiration_seconds = Some(seconds);
        assert_eq!(step(&asked, now()), format!("sign for {want}"));
    }
    let mut broken = approved;
    broken.spec.request = ByteString(
        b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".to_vec(),
    );
    assert!(step(&broken, now()).starts_with("fail: invalid certificate request"));
}

#[test]
fn old_requests_are_deleted() {
    let open = request("example.com/mine", &["client auth"], "/CN=ada", "");
    let after = |hours| now() + SignedDuration::from_hours(hours);
    for (request, hours, why) in [
        (open.clone(), 24, "pending"),
        (with(open.clone(), APPROVED), 1, "answered"),
        (with(open.clone(), DENIED), 1, "denied"),
        (with(with(open.clone(), APPROVED), FAILED), 1, "failed"),
    ] {
        let ends = after(hours);
        assert_eq!(
            step(&request, ends - SignedDuration::from_secs(1)),
            "wait",
            "{why}"
        );
        assert_eq!(step(&request, ends), format!("delete: {why}"));
    }
}
