//! Evictions of pods, through both faces, under disruption budgets.

use http::{Method, header};
use podplane_api::policy::PodDisruptionBudget;
use podplane_client::{Api, Binding, Reason};
use podplane_http_client::HttpAnswer;

use super::*;

const PROTECTED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl TestServer {
    fn budgets(&self) -> Api<PodDisruptionBudget> {
        self.client.namespaced("default")
    }

    /// Creates a bound pod with labels `app=web`, in this phase.
    async fn labeled(&self, name: &str, phase: &str, ready: bool) -> Pod {
        let pod = pod_with(json!({"metadata": {"name": name, "labels": {"app": "web"}}}));
        let created = self.pods().create(&pod).await.unwrap();
        let binding = Binding {
            name: name.into(),
            uid: created.uid().into(),
            resource_version: None,
            node_name: "n".into(),
        };
        self.pods().bind(&binding).await.unwrap();
        let mut bound = self.pods().get(name).await.unwrap();
        let ready = if ready { "True" } else { "False" };
        let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
        bound.status = Some(serde_json::from_value(status).unwrap());
        self.pods().update_status(&bound).await.unwrap()
    }

    /// Creates a budget for `app=web` with a status as the controller writes it.
    async fn budget(&self, name: &str, spec: Value, status: Value) -> PodDisruptionBudget {
        let mut budget = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
        let mut created = self.budgets().create(&object(budget)).await.unwrap();
        created.status = Some(serde_json::from_value(status).unwrap());
        self.budgets().update_status(&created).await.unwrap()
    }

    async fn evict(&self, name: &str, mut eviction: Value, query: &str) -> HttpAnswer {
        eviction["metadata"]["name"] = eviction["metadata"]["name"].as_str().unwrap_or(name).into();
        let path = format!("/api/v1/namespaces/default/pods/{name}/eviction{query}");
        within(self.rest.send_json(Method::POST, &path, &eviction))
            .await
            .unwrap()
    }
}

/// The status of a budget with healthy pods to spare, or none.
fn counted(healthy: i32, desired: i32, allowed: i32) -> Value {
    json!({
        "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": healthy,
        "disruptionsAllowed": allowed, "observedGeneration": 1,
    })
}

/// Status, reason and message of the condition that an eviction sets.
fn disruption_target(pod: &Pod) -> Option<(&str, &str, &str)> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == "DisruptionTarget")?;
    Some((
        &found.status,
        found.reason.as_deref()?,
        found.message.as_deref()?,
    ))
}

#[tokio::test]
async fn a_granted_eviction_is_recorded_in_budget_and_pod() {
    let server = TestServer::start().await;
    for name in ["a", "b"] {
        server.labeled(name, "Running", true).await;
    }
    server
        .budget("web", json!({"minAvailable": 1}), counted(2, 1, 1))
        .await;
    let answer = server
        .evict("a", json!({"deleteOptions": {"gracePeriodSeconds": 7}}), "")
        .await;
    assert_eq!(
        (answer.code, &answer.body["status"]),
        (201, &json!("Success"))
    );
    let evicted = server.pods().get("a").await.unwrap();
    assert_eq!(evicted.metadata.deletion_grace_period_seconds, Some(7));
    assert_eq!(
        disruption_target(&evicted),
        Some(("True", "EvictionByEvictionAPI", "Eviction API: evicting"))
    );
    let status = server.budgets().get("web").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, Some(0));
    let disrupted: Vec<_> = status.disrupted_pods.unwrap().into_keys().collect();
    assert_eq!(disrupted, ["a"]);
    let condition = &status.conditions.unwrap()[0];
    assert_eq!(
        (&*condition.type_, &*condition.status, &*condition.reason),
        ("DisruptionAllowed", "False", "InsufficientPods")
    );

    let refused = server.evict("b", json!({}), "").await;
    assert_eq!(refused.code, 429);
    assert_eq!(refused.headers.get(header::RETRY_AFTER), None);
    assert_eq!(
        refused.body,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": "TooManyRequests", "code": 429, "message": PROTECTED,
            "details": {"causes": [{
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 1 healthy pods and has 2 currently",
            }]},
        })
    );
    // One that is being deleted is not protected.
    let again = server
        .evict("a", json!({"deleteOptions": {"gracePeriodSeconds": 0}}), "")
        .await;
    assert_eq!(again.code, 201);
    assert!(server.pods().get("a").await.unwrap_err().is_not_found());
    server.stop().await;
}

#[tokio::test]
async fn grpc_has_the_same_evictions() {
    let server = TestServer::start().await;
    server.labeled("a", "Running", true).await;
    let budget = server
        .budget("web", json!({"minAvailable": 1}), counted(1, 1, 0))
        .await;
    let error = server.pods().evict("a", &DeleteParams::default()).await;
    let error = error.unwrap_err();
    assert_eq!(
        (error.reason, &*error.message),
        (Reason::TooManyRequests, PROTECTED)
    );
    assert_eq!(error.retry_after_seconds, None);
    assert_eq!(
        error.fields[0].description,
        "The disruption budget web needs 1 healthy pods and has 1 currently"
    );

    let mut newer = budget;
    newer.spec.as_mut().unwrap().min_available = Some(podplane_api::IntOrString::Int(0));
    server.budgets().update(&newer).await.unwrap();
    let error = server.pods().evict("a", &DeleteParams::default()).await;
    let error = error.unwrap_err();
    assert_eq!(error.retry_after_seconds, Some(10));
    assert_eq!(
        error.fields[0].description,
        "The disruption budget web is still being processed by the server."
    );
    let rest = server.evict("a", json!({}), "").await;
    assert_eq!(rest.body["details"]["retryAfterSeconds"], 10);
    assert_eq!(rest.headers.get(header::RETRY_AFTER).unwrap(), "10");

    server
        .budgets()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    let evicted = server.pods().evict("a", &DeleteParams::default()).await;
    assert!(disruption_target(&evicted.unwrap()).is_some());
    server.stop().await;
}

