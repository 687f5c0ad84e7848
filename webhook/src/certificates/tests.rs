//! The certificate in the Secret: what is served, renewed and trusted.

use clap::Parser as _;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn hosts(names: &[&str]) -> Vec<ServerName> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn secret(certificate: &StoredCertificate) -> Secret {
    Secret {
        data: Some(certificate.data()),
        ..Secret::default()
    }
}

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_life_and_for_other_names() {
    let now = clock::timestamp();
    let own = hosts(&["webhook.ns.svc", "10.0.0.1"]);
    let stored = StoredCertificate::issue(&own, None, now).unwrap();
    for (age, names, usable, fresh) in [
        (0, &own[..], true, true),
        (240, &own[..1], true, true),
        (246, &own, true, false),
        (364, &own, true, false),
        (366, &own, false, false),
        (0, &hosts(&["webhook.ns.svc", "other.ns.svc"]), true, false),
    ] {
        let then = now + DAY * age;
        assert_eq!(stored.meets(Demand::Usable, names, then), usable, "{age}");
        assert_eq!(stored.meets(Demand::Fresh, names, then), fresh, "{age}");
    }
    let broken = StoredCertificate {
        certificate: "x".to_owned(),
        ..stored
    };
    assert!(!broken.meets(Demand::Usable, &own, now));
}

#[test]
fn a_renewed_certificate_is_trusted_beside_the_former_one() {
    let now = clock::timestamp();
    let own = hosts(&["webhook.ns.svc"]);
    let first = StoredCertificate::issue(&own, None, now).unwrap();
    assert_eq!(first.bundle(), first.authority);
    let previous = Some(first.authority.clone());
    let second = StoredCertificate::issue(&own, previous, now).unwrap();
    assert_ne!(second.authority, first.authority);
    assert_eq!(
        second.bundle(),
        format!("{}{}", second.authority, first.authority)
    );
    for stored in [first, second] {
        assert!(StoredCertificate::of(&secret(&stored)) == Some(stored));
    }
}

#[test]
fn a_secret_without_a_part_has_no_certificate() {
    let own = hosts(&["webhook.ns.svc"]);
    let stored = StoredCertificate::issue(&own, None, clock::timestamp()).unwrap();
    for key in [CERTIFICATE, KEY, AUTHORITY] {
        let mut secret = secret(&stored);
        secret.data.as_mut().unwrap().remove(key);
        assert!(StoredCertificate::of(&secret).is_none(), "{key}");
        let no_text = ByteString(vec![0xff]);
        secret.data.as_mut().unwrap().insert(key.into(), no_text);
        assert!(StoredCertificate::of(&secret).is_none(), "{key}");
    }
    assert!(StoredCertificate::of(&Secret::default()).is_none());
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    certificates: CertificateFlags,
    #[command(flatten)]
    tls: TlsFlags,
}

#[test]
fn a_managed_certificate_needs_a_directory_and_names() {
    for (line, is_valid) in [
        ("", true),
        (
            "--certificate-secret=a/b --certificate-dir=d --certificate-hosts=h,10.0.0.1",
            true,
        ),
        ("--certificate-secret=a/b --certificate-dir=d", false),
        ("--certificate-secret=a/b --certificate-hosts=h", false),
        ("--certificate-dir=d", false),
        (
            "--certificate-secret=b --certificate-dir=d --certificate-hosts=h",
            false,
        ),
        (
            "--certificate-secret=a/b --certificate-dir=d --certificate-hosts=h --tls-cert-file=f --tls-private-key-file=f",
            false,
        ),
    ] {
        let words = std::iter::once("line").chain(line.split_whitespace());
        assert_eq!(Line::try_parse_from(words).is_ok(), is_valid, "{line}");
    }
}
