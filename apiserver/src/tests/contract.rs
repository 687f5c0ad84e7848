//! The contract of every kind, from its declaration: create, get, list, watch, the four patches,
//! status, table, both protobuf encodings, gRPC and deletion.

use futures::{FutureExt as _, future::BoxFuture};
use http::{Method, header};
use podplane_api::{
    Scope,
    kinds::{self, KindVisitor},
    schema::Type,
    strategy::{Strategy, Subresource},
};
use podplane_client::ListParams;
use podplane_http_client::HttpAnswer;
use podplane_proto::{codec, kubernetes};

use super::*;

/// The fields of an object of each kind besides its metadata. `name`: names of the kind follow
/// rules of their own.
const OBJECTS: &str = include_str!("contract/objects.json");

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

struct Checks<'a> {
    server: &'a TestServer,
    objects: Value,
    checks: Vec<(&'static str, BoxFuture<'a, ()>)>,
}

impl KindVisitor for Checks<'_> {
    fn visit<K: Strategy>(&mut self) {
        let fields = self.objects.as_object_mut().unwrap().remove(K::KIND);
        let fields = fields.unwrap_or_else(|| panic!("no object of {}", K::KIND));
        // The server writes their status as soon as they exist; they have tests of their own.
        if K::KIND == "CustomResourceDefinition" {
            return;
        }
        let check = contract::<K>(self.server, fields).boxed();
        self.checks.push((K::KIND, check));
    }
}

#[tokio::test]
async fn every_kind_keeps_the_contract() {
    let server = TestServer::start().await;
    let mut checks = Checks {
        server: &server,
        objects: serde_json::from_str(OBJECTS).unwrap(),
        checks: Vec::new(),
    };
    kinds::visit(&mut checks);
    assert_eq!(
        checks.objects,
        json!({}),
        "objects of kinds that are not stored"
    );
    for (kind, check) in std::mem::take(&mut checks.checks) {
        eprintln!("{kind}");
        check.await;
    }
    drop(checks);
    server.stop().await;
}

/// A new object of the kind.
fn new_object<K: Strategy>(fields: &Value) -> Value {
    let mut object = fields.clone();
    let name = object.as_object_mut().unwrap().remove("name");
    object["apiVersion"] = K::API_VERSION.into();
    object["kind"] = K::KIND.into();
    object["metadata"] = json!({"name": name.unwrap_or("contract".into()), "labels": {"a": "1"}});
    object
}

