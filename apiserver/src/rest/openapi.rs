//! OpenAPI v3, which kubectl reads before it applies, and which `kubectl explain` prints.
//!
//! There is a document for each version of a group, with the paths of its kinds and the published
//! definitions that they refer to. The documents are made at the first request: a server that only
//! controllers use keeps none of this in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use podplane_api::{Scope, schema::definitions};
use serde_json::{Map, Value, json};

use super::{
    answer::{self, RestAnswer},
    discovery::{self, versions},
    resource::{KindNames, Resource},
};
use crate::served::KindList;

const JSON: &str = "application/json";
/// The media types of requests and, because `@` is not allowed in a media type, of answers.
const LEGACY: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
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

/// `/openapi/v2`, only in protobuf: a message without fields, which is a document without
/// definitions. kubectl asks for it when v3 does not know a kind, and then says that there is no
/// such kind.
pub(super) fn legacy(headers: &HeaderMap) -> RestAnswer {
    let mut accepted = answer::accepted(headers).split(',').map(str::trim);
    match accepted.any(|media| LEGACY.contains(&media)) {
        true => answer::body(StatusCode::OK, LEGACY[1], Bytes::new()),
        false => answer::no_such_path(),
    }
}

/// All documents, by their paths below `/openapi/v3/`.
#[derive(Debug, Default)]
pub(super) struct OpenApi {
    own: OnceLock<OpenApiDocuments>,
    /// Those of custom kinds, with the generation of the served kinds.
    custom: Mutex<Option<(u64, OpenApiDocuments)>>,
}

/// Documents by their paths.
type OpenApiDocuments = BTreeMap<String, Arc<OpenApiDocument>>;

#[derive(Debug)]
struct OpenApiDocument {
    hash: String,
    body: Bytes,
}

impl OpenApi {
    fn own(&self, kinds: &KindList) -> &OpenApiDocuments {
        self.own.get_or_init(|| documents(kinds.own()))
    }

    fn custom(&self, kinds: &KindList) -> OpenApiDocuments {
        if kinds.custom().is_empty() {
            return OpenApiDocuments::new();
        }
        // The documents are whole whenever the lock is free.
        let mut made = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((generation, documents)) if *generation == kinds.generation => documents.clone(),
            _ => {
                let documents = documents(kinds.custom());
                *made = Some((kinds.generation, documents.clone()));
                documents
            }
        }
    }

    /// The index: the URL of the document of each version.
    pub(super) fn index(&self, kinds: &KindList, headers: &HeaderMap) -> RestAnswer {
        let mut all = self.custom(kinds);
        all.extend(self.own(kinds).clone());
        let paths: Map<_, _> = all
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        let body = json!({"paths": paths}).to_string().into();
        answer::unchanged(headers, JSON, body, None)
    }

    /// The document of a version. One that is requested by its hash may be cached forever.
    pub(super) fn document(
        &self,
        kinds: &KindList,
        path: &str,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> RestAnswer {
        let own = self.own(kinds).get(path).map(Arc::clone);
        let Some(document) = own.or_else(|| self.custom(kinds).remove(path)) else {
            return answer::no_such_path();
        };
        let OpenApiDocument { hash, body } = &*document;
        let asked = uri.query().and_then(|query| query.strip_prefix("hash="));
        if let Some(asked) = asked
            && asked != hash
        {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            let mut moved = answer::text(StatusCode::MOVED_PERMANENTLY, "");
            if let Ok(url) = HeaderValue::from_str(&url) {
                moved.headers_mut().insert(header::LOCATION, url);
            }
            return moved;
        }
        let mut answer = answer::unchanged(headers, JSON, body.clone(), Some(hash));
        if asked.is_some() {
            let forever = HeaderValue::from_static("public, immutable");
            answer.headers_mut().insert(header::CACHE_CONTROL, forever);
        }
        answer
    }
}

