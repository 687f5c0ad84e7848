//! Requests that OpenSSL made, and their certificates as OpenSSL judges them.

#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path, process::Command, time::Duration};

use jiff::Timestamp;
use podplane_pki::{Authority, CertificateRequest, RequestedName, RequestedUsage, certificate_end};

const HOUR: Duration = Duration::from_secs(3600);

fn openssl(dir: &Path, arguments: &[&str]) -> String {
    let answer = Command::new("openssl")
        .args(arguments)
        .current_dir(dir)
        .output()
        .expect("openssl is installed: apt install openssl");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        answer.status.success(),
        "{arguments:?}: {}",
        text(&answer.stderr)
    );
    text(&answer.stdout)
}

/// A request for a new key, with further arguments of `openssl req`.
fn request(dir: &Path, key: &[&str], subject: &str, more: &[&str]) -> Vec<u8> {
    let mut arguments = vec![
        "req", "-new", "-nodes", "-keyout", "key.pem", "-out", "csr.pem",
    ];
    arguments.extend(["-subj", subject]);
    arguments.extend(key);
    arguments.extend(more);
    openssl(dir, &arguments);
    fs::read(dir.join("csr.pem")).unwrap()
}

const P256: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
const RSA: &[&str] = &["-newkey", "rsa:2048"];
const NODE: &str = "/O=system:nodes/CN=system:node:n1";

#[test]
fn openssl_accepts_the_certificate_for_its_request() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let now = Timestamp::now();
    let authority = Authority::create("ca", now).unwrap();
    fs::write(dir.join("ca.crt"), authority.certificate()).unwrap();
    for (key, purpose) in [(P256, "sslclient"), (RSA, "sslclient"), (P256, "sslserver")] {
        let names = ["-addext", "subjectAltName=DNS:n1.example,IP:192.0.2.1"];
        let pem = request(dir, key, NODE, &names);
        let request = CertificateRequest::from_pem(&pem).unwrap();
        assert_eq!(request.common_name, "system:node:n1");
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(
            request.names(),
            [
                RequestedName::Dns("n1.example".to_owned()),
                RequestedName::Ip("192.0.2.1".parse().unwrap())
            ]
        );
        let side = match purpose {
            "sslclient" => RequestedUsage::ClientAuth,
            _ => RequestedUsage::ServerAuth,
        };
        let usages = [RequestedUsage::DigitalSignature, side];
        let signed = authority.sign(&request, &usages, HOUR, b"0123456789abcdef", now);
        let signed = signed.unwrap();
        fs::write(dir.join("crt.pem"), &signed).unwrap();
        let verify = [
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            "ca.crt",
            "crt.pem",
        ];
        assert_eq!(openssl(dir, &verify), "crt.pem: OK\n");
        let key_of = |arguments: &[&str]| openssl(dir, arguments);
        assert_eq!(
            key_of(&["x509", "-in", "crt.pem", "-noout", "-pubkey"]),
            key_of(&["pkey", "-in", "key.pem", "-pubout"])
        );
        let text = openssl(dir, &["x509", "-in", "crt.pem", "-noout", "-text"]);
        assert!(text.contains("CA:FALSE"), "{text}");
        assert!(
            text.contains("O = system:nodes, CN = system:node:n1"),
            "{text}"
        );
        let ends = certificate_end(signed.as_bytes()).unwrap();
        assert_eq!(ends.as_second(), now.as_second() + 3600);
    }
}

#[test]
fn a_certificate_does_not_outlive_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let authority = Authority::create("ca", now).unwrap();
    let pem = request(dir.path(), P256, NODE, &[]);
    let request = CertificateRequest::from_pem(&pem).unwrap();
    let signed = authority.sign(
        &request,
        &[RequestedUsage::ClientAuth],
        Duration::from_secs(100 * 365 * 24 * 3600),
        b"1",
        now,
    );
    let ends = certificate_end(signed.unwrap().as_bytes());
    assert_eq!(ends, certificate_end(authority.certificate().as_bytes()));
}

#[test]
fn a_request_for_an_authority_gets_none() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let more = [
        "-addext",
        "basicConstraints=critical,CA:TRUE",
        "-addext",
        "keyUsage=keyCertSign",
    ];
    let pem = request(dir, P256, NODE, &more);
    let request = CertificateRequest::from_pem(&pem).unwrap();
    let now = Timestamp::now();
    let authority = Authority::create("ca", now).unwrap();
    let usages = [RequestedUsage::ClientAuth];
    let signed = authority.sign(&request, &usages, HOUR, b"1", now).unwrap();
    fs::write(dir.join("crt.pem"), signed).unwrap();
    let text = openssl(dir, &["x509", "-in", "crt.pem", "-noout", "-text"]);
    assert!(
        text.contains("CA:FALSE") && !text.contains("Certificate Sign"),
        "{text}"
    );
}

#[test]
fn refuses_changed_and_ambiguous_requests() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let pem = request(dir, P256, NODE, &[]);
    let der = dir.join("csr.der");
    openssl(
        dir,
        &[
            "req", "-in", "csr.pem", "-outform", "DER", "-out", "csr.der",
        ],
    );
    let mut bytes = fs::read(&der).unwrap();
    let place = bytes.windows(2).position(|two| two == b"n1").unwrap();
    bytes[place + 1] = b'2';
    fs::write(&der, &bytes).unwrap();
    openssl(
        dir,
        &[
            "req",
            "-inform",
            "DER",
            "-in",
            "csr.der",
            "-out",
            "changed.pem",
        ],
    );
    let changed = fs::read(dir.join("changed.pem")).unwrap();
    let error = CertificateRequest::from_pem(&changed)
        .unwrap_err()
        .to_string();
    assert!(error.contains("ignature"), "{error}");
    let two = request(dir, P256, "/O=system:masters/O=dev/CN=ada", &[]);
    let error = CertificateRequest::from_pem(&two).unwrap_err().to_string();
    assert!(error.contains("an attribute more than once"), "{error}");
    let text = String::from_utf8(pem).unwrap();
    for other in [
        String::new(),
        text.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        text[..100].to_owned(),
    ] {
        CertificateRequest::from_pem(other.as_bytes()).unwrap_err();
    }
}
