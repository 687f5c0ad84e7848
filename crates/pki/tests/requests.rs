//! Requests that OpenSSL made, and their certificates as OpenSSL judges them.

#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process::Command, time::Duration};

use jiff::{SignedDuration, Timestamp};
use podplane_pki::{
    Authority, CertificateRequest, RequestedCertificate, RequestedName, RequestedState,
    RequestedUsage, Subject, Usage, certificate_end, verify::Trust,
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

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
fn the_owner_is_in_all_groups_of_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for authority in [P256, RSA] {
        authority_of_openssl(dir, "ca", authority);
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        let authority = Authority::from_pem(&read("ca.crt"), &read("ca.key")).unwrap();
        let trust = Trust::from_pem(authority.certificate()).unwrap();
        for (subject, groups, shown) in [
            (
                "/O=dev/O=ops/CN=ada",
                &["dev", "ops"][..],
                "O = dev, O = ops, CN = ada",
            ),
            // Go's programs write all organizations into one part of the name, as a set.
            (
                "/O=dev+O=ops/CN=ada",
                &["dev", "ops"],
                "O = dev + O = ops, CN = ada",
            ),
            ("/CN=ada", &[], "CN = ada"),
            (
                "/C=DE/O=dev/OU=a/OU=b/CN=ada",
                &["dev"],
                "C = DE, O = dev, OU = a, OU = b, CN = ada",
            ),
        ] {
            let request = CertificateRequest::from_pem(&request(dir, P256, subject, &[])).unwrap();
            assert_eq!(request.organizations, groups, "{subject}");
            let now = Timestamp::now();
            let usages = [RequestedUsage::ClientAuth];
            let signed = authority.sign(&request, &usages, HOUR, b"1", now).unwrap();
            fs::write(dir.join("crt.pem"), &signed).unwrap();
            let verify = ["verify", "-x509_strict", "-CAfile", "ca.crt", "crt.pem"];
            assert_eq!(openssl(dir, &verify), "crt.pem: OK\n", "{subject}");
            let subject = openssl(dir, &["x509", "-in", "crt.pem", "-noout", "-subject"]);
            assert_eq!(subject, format!("subject={shown}\n"));
            let der = CertificateDer::from_pem_slice(signed.as_bytes()).unwrap();
            let owner = trust.verify(&[der], Usage::Client, now).unwrap();
            assert_eq!(owner.user, "ada");
            assert_eq!(owner.groups, groups);
        }
    }
}

#[test]
fn only_the_names_of_a_request_count() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let names = "subjectAltName=DNS:n1,otherName:1.2.3.4;UTF8:a,RID:1.2.3,URI:https://a";
    let more = [
        "-addext",
        names,
        "-addext",
        "subjectKeyIdentifier=hash",
        "-addext",
        "certificatePolicies=1.2.3",
    ];
    let request = CertificateRequest::from_pem(&request(dir, P256, NODE, &more)).unwrap();
    let dns = RequestedName::Dns("n1".to_owned());
    let uri = RequestedName::Uri("https://a".to_owned());
    assert_eq!(request.names(), [dns, uri]);
    let now = Timestamp::now();
    let authority = Authority::create("ca", now).unwrap();
    let usages = [RequestedUsage::ServerAuth];
    let signed = authority.sign(&request, &usages, HOUR, b"1", now).unwrap();
    fs::write(dir.join("crt.pem"), signed).unwrap();
    let text = openssl(dir, &["x509", "-in", "crt.pem", "-noout", "-text"]);
    assert!(text.contains("DNS:n1, URI:https://a\n"), "{text}");
    assert!(!text.contains("Policies"), "{text}");
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
    let two = request(dir, P256, "/CN=system:node:n1/CN=ada", &[]);
    let error = CertificateRequest::from_pem(&two).unwrap_err().to_string();
    assert!(error.contains("more than one common name"), "{error}");
    let text = String::from_utf8(pem).unwrap();
    for other in [
        String::new(),
        text.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        text[..100].to_owned(),
    ] {
        CertificateRequest::from_pem(other.as_bytes()).unwrap_err();
    }
}

/// An authority of OpenSSL's, and its answer to the request in `csr.pem`.
fn authority_of_openssl(dir: &Path, name: &str, key: &[&str]) {
    let subject = format!("/CN={name}");
    let (file, certificate) = (format!("{name}.key"), format!("{name}.crt"));
    let mut arguments = vec!["req", "-x509", "-nodes", "-days", "30"];
    arguments.extend(["-subj", &subject, "-keyout", &file, "-out", &certificate]);
    arguments.extend(["-addext", "keyUsage=critical,keyCertSign"]);
    arguments.extend(key);
    openssl(dir, &arguments);
}

