//! Tokens and keys, judged by OpenSSL.

#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path, process::Command, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use podplane_tokens::{
    BoundReference, Claims, KeyDir, KeyPolicy, KeyRing, KubernetesClaims, TokenExpectation,
};
use serde_json::{Value, json};

const NOW: i64 = 1_790_000_000;
const POLICY: KeyPolicy = KeyPolicy {
    rotation: Duration::from_secs(3600),
    longest_token: Duration::from_secs(3600),
};

fn openssl(dir: &Path, arguments: &str) -> Vec<u8> {
    let answer = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output()
        .expect("openssl is installed: apt install openssl");
    assert!(
        answer.status.success(),
        "openssl {arguments}: {}",
        String::from_utf8_lossy(&answer.stderr)
    );
    answer.stdout
}

/// A directory with the ring's key as `key.pem`, and the ring.
fn keys() -> (tempfile::TempDir, KeyRing) {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    let now = Timestamp::from_second(NOW).unwrap();
    let ring = KeyDir::at(keys.clone()).open(POLICY, now).unwrap();
    let file = fs::read_dir(&keys).unwrap().next().unwrap().unwrap().path();
    fs::rename(file, dir.path().join("key.pem")).unwrap();
    (dir, ring)
}

fn claims() -> Claims {
    Claims {
        aud: vec!["api".to_owned()],
        exp: NOW + 600,
        iat: NOW,
        iss: "https://here".to_owned(),
        jti: "j".to_owned(),
        kubernetes: KubernetesClaims {
            namespace: "n".to_owned(),
            node: None,
            pod: None,
            serviceaccount: BoundReference {
                name: "a".to_owned(),
                uid: "u".to_owned(),
            },
            warnafter: None,
        },
        nbf: NOW,
        sub: "system:serviceaccount:n:a".to_owned(),
    }
}

fn part(token: &str, index: usize) -> Vec<u8> {
    let part = token.split('.').nth(index).unwrap();
    BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()
}

/// A signature of two numbers (RFC 7518 §3.4) as ASN.1, which OpenSSL reads.
fn to_der(raw: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| {
        let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(31);
        let mut digits = bytes[first..].to_vec();
        if digits[0] >= 0x80 {
            digits.insert(0, 0);
        }
        let length = u8::try_from(digits.len()).unwrap();
        [vec![0x02, length], digits].concat()
    };
    let both = [number(&raw[..32]), number(&raw[32..])].concat();
    [vec![0x30, u8::try_from(both.len()).unwrap()], both].concat()
}

fn from_der(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut raw = Vec::new();
    for _ in 0..2 {
        let (number, after) = rest[2..].split_at(usize::from(rest[1]));
        let digits = number.strip_prefix(&[0]).unwrap_or(number);
        raw.extend(vec![0; 32 - digits.len()]);
        raw.extend_from_slice(digits);
        rest = after;
    }
    raw
}

#[test]
fn openssl_verifies_tokens_and_knows_their_key() {
    let (dir, ring) = keys();
    let dir = dir.path();
    openssl(dir, "pkey -in key.pem -pubout -out public.pem");
    let der = openssl(dir, "pkey -pubin -in public.pem -outform DER");
    fs::write(dir.join("public.der"), der).unwrap();
    let digest = openssl(dir, "dgst -sha256 -binary public.der");
    let id = BASE64_URL_SAFE_NO_PAD.encode(digest);
    // With numbers of all lengths.
    for _ in 0..50 {
        let token = ring.sign(&claims()).unwrap();
        let header: Value = serde_json::from_slice(&part(&token, 0)).unwrap();
        assert_eq!(header, json!({"alg": "ES256", "kid": id, "typ": "JWT"}));
        let message = token.rsplit_once('.').unwrap().0;
        fs::write(dir.join("message"), message).unwrap();
        fs::write(dir.join("signature"), to_der(&part(&token, 2))).unwrap();
        let verify = "dgst -sha256 -verify public.pem -signature signature message";
        assert_eq!(openssl(dir, verify), b"Verified OK\n");
    }
}

#[test]
fn a_token_of_openssl_is_accepted_if_the_key_is_the_one() {
    let (dir, ring) = keys();
    let dir = dir.path();
    let ours = ring.sign(&claims()).unwrap();
    let (message, _) = ours.rsplit_once('.').unwrap();
    fs::write(dir.join("message"), message).unwrap();
    openssl(
        dir,
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out other.pem",
    );
    let audiences = ["api".to_owned()];
    let expected = TokenExpectation {
        issuer: "https://here",
        audiences: &audiences,
        now: NOW,
    };
    let signed = |key: &str| {
        let der = openssl(dir, &format!("dgst -sha256 -sign {key} message"));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(from_der(&der));
        ring.verify(&format!("{message}.{signature}"), &expected)
    };
    assert_eq!(signed("key.pem"), Ok(claims()));
    assert!(signed("other.pem").is_err());
}

/// The attack on verifiers that let the token choose the algorithm: its secret is the public key.
#[test]
fn the_public_key_is_no_secret_of_hmac() {
    let (dir, ring) = keys();
    let dir = dir.path();
    openssl(dir, "pkey -in key.pem -pubout -out public.pem");
    let ours = ring.sign(&claims()).unwrap();
    let header: Value = serde_json::from_slice(&part(&ours, 0)).unwrap();
    let payload = ours.split('.').nth(1).unwrap();
    let audiences = ["api".to_owned()];
    let expected = TokenExpectation {
        issuer: "https://here",
        audiences: &audiences,
        now: NOW,
    };
    for algorithm in ["HS256", "none"] {
        let mut header = header.clone();
        header["alg"] = algorithm.into();
        let header = BASE64_URL_SAFE_NO_PAD.encode(header.to_string());
        let message = format!("{header}.{payload}");
        fs::write(dir.join("message"), &message).unwrap();
        let secret: String = fs::read(dir.join("public.pem"))
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mac = openssl(
            dir,
            &format!("dgst -sha256 -mac HMAC -macopt hexkey:{secret} -binary message"),
        );
        let signature = match algorithm {
            "none" => String::new(),
            _ => BASE64_URL_SAFE_NO_PAD.encode(mac),
        };
        let forged = format!("{message}.{signature}");
        assert!(ring.verify(&forged, &expected).is_err(), "{algorithm}");
    }
}
