//! URLs by the expression of RFC 3986, appendix B. As in the reference, a URL is absolute, or an
//! absolute path.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use regex::Regex;

use super::{LIST_STRING, arguments};
use crate::{
    error::Failure,
    functions::{
        Declared::{self, Bool, String, Url as UrlType},
        Overload, global, member,
    },
    list::List,
    meter::Meter,
    value::{Entries, Key, Value},
};

/// A URL and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: std::string::String,
    scheme: std::string::String,
    host: std::string::String,
    path: std::string::String,
    query: std::string::String,
}

impl Url {
    /// Parses a URL.
    pub(crate) fn parse(text: &str) -> Result<Self, std::string::String> {
        static PARTS: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"(?s)^(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?$")
                .expect("a constant of this file")
        });
        let refused = |why: &str| Err(format!("parse {text:?}: {why}"));
        if text.is_empty() {
            return refused("empty url");
        }
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return refused("net/url: invalid control character in URL");
        }
        let Some(parts) = PARTS.captures(text) else {
            return refused("invalid URI for request");
        };
        let part = |index: usize| parts.get(index).map_or("", |part| part.as_str());
        let (scheme, authority, path) = (part(1), part(2), part(3));
        if scheme.is_empty() && !text.starts_with('/') {
            return refused("invalid URI for request");
        }
        let mut rest = scheme.bytes();
        let starts =
            scheme.is_empty() || rest.next().is_some_and(|byte| byte.is_ascii_alphabetic());
        if !starts || !rest.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)) {
            return refused("first path segment in URL cannot contain colon");
        }
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        for text in [user, path] {
            if let Some(bad) = bad_escape(text) {
                return refused(&format!("invalid URL escape {bad:?}"));
            }
        }
        if host.contains(' ') {
            return refused("invalid character \" \" in host name");
        }
        let port = match host.rfind(']') {
            Some(end) if host.starts_with('[') => host.get(end + 1..).unwrap_or_default(),
            Some(_) => return refused("missing '[' in host"),
            None if host.contains('[') => return refused("missing ']' in host"),
            None => host
                .rfind(':')
                .and_then(|at| host.get(at..))
                .unwrap_or_default(),
        };
        let digits = port.strip_prefix(':').unwrap_or(port);
        if !port.is_empty() && !port.starts_with(':')
            || !digits.bytes().all(|byte| byte.is_ascii_digit())
        {
            return refused(&format!("invalid port {port:?} after host"));
        }
        Ok(Self {
            text: text.to_owned(),
            scheme: scheme.to_ascii_lowercase(),
            host: host.to_owned(),
            path: path.replace(' ', "%20"),
            query: part(4).to_owned(),
        })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The host without its port, and the port.
    fn host_and_port(&self) -> (&str, &str) {
        let end_of_address = self.host.rfind(']').unwrap_or_default();
        let colon = self
            .host
            .rfind(':')
            .filter(|colon| *colon >= end_of_address);
        let (host, port) = match colon {
            Some(at) => (
                self.host.get(..at).unwrap_or_default(),
                self.host.get(at + 1..).unwrap_or_default(),
            ),
            None => (self.host.as_str(), ""),
        };
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        (address.unwrap_or(host), port)
    }
}

fn bad_escape(text: &str) -> Option<&str> {
    text.match_indices('%').find_map(|(at, _)| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        let is_good = digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let end = (at + 1..=text.len())
            .rev()
            .find(|end| *end <= at + 3 && text.is_char_boundary(*end));
        (!is_good).then(|| text.get(at..end.unwrap_or(at)).unwrap_or("%"))
    })
}

/// Decodes `+` and `%41`. `None` for a malformed escape.
fn decode(text: &str) -> Option<std::string::String> {
    if bad_escape(text).is_some() {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| {
                    char::from(byte.unwrap_or_default())
                        .to_digit(16)
                        .unwrap_or_default()
                };
                let value = digit(bytes.next()) * 16 + digit(bytes.next());
                u8::try_from(value).unwrap_or_default()
            }
            other => other,
        });
    }
    Some(std::string::String::from_utf8_lossy(&out).into_owned())
}

pub(super) static FUNCTIONS: &[Overload] = &[
    global("url", &[String], UrlType, parse).counts_cost(),
    global("isURL", &[String], Bool, is_url).counts_cost(),
    member("getScheme", &[UrlType], String, scheme),
    member("getHost", &[UrlType], String, host),
    member("getHostname", &[UrlType], String, hostname),
    member("getPort", &[UrlType], String, port),
    member("getEscapedPath", &[UrlType], String, path),
    member(
        "getQuery",
        &[UrlType],
        Declared::Map(&String, &LIST_STRING),
        query,
    )
    .counts_cost(),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn parse<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    match Url::parse(text) {
        Ok(url) => Ok(Value::Url(Arc::new(url))),
        Err(error) => Failure::other(format!(
            "URL parse error during conversion from string: {error}"
        )),
    }
}

fn is_url<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::Bool(Url::parse(text).is_ok()))
}

fn scheme<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    Ok(Value::string(url.scheme.as_str()))
}

fn host<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    Ok(Value::string(url.host.as_str()))
}

fn hostname<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    Ok(Value::string(url.host_and_port().0))
}

fn port<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    Ok(Value::string(url.host_and_port().1))
}

fn path<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    Ok(Value::string(url.path.as_str()))
}

fn query<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Url(url));
    meter.traverse(url.query.len(), 1)?;
    let mut all = BTreeMap::<Key, Vec<Value<'a>>>::new();
    for pair in url
        .query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (decode(key), decode(value)) {
            all.entry(Key::String(key.into()))
                .or_default()
                .push(Value::string(value));
        }
    }
    let lists = all
        .into_iter()
        .map(|(key, values)| (key, Value::List(List::new(values))));
    Ok(Value::Map(Entries::Shared(Arc::new(lists.collect()))))
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn urls_are_absolute_or_absolute_paths() {
        for text in [
            "https://example.com:80/a%20b?c=d#e",
            "/a/b",
            "mailto:a@b",
            "https://[::1]:80",
            "https://u:p@h/",
            "http://",
        ] {
            assert!(Url::parse(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "a/b",
            "example.com",
            "https://a b/",
            "https://a/%zz",
            "https://[::1",
            "http://a:b",
            "1a://b",
            "https://a\n",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        let url = Url::parse("https://[::1]:8080/x").unwrap();
        assert_eq!(url.host_and_port(), ("::1", "8080"));
    }
}
