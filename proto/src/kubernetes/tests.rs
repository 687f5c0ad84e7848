use std::collections::BTreeSet;

use podplane_api::schema::definitions;
use serde_json::json;

use super::*;

/// Every message field has a counterpart in the definitions and the other way round, so that
/// neither direction loses a field.
#[test]
fn messages_and_definitions_have_the_same_fields() {
    let mut seen = BTreeSet::new();
    let mut kinds = 0;
    for (_, definition) in definitions() {
        let named = definition["x-kubernetes-group-version-kind"].as_array();
        for gvk in named.into_iter().flatten() {
            let part = |name: &str| gvk[name].as_str().unwrap_or_default();
            let api_version = match part("group") {
                "" => part("version").to_owned(),
                group => format!("{group}/{}", part("version")),
            };
            if let Some((descriptor, fields)) = shape(&api_version, part("kind")) {
                kinds += 1;
                compare(&descriptor, fields, true, &mut seen);
            }
        }
    }
    assert!(kinds > 25, "{kinds}");
    assert!(seen.len() > 200, "{seen:?}");
}

/// The fields of the definition that a message and its embedded messages have.
fn compare(
    descriptor: &MessageDescriptor,
    fields: &'static Struct,
    whole: bool,
    seen: &mut BTreeSet<String>,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if whole && !seen.insert(descriptor.full_name().to_owned()) {
        return found;
    }
    for field in descriptor.fields() {
        let (name, kind) = (json_name(&field), field.kind());
        let path = format!("{}.{name}", descriptor.full_name());
        let Some(place) = fields.field(name) else {
            let embedded = kind.as_message().unwrap_or_else(|| panic!("{path}"));
            let inner = compare(embedded, fields, false, seen);
            assert!(!inner.is_empty(), "{path}");
            found.extend(inner);
            continue;
        };
        found.insert(name.to_owned());
        let (message, ty) = match (place.ty().kind(), kind.as_message()) {
            (TypeStructure::List(list), message) => {
                assert!(field.is_list(), "{path}");
                (message.cloned(), list.items())
            }
            (TypeStructure::Map(values), Some(entry)) => {
                assert!(field.is_map(), "{path}");
                let value = entry.map_entry_value_field();
                (value.kind().as_message().cloned(), values)
            }
            (_, message) => (message.cloned(), place.ty()),
        };
        match (ty.kind(), message) {
            (TypeStructure::Struct(fields), Some(message)) => {
                compare(&message, fields, true, seen);
            }
            (TypeStructure::List(_), Some(message)) => {
                assert!(message.get_field_by_name(ITEMS).is_some(), "{path}");
            }
            (TypeStructure::Any, Some(message)) if schemas::is_union(&message) => {}
            (TypeStructure::Scalar | TypeStructure::Any, Some(message)) => {
                let unmapped = |result: Result<(), ConversionError>| {
                    result.is_err_and(|error| error.message.starts_with("no JSON"))
                };
                let zero = DynamicMessage::new(message.clone());
                assert!(!unmapped(scalars::to_json(&zero).map(drop)), "{path}");
                let back = scalars::to_message(&Json::Null, message).map(drop);
                assert!(!unmapped(back), "{path}");
            }
            (TypeStructure::Scalar, None) => {}
            other => panic!("{path}: {other:?}"),
        }
    }
    if whole {
        let all = fields.fields().map(|(name, _)| name.to_owned());
        let type_meta = |name: &String| ["apiVersion", "kind"].contains(&name.as_str());
        let missing: Vec<_> = all
            .filter(|name| !found.contains(name) && !type_meta(name))
            .collect();
        assert!(
            missing.is_empty(),
            "{}: {missing:?}",
            descriptor.full_name()
        );
    }
    found
}

fn deployment() -> Json {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "a",
            "creationTimestamp": "2026-11-21T02:25:48Z",
            "labels": {"app": "web", "empty": ""},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}}}]
        },
        "spec": {
            "replicas": 0,
            "paused": true,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
            "template": {
                "metadata": {},
                "spec": {
                    "automountServiceAccountToken": false,
                    "hostNetwork": true,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "c",
                        "args": ["", "a"],
                        "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": false}}}],
                        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
                        "livenessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 10},
                        "readinessProbe": {"tcpSocket": {"port": "http"}}
                    }],
                    "ephemeralContainers": [{"name": "e", "image": "i", "resources": {}, "targetContainerName": "c"}],
                    "volumes": [
                        {"name": "v", "emptyDir": {}},
                        {"name": "w", "configMap": {"name": "m", "defaultMode": 0}},
                        {"name": "x", "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"storageClassName": "", "resources": {}}}}}
                    ]
                }
            }
        },
        "status": {}
    })
}

