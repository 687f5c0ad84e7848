use serde_json::{Value, json};

use super::*;

/// A pod after defaulting, changed by a JSON merge.
fn pod(change: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "a", "namespace": "default"},
        "spec": {
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}],
        },
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(change)) if into.len() == change.len() => {
            into.iter_mut()
                .zip(change)
                .for_each(|(into, change)| merge(into, change));
        }
        (into, change) => *into = change.clone(),
    }
}

fn container(change: &Value) -> Pod {
    pod(&json!({"spec": {"containers": [change]}}))
}

#[test]
fn a_well_formed_pod_breaks_no_rule() {
    let errors = container(
        &json!({"ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}],
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "0.1"}}}),
    )
    .validate();
    assert!(errors.is_empty(), "{errors}");
}

#[test]
fn reports_violations_with_kubernetes_messages() {
    let label = "a lowercase RFC 1123 label must consist of";
    let cases = [
        (
            pod(&json!({"metadata": {"name": null}})),
            "metadata.name: Required value: name or generateName is required",
        ),
        (
            pod(&json!({"metadata": {"namespace": null}})),
            "metadata.namespace: Required value",
        ),
        (
            pod(&json!({"spec": {"containers": []}})),
            "spec.containers: Required value",
        ),
        (
            container(&json!({"image": ""})),
            "spec.containers[0].image: Required value",
        ),
        (
            container(&json!({"name": ""})),
            "spec.containers[0].name: Required value",
        ),
        (
            container(&json!({"name": "C"})),
            &format!("spec.containers[0].name: Invalid value: \"C\": {label}"),
        ),
        (
            container(&json!({"imagePullPolicy": "Sometimes"})),
            r#"spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never""#,
        ),
        (
            container(&json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            r#"spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1"#,
        ),
        (
            container(&json!({"resources": {"limits": {"cpu": "-1"}}})),
            r#"spec.containers[0].resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
        ),
        (
            container(&json!({"resources": {"limits": {"cpu": "one"}}})),
            r#"spec.containers[0].resources.limits[cpu]: Invalid value: "one": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"#,
        ),
        (
            container(&json!({"resources": {"limits": {"widgets": "1"}}})),
            r#"spec.containers[0].resources.limits[widgets]: Invalid value: "widgets": must be a standard resource for containers"#,
        ),
        (
            container(&json!({"ports": [{"containerPort": 70000, "protocol": "TCP"}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            container(&json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            r#"spec.containers[0].volumeMounts[0].name: Not found: "v""#,
        ),
        (
            pod(
                &json!({"spec": {"hostNetwork": true, "containers": [{"ports": [{"containerPort": 80, "hostPort": 81, "protocol": "TCP"}]}]}}),
            ),
            "spec.containers[0].ports[0].containerPort: Invalid value: 80: must match `hostPort` when `hostNetwork` is true",
        ),
        (
            pod(&json!({"spec": {"restartPolicy": "Maybe"}})),
            r#"spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never""#,
        ),
        (
            pod(&json!({"spec": {"tolerations": [{"operator": "Equal", "effect": "NoSchedule"}]}})),
            r#"spec.tolerations[0].operator: Invalid value: "Equal": operator must be Exists when `key` is empty, which means "match all values and all keys""#,
        ),
        (
            pod(&json!({"spec": {"nodeName": "n", "schedulingGates": [{"name": "g"}]}})),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ),
        (
            pod(&json!({"metadata": {"labels": {"a b": "c"}}})),
            "metadata.labels: Invalid value: \"a b\": name part must consist of",
        ),
    ];
    for (pod, want) in cases {
        let errors: Vec<_> = pod.validate().iter().map(ToString::to_string).collect();
        assert!(
            matches!(&errors[..], [one] if one.starts_with(want)),
            "want {want}\ngot {errors:#?}"
        );
    }
}

#[test]
fn container_names_are_unique() {
    let one = json!({"name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
    let errors = pod(&json!({"spec": {"containers": [one, one]}})).validate();
    assert_eq!(
        errors.to_string(),
        r#"spec.containers[1].name: Duplicate value: "c""#
    );
}

#[test]
fn accepts_changes_of_mutable_fields() {
    let changes = [
        json!({"spec": {"containers": [{"image": "other"}]}}),
        json!({"spec": {"activeDeadlineSeconds": 5}}),
        json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
    ];
    for change in changes {
        let errors = pod(&change).validate_update(&pod(&json!({})));
        assert!(errors.is_empty(), "{change}: {errors}");
    }
    let gated = pod(&json!({"spec": {"schedulingGates": [{"name": "g"}]}}));
    assert!(pod(&json!({})).validate_update(&gated).is_empty());
}

#[test]
fn names_immutable_fields_that_changed() {
    let errors = pod(&json!({"spec": {"hostNetwork": true, "nodeName": "n"}}))
        .validate_update(&pod(&json!({})));
    assert_eq!(
        errors.to_string(),
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
         `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n  \
         hostNetwork: (unset) -> true\n  nodeName: (unset) -> \"n\""
    );
    let tolerant = pod(&json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}));
    assert_eq!(
        pod(&json!({})).validate_update(&tolerant).to_string(),
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    );
    let deadline = |seconds| pod(&json!({"spec": {"activeDeadlineSeconds": seconds}}));
    assert_eq!(
        deadline(6).validate_update(&deadline(5)).to_string(),
        "spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"
    );
    let errors = pod(&json!({"metadata": {"uid": "x"}}))
        .validate_update(&pod(&json!({"metadata": {"uid": "y"}})));
    assert_eq!(
        errors.to_string(),
        r#"metadata.uid: Invalid value: "x": field is immutable"#
    );
}

#[test]
fn an_object_in_deletion_takes_no_new_finalizer() {
    let deleting = |finalizers: Value| {
        pod(
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}}),
        )
    };
    assert!(
        deleting(json!([]))
            .validate_update(&deleting(json!(["a/b"])))
            .is_empty()
    );
    assert_eq!(
        deleting(json!(["a/b"]))
            .validate_update(&deleting(json!([])))
            .to_string(),
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a/b\"}"
    );
}