fn signed_by_openssl(dir: &Path, authority: &str, request: &str) -> String {
    fs::write(dir.join("csr.pem"), request).unwrap();
    fs::write(dir.join("ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    let (key, certificate) = (format!("{authority}.key"), format!("{authority}.crt"));
    let mut arguments = vec!["x509", "-req", "-in", "csr.pem", "-CA", &certificate];
    arguments.extend(["-CAkey", &key, "-CAcreateserial", "-days", "3"]);
    arguments.extend(["-extfile", "ext"]);
    openssl(dir, &arguments)
}

#[test]
fn openssl_signs_the_request_of_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    authority_of_openssl(dir, "one", P256);
    authority_of_openssl(dir, "other", P256);
    let trust = |name: &str| {
        let text = fs::read_to_string(dir.join(format!("{name}.crt"))).unwrap();
        Trust::from_pem(&text).unwrap()
    };
    let own = RequestedCertificate::new(dir.join("pki"), "node-n1", Subject::node("n1"));
    let began = Timestamp::now();
    assert_eq!(
        own.state(&trust("one"), began).unwrap(),
        RequestedState::Missing
    );

    // The key of an open request stays, and is nobody else's to read.
    let request = own.request().unwrap();
    assert_eq!(own.request().unwrap().key_id, request.key_id);
    let mode = |name: &str| fs::metadata(dir.join("pki").join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("node-n1.key"), mode("")), (0o600, 0o700));
    let parsed = CertificateRequest::from_pem(request.request.as_bytes()).unwrap();
    assert_eq!(parsed.common_name, "system:node:n1");
    assert_eq!(parsed.organizations, ["system:nodes"]);
    assert_eq!(parsed.names(), []);
    let signed = signed_by_openssl(dir, "one", &request.request);
    let now = Timestamp::now();
    let shown = openssl(
        dir,
        &["req", "-in", "csr.pem", "-noout", "-verify", "-text"],
    );
    assert!(shown.contains("prime256v1"), "{shown}");

    // Neither an answer of a foreign authority nor one for another key or client is used.
    let foreign = own
        .accept(&request, &signed, &trust("other"), now)
        .unwrap_err();
    assert!(
        foreign.to_string().contains("unknown authority"),
        "{foreign}"
    );
    let second = RequestedCertificate::new(dir.join("second"), "node-n1", Subject::node("n1"));
    let second = second.request().unwrap();
    assert_ne!(second.key_id, request.key_id);
    let error = own
        .accept(&second, &signed, &trust("one"), now)
        .unwrap_err();
    assert!(error.to_string().contains("for another key"), "{error}");
    let n2 = RequestedCertificate::new(dir.join("pki"), "node-n2", Subject::node("n2"));
    let error = n2
        .accept(&request, &signed, &trust("one"), now)
        .unwrap_err();
    assert!(
        error.to_string().contains("that of system:node:n1"),
        "{error}"
    );
    assert_eq!(
        own.state(&trust("one"), now).unwrap(),
        RequestedState::Missing
    );

    let valid = own.accept(&request, &signed, &trust("one"), now).unwrap();
    assert_eq!(own.state(&trust("one"), now).unwrap(), valid);
    let RequestedState::Valid {
        renew_at,
        not_after,
    } = valid
    else {
        panic!("{valid:?}");
    };
    let (day, soon) = (24 * 3600, 60);
    assert!((not_after.duration_since(renew_at).as_secs() - day).abs() < soon);
    assert_eq!(mode("node-n1.pem"), 0o600);
    assert!(!dir.join("pki/node-n1.key").exists());
    let key_of = |arguments: &[&str]| openssl(dir, arguments);
    assert_eq!(
        key_of(&["x509", "-in", "pki/node-n1.pem", "-noout", "-pubkey"]),
        key_of(&["pkey", "-in", "pki/node-n1.pem", "-pubout"])
    );
    assert_ne!(
        own.request().unwrap().key_id,
        request.key_id,
        "a renewal has a new key"
    );

    // What proves nothing is reported as such.
    let late = not_after.checked_add(SignedDuration::from_secs(1)).unwrap();
    for (trust, now, why) in [
        (trust("one"), late, "expired"),
        (trust("other"), now, "unknown authority"),
    ] {
        let RequestedState::Unusable(said) = own.state(&trust, now).unwrap() else {
            panic!("{why}");
        };
        assert!(said.contains(why), "{said}");
    }
}
