//! The meaning of a request over HTTP, read from its method, path and query as the reference reads
//! them (`RequestInfo`), whatever kinds are served.

use http::{Method, Uri};
use podplane_access::{Attributes, Requirement, RequirementOperator, ResourceTarget};
use podplane_service_runtime::identity::Identity;

use crate::rest::request::RequestOptions;

/// The subresources of Namespaces; other words after a namespace's name are kinds in it.
const OF_NAMESPACES: [&str; 2] = ["status", "finalize"];

/// A request for objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceRequest {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) fields: Vec<Requirement>,
}

/// The thing that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestInfo {
    /// Objects.
    Resource(ResourceRequest),
    /// Another path: the HTTP method in lower case, and the path.
    Path(String, String),
}

impl RequestInfo {
    pub(crate) fn of(method: &Method, uri: &Uri) -> Self {
        let path = unescaped(uri.path());
        let trimmed = path.trim_matches('/');
        let parts: Vec<&str> = match trimmed {
            "" => Vec::new(),
            trimmed => trimmed.split('/').collect(),
        };
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
            _ => return Self::Path(method.as_str().to_lowercase(), path),
        };
        let (special, rest) = match rest {
            [verb @ ("watch" | "proxy"), rest @ ..] if !rest.is_empty() => (*verb, rest),
            rest => ("", rest),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, next, ..] if !OF_NAMESPACES.contains(next) => {
                (*namespace, &rest[2..])
            }
            ["namespaces", namespace, ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default();
        let (resource, name) = (part(0), part(1));
        let subresource = match special {
            "" => part(2),
            _ => "",
        };
        let options = RequestOptions::parse(uri).unwrap_or_default();
        let verb = match (special, method.as_str()) {
            ("", "POST") => "create",
            ("", "GET" | "HEAD") if !name.is_empty() => "get",
            ("", "GET" | "HEAD") if options.is_watch().unwrap_or_default() => "watch",
            ("", "GET" | "HEAD") => "list",
            ("", "PUT") => "update",
            ("", "PATCH") => "patch",
            ("", "DELETE") if name.is_empty() => "deletecollection",
            ("", "DELETE") => "delete",
            ("", _) => "",
            (special, _) => special,
        };
        let selects = matches!(verb, "list" | "watch" | "deletecollection");
        let fields = selects.then(|| requirements(options.field_selector()));
        let owned = str::to_owned;
        Self::Resource(ResourceRequest {
            verb: owned(verb),
            group: owned(group),
            version: owned(version),
            resource: owned(resource),
            subresource: owned(subresource),
            namespace: owned(namespace),
            name: owned(name),
            fields: fields.unwrap_or_default(),
        })
    }

    /// The request, as authorizers see it.
    pub(crate) fn attributes<'a>(&'a self, identity: &'a Identity) -> Attributes<'a> {
        match self {
            Self::Path(verb, path) => Attributes::path(identity, verb, path),
            Self::Resource(request) => {
                let target = request.target().of_request(&request.verb);
                Attributes::resource(identity, &request.verb, target)
            }
        }
    }
}

impl ResourceRequest {
    fn target(&self) -> ResourceTarget<'_> {
        ResourceTarget {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            field_selector: &self.fields,
            label_selector: &[],
        }
    }
}

/// A path without percent-encoding, as handlers see its parts.
fn unescaped(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let digit = |at: usize| char::from(*others.get(at)?).to_digit(16);
        rest = others;
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.extend(u8::try_from(high * 16 + low));
                rest = &others[2..];
            }
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The conditions of a field selector, of whatever kind; none if it cannot be read, in which case
/// the request fails once it is authorized.
pub(crate) fn requirements(selector: &str) -> Vec<Requirement> {
    let terms = split_unescaped(selector).into_iter();
    let parsed: Option<Vec<_>> = terms.filter(|term| !term.is_empty()).map(term).collect();
    parsed.unwrap_or_default()
}

/// Splits at commas that are not escaped by a backslash.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut is_escaped) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        if character == ',' && !is_escaped {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    parts.push(&text[begin..]);
    parts
}

fn term(text: &str) -> Option<Requirement> {
    let end = text.find(['=', '!'])?;
    let (key, rest) = text.split_at(end);
    let (operator, value) = if let Some(value) = rest.strip_prefix("!=") {
        (RequirementOperator::NotEquals, value)
    } else {
        let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
        (RequirementOperator::Equals, value)
    };
    let mut unescaped = String::new();
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => unescaped.push(characters.next()?),
            '=' | ',' => return None,
            other => unescaped.push(other),
        }
    }
    (!key.is_empty()).then(|| Requirement {
        operator,
        ..Requirement::equals(key, unescaped)
    })
}

