use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::*;
use crate::{BoundReference, KubernetesClaims};

const NOW: i64 = 1_790_000_000;
const HOUR: Duration = Duration::from_secs(3600);
const POLICY: KeyPolicy = KeyPolicy {
    rotation: HOUR,
    longest_token: HOUR,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn ring() -> KeyRing {
    KeyRing::new(POLICY, Vec::new()).with(at(NOW), SigningKey::generate().unwrap())
}

fn claims() -> Claims {
    let reference = |name: &str, uid: &str| BoundReference {
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    Claims {
        aud: vec!["api".to_owned(), "vault".to_owned()],
        exp: NOW + 600,
        iat: NOW,
        iss: "https://here".to_owned(),
        jti: "j".to_owned(),
        kubernetes: KubernetesClaims {
            namespace: "n".to_owned(),
            node: None,
            pod: Some(reference("p", "u2")),
            serviceaccount: reference("a", "u1"),
            warnafter: None,
        },
        nbf: NOW,
        sub: "system:serviceaccount:n:a".to_owned(),
    }
}

fn verified(ring: &KeyRing, token: &str, now: i64) -> Result<Claims, TokenRefusal> {
    let audiences = ["other".to_owned(), "api".to_owned()];
    let expected = TokenExpectation {
        issuer: "https://here",
        audiences: &audiences,
        now,
    };
    ring.verify(token, &expected)
}

/// A token with this header and these claims, signed by the ring's newest key.
fn forged(ring: &KeyRing, header: &Value, claims: &Value) -> String {
    let part = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let (_, key) = ring.keys.last().unwrap();
    crate::provider::install();
    let signature = jsonwebtoken::crypto::sign(
        message.as_bytes(),
        &key.encoding(),
        jsonwebtoken::Algorithm::ES256,
    );
    format!("{message}.{}", signature.unwrap())
}

#[test]
fn a_token_is_verified_until_it_expires() {
    let ring = ring();
    let token = ring.sign(&claims()).unwrap();
    assert!(token::looks_like_token(&token));
    for now in [NOW, NOW - 60, NOW + 599] {
        assert_eq!(verified(&ring, &token, now), Ok(claims()), "{now}");
    }
    let at = |now| verified(&ring, &token, now);
    assert_eq!(at(NOW + 600), Err(TokenRefusal::Expired));
    assert_eq!(at(NOW - 61), Err(TokenRefusal::NotYetValid));
    assert_eq!(at(i64::MAX), Err(TokenRefusal::Expired));
    assert_eq!(at(i64::MIN), Err(TokenRefusal::Expired));
}

#[test]
fn the_claims_must_be_exactly_those_expected() {
    let ring = ring();
    let refusal = |change: fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        verified(&ring, &ring.sign(&claims).unwrap(), NOW).unwrap_err()
    };
    use TokenRefusal as R;
    assert_eq!(refusal(|c| c.iss = "https://here/".into()), R::Issuer);
    assert_eq!(refusal(|c| c.iss = "https://other".into()), R::Issuer);
    assert_eq!(refusal(|c| c.aud = vec!["vault".into()]), R::Audience);
    assert_eq!(refusal(|c| c.aud = vec![]), R::Audience);
    assert_eq!(refusal(|c| c.nbf = NOW + 61), R::NotYetValid);
    assert_eq!(refusal(|c| c.iat = NOW + 61), R::NotYetValid);
    assert_eq!(refusal(|c| c.exp = NOW), R::Expired);
    assert_eq!(refusal(|c| c.exp = i64::MIN), R::Expired);
    assert_eq!(refusal(|c| c.sub = "system:admin".into()), R::Claims);
    assert_eq!(refusal(|c| c.jti = String::new()), R::Claims);
    let uid = |c: &mut Claims| c.kubernetes.serviceaccount.uid = String::new();
    assert_eq!(refusal(uid), R::Claims);
}

#[test]
fn claims_of_other_types_or_unknown_ones_are_refused() {
    let ring = ring();
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": ring.keys[0].1.id()});
    let good = serde_json::to_value(claims()).unwrap();
    assert_eq!(
        verified(&ring, &forged(&ring, &header, &good), NOW),
        Ok(claims())
    );
    for (pointer, value) in [
        ("/iss", json!(["https://here"])),
        ("/aud", json!("api")),
        ("/exp", json!("never")),
        ("/exp", json!(1e300)),
        ("/exp", Value::Null),
        ("/nbf", json!(u64::MAX)),
        ("/kubernetes.io", json!({})),
        ("/kubernetes.io/pod", json!({"name": "p", "more": 1})),
        ("/kubernetes.io/secret", json!({"name": "s"})),
        ("/scope", json!("all")),
    ] {
        let mut bad = good.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[field] = value;
        let refused = verified(&ring, &forged(&ring, &header, &bad), NOW);
        assert_eq!(refused, Err(TokenRefusal::Claims), "{pointer}");
    }
}

#[test]
fn the_header_must_be_exactly_that_of_a_token() {
    let ring = ring();
    let id = ring.keys[0].1.id();
    let claims = serde_json::to_value(claims()).unwrap();
    for header in [
        json!({"alg": "none", "typ": "JWT", "kid": id}),
        json!({"alg": "HS256", "typ": "JWT", "kid": id}),
        json!({"alg": "ES384", "typ": "JWT", "kid": id}),
        json!({"alg": "es256", "typ": "JWT", "kid": id}),
        json!({"alg": ["ES256"], "typ": "JWT", "kid": id}),
        json!({"typ": "JWT", "kid": id}),
        json!({"alg": "ES256", "kid": id}),
        json!({"alg": "ES256", "typ": "at+jwt", "kid": id}),
        json!({"alg": "ES256", "typ": "JWT"}),
        json!({"alg": "ES256", "typ": "JWT", "kid": id, "crit": ["exp"]}),
        json!({"alg": "ES256", "typ": "JWT", "kid": id, "crit": []}),
        json!({"alg": "ES256", "typ": "JWT", "kid": id, "jku": "https://x"}),
        json!({"alg": "ES256", "typ": "JWT", "kid": id, "b64": false}),
        json!({"alg": "ES256", "typ": "JWT", "kid": id, "jwk": ring.keys[0].1.jwk()}),
        json!([]),
    ] {
        let refused = verified(&ring, &forged(&ring, &header, &claims), NOW);
        // A header without `kid` differs only in that.
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, TokenRefusal::Header | TokenRefusal::UnknownKey),
            "{header}: {refused:?}"
        );
    }
}

