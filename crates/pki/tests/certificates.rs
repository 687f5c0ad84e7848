//! Accepted and rejected certificates, and their files.

#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command, time::Duration};

use jiff::{SignedDuration, Timestamp};
use podplane_pki::{
    Authority, CertificateTerms, Credentials, PkiDir, Renewal, Subject, Usage,
    verify::{RejectedPeer, Trust, VerifiedPeer},
};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn now() -> Timestamp {
    "2026-11-23T12:00:00Z".parse().unwrap()
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

fn client(user: &str, group: &str) -> CertificateTerms {
    CertificateTerms {
        subject: Subject::new(user, group),
        usage: Usage::Client,
        names: Vec::new(),
        lifetime: YEAR,
    }
}

fn server() -> CertificateTerms {
    let names = ["podplane-apiserver", "127.0.0.1", "::1"];
    CertificateTerms {
        usage: Usage::Server,
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        ..client("kube-apiserver", "")
    }
}

fn verify(
    authority: &Authority,
    credentials: &Credentials,
    usage: Usage,
    at: Timestamp,
) -> Result<VerifiedPeer, RejectedPeer> {
    let chain = [CertificateDer::from_pem_slice(credentials.certificate.as_bytes()).unwrap()];
    let trust = Trust::from_pem(authority.certificate()).unwrap();
    trust.verify(&chain, usage, at)
}

#[test]
fn a_certificate_proves_its_user_and_group_while_it_is_valid() {
    let authority = Authority::create("ca", now()).unwrap();
    let node = CertificateTerms {
        subject: Subject::node("n1"),
        ..client("", "")
    };
    let issued = authority.issue(&node, now()).unwrap();
    let at = |when| verify(&authority, &issued, Usage::Client, when);
    let peer = VerifiedPeer {
        user: "system:node:n1".to_owned(),
        groups: vec!["system:nodes".to_owned()],
        not_after: now() + days(365),
    };
    assert_eq!(at(now()), Ok(peer.clone()));
    // For a peer whose clock is late.
    assert_eq!(at(now() - SignedDuration::from_secs(299)), Ok(peer.clone()));
    assert_eq!(at(now() + days(364)), Ok(peer));
    for wrong in [now() - days(1), now() + days(366)] {
        assert!(matches!(at(wrong), Err(RejectedPeer::Time(_))), "{wrong}");
    }
}

#[test]
fn a_certificate_of_another_authority_of_the_same_name_is_rejected() {
    let (ours, other) = (
        Authority::create("ca", now()).unwrap(),
        Authority::create("ca", now()).unwrap(),
    );
    let forged = other
        .issue(&client("admin", "system:masters"), now())
        .unwrap();
    assert_eq!(
        verify(&ours, &forged, Usage::Client, now()),
        Err(RejectedPeer::UnknownAuthority)
    );
}

#[test]
fn a_certificate_is_for_one_side_only() {
    let authority = Authority::create("ca", now()).unwrap();
    let of_client = authority.issue(&client("u", ""), now()).unwrap();
    let of_server = authority.issue(&server(), now()).unwrap();
    assert!(verify(&authority, &of_server, Usage::Server, now()).is_ok());
    for (credentials, usage) in [(&of_client, Usage::Server), (&of_server, Usage::Client)] {
        assert_eq!(
            verify(&authority, credentials, usage, now()),
            Err(RejectedPeer::Usage)
        );
    }
}

#[test]
fn a_leaf_cannot_sign() {
    let authority = Authority::create("ca", now()).unwrap();
    let leaf = authority.issue(&client("u", ""), now()).unwrap();
    let posing = Authority::from_pem(&leaf.certificate, &leaf.key).unwrap();
    let forged = posing
        .issue(&client("admin", "system:masters"), now())
        .unwrap();
    let chain = [&forged.certificate, &leaf.certificate]
        .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap());
    let trust = Trust::from_pem(authority.certificate()).unwrap();
    assert!(trust.verify(&chain, Usage::Client, now()).is_err());
}

#[test]
fn a_user_that_is_empty_or_has_control_characters_is_rejected() {
    let authority = Authority::create("ca", now()).unwrap();
    for (user, want) in [
        ("", RejectedPeer::CommonName),
        (
            "admin\u{1b}[2J",
            RejectedPeer::Malformed("a name has a control character".to_owned()),
        ),
    ] {
        let issued = authority.issue(&client(user, ""), now()).unwrap();
        assert_eq!(
            verify(&authority, &issued, Usage::Client, now()),
            Err(want),
            "{user:?}"
        );
    }
}

