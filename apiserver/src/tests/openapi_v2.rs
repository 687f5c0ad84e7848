//! OpenAPI v2: the document of all kinds, in JSON and in protobuf.

mod decoded;

use std::collections::BTreeSet;

use http::header;
use podplane_proto::openapi::Document;
use prost::Message as _;

use super::{custom_kinds::widgets, *};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The media type that client-go requests.
const REQUESTED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";

impl TestServer {
    async fn openapi_v2(&self, headers: &[(&str, &str)]) -> HttpAnswer {
        let answer = self.rest.exchange(Method::GET, "/openapi/v2", headers, "");
        within(answer).await.unwrap()
    }

    /// The document in JSON.
    async fn openapi_v2_json(&self) -> Value {
        let answer = self.openapi_v2(&[]).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json");
        answer.body
    }
}

/// Visits a schema and those below it.
fn visit(schema: &Value, at: &str, check: &mut dyn FnMut(&Value, &str)) {
    check(schema, at);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(property, &format!("{at}.{name}"), check);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(below) = schema.get(name).filter(|below| below.is_object()) {
            visit(below, &format!("{at}.{name}"), check);
        }
    }
}

/// Calls `check` with every schema of a document.
fn each_schema(document: &Value, check: &mut dyn FnMut(&Value, &str)) {
    for (name, definition) in document["definitions"].as_object().unwrap() {
        visit(definition, name, check);
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let at = format!("{method} {path}");
            let parameters = operation["parameters"].as_array().unwrap();
            let bodies = parameters.iter().filter_map(|one| one.get("schema"));
            let responses = operation["responses"].as_object().unwrap();
            let answers = responses.values().map(|one| one.get("schema").unwrap());
            bodies
                .chain(answers)
                .for_each(|schema| visit(schema, &at, check));
        }
    }
}

/// A kind that uses what only OpenAPI v3 has.
fn gadgets() -> Value {
    let mut definition = widgets();
    definition["metadata"]["name"] = "gadgets.example.com".into();
    definition["spec"]["names"] =
        json!({"plural": "gadgets", "kind": "Gadget", "listKind": "GadgetCollection"});
    let version = &mut definition["spec"]["versions"][0];
    version["selectableFields"] = json!([]);
    version["additionalPrinterColumns"] = json!([]);
    version["subresources"] = json!({});
    version["schema"]["openAPIV3Schema"] = json!({
        "type": "object",
        "description": "Gadget has many types.",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["list", "plain"],
                "properties": {
                    "list": {"type": "array", "nullable": true, "description": "May be null.",
                        "items": {"type": "string"}},
                    "struct": {"type": "object", "nullable": true,
                        "properties": {"a": {"type": "string"}}},
                    "bare": {"type": "object", "properties": {}},
                    "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"a": {"type": "string"}}},
                    "any": {"x-kubernetes-preserve-unknown-fields": true},
                    "port": {"x-kubernetes-int-or-string": true,
                        "anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "plain": {"type": "string", "default": "red", "enum": ["red", "true", "1.0", "a\n: b\n"],
                        "oneOf": [{"pattern": "^r"}, {"pattern": "^t"}], "not": {"pattern": "x"}},
                    "number": {"type": "number", "minimum": 0.5, "maximum": 9, "exclusiveMaximum": true,
                        "multipleOf": 0.5, "format": "double"},
                    "limits": {"type": "object", "additionalProperties": {"type": "integer"},
                        "minProperties": 1, "maxProperties": 3, "example": {"a": 1},
                        "externalDocs": {"description": "More", "url": "https://example.com"}},
                    "set": {"type": "array", "x-kubernetes-list-type": "set", "minItems": 1, "maxItems": 4,
                        "items": {"type": "string", "minLength": 1, "maxLength": 8, "title": "A word",
                            "pattern": "^[a-z\"\\\\]+(: .*#)?$"}},
                    "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                        "properties": {"spec": {"type": "object"}}},
                },
                "x-kubernetes-validations": [
                    {"rule": "self.plain != 'x: \"y\"'", "message": "no: # list\t\u{e4}\u{1f600}"},
                ],
            },
        },
    });
    definition
}

