//! PriorityClasses, and the priorities of pods.

use podplane_api::scheduling::PriorityClass;
use podplane_client::{Api, Reason};

use super::*;

fn class(name: &str, value: i32) -> PriorityClass {
    object(json!({"metadata": {"name": name}, "value": value}))
}

fn default_class(name: &str, value: i32) -> PriorityClass {
    PriorityClass {
        global_default: Some(true),
        ..class(name, value)
    }
}

fn classes(server: &TestServer) -> Api<PriorityClass> {
    server.client.all()
}

fn classed(name: &str, class: &str) -> Pod {
    pod_with(json!({"metadata": {"name": name}, "spec": {"priorityClassName": class}}))
}

/// The class, priority and preemption policy.
fn priority(pod: Pod) -> (Option<String>, Option<i32>, Option<String>) {
    let spec = pod.spec.unwrap();
    (
        spec.priority_class_name,
        spec.priority,
        spec.preemption_policy,
    )
}

#[tokio::test]
async fn the_built_in_classes_exist_and_stay() {
    let server = TestServer::start().await;
    let list = classes(&server).list(&Default::default()).await.unwrap();
    let listed: Vec<_> = list
        .items
        .iter()
        .map(|c| (c.name(), c.value.unwrap_or_default()))
        .collect();
    assert_eq!(
        listed,
        [
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000)
        ]
    );
    for class in &list.items {
        let error = classes(&server).delete(class.name(), &at_once()).await;
        let error = error.unwrap_err();
        assert_eq!(error.reason, Reason::Forbidden);
        assert_eq!(
            error.message,
            format!(
                "priorityclasses.scheduling.k8s.io \"{}\" is forbidden: this is a system priority class and cannot be deleted",
                class.name()
            )
        );
    }
    let critical = classed("a", "system-node-critical");
    let created = server.pods().create(&critical).await.unwrap();
    assert_eq!(priority(created).1, Some(2_000_001_000));
    server.stop().await;
}

#[tokio::test]
async fn a_pod_has_the_priority_of_its_class() {
    let server = TestServer::start().await;
    let mut high = class("high", 7);
    high.preemption_policy = Some("Never".into());
    classes(&server).create(&high).await.unwrap();
    let pods = server.pods();
    let created = pods.create(&classed("a", "high")).await.unwrap();
    let expected = (Some("high".to_owned()), Some(7), Some("Never".to_owned()));
    assert_eq!(priority(created), expected);
    let without = pods.create(&pod("b")).await.unwrap();
    let policy = Some("PreemptLowerPriority".to_owned());
    assert_eq!(priority(without), (None, Some(0), policy));

    // A class can be replaced by another of its name; present pods keep their priority.
    classes(&server).delete("high", &at_once()).await.unwrap();
    classes(&server).create(&class("high", 8)).await.unwrap();
    let mut kept = pods.get("a").await.unwrap();
    let labels = kept.metadata.labels.get_or_insert_default();
    labels.insert("a".into(), "b".into());
    let spec = kept.spec.as_mut().unwrap();
    (spec.priority, spec.preemption_policy) = (None, None);
    assert_eq!(priority(pods.update(&kept).await.unwrap()), expected);
    let newer = pods.create(&classed("c", "high")).await.unwrap();
    assert_eq!(priority(newer).1, Some(8));
    server.stop().await;
}

#[tokio::test]
async fn refuses_pods_of_unknown_classes_and_with_other_priorities() {
    let server = TestServer::start().await;
    let pods = server.pods();
    let refused = async |pod: Pod| {
        let error = pods.create(&pod).await.unwrap_err();
        assert_eq!(error.reason, Reason::Forbidden);
        error.message
    };
    for unknown in ["high", "a/b", &"x".repeat(1500)] {
        assert_eq!(
            refused(classed("a", unknown)).await,
            format!("pods \"a\" is forbidden: no PriorityClass with name {unknown} was found")
        );
    }
    let own = pod_with(json!({"metadata": {"name": "a"}, "spec": {"priority": 5}}));
    assert_eq!(
        refused(own).await,
        "pods \"a\" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name"
    );
    let own = pod_with(json!({"metadata": {"name": "a"}, "spec": {"preemptionPolicy": "Never"}}));
    assert_eq!(
        refused(own).await,
        "pods \"a\" is forbidden: the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name"
    );
    server.stop().await;
}

#[tokio::test]
async fn one_class_can_be_the_global_default() {
    let server = TestServer::start().await;
    let classes = classes(&server);
    let created = classes.create(&default_class("usual", 3)).await.unwrap();
    let made = server.pods().create(&pod("a")).await.unwrap();
    let (name, value, _) = priority(made);
    assert_eq!((name.as_deref(), value), (Some("usual"), Some(3)));

    let refusal = |name: &str| {
        format!(
            "priorityclasses.scheduling.k8s.io \"{name}\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist"
        )
    };
    let error = classes.create(&default_class("other", 4)).await;
    assert_eq!(error.unwrap_err().message, refusal("other"));
    let mut other = classes.create(&class("other", 4)).await.unwrap();
    other.global_default = Some(true);
    let error = classes.update(&other).await;
    assert_eq!(error.unwrap_err().message, refusal("other"));

    // The default itself can be written, and passes the mark on.
    let mut usual = created;
    usual.description = Some("for most".into());
    let mut usual = classes.update(&usual).await.unwrap();
    usual.global_default = Some(false);
    classes.update(&usual).await.unwrap();
    classes.update(&other).await.unwrap();
    let made = server.pods().create(&pod("b")).await.unwrap();
    assert_eq!(priority(made).0.as_deref(), Some("other"));
    server.stop().await;
}