#[test]
fn secrets_are_not_printed() {
    let authority = Authority::create("ca", now()).unwrap();
    let issued = authority.issue(&client("u", ""), now()).unwrap();
    assert_eq!(
        format!("{authority:?} {issued:?}"),
        "Authority(..) Credentials(..)"
    );
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_directory_keeps_what_is_good_and_renews_the_rest() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("pki");
    let open = |at| PkiDir::open(&path, "podplane", at).unwrap();
    let ensure = |terms: &CertificateTerms, at| open(at).ensure("n1", terms, at).unwrap();
    assert_eq!(ensure(&server(), now()), Renewal::Issued);
    let pem = path.join("n1.pem");
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let first = text(&pem);
    assert!(first.contains("PRIVATE KEY") && first.contains("CERTIFICATE"));
    let keys = [mode(&path), mode(&path.join("ca.key")), mode(&pem)];
    assert_eq!(keys, [0o700, 0o600, 0o600]);
    assert_eq!(mode(&path.join("ca.crt")), 0o644);

    // Two thirds of its life long.
    assert_eq!(ensure(&server(), now() + days(243)), Renewal::Kept);
    assert_eq!(text(&pem), first);
    assert_eq!(ensure(&server(), now() + days(244)), Renewal::Issued);
    assert_ne!(text(&pem), first);

    // Other terms.
    let fewer = CertificateTerms {
        names: vec!["127.0.0.1".parse().unwrap()],
        ..server()
    };
    assert_eq!(ensure(&fewer, now()), Renewal::Issued);
    assert_eq!(ensure(&client("u", "g"), now()), Renewal::Issued);
    assert_eq!(ensure(&client("u", "g"), now()), Renewal::Kept);
    assert_eq!(ensure(&client("u", ""), now()), Renewal::Issued);
    assert_eq!(ensure(&client("v", ""), now()), Renewal::Issued);

    // Half a file, as of another program.
    fs::write(&pem, &first[..first.len() / 2]).unwrap();
    assert_eq!(ensure(&server(), now()), Renewal::Issued);
    let files = fs::read_dir(&path).unwrap().count();
    assert_eq!(files, 3, "no temporary file is left");
}

#[test]
fn a_lost_certificate_of_the_authority_is_made_again_from_its_key() {
    let parent = tempfile::tempdir().unwrap();
    let open = || PkiDir::open(parent.path(), "podplane", now());
    let ensure = |dir: &PkiDir| dir.ensure("n1", &server(), now()).unwrap();
    assert_eq!(ensure(&open().unwrap()), Renewal::Issued);
    fs::remove_file(parent.path().join("ca.crt")).unwrap();
    assert_eq!(ensure(&open().unwrap()), Renewal::Kept);
    fs::remove_file(parent.path().join("ca.key")).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(
        error.contains("ca.key") && error.contains("restore it"),
        "{error}"
    );
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let open = || PkiDir::open(parent.path(), "podplane", now());
    open().unwrap();
    let key = parent.path().join("ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = open().unwrap_err().to_string();
    assert!(
        error.contains("0640") && error.contains("chmod 600"),
        "{error}"
    );
}

#[test]
fn a_name_that_leaves_the_directory_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let dir = PkiDir::open(parent.path(), "podplane", now()).unwrap();
    for name in ["", ".", "..", "../n1", "a/b", ".hidden"] {
        assert!(dir.ensure(name, &server(), now()).is_err(), "{name:?}");
    }
}

/// The names as another program reads them.
#[test]
fn openssl_accepts_the_chain_and_reads_the_names() {
    let parent = tempfile::tempdir().unwrap();
    let today = Timestamp::now();
    let dir = PkiDir::open(parent.path(), "podplane", today).unwrap();
    dir.ensure("server", &server(), today).unwrap();
    dir.ensure("node", &client("system:node:n1", "system:nodes"), today)
        .unwrap();
    let openssl = |args: &[&str]| {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(args).current_dir(parent.path()).output();
        let output = output.expect("install openssl");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for (file, purpose) in [("server.pem", "sslserver"), ("node.pem", "sslclient")] {
        openssl(&[
            "verify",
            "-x509_strict",
            "-CAfile",
            "ca.crt",
            "-purpose",
            purpose,
            file,
        ]);
    }
    let names = openssl(&[
        "x509",
        "-noout",
        "-subject",
        "-ext",
        "subjectAltName",
        "-in",
        "server.pem",
    ]);
    assert!(
        names.contains("CN = kube-apiserver") || names.contains("CN=kube-apiserver"),
        "{names}"
    );
    assert!(
        names.contains("DNS:podplane-apiserver") && names.contains("IP Address:127.0.0.1"),
        "{names}"
    );
    let node = openssl(&["x509", "-noout", "-text", "-in", "node.pem"]);
    for want in [
        "O = system:nodes",
        "CN = system:node:n1",
        "P-256",
        "TLS Web Client Authentication",
    ] {
        let bare = want.replace(" = ", "=");
        assert!(
            node.contains(want) || node.contains(&bare),
            "{want}: {node}"
        );
    }
}
