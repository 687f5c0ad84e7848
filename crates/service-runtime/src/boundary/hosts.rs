//! The hosts that a request may name, and the web pages that may send one.
//!
//! Browsers send requests of any web page to any address, 127.0.0.1 included. They add the page's
//! origin (`Origin`), and the host that the page believes to talk to (`Host`). A page that resolves
//! a name of its own to our address (DNS rebinding) cannot use an IP address for that, so IP
//! addresses are safe to accept.

use std::{fmt, net::IpAddr, str::FromStr};

use tonic::codegen::http::{
    HeaderMap, Uri,
    header::{HOST, HeaderValue, ORIGIN},
    uri::Authority,
};

/// The most characters of a host in a message; no DNS name is longer.
const MAX_SHOWN: usize = 253;

/// The flag of every process that serves on TCP.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AllowedHosts {
    /// Also accept these host names in the Host and Origin headers of requests, separated by commas
    /// [default: none]
    ///
    /// This protects from web pages that rebind a DNS name. IP addresses and localhost are always
    /// accepted; unix sockets are not checked.
    #[arg(
        id = "allowed-hosts",
        long = "allowed-hosts",
        env = "PODPLANE_ALLOWED_HOSTS",
        value_name = "NAME[,NAME]",
        value_delimiter = ','
    )]
    pub names: Vec<HostName>,
}

/// A host name in lower case, without port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An invalid host name.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid host name {0:?}: want a name without scheme and port, as in apiserver or podplane.example.com"
)]
pub struct HostNameError(String);

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > MAX_SHOWN || !name.chars().all(is_part) {
            return Err(HostNameError(text.into()));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

/// The reasons to refuse a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("missing Host: the request does not say which host it is for")]
    NoHost,
    #[error(
        "host {0:?} is not allowed: use an IP address or localhost, or start the server with --allowed-hosts and the host's name"
    )]
    Host(String),
    #[error(
        "requests of web pages from {0:?} are not allowed: start the server with --allowed-hosts and the page's host name to allow them"
    )]
    Origin(String),
}

impl Refusal {
    /// The label of the metric.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoHost | Self::Host(_) => "host",
            Self::Origin(_) => "origin",
        }
    }
}

impl AllowedHosts {
    /// Checks a request: every host that it names must be allowed, and it must not come from
    /// another site's page.
    pub(crate) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        // `:authority` of HTTP/2, or the absolute form of HTTP/1.
        let mut target = uri.authority().cloned();
        if let Some(authority) = &target {
            self.judge_host(authority)?;
        }
        for host in headers.get_all(HOST) {
            let refuse = || Refusal::Host(shown(host));
            let host: Authority = host.as_bytes().try_into().map_err(|_| refuse())?;
            self.judge_host(&host)?;
            target.get_or_insert(host);
        }
        let target = target.ok_or(Refusal::NoHost)?;
        for origin in headers.get_all(ORIGIN) {
            if !self.is_ours(origin, &target) {
                return Err(Refusal::Origin(shown(origin)));
            }
        }
        Ok(())
    }

    fn judge_host(&self, authority: &Authority) -> Result<(), Refusal> {
        let host = authority.host();
        // None of our clients sends user information.
        let is_plain = !authority.as_str().contains('@');
        if is_plain && (is_address(host) || is_loopback_name(host) || self.names(host)) {
            return Ok(());
        }
        Err(Refusal::Host(cut(authority.as_str())))
    }

    fn names(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.names
            .iter()
            .any(|name| name.0.eq_ignore_ascii_case(host))
    }

    /// Returns whether the page is of the host that the request is for, or of an allowed one.
    fn is_ours(&self, origin: &HeaderValue, target: &Authority) -> bool {
        let Ok(uri) = Uri::try_from(origin.as_bytes()) else {
            return false;
        };
        let (Some(scheme), Some(page)) = (uri.scheme_str(), uri.authority()) else {
            return false; // `null`, of sandboxed pages and local files.
        };
        let port = |authority: &Authority| {
            let of_scheme = if scheme == "https" { 443 } else { 80 };
            authority.port_u16().unwrap_or(of_scheme)
        };
        let is_same = page.host().eq_ignore_ascii_case(target.host()) && port(page) == port(target);
        matches!(scheme, "http" | "https") && (is_same || self.names(page.host()))
    }
}

fn is_address(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.parse::<IpAddr>().is_ok(),
    }
}

/// Names that resolvers never forward (RFC 6761, section 6.3).
fn is_loopback_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

fn shown(value: &HeaderValue) -> String {
    cut(&String::from_utf8_lossy(value.as_bytes()))
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_SHOWN)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(allowed: &str, uri: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        let names = allowed.split(',').filter(|name| !name.is_empty());
        let allowed = AllowedHosts {
            names: names.map(|name| name.parse().unwrap()).collect(),
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = tonic::codegen::http::HeaderName::try_from(*name).unwrap();
            map.append(name, value.parse().unwrap());
        }
        allowed.judge(&uri.parse().unwrap(), &map)
    }

    #[test]
    fn accepts_addresses_loopback_names_and_allowed_hosts() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7080",
            "10.0.0.1:80",
            "[::1]:7080",
            "[fd00::1]",
            "localhost",
            "localhost:7080",
            "LocalHost.:7080",
            "a.localhost",
            "apiserver:7080",
            "APIserver",
            "apiserver.",
        ] {
            assert_eq!(judge("apiserver", "/", &[("host", host)]), Ok(()), "{host}");
            let uri = format!("http://{host}/livez");
            assert_eq!(judge("apiserver", &uri, &[]), Ok(()), "{host}");
        }
    }

    #[test]
    fn refuses_other_names_and_requests_without_any() {
        for host in [
            "evil.example",
            "evil.example:7080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "localhost@evil.example",
            "evil@127.0.0.1",
            "notlocalhost",
            "xapiserver",
            "[::1",
            "a b",
            "",
        ] {
            let refused = judge("apiserver", "/", &[("host", host)]);
            assert!(
                matches!(refused, Err(Refusal::Host(_))),
                "{host}: {refused:?}"
            );
        }
        assert_eq!(judge("", "/", &[]), Err(Refusal::NoHost));
        let two = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert!(judge("", "/", &two).is_err());
        assert!(judge("", "http://evil.example/", &[("host", "127.0.0.1")]).is_err());
        assert!(judge("", "http://127.0.0.1/", &[("host", "evil.example")]).is_err());
    }

    #[test]
    fn refuses_requests_of_other_pages() {
        let from = |origin: &str| {
            let headers = [("host", "127.0.0.1:7080"), ("origin", origin)];
            judge("ui.example", "/", &headers)
        };
        for origin in [
            "http://127.0.0.1:7080",
            "https://ui.example",
            "http://UI.example:3000",
        ] {
            assert_eq!(from(origin), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://127.0.0.1",
            "http://127.0.0.1:7081",
            "http://localhost:7080",
            "file://",
            "chrome-extension://abc",
            "ui.example",
        ] {
            assert!(matches!(from(origin), Err(Refusal::Origin(_))), "{origin}");
        }
    }

    #[test]
    fn rejects_what_is_not_a_host_name() {
        for name in ["", ".", "a:80", "http://a", "a b", "*", "a/b"] {
            assert!(name.parse::<HostName>().is_err(), "{name}");
        }
    }
}
