//! What never reaches the log, whatever the policy says: the bodies of requests for secrets, tokens
//! in the query of a path, and what an authorization review says of credentials.

use http::Uri;
use podplane_access::ResourceTarget;
use serde_json::Value;

use crate::level::Level;

/// The text in place of a removed value.
pub const REDACTED: &str = "REDACTED";

/// The objects whose bodies are never written, by group and resource: those for which Kubernetes'
/// recommended policy has the level `Metadata`.
const WITHOUT_BODIES: [(&str, &str); 3] = [
    ("", "secrets"),
    ("", "configmaps"),
    ("authentication.k8s.io", "tokenreviews"),
];

/// The authorization reviews, whose extra fields may hold credentials of a user.
const ACCESS_REVIEWS: [&str; 2] = ["subjectaccessreviews", "localsubjectaccessreviews"];

/// Parts of the names of query parameters whose values are not written.
const SECRET_PARAMETERS: [&str; 9] = [
    "token",
    "secret",
    "passw",
    "authorization",
    "bearer",
    "credential",
    "api_key",
    "api-key",
    "apikey",
];

/// The level up to which requests for these objects are written.
pub fn highest_level(target: &ResourceTarget<'_>) -> Level {
    let hides = WITHOUT_BODIES.contains(&(target.group, target.resource))
        // Of serviceaccounts, and of whatever else gives tokens.
        || target.subresource == "token";
    match hides {
        true => Level::Metadata,
        false => Level::RequestResponse,
    }
}

/// The path and query of a request without secrets: values of parameters that are named like
/// credentials, and values that look like signed tokens, are replaced. An absolute URI loses its
/// scheme and authority, which may have a password.
pub fn request_uri(uri: &Uri) -> String {
    let mut text = uri.path().to_owned();
    let Some(query) = uri.query() else {
        return text;
    };
    for (index, parameter) in query.split('&').enumerate() {
        text.push(if index == 0 { '?' } else { '&' });
        let raw_name = parameter.split('=').next().unwrap_or_default();
        let is_secret = form_urlencoded::parse(parameter.as_bytes()).any(|(name, value)| {
            is_secret_name(&name) || holds_token(&name) || holds_token(&value)
        });
        match (is_secret, raw_name.len() < parameter.len()) {
            (true, true) if !holds_token(raw_name) => {
                text.push_str(raw_name);
                text.push('=');
                text.push_str(REDACTED);
            }
            (true, _) => text.push_str(REDACTED),
            (false, _) => text.push_str(parameter),
        }
    }
    text
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_PARAMETERS.iter().any(|part| name.contains(part))
}

/// True if a part of the text has the form of a JSON Web Token: three parts, the first of which is
/// a JSON object in base64.
fn holds_token(text: &str) -> bool {
    let is_of_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
    let mut words = text.split(|c| !is_of_token(c));
    words.any(|word| {
        word.match_indices("eyJ")
            .any(|(start, _)| word[start..].matches('.').count() >= 2)
    })
}

/// Removes what must not be written from the body of a request or answer.
pub(crate) fn body(target: &ResourceTarget<'_>, omit_managed_fields: bool, body: &mut Value) {
    if target.group == "authorization.k8s.io" && ACCESS_REVIEWS.contains(&target.resource) {
        remove(body, &["spec", "extra"]);
        // The message of the same review over gRPC.
        remove(body, &["extra"]);
    }
    if omit_managed_fields {
        remove(body, &["metadata", "managedFields"]);
        // A list, and the table that kubectl prints.
        for (list, path) in [
            ("items", &["metadata", "managedFields"][..]),
            ("rows", &["object", "metadata", "managedFields"]),
        ] {
            let elements = body.get_mut(list).and_then(Value::as_array_mut);
            for element in elements.into_iter().flatten() {
                remove(element, path);
            }
        }
    }
}

