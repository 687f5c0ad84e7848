use serde_json::{Value, json};

use super::*;

fn created(spec: Value) -> Pod {
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
    pod.set_defaults();
    set_priority(&mut pod, None).unwrap();
    pod.prepare_for_create();
    pod
}

#[test]
fn fills_in_the_defaults_of_kubernetes() {
    let pod = created(
        json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
        "resources": {"limits": {"cpu": "1"}}, "readinessProbe": {"httpGet": {"port": 80}}}]}),
    );
    assert_eq!(
        serde_json::to_value(pod.spec.unwrap()).unwrap(),
        json!({
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "securityContext": {},
            "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "containers": [{
                "name": "c", "image": "i", "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "readinessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            }],
        })
    );
    let status = pod.status.unwrap();
    assert_eq!(
        (status.phase.as_deref(), status.qos_class.as_deref()),
        (Some("Pending"), Some("Burstable"))
    );
}

#[test]
fn setting_defaults_is_idempotent() {
    let pod = created(
        json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}),
    );
    assert_eq!(
        pod.spec.as_ref().unwrap().containers[0]
            .ports
            .as_ref()
            .unwrap()[0]
            .host_port,
        Some(80)
    );
    let mut again = pod.clone();
    again.set_defaults();
    assert_eq!(again, pod);
}

#[test]
fn pull_policy_follows_from_the_image_tag() {
    let cases = [
        ("i", "Always"),
        ("i:latest", "Always"),
        ("i:1", "IfNotPresent"),
        ("host:5000/i", "Always"),
        ("host:5000/i:1", "IfNotPresent"),
        ("i@sha256:0", "IfNotPresent"),
    ];
    for (image, want) in cases {
        let pod = created(json!({"containers": [{"name": "c", "image": image}]}));
        assert_eq!(
            pod.spec.unwrap().containers[0].image_pull_policy.as_deref(),
            Some(want),
            "{image}"
        );
    }
}

#[test]
fn default_tolerations_are_not_added_twice() {
    for toleration in [
        json!({"operator": "Exists"}),
        json!({"operator": "Exists", "effect": "NoExecute"}),
    ] {
        let pod = created(json!({"containers": [], "tolerations": [toleration]}));
        assert_eq!(pod.spec.unwrap().tolerations.unwrap().len(), 1);
    }
    let pod = created(
        json!({"containers": [], "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}),
    );
    assert_eq!(pod.spec.unwrap().tolerations.unwrap().len(), 2);
}

#[test]
fn qos_class_follows_from_the_resources() {
    let whole = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let cases = [
        (json!([{"name": "c"}]), "BestEffort"),
        (json!([{"name": "c", "resources": whole}]), "Guaranteed"),
        (
            json!([{"name": "c", "resources": whole}, {"name": "d"}]),
            "Burstable",
        ),
        (
            json!([{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}}]),
            "Guaranteed",
        ),
        (
            json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]),
            "Burstable",
        ),
        (
            json!([{"name": "c", "resources": {"requests": {"example.com/x": "1"}, "limits": {"example.com/x": "1"}}}]),
            "BestEffort",
        ),
    ];
    for (containers, want) in cases {
        let pod = created(json!({"containers": containers}));
        assert_eq!(
            pod.status.unwrap().qos_class.as_deref(),
            Some(want),
            "{containers}"
        );
    }
}