fn documents(kinds: &[Arc<dyn Resource>]) -> OpenApiDocuments {
    let mut definitions = Definitions::read();
    for custom in kinds.iter().filter_map(|kind| kind.custom()) {
        definitions.add(custom.openapi_v3());
    }
    let documents = versions(kinds)
        .into_iter()
        .map(|((group, version), names)| {
            let path = match group {
                "" => format!("api/{version}"),
                group => format!("apis/{group}/{version}"),
            };
            let mut paths = Map::new();
            for names in names {
                definitions.paths(&path, names, &mut paths);
            }
            let paths = Value::Object(paths);
            let document = json!({
                "openapi": "3.0.0",
                "info": {"title": "Kubernetes", "version": format!("v1.{}.0", super::MINOR)},
                "components": {"schemas": definitions.reached(&paths)},
                "paths": paths,
            });
            let body = Bytes::from(document.to_string());
            let hash = answer::hash(&body);
            (path, Arc::new(OpenApiDocument { hash, body }))
        });
    documents.collect()
}

/// The published definitions.
struct Definitions {
    schemas: Map<String, Value>,
    /// The names of the definitions, by group, version and kind.
    kinds: BTreeMap<[String; 3], String>,
}

impl Definitions {
    fn read() -> Self {
        let mut read = Self {
            schemas: Map::new(),
            kinds: BTreeMap::new(),
        };
        read.add(definitions());
        read
    }

    /// Adds definitions.
    fn add(&mut self, schemas: Map<String, Value>) {
        for (name, schema) in &schemas {
            let named = schema["x-kubernetes-group-version-kind"].as_array();
            for gvk in named.into_iter().flatten() {
                let part = |part: &str| gvk[part].as_str().unwrap_or_default().to_owned();
                let kind = ["group", "version", "kind"].map(part);
                self.kinds.insert(kind, name.clone());
            }
        }
        self.schemas.extend(schemas);
    }

    /// The schema of a kind; any object if it has no definition.
    fn schema(&self, group: &str, version: &str, kind: &str) -> Value {
        match self.kinds.get(&[group, version, kind].map(str::to_owned)) {
            Some(name) => json!({"$ref": format!("#/components/schemas/{name}")}),
            None => json!({"type": "object"}),
        }
    }

    /// The definitions that a document refers to, directly or indirectly.
    fn reached(&self, document: &Value) -> Map<String, Value> {
        let mut found = Map::new();
        let mut wanted = BTreeSet::new();
        references(document, &mut wanted);
        while let Some(name) = wanted.pop_first() {
            if let Some(schema) = self.schemas.get(name)
                && !found.contains_key(name)
            {
                references(schema, &mut wanted);
                found.insert(name.to_owned(), schema.clone());
            }
        }
        found
    }

    /// Adds the paths of a kind and its sub-resources.
    fn paths(&self, root: &str, names: &KindNames, paths: &mut Map<String, Value>) {
        let (own, plural) = (&*names.kind, &*names.plural);
        let collection = match names.scope {
            Scope::Cluster => format!("/{root}/{plural}"),
            Scope::Namespaced => format!("/{root}/namespaces/{{namespace}}/{plural}"),
        };
        let object = format!("{collection}/{{name}}");
        let operations = |kind, on_all: bool| Operations {
            definitions: self,
            kind,
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
}

/// The operations of a path.
struct Operations<'a> {
    definitions: &'a Definitions,
    /// The group, version and kind of the sent and returned object.
    kind: [&'a str; 3],
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
                ("patch", false) => ("patch", "patch", &WRITE[..], Some(&PATCHES[..])),
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
            "list" => named(&format!("{kind}List")),
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

/// The names of the definitions that a document refers to.
fn references<'a>(document: &'a Value, found: &mut BTreeSet<&'a str>) {
    match document {
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().filter(|_| key == "$ref") {
                    Some(target) => {
                        found.extend(target.rsplit('/').next());
                    }
                    None => references(value, found),
                }
            }
        }
        _ => {}
    }
}
