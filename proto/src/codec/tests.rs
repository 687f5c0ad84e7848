use podplane_api::core::{Node, Pod};
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use super::*;

const POD: &str = "podplane.core.v1.Pod";

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

/// Both ways, the short way says what the long one says, or nothing.
#[test]
fn the_short_way_and_the_long_one_agree() {
    let text = serde_json::to_vec(&pod()).unwrap();
    let message = direct::message_of(POD, &text, None).unwrap();
    let long = encode_json(descriptor::<Pod>(), pod()).unwrap();
    assert_eq!(
        DynamicMessage::decode(descriptor::<Pod>(), &message[..]).unwrap(),
        DynamicMessage::decode(descriptor::<Pod>(), &long[..]).unwrap()
    );
    for message in [&message[..], &long[..]] {
        let json: Value = serde_json::from_slice(&direct::json_of(POD, message).unwrap()).unwrap();
        assert_eq!(
            json,
            decode_json("Pod", descriptor::<Pod>(), message).unwrap()
        );
    }
}

#[test]
fn a_revision_is_part_of_the_metadata() {
    let text = serde_json::to_vec(&pod()).unwrap();
    let message = encode_at::<Pod>(&text, "17").unwrap();
    let mut stamped = pod();
    stamped["metadata"]["resourceVersion"] = "17".into();
    assert_eq!(
        decode_json("Pod", descriptor::<Pod>(), &message).unwrap(),
        stamped
    );
    // The long way: a field of which only that one knows.
    let mut text = pod();
    text["spec"]["containers"][0]["image"] = Value::Null;
    let message = encode_at::<Pod>(&serde_json::to_vec(&text).unwrap(), "17").unwrap();
    assert_eq!(
        decode_json("Pod", descriptor::<Pod>(), &message).unwrap(),
        stamped
    );
}

/// What is legal but seldom: fields that come twice, lists in pieces.
#[test]
fn parts_of_a_message_are_joined() {
    let part = |json: Value| encode_json(descriptor::<Pod>(), json).unwrap();
    let parts = [
        part(json!({"metadata": {"name": "a", "finalizers": ["x"]}})),
        part(json!({"spec": {"hostNetwork": true}})),
        part(json!({"metadata": {"name": "b", "finalizers": ["y"]}})),
    ];
    let whole: Pod = decode(&parts.concat()).unwrap();
    assert_eq!(
        serde_json::to_value(whole).unwrap()["metadata"],
        json!({"name": "b", "finalizers": ["x", "y"]})
    );
}
