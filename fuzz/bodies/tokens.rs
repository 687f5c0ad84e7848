//! Fuzzes what a bearer token says before its signature is known: nothing but the token that was
//! issued may be accepted.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use podplane_tokens::{
    BoundReference, Claims, KeyDir, KeyPolicy, KeyRing, KubernetesClaims, TokenExpectation,
};

const NOW: i64 = 1_790_000_000;

/// A ring, and a token of it.
static ISSUED: LazyLock<(KeyRing, String)> = LazyLock::new(|| {
    let policy = KeyPolicy {
        rotation: std::time::Duration::from_secs(3600),
        longest_token: std::time::Duration::from_secs(3600),
    };
    let now = jiff::Timestamp::from_second(NOW).expect("a time");
    let ring = KeyDir::in_memory().open(policy, now).expect("a key");
    let token = ring.sign(&claims()).expect("a token");
    (ring, token)
});

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

pub(crate) fn run(data: &[u8]) {
    let (ring, issued) = &*ISSUED;
    let audiences = ["api".to_owned()];
    let expected = TokenExpectation {
        issuer: "https://here",
        audiences: &audiences,
        now: NOW,
    };
    let text = String::from_utf8_lossy(data);
    let encoded = BASE64_URL_SAFE_NO_PAD.encode(data);
    let parts: Vec<&str> = issued.split('.').collect();
    let mut forged = vec![text.to_string(), encoded.clone(), format!("{text}{issued}")];
    for other in [&*text, &encoded] {
        for index in 0..parts.len() {
            let mut parts = parts.clone();
            parts[index] = other;
            forged.push(parts.join("."));
        }
    }
    for token in &forged {
        podplane_tokens::looks_like_token(token);
        if ring.verify(token, &expected).is_ok() {
            assert_eq!(token, issued, "only what was issued is accepted");
        }
    }
}