#[tokio::test]
async fn a_dry_run_changes_neither_pod_nor_budget() {
    let server = TestServer::start().await;
    let pod = server.labeled("a", "Running", true).await;
    let budget = server
        .budget("web", json!({"minAvailable": 0}), counted(1, 0, 1))
        .await;
    for (eviction, query) in [
        (json!({}), "?dryRun=All"),
        (json!({"deleteOptions": {"dryRun": ["All"]}}), ""),
    ] {
        assert_eq!(server.evict("a", eviction, query).await.code, 201);
        assert_eq!(server.pods().get("a").await.unwrap(), pod);
        assert_eq!(server.budgets().get("web").await.unwrap(), budget);
    }
    server.stop().await;
}

#[tokio::test]
async fn preconditions_are_checked_before_a_disruption_is_taken() {
    let server = TestServer::start().await;
    let pod = server.labeled("a", "Running", true).await;
    let budget = server
        .budget("web", json!({"minAvailable": 0}), counted(1, 0, 1))
        .await;
    for preconditions in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let eviction = json!({"deleteOptions": {"preconditions": preconditions}});
        assert_eq!(server.evict("a", eviction, "").await.code, 409);
    }
    assert_eq!(server.budgets().get("web").await.unwrap(), budget);
    let exact = json!({"uid": pod.uid(), "resourceVersion": pod.resource_version()});
    let eviction = json!({"deleteOptions": {"preconditions": exact}});
    assert_eq!(server.evict("a", eviction, "").await.code, 201);
    server.stop().await;
}

#[tokio::test]
async fn pods_that_do_not_serve_are_evicted_without_a_disruption() {
    let server = TestServer::start().await;
    for (name, phase) in [
        ("pending", "Pending"),
        ("failed", "Failed"),
        ("done", "Succeeded"),
    ] {
        server.labeled(name, phase, false).await;
    }
    server.labeled("unready", "Running", false).await;
    let mut budget = server
        .budget("web", json!({"minAvailable": 1}), counted(0, 1, 0))
        .await;
    for name in ["pending", "failed", "done"] {
        assert_eq!(server.evict(name, json!({}), "").await.code, 201, "{name}");
    }
    // Too few pods are healthy, so an unready one is protected unless the policy says otherwise.
    assert_eq!(server.evict("unready", json!({}), "").await.code, 429);
    budget.status = Some(serde_json::from_value(counted(1, 1, 0)).unwrap());
    let mut budget = server.budgets().update_status(&budget).await.unwrap();
    assert_eq!(
        server.evict("unready", json!({}), "?dryRun=All").await.code,
        201
    );
    budget.status = Some(serde_json::from_value(counted(0, 1, 0)).unwrap());
    let mut budget = server.budgets().update_status(&budget).await.unwrap();
    budget.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = Some("AlwaysAllow".into());
    server.budgets().update(&budget).await.unwrap();
    assert_eq!(server.evict("unready", json!({}), "").await.code, 201);
    let status = server.budgets().get("web").await.unwrap().status.unwrap();
    assert_eq!(status.disrupted_pods, None);
    server.stop().await;
}

#[tokio::test]
async fn two_budgets_for_a_pod_are_an_error() {
    let server = TestServer::start().await;
    server.labeled("a", "Running", true).await;
    for name in ["one", "two"] {
        server
            .budget(name, json!({"minAvailable": 0}), counted(1, 0, 1))
            .await;
    }
    let refused = server.evict("a", json!({}), "").await;
    assert_eq!(refused.code, 500);
    assert_eq!(
        refused.body["message"],
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    );
    server.stop().await;
}

#[tokio::test]
async fn refuses_malformed_evictions() {
    let server = TestServer::start().await;
    server.labeled("a", "Running", true).await;
    for (eviction, expected) in [
        (
            json!({"metadata": {"name": "b"}}),
            "name in URL does not match name in Eviction object",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod"}),
            "the body is a \"Pod\" of \"v1\": must be an Eviction of \"policy/v1\"",
        ),
    ] {
        let refused = server.evict("a", eviction, "").await;
        assert_eq!(
            (refused.code, &refused.body["message"]),
            (400, &json!(expected))
        );
    }
    let v1 = json!({"apiVersion": "policy/v1", "kind": "Eviction"});
    assert_eq!(server.evict("b", v1.clone(), "").await.code, 404);
    assert_eq!(server.evict("a", v1, "").await.code, 201);
    server.stop().await;
}

#[tokio::test]
async fn concurrent_evictions_take_each_disruption_once() {
    let server = TestServer::start().await;
    let names: Vec<_> = (0..8).map(|number| format!("p{number}")).collect();
    for name in &names {
        server.labeled(name, "Running", true).await;
    }
    server
        .budget("web", json!({"minAvailable": 5}), counted(8, 5, 3))
        .await;
    let evictions = names.iter().map(|name| server.evict(name, json!({}), ""));
    let answers = futures::future::join_all(evictions).await;
    let granted = answers.iter().filter(|answer| answer.code == 201).count();
    let refused = answers.iter().filter(|answer| answer.code == 429).count();
    assert_eq!((granted, refused), (3, 5));
    let status = server.budgets().get("web").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, Some(0));
    assert_eq!(status.disrupted_pods.unwrap().len(), 3);
    server.stop().await;
}
