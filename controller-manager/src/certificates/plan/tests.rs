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
        CertificateStep::Review(permissions, _) => {
            let parts = permissions.iter().map(|one| one.subresource());
            format!("review {}", parts.collect::<Vec<_>>().join(" or "))
        }
        CertificateStep::Sign(terms) => format!("sign for {:?}", terms.lifetime),
        CertificateStep::Fail(why) => format!("fail: {why}"),
        CertificateStep::Delete(why) => format!("delete: {why}"),
        CertificateStep::Wait(_) => "wait".to_owned(),
    }
}

#[test]
fn the_requestors_permission_counts_for_client_certificates_of_nodes_alone() {
    for (user, subject, names, want) in [
        ("b", NODE, "", "review nodeclient"),
        (
            "system:node:n1",
            NODE,
            "",
            "review selfnodeclient or nodeclient",
        ),
        // Another node's.
        ("system:node:n2", NODE, "", "review nodeclient"),
        ("b", "/O=system:masters/CN=system:node:n1", "", "wait"),
        (
            "b",
            "/O=system:nodes/O=system:masters/CN=system:node:n1",
            "",
            "wait",
        ),
        ("b", "/CN=system:node:n1", "", "wait"),
        ("admin", "/O=system:nodes/CN=admin", "", "wait"),
        ("b", "/O=system:nodes/CN=system:node:", "", "wait"),
        ("b", NODE, "DNS:other", "wait"),
    ] {
        let asked = asked_by(node_client(subject, names), user, &[]);
        assert_eq!(step(&asked, now()), want, "{user} {subject} {names}");
    }
    let usages = ["digital signature", "client auth"];
    let other = request(CLIENT_SIGNER, &usages, NODE, "");
    assert_eq!(step(&asked_by(other, "b", &[]), now()), "wait");
    let server = ["digital signature", "server auth"];
    let server = request(NODE_CLIENT_SIGNER, &server, NODE, "");
    assert_eq!(step(&asked_by(server, "b", &[]), now()), "wait");
}

#[test]
fn the_review_is_about_all_of_the_requestor() {
    let mut asked = asked_by(node_client(NODE, ""), "b", &["system:bootstrappers", "g"]);
    asked.spec.uid = Some("7".to_owned());
    let extra = [("k".to_owned(), vec!["v".to_owned(), "w".to_owned()])];
    asked.spec.extra = Some(extra.into());
    let review = review(&asked, NodePermission::NodeClient);
    assert_eq!((review.user.as_str(), review.uid.as_str()), ("b", "7"));
    assert_eq!(review.groups, ["system:bootstrappers", "g"]);
    assert_eq!(review.extra["k"].items, ["v", "w"]);
    let attributes = ResourceAttributes {
        verb: "create".to_owned(),
        group: "certificates.k8s.io".to_owned(),
        resource: "certificatesigningrequests".to_owned(),
        subresource: "nodeclient".to_owned(),
        ..ResourceAttributes::default()
    };
    assert_eq!(review.resource_attributes, Some(attributes));
}

#[test]
fn a_refused_requestor_is_reviewed_again_after_a_wait_that_doubles() {
    let asked = asked_by(node_client(NODE, ""), "b", &[]);
    for (age, want) in [(0, 1), (1, 1), (8, 8), (3600, 60), (24 * 3600 - 5, 5)] {
        let later = now() + SignedDuration::from_secs(age);
        let CertificateStep::Review(_, wait) = plan(&asked, YEAR, later) else {
            panic!("{age}");
        };
        assert_eq!(wait.as_secs(), want, "{age}");
    }
    let late = now() + SignedDuration::from_hours(24);
    assert_eq!(step(&asked, late), "delete: pending");
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