async fn contract<K: Strategy>(server: &TestServer, fields: Value) {
    let new = new_object::<K>(&fields);
    let name = new["metadata"]["name"].as_str().unwrap().to_owned();
    let group = match K::GROUP {
        "" => "/api/v1".to_owned(),
        _ => format!("/apis/{}", K::API_VERSION),
    };
    let all = match K::SCOPE {
        Scope::Namespaced => format!("{group}/namespaces/default/{}", K::PLURAL),
        Scope::Cluster => format!("{group}/{}", K::PLURAL),
    };
    let one = format!("{all}/{name}");
    let call = async |method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>| {
        let answer = server.rest.exchange(method, path, headers, body);
        within(answer).await.unwrap()
    };
    let ok = |answer: &HttpAnswer| {
        let code = answer.code;
        assert!(
            (200..300).contains(&code),
            "{} {code}: {}",
            K::KIND,
            answer.body
        );
    };
    let api = || match K::SCOPE {
        Scope::Namespaced => server.client.namespaced::<K>("default"),
        Scope::Cluster => server.client.all::<K>(),
    };

    // Create, and what the server completes.
    let body = new.to_string().into_bytes();
    let strict = format!("{all}?fieldValidation=Strict&fieldManager=creator");
    let created = call(Method::POST, &strict, &[("content-type", JSON)], body).await;
    ok(&created);
    assert_eq!(created.code, 201, "{}", K::KIND);
    let created = created.body;
    assert_eq!(created["metadata"]["name"], name.as_str());
    assert!(created["metadata"]["uid"].is_string());
    let generation = created["metadata"]["generation"].as_i64();
    assert_eq!(generation, K::first_generation(), "{}", K::KIND);
    let again = call(
        Method::POST,
        &all,
        &[("content-type", JSON)],
        new.to_string().into(),
    )
    .await;
    assert_eq!(again.code, 409, "{}: {}", K::KIND, again.body);

    // The object reads back the same everywhere, and passes its own rules.
    let got = call(Method::GET, &one, &[], Vec::new()).await.body;
    assert_eq!(got, created, "{}", K::KIND);
    let object = K::from_json(got.clone()).unwrap();
    assert_eq!(
        api().get(&name).await.unwrap(),
        object,
        "{} over gRPC",
        K::KIND
    );
    let mut defaulted = object.clone();
    defaulted.set_defaults();
    assert_eq!(
        defaulted,
        object,
        "the defaults of {} are not idempotent",
        K::KIND
    );
    assert!(object.validate().is_empty(), "{}", object.validate());
    let encoded = codec::encode(&object).unwrap();
    assert_eq!(codec::decode::<K>(&encoded).unwrap(), object, "{}", K::KIND);
    if kubernetes::has(K::API_VERSION, K::KIND) {
        let back = kubernetes::decode(&kubernetes::encode(&got).unwrap()).unwrap();
        let mut back = K::from_json(back).unwrap();
        back.set_defaults();
        // A value that Go has no pointer for is there, or is not, alike.
        let (back, mut want) = (back.to_json().unwrap(), got.clone());
        assert_eq!(
            without_empty(back),
            without_empty(want.take()),
            "{}",
            K::KIND
        );
    } else {
        assert_eq!(K::KIND, "ClusterCIDR");
    }
    assert!(Type::of::<K>().is_some(), "{}", K::KIND);

    // Lists, by labels too, and the table.
    let list = call(
        Method::GET,
        &format!("{all}?labelSelector=a%3D1"),
        &[],
        Vec::new(),
    )
    .await
    .body;
    assert_eq!(list["kind"], format!("{}List", K::KIND));
    let items = list["items"].as_array().unwrap();
    assert!(
        items
            .iter()
            .any(|item| item["metadata"]["name"] == name.as_str()),
        "{list}"
    );
    let table = call(Method::GET, &all, &[("accept", TABLE)], Vec::new())
        .await
        .body;
    let columns = table["columnDefinitions"].as_array().unwrap().len();
    let rows = table["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{table}");
    for row in rows {
        assert_eq!(
            row["cells"].as_array().unwrap().len(),
            columns,
            "{}",
            K::KIND
        );
    }
    for (field, value) in K::FIELDS {
        let value = value(&object);
        let term = format!("{field}={}", value.replace('\\', r"\\").replace(',', r"\,"));
        let params = ListParams {
            field_selector: term.clone(),
            ..ListParams::default()
        };
        let found = api().list(&params).await.unwrap();
        assert!(found.items.iter().any(|item| item.name() == name), "{term}");
    }

    // The four patches, each seen by a watch.
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = Box::pin(api().watch(&ListParams::default(), revision).await.unwrap());
    let label = |value: &str| json!({"metadata": {"labels": {"b": value}}});
    let mut applied = label("apply");
    applied["apiVersion"] = K::API_VERSION.into();
    applied["kind"] = K::KIND.into();
    for (media, query, patch, value) in [
        ("merge-patch+json", "", label("merge"), "merge"),
        (
            "strategic-merge-patch+json",
            "",
            label("strategic"),
            "strategic",
        ),
        (
            "json-patch+json",
            "",
            json!([{"op": "replace", "path": "/metadata/labels/b", "value": "json"}]),
            "json",
        ),
        (
            "apply-patch+yaml",
            "?fieldManager=m&force=true",
            applied,
            "apply",
        ),
    ] {
        let headers = [("content-type", &*format!("application/{media}"))];
        let path = format!("{one}{query}");
        let patched = call(Method::PATCH, &path, &headers, patch.to_string().into()).await;
        ok(&patched);
        assert_eq!(
            patched.body["metadata"]["labels"]["b"],
            value,
            "{}",
            K::KIND
        );
        let changed = loop {
            match next(&mut events).await {
                ObjectEvent::Modified(object) if object.name() == name => break object,
                _ => {}
            }
        };
        let labels = changed.metadata().labels.clone().unwrap();
        assert_eq!(labels["b"], value, "{}", K::KIND);
    }
    drop(events);

    // An update with what was read changes nothing, and the status has its own path.
    let got = call(Method::GET, &one, &[], Vec::new()).await.body;
    let put = call(
        Method::PUT,
        &one,
        &[("content-type", JSON)],
        got.to_string().into(),
    )
    .await;
    ok(&put);
    assert_eq!(
        put.body["metadata"]["generation"],
        got["metadata"]["generation"]
    );
    let status = format!("{one}/status");
    let merge = [("content-type", "application/merge-patch+json")];
    let answer = call(Method::PATCH, &status, &merge, b"{}".to_vec()).await;
    match K::SUBRESOURCES.contains(&Subresource::Status) {
        true => ok(&answer),
        false => assert_eq!(answer.code, 404, "{}: {}", K::KIND, answer.body),
    }

    // Kubernetes' protobuf, as Go clients write it.
    if kubernetes::has(K::API_VERSION, K::KIND) {
        let body = kubernetes::encode(&put.body).unwrap();
        let headers = [("content-type", kubernetes::MEDIA_TYPE)];
        let written = call(Method::PUT, &one, &headers, body).await;
        ok(&written);
        assert_eq!(written.headers[header::CONTENT_TYPE], JSON);
    }

    // Deletion, and its end.
    let body = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
    let deleted = call(
        Method::DELETE,
        &one,
        &[("content-type", JSON)],
        body.to_string().into(),
    )
    .await;
    ok(&deleted);
    if K::delete_refusal(&object).is_none() && K::KIND != "Namespace" {
        let gone = call(Method::GET, &one, &[], Vec::new()).await;
        assert_eq!(gone.code, 404, "{}: {}", K::KIND, gone.body);
    }
}

/// The document without empty values, at any depth.
fn without_empty(document: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(yes) => !yes,
        Value::Null => true,
    };
    match document {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        scalar => scalar,
    }
}