#[test]
fn a_changed_token_is_refused() {
    let ring = ring();
    let token = ring.sign(&claims()).unwrap();
    let mut changed = 0;
    for index in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
        let other = String::from_utf8(bytes).unwrap();
        assert!(verified(&ring, &other, NOW).is_err(), "{index}");
        changed += 1;
    }
    assert!(changed > 300);
    let (message, signature) = token.rsplit_once('.').unwrap();
    for other in [
        message.to_owned(),
        format!("{message}."),
        format!("{token}="),
        format!("{token}."),
        format!("{token}A"),
        format!(".{token}"),
        format!(" {token}"),
        token.to_uppercase(),
        format!("{message}.{}", &signature[..43]),
        format!("{message}.{}", "A".repeat(86)),
        String::new(),
        "..".to_owned(),
    ] {
        assert!(verified(&ring, &other, NOW).is_err(), "{other}");
    }
    let long = format!("{token}{}", "A".repeat(MAX));
    assert_eq!(verified(&ring, &long, NOW), Err(TokenRefusal::TooLong));
}

const MAX: usize = crate::MAX_TOKEN_BYTES;

#[test]
fn keys_verify_until_the_last_token_of_theirs_has_expired() {
    let first = ring();
    let mut old = claims();
    old.exp = NOW + 100_000;
    let token = first.sign(&old).unwrap();
    assert_eq!(first.plan(at(NOW + 3599)), KeyRingPlan::default());
    let rotates = KeyRingPlan {
        rotates: true,
        retired: vec![],
    };
    assert_eq!(first.plan(at(NOW + 3600)), rotates);
    let both = first.with(at(NOW + 3600), SigningKey::generate().unwrap());
    assert_eq!(both.plan(at(NOW + 3600)), KeyRingPlan::default());
    let fresh = both.sign(&old).unwrap();
    assert_eq!(
        verified(&first, &fresh, NOW + 3600),
        Err(TokenRefusal::UnknownKey)
    );
    assert!(verified(&both, &token, NOW + 7199).is_ok());
    assert_eq!(both.public_keys(at(NOW + 7199)).len(), 2);
    // Retired, even before the plan is carried out.
    assert_eq!(
        verified(&both, &token, NOW + 7200),
        Err(TokenRefusal::UnknownKey)
    );
    assert!(verified(&both, &fresh, NOW + 7200).is_ok());
    assert_eq!(both.public_keys(at(NOW + 7200)).len(), 1);
    let plan = both.plan(at(NOW + 7200));
    assert_eq!(plan.retired, [at(NOW)]);
    let left = both.without(&plan.retired);
    assert!(verified(&left, &fresh, NOW + 7200).is_ok());
    assert_eq!(left.keys.len(), 1);
}

#[test]
fn the_kid_of_another_key_does_not_help() {
    let here = ring();
    let there = ring();
    let token = there.sign(&claims()).unwrap();
    assert_eq!(verified(&here, &token, NOW), Err(TokenRefusal::UnknownKey));
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": here.keys[0].1.id()});
    let claims = serde_json::to_value(claims()).unwrap();
    let token = forged(&there, &header, &claims);
    assert_eq!(verified(&here, &token, NOW), Err(TokenRefusal::Signature));
}

#[test]
fn fixed_keys_verify_and_never_change() {
    let (earlier, later) = (
        SigningKey::generate().unwrap(),
        SigningKey::generate().unwrap(),
    );
    let before = KeyRing::fixed(vec![earlier.clone()]);
    let after = KeyRing::fixed(vec![earlier, later]);
    let of_earlier = before.sign(&claims()).unwrap();
    let of_later = after.sign(&claims()).unwrap();
    assert_eq!(verified(&after, &of_earlier, NOW), Ok(claims()));
    assert_eq!(verified(&after, &of_later, NOW), Ok(claims()));
    assert_eq!(
        verified(&before, &of_later, NOW),
        Err(TokenRefusal::UnknownKey)
    );
    assert_eq!(after.plan(at(NOW * 100)), KeyRingPlan::default());
    assert_eq!(after.public_keys(at(NOW * 100)).len(), 2);
}