/// A kind whose objects have any fields.
fn blobs() -> Value {
    let mut definition = gadgets();
    definition["metadata"]["name"] = "blobs.example.com".into();
    definition["spec"]["names"] = json!({"plural": "blobs", "kind": "Blob"});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "description": "Blob", "x-kubernetes-preserve-unknown-fields": true});
    definition
}

#[tokio::test]
async fn openapi_v2_has_the_kinds_and_paths_of_v3_in_its_own_form() {
    let server = TestServer::start().await;
    server.define(&gadgets()).await;
    let document = server.openapi_v2_json().await;
    assert_eq!(document["swagger"], "2.0");
    let definitions = document["definitions"].as_object().unwrap();
    each_schema(&document, &mut |schema, at| {
        if let Some(reference) = schema.get("$ref") {
            let target = reference.as_str().unwrap();
            let name = target.strip_prefix("#/definitions/").unwrap();
            assert!(definitions.contains_key(name), "{at}: {name}");
            assert_eq!(schema.get("type"), None, "{at}");
        }
        assert!(
            schema["type"] != "array" || schema["items"].is_object(),
            "{at}"
        );
        for name in ["allOf", "anyOf", "default", "not", "nullable", "oneOf"] {
            assert_eq!(schema.get(name), None, "{at}");
        }
    });
    let strategy = &definitions["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["strategy"];
    assert_eq!(
        strategy["$ref"],
        "#/definitions/io.k8s.api.apps.v1.DeploymentStrategy"
    );
    assert_eq!(strategy["x-kubernetes-patch-strategy"], "retainKeys");
    assert!(strategy["description"].is_string());
    let int_or_string = &definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(
        int_or_string,
        &json!({"type": "string", "format": "int-or-string"})
    );

    let get = async |path: &str| within(server.rest.get(path)).await.unwrap().body;
    let index = get("/openapi/v3").await;
    let mut paths = BTreeSet::new();
    let mut schemas = BTreeSet::new();
    for entry in index["paths"].as_object().unwrap().values() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let part = get(url).await;
        paths.extend(part["paths"].as_object().unwrap().keys().cloned());
        let names = part["components"]["schemas"].as_object().unwrap().keys();
        schemas.extend(names.cloned());
    }
    assert!(
        paths
            .iter()
            .eq(document["paths"].as_object().unwrap().keys())
    );
    assert!(schemas.iter().eq(definitions.keys()));

    let pods = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"];
    let path = json!({"in": "path", "name": "name", "required": true, "type": "string", "uniqueItems": true});
    assert_eq!(pods["parameters"][0], path);
    assert_eq!(pods["get"]["consumes"], json!(["*/*"]));
    assert_eq!(pods["get"]["produces"], json!(["application/json"]));
    let pod = json!({"$ref": "#/definitions/io.k8s.api.core.v1.Pod"});
    assert_eq!(
        pods["put"]["parameters"][0],
        json!({"in": "body", "name": "body", "required": true, "schema": pod})
    );
    assert_eq!(pods["put"]["consumes"], json!(["application/json"]));
    assert_eq!(pods["put"]["responses"]["200"]["schema"], pod);
    assert_eq!(pods["patch"]["consumes"].as_array().unwrap().len(), 4);
    assert_eq!(pods["delete"]["parameters"][0].get("required"), None);
    server.stop().await;
}

