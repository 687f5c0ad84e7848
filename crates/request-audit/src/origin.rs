//! The origin of a request, as its headers and its connection tell it.

use std::net::IpAddr;

use http::{HeaderMap, header};

/// The header with the id of a request: the client's own in the request, and the one in the log in
/// the answer.
pub const AUDIT_ID_HEADER: &str = "audit-id";

/// The longest id that is taken from a client, in bytes.
const MAX_AUDIT_ID: usize = 64;
/// The longest user agent that is written, in bytes. Kubernetes has the same.
const MAX_USER_AGENT: usize = 1024;
/// The number of addresses that are taken from a client.
const MAX_FORWARDED: usize = 32;

/// The id that a client gives to its request: up to 64 letters, digits, `-`, `_` or `.`. Any other
/// is as good as none.
pub fn audit_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(AUDIT_ID_HEADER)?.to_str().ok()?;
    let is_valid = (1..=MAX_AUDIT_ID).contains(&id.len())
        && id
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'));
    is_valid.then_some(id)
}

/// The user agent, shortened to 1,024 bytes.
pub fn user_agent(headers: &HeaderMap) -> String {
    let Some(value) = headers.get(header::USER_AGENT) else {
        return String::new();
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    match text.len() > MAX_USER_AGENT {
        false => text.into_owned(),
        true => {
            let end = text.floor_char_boundary(MAX_USER_AGENT);
            format!("{}...TRUNCATED", &text[..end])
        }
    }
}

/// The addresses that a request came by: those of `X-Forwarded-For`, `X-Real-Ip`, and the
/// connection's. Only the last is not the client's word; a unix socket has none.
pub fn source_ips(headers: &HeaderMap, connection: Option<IpAddr>) -> Vec<IpAddr> {
    let text = |name: &str| {
        let value = headers.get(name);
        value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let forwarded = text("x-forwarded-for").split(',').take(MAX_FORWARDED);
    let mut addresses: Vec<IpAddr> = forwarded
        .filter_map(|address| address.trim().parse().ok())
        .collect();
    let real = text("x-real-ip").trim().parse().ok();
    addresses.extend(real.filter(|real| !addresses.contains(real)));
    let connection = connection.map(|address| address.to_canonical());
    addresses.extend(connection.filter(|address| addresses.last() != Some(address)));
    addresses
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (http::HeaderName::from_static(name), value)
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn an_id_of_a_client_is_short_and_plain() {
        let id = |text: &str| audit_id(&headers(&[("audit-id", text)])).map(str::to_owned);
        assert_eq!(id("a-1.B_2").as_deref(), Some("a-1.B_2"));
        for text in ["", "a b", "a\"b", "é", &"x".repeat(65)] {
            assert_eq!(id(text), None, "{text}");
        }
        assert_eq!(audit_id(&HeaderMap::new()), None);
    }

    #[test]
    fn long_user_agents_are_shortened() {
        assert_eq!(
            user_agent(&headers(&[("user-agent", "kubectl/v1")])),
            "kubectl/v1"
        );
        let long = format!("a{}", "é".repeat(600));
        let shown = user_agent(&headers(&[("user-agent", &long)]));
        assert!(shown.ends_with("...TRUNCATED") && shown.len() < 1100);
    }

    #[test]
    fn addresses_are_in_the_order_of_the_reference() {
        let connection = Some("10.0.0.9".parse().unwrap());
        let of = |pairs: &[(&'static str, &str)]| {
            let addresses = source_ips(&headers(pairs), connection);
            let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
            texts.join(" ")
        };
        assert_eq!(of(&[]), "10.0.0.9");
        let forwarded = ("x-forwarded-for", "1.1.1.1, junk, 2.2.2.2");
        assert_eq!(of(&[forwarded]), "1.1.1.1 2.2.2.2 10.0.0.9");
        assert_eq!(
            of(&[forwarded, ("x-real-ip", "1.1.1.1")]),
            "1.1.1.1 2.2.2.2 10.0.0.9"
        );
        assert_eq!(of(&[("x-real-ip", "3.3.3.3")]), "3.3.3.3 10.0.0.9");
        assert_eq!(of(&[("x-forwarded-for", "10.0.0.9")]), "10.0.0.9");
        let mapped = source_ips(&HeaderMap::new(), Some("::ffff:10.0.0.9".parse().unwrap()));
        assert_eq!(mapped, ["10.0.0.9".parse::<IpAddr>().unwrap()]);
    }
}
