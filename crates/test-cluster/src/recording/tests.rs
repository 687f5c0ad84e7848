use serde_json::json;

use super::{replay::Filter, *};

fn pod(phase: &str, node: Option<&str>, ip: Option<&str>) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": "web-0", "uid": "aaaaaaaa-1"},
        "spec": {"nodeName": node},
        "status": {"phase": phase, "podIPs": ip.map(|ip| vec![json!({"ip": ip})])},
    })
}

fn object(change: ObjectChange, object: Value) -> EntryEvent {
    EntryEvent::Object { change, object }
}

fn call(recorder: &Recorder, client: &str, method: &str, asked: Value, answered: Value) {
    let call = LinkCall {
        client: client.into(),
        method: method.into(),
        code: Some(Code::Ok),
        ..LinkCall::default()
    };
    recorder.call(&call, || (Some(asked), Some(answered)));
}

/// Records a run of two steps, and returns its directory.
fn recorded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path()).unwrap();
    recorder.step(1, "a pod");
    recorder.write(object(ObjectChange::Added, pod("Pending", None, None)));
    call(
        &recorder,
        "scheduler",
        "podplane.core.v1.PodService/BindPod",
        json!({"namespace": "default", "name": "web-0", "nodeName": "node-1"}),
        json!({}),
    );
    recorder.write(object(
        ObjectChange::Modified,
        pod("Pending", Some("node-1"), None),
    ));
    let running = pod("Running", Some("node-1"), Some("10.0.0.2"));
    recorder.write(object(ObjectChange::Modified, running.clone()));
    recorder.step_ended("a pod", Ok(()));
    recorder.step(2, "it goes");
    recorder.fault("kubelet-node-1 is cut off", true);
    recorder.write(object(ObjectChange::Deleted, running));
    recorder.step_ended("it goes", Err("it came back"));
    dir
}

#[test]
fn a_recording_is_read_step_by_step() {
    let dir = recorded();
    let recording = replay::read(dir.path()).unwrap();
    assert_eq!(recording.damage, []);
    let shown: Vec<_> = recording
        .clone()
        .filtered(&Filter::default())
        .steps
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(shown.len(), 2);
    for line in [
        "step 1: a pod",
        "decision   scheduler: pod/default/web-0 is bound to node node-1",
        "pod/default/web-0            phase: none → Pending → Running",
        "node: none → node-1",
        "podIPs: none → 10.0.0.2",
    ] {
        assert!(shown[0].contains(line), "{line} in\n{}", shown[0]);
    }
    for line in [
        "failed]\n  it came back\n",
        "fault      begins: kubelet-node-1 is cut off",
        "phase: Running → none",
    ] {
        assert!(shown[1].contains(line), "{line} in\n{}", shown[1]);
    }
    let only = Filter {
        step: Some(1),
        pod: Some("default/web-0".into()),
        kinds: vec!["request".into()],
    };
    let only = recording.clone().filtered(&only);
    assert_eq!(only.steps.len(), 1);
    assert_eq!(only.steps[0].entries.len(), 1);
    let other = Filter {
        pod: Some("web-1".into()),
        ..Filter::default()
    };
    let other = recording.filtered(&other);
    assert!(other.steps[0].entries.is_empty() && other.steps[0].changes.is_empty());
}

#[test]
fn reads_the_intact_part_of_a_damaged_recording() {
    let dir = recorded();
    let path = dir.path().join(FILE);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines[1] = "{}";
    std::fs::write(&path, lines.join("\n")).unwrap();
    let recording = replay::read(&path).unwrap();
    // A last line without a newline is read if it is complete.
    let damage: Vec<_> = recording.damage.iter().map(ToString::to_string).collect();
    assert_eq!(damage.len(), 1);
    assert!(damage[0].starts_with("line 2: not a recording entry: "));
    std::fs::write(&path, &text[..text.len() - 3]).unwrap();
    let recording = replay::read(&path).unwrap();
    let damage: Vec<_> = recording.damage.iter().map(ToString::to_string).collect();
    let last = text.lines().count();
    assert_eq!(
        damage,
        [format!(
            "line {last}: truncated line: the recording was cut off"
        )]
    );
    assert_eq!(recording.steps.len(), 2);
    assert!(replay::read(&dir.path().join("none")).is_err());
}