#[tokio::test]
async fn openapi_v2_of_a_custom_kind_allows_what_it_cannot_express() {
    let server = TestServer::start().await;
    server.define(&gadgets()).await;
    server.define(&blobs()).await;
    let document = server.openapi_v2_json().await;
    let definitions = &document["definitions"];
    let gadget = &definitions["com.example.v1.Gadget"];
    assert_eq!(gadget["description"], "Gadget has many types.");
    let metadata = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(gadget["properties"]["metadata"], json!({"$ref": metadata}));
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/gadgets/{name}"];
    let patches = [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
    ];
    assert_eq!(patch["patch"]["consumes"], json!(patches));
    let spec = &gadget["properties"]["spec"];
    assert_eq!(spec["required"], json!(["plain"]));
    let properties = &spec["properties"];
    let open = json!({"x-kubernetes-preserve-unknown-fields": true});
    for (name, schema) in [
        ("list", json!({"description": "May be null."})),
        ("struct", json!({})),
        ("bare", json!({"type": "object"})),
        ("open", open.clone()),
        ("any", open),
        ("port", json!({"x-kubernetes-int-or-string": true})),
        (
            "plain",
            json!({"type": "string", "enum": ["red", "true", "1.0", "a\n: b\n"]}),
        ),
    ] {
        assert_eq!(properties[name], schema, "{name}");
    }
    assert_eq!(
        properties["template"]["properties"]["metadata"],
        json!({"$ref": metadata})
    );
    let kinds = json!([{"group": "example.com", "kind": "Blob", "version": "v1"}]);
    assert_eq!(
        definitions["com.example.v1.Blob"],
        json!({"type": "object", "x-kubernetes-group-version-kind": kinds})
    );
    server.stop().await;
}

#[tokio::test]
async fn openapi_v2_in_protobuf_has_the_content_of_json() {
    let server = TestServer::start().await;
    server.define(&gadgets()).await;
    server.define(&blobs()).await;
    let json = server.openapi_v2_json().await;
    let answer = server.openapi_v2(&[("accept", REQUESTED)]).await;
    assert_eq!(answer.headers[header::CONTENT_TYPE], PROTOBUF);
    let message = Document::decode(answer.bytes).unwrap();
    let decoded = decoded::document(&message);
    for part in ["swagger", "info"] {
        assert_eq!(decoded[part], json[part]);
    }
    for part in ["definitions", "paths"] {
        let (decoded, json) = (decoded[part].as_object(), json[part].as_object());
        let (decoded, json) = (decoded.unwrap(), json.unwrap());
        assert!(json.len() > 100 && decoded.keys().eq(json.keys()), "{part}");
        for (name, value) in json {
            assert_eq!(&decoded[name], value, "{name}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn openapi_v2_has_the_accepted_form_and_a_tag() {
    let server = TestServer::start().await;
    let json = "application/json";
    let preferred = format!("{json};q=0.5, {PROTOBUF}");
    for (accept, media) in [
        ("*/*", json),
        ("application/*", json),
        (json, json),
        (REQUESTED, PROTOBUF),
        (PROTOBUF, PROTOBUF),
        (&preferred, PROTOBUF),
        ("text/html, */*;q=0.1", json),
        ("application/yaml, */*;q=0.1", json),
        ("application/yaml, application/json", json),
    ] {
        let answer = server.openapi_v2(&[("accept", accept)]).await;
        assert_eq!(answer.code, 200, "{accept}");
        assert_eq!(answer.headers[header::CONTENT_TYPE], media, "{accept}");
        assert_eq!(answer.headers[header::VARY], "Accept");
        let tag = answer.headers[header::ETAG].to_str().unwrap();
        let held = [("accept", accept), ("if-none-match", tag)];
        let again = server.openapi_v2(&held).await;
        assert_eq!((again.code, again.bytes.len()), (304, 0), "{accept}");
    }
    for accept in ["text/html", "application/yaml"] {
        let refused = server.openapi_v2(&[("accept", accept)]).await;
        assert_eq!(refused.code, 406, "{accept}");
    }
    server.stop().await;
}

#[tokio::test]
async fn openapi_v2_follows_the_custom_kinds() {
    let server = TestServer::start().await;
    let name = "com.example.v1.Widget";
    let tag = async || {
        let answer = server.openapi_v2(&[("accept", PROTOBUF)]).await;
        answer.headers[header::ETAG].clone()
    };
    let before = tag().await;
    assert_eq!(
        server.openapi_v2_json().await["definitions"].get(name),
        None
    );
    server.define(&widgets()).await;
    let document = server.openapi_v2_json().await;
    let path = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}/scale";
    assert!(document["definitions"][name].is_object());
    assert!(document["paths"][path].is_object());
    assert_ne!(tag().await, before);
    let deleted = server.rest.send(Method::DELETE, DEFINITION, None);
    assert_eq!(within(deleted).await.unwrap().code, 200);
    within(async {
        while tag().await != before {
            time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    server.stop().await;
}