#[cfg(test)]
mod tests {
    use podplane_api::{core::Pod, selector::FieldSelector};

    use super::*;

    /// `verb group/resource/subresource namespace name`
    fn shown(method: &str, uri: &str) -> String {
        match RequestInfo::of(&method.parse().unwrap(), &uri.parse().unwrap()) {
            RequestInfo::Path(verb, path) => format!("{verb} {path}"),
            RequestInfo::Resource(request) => {
                let ResourceRequest {
                    verb,
                    group,
                    resource,
                    subresource,
                    namespace,
                    name,
                    ..
                } = request;
                format!("{verb} {group}/{resource}/{subresource} {namespace} {name}")
            }
        }
    }

    #[test]
    fn paths_are_read_as_the_reference_reads_them() {
        for (method, uri, want) in [
            ("GET", "/", "get /"),
            ("GET", "/api", "get /api"),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/api/v1/", "get /api/v1/"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("POST", "/debug/log-level", "post /debug/log-level"),
            ("GET", "/api/v1/pods", "list /pods/  "),
            ("GET", "/api/v1/pods?watch=1", "watch /pods/  "),
            ("GET", "/api/v1/pods?watch=false", "list /pods/  "),
            ("GET", "/api/v1/watch/pods", "watch /pods/  "),
            ("GET", "/api/v1/namespaces/a/pods/b", "get /pods/ a b"),
            ("HEAD", "/api/v1/namespaces/a/pods/b", "get /pods/ a b"),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b?watch=1",
                "get /pods/ a b",
            ),
            (
                "GET",
                "/api/v1/namespaces/a/pods/b/log",
                "get /pods/log a b",
            ),
            (
                "POST",
                "/api/v1/namespaces/a/pods/b/eviction",
                "create /pods/eviction a b",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods",
                "deletecollection /pods/ a ",
            ),
            (
                "DELETE",
                "/api/v1/namespaces/a/pods/b/",
                "delete /pods/ a b",
            ),
            ("GET", "/api/v1/namespaces", "list /namespaces/  "),
            ("GET", "/api/v1/namespaces/a", "get /namespaces/ a a"),
            (
                "PUT",
                "/api/v1/namespaces/a/status",
                "update /namespaces/status a a",
            ),
            (
                "PUT",
                "/api/v1/namespaces/a/finalize",
                "update /namespaces/finalize a a",
            ),
            (
                "GET",
                "/api/v1/watch/namespaces/a/pods/b",
                "watch /pods/ a b",
            ),
            (
                "GET",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "get apps/deployments/scale a d",
            ),
            ("GET", "/api/v1/namespaces/a%2Fb/pods", "get /b/ a pods"),
            ("GET", "/api/v1/unknown/x", "get /unknown/  x"),
            ("TRACE", "/api/v1/pods", " /pods/  "),
        ] {
            assert_eq!(shown(method, uri), want, "{method} {uri}");
        }
    }

    #[test]
    fn a_selector_of_fields_is_read_as_the_kind_reads_it() {
        for text in [
            "",
            ",",
            "metadata.name=a",
            "metadata.name==a",
            "metadata.name!=a,spec.nodeName=n1",
            "metadata.name=a\\,b",
            "metadata.name=a\\=b",
            "metadata.name=",
            "metadata.name",
            "=a",
            "metadata.name=a=b",
            "metadata.name=a!b",
            "metadata.name!a",
            "metadata.name=a\\",
            "spec.nodeName=n1,",
            "metadata.name=a\\\\,spec.nodeName=n1",
        ] {
            let of_kind = FieldSelector::parse::<Pod>(text);
            let read = requirements(text);
            let terms = text.split(',').filter(|term| !term.is_empty()).count();
            match of_kind {
                Ok(selector) => assert_eq!(read.is_empty(), selector.is_empty(), "{text}"),
                Err(_) => assert!(read.is_empty(), "{text}: {read:?}"),
            }
            assert!(read.len() <= terms, "{text}: {read:?}");
        }
        assert_eq!(
            requirements("metadata.name=a\\,b,spec.nodeName!=n1"),
            [
                Requirement::equals("metadata.name", "a,b"),
                Requirement {
                    operator: RequirementOperator::NotEquals,
                    ..Requirement::equals("spec.nodeName", "n1")
                }
            ]
        );
    }
}