#[test]
fn bounds_its_size_and_counts_omitted_entries() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::with_limit(dir.path(), 2000).unwrap();
    for _ in 0..100 {
        recorder.log("x".repeat(100));
    }
    recorder.step(1, "after all that");
    drop(recorder);
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(text.len() < 3000, "{}", text.len());
    assert!(text.contains("after all that"));
    let left_out = 100 - text.matches("xxx\\\"}").count() - text.matches("xxx\"}").count();
    let want = format!(r#"left out are {{\"log\":{left_out}}}"#);
    assert!(text.contains(&want), "{want} in {text}");
}

#[test]
fn omits_secrets_copies_and_long_messages() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path()).unwrap();
    let env = json!([{"name": "TOKEN", "value": "s3cret"}]);
    let pod = json!({
        "metadata": {"name": "a", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "s3cret"}},
        "spec": {"containers": [{"env": env}]},
    });
    let create = json!({"pod": pod});
    call(&recorder, "kubectl", "x/CreatePod", create, json!({}));
    recorder.write(object(ObjectChange::Added, pod));
    let long = json!({"name": "a", "x": "y".repeat(LONGEST_MESSAGE)});
    call(&recorder, "kubectl", "x/Long", long, json!({}));
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(!text.contains("s3cret") && text.contains("TOKEN"), "{text}");
    assert!(text.contains(r#"{"omitted":"16403 bytes"}"#), "{text}");
}

#[test]
fn records_each_accepted_assignment_of_a_batch_as_a_decision() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path()).unwrap();
    let assignment = |name: &str, block: &str| json!({"name": name, "podCIDRs": [block]});
    call(
        &recorder,
        "ipam-controller",
        "podplane.ipam.v1.BlockService/AssignBlocks",
        json!({"assignments": [assignment("a", "10.0.0.0/24"), assignment("b", "10.0.0.0/24"), assignment("c", "10.0.1.0/24")]}),
        json!({"results": [{"resourceVersion": "7"}, {"refusal": {"reason": "Conflict"}}, {"resourceVersion": "8"}]}),
    );
    let recording = replay::read(dir.path()).unwrap();
    let decisions = recording.steps[0]
        .entries
        .iter()
        .filter_map(|entry| match &entry.what {
            EntryEvent::Decision {
                about, decision, ..
            } => Some(format!("{about} {decision}")),
            _ => None,
        });
    assert_eq!(
        decisions.collect::<Vec<_>>(),
        ["node/a is given 10.0.0.0/24", "node/c is given 10.0.1.0/24"]
    );
}

#[test]
fn does_not_format_entries_that_are_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let unread = |recorder: &Recorder, method: &str| {
        let call = LinkCall {
            method: method.into(),
            code: Some(Code::Ok),
            ..LinkCall::default()
        };
        recorder.call(&call, || panic!("{method} is put into words"));
    };
    unread(&Recorder::default(), "x/CreatePod");
    let recorder = Recorder::with_limit(dir.path(), 10).unwrap();
    for chatter in [
        "podplane.coordination.v1.LeaseService/UpdateLease",
        "opentelemetry.proto.collector.trace.v1.TraceService/Export",
    ] {
        unread(&recorder, chatter);
    }
    recorder.log("it is full from here on");
    unread(&recorder, "x/CreatePod");
    drop(recorder);
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert!(text.contains(r#"left out are {\"request\":1}"#), "{text}");
}

#[test]
fn secrets_and_tokens_are_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path()).unwrap();
    for method in [
        "podplane.core.v1.SecretService/CreateSecret",
        "podplane.core.v1.SecretService/PatchSecret",
        "podplane.core.v1.ConfigMapService/UpdateConfigMap",
        "podplane.authentication.v1.AuthenticationService/CreateTokenReview",
    ] {
        let asked = json!({"any": {"field": "pass word"}});
        call(
            &recorder,
            "cli",
            method,
            asked,
            json!({"field": "pass word"}),
        );
    }
    drop(recorder);
    let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(!text.contains("pass word"), "{text}");
}
