use podplane_api::{
    any::kind_of,
    core::{Node, Pod},
};
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use super::*;

const POD: &str = "podplane.core.v1.Pod";

fn descriptor<K: Object>() -> MessageDescriptor {
    MessageOf::of::<K>().descriptor()
}

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
fn objects_round_trip() {
    let domain: Pod = serde_json::from_value(pod()).unwrap();
    let back: Pod = decode(&encode(&domain).unwrap()).unwrap();
    assert_eq!(back, domain);
    assert_eq!(serde_json::to_value(back).unwrap(), pod());
}

/// A reflecting client that sends Kubernetes' JSON gets the object that the JSON describes.
#[test]
fn proto3_json_equals_kubernetes_json() {
    let message = DynamicMessage::deserialize(descriptor::<Pod>(), pod()).unwrap();
    let domain: Pod = decode(&message.encode_to_vec()).unwrap();
    assert_eq!(serde_json::to_value(domain).unwrap(), pod());
}

#[test]
fn unknown_fields_are_named() {
    let mut message = DynamicMessage::deserialize(descriptor::<Pod>(), pod())
        .unwrap()
        .encode_to_vec();
    // Field 999, a varint, at the top level; and a spec with the same field.
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
fn refuses_invalid_messages() {
    let error = decode::<Node>(b"\xff\xff rubbish").unwrap_err();
    assert!(
        matches!(error, DecodeError::Wire { ref kind, .. } if kind == "Node"),
        "{error}"
    );
}

/// In both directions, the fast path returns the result of the slow one, or none.
#[test]
fn the_fast_path_agrees_with_the_slow_path() {
    let text = serde_json::to_vec(&pod()).unwrap();
    let message = direct::message_of(POD, &text).unwrap();
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

/// The same for times, in all forms that clients may send.
#[test]
fn the_fast_path_of_times_agrees_or_returns_none() {
    let usual = ["2026-11-21T02:25:48Z", "2026-11-21T02:25:48.123456Z"];
    let seldom = [
        "2026-11-21T02:25:48.5Z",
        "2026-11-21T02:25:48.000000Z",
        "2026-11-21T03:25:48+01:00",
        "2026-11-21t02:25:48z",
        "2026-11-21 02:25:48Z",
        "2016-12-31T23:59:60Z",
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "2026-11-21",
        "",
    ];
    for text in usual.into_iter().chain(seldom) {
        let pod = json!({"metadata": {"creationTimestamp": text}});
        let short = direct::message_of(POD, &serde_json::to_vec(&pod).unwrap());
        let long = encode_json(descriptor::<Pod>(), pod);
        assert!(short.is_some() || !usual.contains(&text), "{text}");
        if let Some(short) = &short {
            assert_eq!(Some(short), long.as_ref().ok(), "{text}");
        }
        let Ok(message) = long else { continue };
        let short = direct::json_of(POD, &message);
        let long = decode_json("Pod", descriptor::<Pod>(), &message).ok();
        let short = short.map(|json| serde_json::from_slice::<Value>(&json).unwrap());
        assert!(
            short.is_none() || short == long,
            "{text}: {short:?} {long:?}"
        );
        assert!(short.is_some() || !usual.contains(&text), "{text}");
    }
}

#[test]
fn encodes_the_revision_into_the_metadata() {
    let text = serde_json::to_vec(&pod()).unwrap();
    let message = encode_any_at(&*kind_of::<Pod>(), &text, "17").unwrap();
    let mut stamped = pod();
    stamped["metadata"]["resourceVersion"] = "17".into();
    assert_eq!(
        decode_json("Pod", descriptor::<Pod>(), &message).unwrap(),
        stamped
    );
    // The slow path: only it handles this field.
    let mut text = pod();
    text["spec"]["containers"][0]["image"] = Value::Null;
    let message = encode_any_at(
        &*kind_of::<Pod>(),
        &serde_json::to_vec(&text).unwrap(),
        "17",
    )
    .unwrap();
    assert_eq!(
        decode_json("Pod", descriptor::<Pod>(), &message).unwrap(),
        stamped
    );
}

/// Legal but rare: repeated fields, and lists in pieces.
#[test]
fn merges_repeated_parts_of_a_message() {
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