#[test]
fn objects_round_trip() {
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "a"},
        "eventTime": "2026-11-21T02:25:48.000120Z",
        "deprecatedSource": {},
        "regarding": {"kind": "Pod"}
    });
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "SelfSubjectReview",
        "metadata": {},
        "status": {"userInfo": {"username": "u", "extra": {"k": ["a", "b"]}}}
    });
    let token = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {},
        "spec": {
            "audiences": ["a"],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            "expirationSeconds": 600
        },
        "status": {"token": "t", "expirationTimestamp": "2026-11-21T02:25:48Z"}
    });
    let revision = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {},
        "data": {"spec": [1.5, null]},
        "revision": 3
    });
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "a"},
        "spec": {"request": "AP/+", "signerName": "a.b/c", "extra": {"k": ["a", "b"]}},
        "status": {"certificate": "AA=="}
    });
    let schema = json!({
        "$schema": "s",
        "$ref": "r",
        "x-kubernetes-list-map-keys": ["a"],
        "maximum": 1.5,
        "default": {"a": [1, null]},
        "enum": [1, "a", null],
        "items": {"type": "string"},
        "additionalProperties": false,
        "additionalItems": {"items": [{"type": "string"}, {}]},
        "dependencies": {"a": ["b", "c"], "d": {"type": "object"}},
        "properties": {"p": {"not": {"x-kubernetes-int-or-string": true}}}
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "a"},
        "spec": {
            "group": "g",
            "scope": "Cluster",
            "versions": [{
                "name": "v1",
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}}
            }]
        },
        "status": {"storedVersions": ["v1"]}
    });
    for object in [
        deployment(),
        event,
        review,
        token,
        revision,
        request,
        definition,
    ] {
        let mut back = decode(&encode(&object).unwrap()).unwrap();
        // Structs that are not pointers are present, as in Go.
        prune(&mut back, &object);
        assert_eq!(back, object);
    }
}

/// Removes empty structs that the other document does not have.
fn prune(json: &mut Json, like: &Json) {
    match json {
        Json::Object(fields) => {
            fields.retain(|name, value| *value != json!({}) || like.get(name).is_some());
            for (name, value) in fields {
                prune(value, &like[name.as_str()]);
            }
        }
        Json::Array(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                prune(item, &like[i]);
            }
        }
        _ => {}
    }
}

/// Go writes all fields that are not pointers.
#[test]
fn unset_fields_that_go_writes_are_absent() {
    let (descriptor, fields) = shape("v1", "Pod").unwrap();
    let spec = descriptor.get_field_by_name("spec").unwrap().kind();
    let spec = spec.as_message().unwrap();
    let mut message = DynamicMessage::new(spec.clone());
    message.set_field_by_name("hostNetwork", Value::Bool(false));
    message.set_field_by_name("hostname", Value::String(String::new()));
    message.set_field_by_name("hostUsers", Value::Bool(false));
    message.set_field_by_name("priority", Value::I32(0));
    let TypeStructure::Struct(fields) = fields.field("spec").unwrap().ty().kind() else {
        panic!("a struct");
    };
    let mut object = Map::new();
    flatten(&message, fields, &mut object).unwrap();
    assert_eq!(
        Json::Object(object),
        json!({"hostUsers": false, "priority": 0})
    );
}

#[test]
fn refuses_invalid_objects() {
    let errors = [
        (
            b"{}".to_vec(),
            "provided data does not appear to be a protobuf message, expected prefix [107, 56, 115, 0]",
        ),
        (
            b"k8s\0".to_vec(),
            "no kind \"\" is registered for version \"\"",
        ),
        (b"k8s\0\xff".to_vec(), "not a protobuf message"),
    ];
    for (bytes, text) in errors {
        assert_eq!(decode(&bytes).unwrap_err().to_string(), text);
    }
    let error =
        encode(&json!({"apiVersion": "v1", "kind": "Node", "spec": {"taints": [{"key": 1}]}}));
    let error = error.unwrap_err().to_string();
    assert_eq!(
        error,
        "spec.taints[0].key: 1 is not of the type of the field"
    );
}
