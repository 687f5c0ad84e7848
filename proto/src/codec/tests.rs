use podplane_api::core::{Node, Pod};
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use super::*;

fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "creationTimestamp": "2026-11-21T02:25:48Z",
            "labels": {"app": "web"},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}}}]
        },
        "spec": {
            "hostNetwork": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c",
                "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 10},
                "readinessProbe": {"tcpSocket": {"port": "http"}}
            }],
            "tolerations": [{"operator": "Exists", "tolerationSeconds": 300}],
            "volumes": [{"name": "v", "emptyDir": {}}]
        },
        "status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}
    })
}

#[test]
fn an_object_survives_the_wire_whole() {
    let domain: Pod = serde_json::from_value(pod()).unwrap();
    let back: Pod = decode(&encode(&domain).unwrap()).unwrap();
    assert_eq!(back, domain);
    assert_eq!(serde_json::to_value(back).unwrap(), pod());
}

/// What a reflecting client sends for Kubernetes' JSON is the object that the JSON says.
#[test]
fn proto3_json_is_kubernetes_json() {
    let message = DynamicMessage::deserialize(descriptor::<Pod>(), pod()).unwrap();
    let domain: Pod = decode(&message.encode_to_vec()).unwrap();
    assert_eq!(serde_json::to_value(domain).unwrap(), pod());
}

#[test]
fn a_field_that_kubernetes_does_not_have_is_named() {
    let mut message = DynamicMessage::deserialize(descriptor::<Pod>(), pod())
        .unwrap()
        .encode_to_vec();
    // Field 999, a varint, at the top; and a spec with the same.
    let unknown = [0xb8, 0x3e, 0x01];
    message.extend(unknown);
    message.extend([&[0x22, 0x03], &unknown[..]].concat());
    let error = decode::<Pod>(&message).unwrap_err();
    assert_eq!(
        error.to_string(),
        r##"unknown field "#999", unknown field "spec.#999""##
    );
}

#[test]
fn rubbish_is_refused() {
    let error = decode::<Node>(b"\xff\xff rubbish").unwrap_err();
    assert!(
        matches!(error, DecodeError::Wire { kind: "Node", .. }),
        "{error}"
    );
}
