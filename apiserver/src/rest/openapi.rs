//! OpenAPI v3: which kinds can be patched and how, which is what kubectl asks before it applies.

use std::sync::Arc;

use http::StatusCode;
use podplane_api::Scope;
use serde_json::{Map, Value, json};

use super::{
    answer::{self, Answer},
    discovery::versions,
    resource::{Names, Resource},
};

/// Where the document of each version is.
pub(super) fn index(kinds: &[Arc<dyn Resource>]) -> Answer {
    let paths: Map<_, _> = versions(kinds)
        .keys()
        .map(|(group, version)| {
            let path = match *group {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    answer::document(StatusCode::OK, &json!({"paths": paths}))
}

/// The document of a version.
pub(super) fn document(kinds: &[Arc<dyn Resource>], group: &str, version: &str) -> Answer {
    let versions = versions(kinds);
    let Some(names) = versions.get(&(group, version)) else {
        return answer::no_such_path();
    };
    let paths: Map<_, _> = names.iter().map(|names| path(names)).collect();
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": format!("v1.{}.0+podplane", super::MINOR)},
        "paths": paths,
        "components": {"schemas": {}},
    });
    answer::document(StatusCode::OK, &document)
}

fn path(names: &Names) -> (String, Value) {
    let root = match names.group {
        "" => format!("/api/{}", names.version),
        group => format!("/apis/{group}/{}", names.version),
    };
    let object = match names.scope {
        Scope::Cluster => format!("{root}/{}/{{name}}", names.plural),
        Scope::Namespaced => format!("{root}/namespaces/{{namespace}}/{}/{{name}}", names.plural),
    };
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let parameters = ["dryRun", "fieldManager", "fieldValidation", "force"].map(parameter);
    let patch = json!({
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": names.group, "version": names.version, "kind": names.kind},
        "parameters": parameters,
    });
    (object, json!({"patch": patch}))
}
