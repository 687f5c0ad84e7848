use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(policy: &str) -> Pod {
    serde_json::from_value(json!({"spec": {
        "restartPolicy": policy,
        "initContainers": [
            {"name": "setup"},
            {"name": "proxy", "restartPolicy": "Always"},
            {"name": "migrate"},
        ],
        "containers": [{"name": "a"}, {"name": "b"}],
    }}))
    .unwrap()
}

fn container(name: &str, phase: ContainerPhase) -> PodContainer {
    PodContainer {
        id: format!("id-{name}"),
        sandbox: "s".into(),
        name: name.into(),
        attempt: 0,
        phase,
        created: at(100),
        started: Some(at(100)),
        finished: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image_id: String::new(),
        restarts: 0,
    }
}

fn running(name: &str) -> PodContainer {
    container(name, ContainerPhase::Running)
}

fn exited(name: &str, exit_code: i32) -> PodContainer {
    PodContainer {
        exit_code,
        finished: Some(at(110)),
        ..container(name, ContainerPhase::Exited)
    }
}

fn planned(policy: &str, containers: &[PodContainer]) -> ContainerPlan {
    let delays = RestartDelays::default();
    plan(
        &pod(policy),
        "s",
        containers,
        &delays,
        &BTreeSet::new(),
        at(111),
    )
}

fn starts(plan: &ContainerPlan) -> Vec<&str> {
    plan.start.iter().map(|start| start.name.as_str()).collect()
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let mut containers = Vec::new();
    assert_eq!(starts(&planned("Always", &containers)), ["setup"]);
    containers.push(running("setup"));
    assert!(starts(&planned("Always", &containers)).is_empty());
    containers[0] = exited("setup", 0);
    assert_eq!(starts(&planned("Always", &containers)), ["proxy"]);
    containers.push(running("proxy"));
    assert_eq!(starts(&planned("Always", &containers)), ["migrate"]);
    containers.push(exited("migrate", 0));
    assert_eq!(starts(&planned("Always", &containers)), ["a", "b"]);
    containers.extend([running("a"), running("b")]);
    assert_eq!(planned("Always", &containers), ContainerPlan::default());
    containers[1] = exited("proxy", 0);
    assert_eq!(starts(&planned("Never", &containers)), ["proxy"]);
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let containers = [exited("setup", 1)];
    assert!(planned("Never", &containers).is_ended);
    let again = planned("OnFailure", &containers);
    assert!(!again.is_ended);
    assert_eq!(starts(&again), ["setup"]);
}

#[test]
fn the_pod_ends_with_its_last_container_and_not_with_its_sidecars() {
    let inits = [exited("setup", 0), running("proxy"), exited("migrate", 0)];
    let with = |a: PodContainer, b: PodContainer| [&inits[..], &[a, b]].concat();
    let both = with(exited("a", 0), exited("b", 2));
    assert!(planned("Never", &both).is_ended);
    assert!(!planned("OnFailure", &both).is_ended);
    assert_eq!(starts(&planned("OnFailure", &both)), ["b"]);
    assert_eq!(starts(&planned("Always", &both)), ["a", "b"]);
    let one = with(exited("a", 0), running("b"));
    assert!(!planned("Never", &one).is_ended);
}

#[test]
fn restarts_wait_longer_each_time() {
    let pod: Pod =
        serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).unwrap();
    let mut delays = RestartDelays::default();
    let mut last = exited("a", 1);
    let mut waits = Vec::new();
    for attempt in 1..=7 {
        let now = last.end();
        let planned = plan(
            &pod,
            "s",
            std::slice::from_ref(&last),
            &delays,
            &BTreeSet::new(),
            now,
        );
        let until = planned.wake().unwrap_or(now);
        waits.push(until.duration_since(now).as_secs());
        delays.note_restart(&last, until);
        last = PodContainer {
            attempt,
            restarts: last.restarts + 1,
            created: until,
            finished: Some(until),
            ..last
        };
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300]);
    // A kubelet that has just started counts the restarts.
    let none = RestartDelays::default();
    let last = PodContainer {
        restarts: 3,
        ..exited("a", 1)
    };
    assert_eq!(none.due(&last), at(150));
    // A container that ran for long starts again at once.
    let long = PodContainer {
        finished: Some(at(100 + 601)),
        ..last
    };
    assert_eq!(none.due(&long), long.end());
}

#[test]
fn starts_what_is_created_and_leaves_out_what_is_held() {
    let created = [container("setup", ContainerPhase::Created)];
    let planned_now = planned("Always", &created);
    assert_eq!(planned_now.start[0].created.as_deref(), Some("id-setup"));
    let held = BTreeSet::from(["setup".to_owned()]);
    let delays = RestartDelays::default();
    let held = plan(&pod("Always"), "s", &[], &delays, &held, at(1));
    assert_eq!(held, ContainerPlan::default());
    // Containers of an earlier sandbox do not count.
    let earlier = PodContainer {
        sandbox: "earlier".into(),
        ..exited("setup", 0)
    };
    assert_eq!(starts(&planned("Always", &[earlier])), ["setup"]);
}
