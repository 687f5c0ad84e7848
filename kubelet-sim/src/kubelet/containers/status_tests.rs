use serde_json::{Value, json};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(policy: &str, status: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web-0", "namespace": "shop"},
        "spec": {"restartPolicy": policy, "containers": [{"name": "a", "image": "img"}]},
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

fn container(phase: ContainerPhase, exit_code: i32) -> PodContainer {
    PodContainer {
        id: "1".into(),
        sandbox: "s".into(),
        name: "a".into(),
        attempt: 1,
        phase,
        created: at(100),
        started: Some(at(100)),
        finished: Some(at(110)),
        exit_code,
        reason: String::new(),
        message: String::new(),
        image_id: "sha256:1".into(),
        restarts: 1,
    }
}

/// The status as JSON; `waits` is the reason with which the container waits.
fn shown(
    pod: &Pod,
    containers: &[PodContainer],
    waits: Option<&'static str>,
    ending: bool,
) -> Value {
    let sandbox = ReadySandbox {
        ips: vec!["10.0.0.2".parse().unwrap()],
        created: at(90),
    };
    let waiting = waits.map(|reason| {
        let message = String::new();
        ("a".to_owned(), WaitReason { reason, message })
    });
    let observed = PodObservation {
        sandbox_id: "s",
        sandbox: Some(&sandbox),
        host: &["192.0.2.1".parse().unwrap()],
        runtime: "containerd",
        containers,
        waiting: &waiting.into_iter().collect(),
        is_ending: ending,
        now: at(120),
    };
    serde_json::to_value(status(pod, observed)).unwrap()
}

fn ready(status: &Value) -> &Value {
    let conditions = status["conditions"].as_array().unwrap();
    let ready = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
    &ready["status"]
}

#[test]
fn a_running_container_has_the_ids_of_the_runtime() {
    let mut pod = pod("Always", json!({}));
    let before = container(ContainerPhase::Exited, 3);
    let now = PodContainer {
        id: "2".into(),
        attempt: 2,
        restarts: 2,
        ..container(ContainerPhase::Running, 0)
    };
    let status = shown(&pod, &[now.clone(), before.clone()], None, false);
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], "10.0.0.2");
    assert_eq!(ready(&status), "True");
    let container = &status["containerStatuses"][0];
    assert_eq!(container["containerID"], "containerd://2");
    assert_eq!(container["imageID"], "sha256:1");
    assert_eq!(container["restartCount"], 2);
    let last = &container["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["containerID"]),
        (&json!(3), &json!("containerd://1"))
    );
    pod.status = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(
        shown(&pod, &[now, before], None, false),
        status,
        "what has not changed"
    );
}

#[test]
fn phase_follows_from_exits_and_policy() {
    let phase = |policy: &str, code: i32, waits, ending| {
        let ended = [container(ContainerPhase::Exited, code)];
        let status = shown(&pod(policy, json!({})), &ended, waits, ending);
        assert_eq!(ready(&status), "False");
        status["phase"].as_str().unwrap().to_owned()
    };
    assert_eq!(phase("Always", 0, None, false), "Running");
    assert_eq!(
        phase("Always", 1, Some("CrashLoopBackOff"), false),
        "Running"
    );
    assert_eq!(phase("OnFailure", 1, None, false), "Running");
    assert_eq!(phase("OnFailure", 0, None, false), "Succeeded");
    assert_eq!(phase("Never", 1, None, false), "Failed");
    assert_eq!(phase("Always", 0, None, true), "Succeeded");
    assert_eq!(phase("Always", 143, None, true), "Failed");
    let none =
        |waits, ending| shown(&pod("Always", json!({})), &[], waits, ending)["phase"].clone();
    assert_eq!(none(Some("ErrImageNeverPull"), false), "Pending");
    assert_eq!(none(None, true), "Failed");
}

#[test]
fn a_container_that_waits_keeps_its_last_end() {
    let ended = [container(ContainerPhase::Exited, 1)];
    let status = shown(
        &pod("Always", json!({})),
        &ended,
        Some("CrashLoopBackOff"),
        false,
    );
    let container = &status["containerStatuses"][0];
    assert_eq!(container["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(container["lastState"]["terminated"]["reason"], "Error");
}

#[test]
fn a_container_that_is_lost_with_its_sandbox_counts_as_killed() {
    let former = json!({"phase": "Running", "containerStatuses": [{
        "name": "a", "image": "img", "imageID": "sha256:1", "ready": true, "restartCount": 4,
        "containerID": "containerd://9", "state": {"running": {"startedAt": at(1)}},
    }]});
    let lost = shown(&pod("Never", former.clone()), &[], None, true);
    assert_eq!(lost["phase"], "Failed");
    let end = &lost["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&end["exitCode"], &end["reason"]),
        (&json!(137), &json!("ContainerStatusUnknown"))
    );
    let again = pod("Always", former);
    let mut status = PodStatus {
        container_statuses: Some(vec![ContainerStatus {
            name: "a".into(),
            ..ContainerStatus::default()
        }]),
        ..PodStatus::default()
    };
    carry_over(&mut status, &again);
    let kept = serde_json::to_value(&status).unwrap();
    let kept = &kept["containerStatuses"][0];
    assert_eq!(kept["restartCount"], 4);
    assert_eq!(kept["lastState"]["terminated"]["exitCode"], 137);
}
