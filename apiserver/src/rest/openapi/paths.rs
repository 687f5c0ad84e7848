//! The paths of kinds and the operations on them, in the form of OpenAPI v3.

use podplane_api::Scope;
use serde_json::{Map, Value, json};

use super::{JSON, definitions::Definitions};
use crate::rest::{
    discovery, patch,
    resource::{KindNames, Resource},
};

/// The query parameters of lists.
const LIST: [&str; 9] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "watch",
    "timeoutSeconds",
];
const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const DELETE: [&str; 4] = [
    "dryRun",
    "gracePeriodSeconds",
    "orphanDependents",
    "propagationPolicy",
];

/// The path of a kind's version and group, without a slash at its beginning.
pub(super) fn of_version(names: &KindNames) -> String {
    let KindNames { group, version, .. } = names;
    match &**group {
        "" => format!("api/{version}"),
        group => format!("apis/{group}/{version}"),
    }
}

/// Adds the paths of a kind and its sub-resources.
pub(super) fn add(definitions: &Definitions, of: &dyn Resource, paths: &mut Map<String, Value>) {
    let names = of.names();
    let root = of_version(names);
    let (own, plural) = (&*names.kind, &*names.plural);
    let collection = match names.scope {
        Scope::Cluster => format!("/{root}/{plural}"),
        Scope::Namespaced => format!("/{root}/namespaces/{{namespace}}/{plural}"),
    };
    let object = format!("{collection}/{{name}}");
    let operations = |kind, on_all: bool| Operations {
        definitions,
        patches: match of.custom() {
            Some(_) => &patch::OF_CUSTOM_KINDS,
            None => &patch::ALL,
        },
        kind,
        list_kind: &names.list_kind,
        on_all,
    };
    let kind = [&*names.group, &*names.version, own];
    let is_read = names.verbs.contains(&"get");
    let places = [(&collection, true), (&object, false)];
    for (path, on_all) in places.into_iter().filter(|(_, on_all)| *on_all || is_read) {
        let item = operations(kind, on_all).of(names.verbs, parameters(path));
        paths.insert(path.clone(), item);
    }
    if names.scope == Scope::Namespaced && is_read {
        let path = format!("/{root}/{plural}");
        let listed = ["list", "watch"];
        paths.insert(path, operations(kind, true).of(&listed, Vec::new()));
    }
    for subresource in &*names.subresources {
        let part = discovery::about(names, *subresource);
        let path = format!("{object}/{}", subresource.name());
        let kind = [part.group, part.version, part.kind];
        let item = operations(kind, false).of(part.verbs, parameters(&path));
        paths.insert(path, item);
    }
}

/// The operations of a path.
struct Operations<'a> {
    definitions: &'a Definitions,
    /// The media types of patches. `kubectl apply` computes and sends a strategic one where it may.
    patches: &'a [&'a str],
    /// The group, version and kind of the sent and returned object.
    kind: [&'a str; 3],
    /// The kind of its lists.
    list_kind: &'a str,
    /// True for the path of all objects, false for that of one.
    on_all: bool,
}

impl Operations<'_> {
    fn of(&self, verbs: &[&str], parameters: Vec<Value>) -> Value {
        let mut item = Map::new();
        for verb in verbs {
            let operation = match (*verb, self.on_all) {
                ("list", true) => ("get", "list", &LIST[..], None),
                ("create", on_all) if on_all || !verbs.contains(&"get") => {
                    ("post", "post", &WRITE[..], Some(&[JSON][..]))
                }
                ("deletecollection", true) => {
                    ("delete", "deletecollection", &DELETE[..], Some(&[JSON][..]))
                }
                ("get", false) => ("get", "get", &[][..], None),
                ("update", false) => ("put", "put", &WRITE[..], Some(&[JSON][..])),
                ("patch", false) => ("patch", "patch", &WRITE[..], Some(self.patches)),
                ("delete", false) => ("delete", "delete", &DELETE[..], Some(&[JSON][..])),
                _ => continue,
            };
            let (method, action, query, body) = operation;
            item.insert(method.to_owned(), self.operation(action, query, body));
        }
        if !parameters.is_empty() {
            item.insert("parameters".to_owned(), parameters.into());
        }
        item.into()
    }

    fn operation(&self, action: &str, query: &[&str], body: Option<&[&str]>) -> Value {
        let [group, version, kind] = self.kind;
        let named = |kind: &str| self.definitions.schema(group, version, kind);
        let mut query: Vec<_> = query.iter().map(|name| parameter(name, "query")).collect();
        if action == "patch" {
            query.push(parameter("force", "query"));
        }
        if action == "list" {
            query.push(parameter("limit", "query"));
        }
        let answer = match action {
            "list" => named(self.list_kind),
            "deletecollection" => self.definitions.schema("", "v1", "Status"),
            _ => named(kind),
        };
        let mut operation = json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
            "parameters": query,
            "responses": {"200": {"description": "OK", "content": {JSON: {"schema": answer}}}},
        });
        if let Some(types) = body {
            let schema = match action {
                "patch" => json!({"type": "object"}),
                "delete" | "deletecollection" => named("DeleteOptions"),
                _ => named(kind),
            };
            let content: Map<_, _> = types
                .iter()
                .map(|media| ((*media).to_owned(), json!({"schema": schema})))
                .collect();
            operation["requestBody"] = json!({"content": content});
        }
        operation
    }
}

/// The parameters in a path.
fn parameters(path: &str) -> Vec<Value> {
    ["name", "namespace"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(|name| parameter(name, "path"))
        .collect()
}

fn parameter(name: &str, place: &str) -> Value {
    let kind = match name {
        "allowWatchBookmarks" | "force" | "orphanDependents" | "sendInitialEvents" | "watch" => {
            "boolean"
        }
        "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
        _ => "string",
    };
    let mut parameter =
        json!({"name": name, "in": place, "schema": {"type": kind, "uniqueItems": true}});
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}