/// Removes the field at a path.
fn remove(value: &mut Value, path: &[&str]) {
    match path {
        [] => {}
        [field] => {
            if let Some(object) = value.as_object_mut() {
                object.remove(*field);
            }
        }
        [field, rest @ ..] => {
            if let Some(inner) = value.get_mut(field) {
                remove(inner, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl";

    fn shown(uri: &str) -> String {
        request_uri(&uri.parse().unwrap())
    }

    #[test]
    fn secrets_leave_the_query() {
        for (uri, want) in [
            ("/api/v1/pods", "/api/v1/pods"),
            ("/api/v1/pods?", "/api/v1/pods?"),
            (
                "/api/v1/pods?limit=500&continue=eyJydiI6MX0&watch",
                "/api/v1/pods?limit=500&continue=eyJydiI6MX0&watch",
            ),
            (
                "/api/v1/pods?labelSelector=a%3Db%2Cc&access_token=abc&x=1",
                "/api/v1/pods?labelSelector=a%3Db%2Cc&access_token=REDACTED&x=1",
            ),
            ("/x?%74oken=abc", "/x?%74oken=REDACTED"),
            ("/x?Authorization=Bearer+abc", "/x?Authorization=REDACTED"),
            (
                "/x?apiKey=k&password=p",
                "/x?apiKey=REDACTED&password=REDACTED",
            ),
            ("http://u:pw@h/x?y=1", "/x?y=1"),
        ] {
            assert_eq!(shown(uri), want);
        }
        for uri in [
            format!("/x?q={TOKEN}"),
            format!("/x?q=Bearer%20{TOKEN}&y=1"),
            format!("/x?{TOKEN}"),
            format!("/x?{TOKEN}=1"),
            format!("/x?q={}", TOKEN.replace('.', "%2e")),
        ] {
            let shown = shown(&uri);
            assert!(
                shown.contains(REDACTED) && !shown.contains("eyJ"),
                "{shown}"
            );
        }
    }

    #[test]
    fn bodies_of_secrets_are_never_written() {
        for (group, resource, subresource, level) in [
            ("", "secrets", "", Level::Metadata),
            ("", "configmaps", "", Level::Metadata),
            ("", "serviceaccounts", "token", Level::Metadata),
            ("authentication.k8s.io", "tokenreviews", "", Level::Metadata),
            ("", "serviceaccounts", "", Level::RequestResponse),
            ("", "pods", "", Level::RequestResponse),
            (
                "certificates.k8s.io",
                "certificatesigningrequests",
                "",
                Level::RequestResponse,
            ),
        ] {
            let target = ResourceTarget {
                group,
                resource,
                subresource,
                ..ResourceTarget::default()
            };
            assert_eq!(
                highest_level(&target),
                level,
                "{group}/{resource}/{subresource}"
            );
        }
    }

    #[test]
    fn extra_fields_of_reviewed_users_are_removed() {
        let target = ResourceTarget {
            group: "authorization.k8s.io",
            resource: "subjectaccessreviews",
            ..ResourceTarget::default()
        };
        let mut review = json!({"spec": {"user": "ada", "extra": {"key": ["s3cret"]}}});
        body(&target, false, &mut review);
        assert_eq!(review, json!({"spec": {"user": "ada"}}));
        let mut message = json!({"user": "ada", "extra": {"key": {"items": ["s3cret"]}}});
        body(&target, false, &mut message);
        assert_eq!(message, json!({"user": "ada"}));
        for mut odd in [json!(null), json!([1]), json!({"spec": "extra"})] {
            let before = odd.clone();
            body(&target, true, &mut odd);
            assert_eq!(odd, before);
        }
    }

    #[test]
    fn managed_fields_leave_objects_lists_and_tables() {
        let target = ResourceTarget::default();
        let object = json!({"metadata": {"name": "a", "managedFields": [{}]}});
        let bare = json!({"metadata": {"name": "a"}});
        for (mut given, want) in [
            (object.clone(), bare.clone()),
            (json!({"items": [object]}), json!({"items": [bare]})),
            (
                json!({"rows": [{"cells": [], "object": object}]}),
                json!({"rows": [{"cells": [], "object": bare}]}),
            ),
        ] {
            let before = given.clone();
            body(&target, false, &mut given);
            assert_eq!(given, before);
            body(&target, true, &mut given);
            assert_eq!(given, want);
        }
    }
}
