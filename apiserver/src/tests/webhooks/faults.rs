//! Webhooks that hang, answer nonsense, are somebody else, or call back.

use std::sync::OnceLock;

use futures::future::{BoxFuture, join_all, pending};

use super::{peer::answer, *};
use crate::flow::FlowLimits;

const FAILED: &str = "Internal error occurred: failed calling webhook \"a.example.com\": ";

/// A server with one mutating webhook for ConfigMaps.
async fn with(webhook: &Webhook, fields: Value) -> TestServer {
    let server = TestServer::start().await;
    let hooks = json!([hook(webhook, "a.example.com", &["configmaps"], fields)]);
    server.configure(MUTATING, "m", hooks).await;
    server
}

fn document(document: Value) -> impl Fn(Value) -> BoxFuture<'static, Value> {
    move |_| {
        let document = document.clone();
        Box::pin(async { document })
    }
}

#[tokio::test]
async fn what_is_no_answer_refuses_the_write_or_is_ignored() {
    let allowed = json!({"uid": "u", "allowed": true});
    let review = |response: Value| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    for (answered, why) in [
        (json!("no JSON"), "failed to call webhook: Post"),
        (
            json!({}),
            "received invalid webhook response: expected webhook response of",
        ),
        (
            review(json!(null)),
            "received invalid webhook response: webhook response was absent",
        ),
        (
            review(allowed),
            "received invalid webhook response: expected response.uid=",
        ),
    ] {
        let webhook = Webhook::answering(document(answered)).await;
        let server = with(&webhook, json!({})).await;
        let (code, message) = server
            .refused(CONFIG_MAPS, &config_map("a", json!({})))
            .await;
        assert_eq!(code, 500);
        assert!(message.starts_with(&format!("{FAILED}{why}")), "{message}");
        server.stop().await;
        let server = with(&webhook, json!({"failurePolicy": "Ignore"})).await;
        server.make(CONFIG_MAPS, &config_map("a", json!({}))).await;
        let metrics = server.rest.get("/metrics").await.unwrap();
        let metrics = metrics.body.as_str().unwrap().to_owned();
        let counted = "apiserver_admission_webhook_fail_open_count_total{name=\"a.example.com\",type=\"admit\"} 1";
        assert!(metrics.contains(counted), "{metrics}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_webhook_that_hangs_is_given_up_after_its_timeout() {
    let webhook = Webhook::answering(|_| Box::pin(pending())).await;
    let server = with(&webhook, json!({"timeoutSeconds": 1})).await;
    let (code, message) = server
        .refused(CONFIG_MAPS, &config_map("a", json!({})))
        .await;
    assert_eq!(code, 500);
    let url = format!(
        "Post \"https://127.0.0.1:{}/hook?timeout=1s\"",
        webhook.port
    );
    let why = format!("{FAILED}failed to call webhook: {url}: context deadline exceeded");
    assert!(message.starts_with(&why), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_with_another_certificate_is_not_asked() {
    let webhook = Webhook::start(|_| json!({})).await;
    let other = Webhook::start(|_| json!({})).await;
    let mut client = webhook.client();
    client["caBundle"] = other.bundle().into();
    for wrong in [client, json!({"url": webhook.client()["url"]})] {
        let server = with(&webhook, json!({"clientConfig": wrong})).await;
        let (code, message) = server
            .refused(CONFIG_MAPS, &config_map("a", json!({})))
            .await;
        assert_eq!(code, 500);
        assert!(message.contains("invalid peer certificate: "), "{message}");
        server.stop().await;
    }
    assert!(webhook.asked().is_empty());
}

#[tokio::test]
async fn a_patch_that_cannot_be_applied_refuses_the_write_whatever_the_policy() {
    let webhook =
        Webhook::start(|_| patch(&json!([{"op": "remove", "path": "/data/missing"}]))).await;
    let server = with(&webhook, json!({"failurePolicy": "Ignore"})).await;
    let (code, message) = server
        .refused(CONFIG_MAPS, &config_map("a", json!({})))
        .await;
    assert_eq!(code, 500);
    assert!(
        message.starts_with("Internal error occurred: operation 0 at"),
        "{message}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_webhook_may_call_back() {
    let address: std::sync::Arc<OnceLock<String>> = Default::default();
    let known = std::sync::Arc::clone(&address);
    let webhook = Webhook::answering(move |review| {
        let address = known.get().unwrap().clone();
        Box::pin(async move {
            let client = HttpClient::new(address.as_str());
            let object = config_map("made-by-the-webhook", json!({}));
            let path = "/api/v1/namespaces/kube-system/configmaps";
            let made = client.send_json(Method::POST, path, &object).await.unwrap();
            answer(&review, json!({"warnings": [made.code.to_string()]}))
        })
    })
    .await;
    let only =
        json!({"matchConditions": [{"name": "c", "expression": "request.namespace == 'default'"}]});
    let server = with(&webhook, only).await;
    address.set(server.address.clone()).unwrap();
    let created = server
        .ask(Method::POST, CONFIG_MAPS, &config_map("a", json!({})))
        .await;
    assert_eq!(
        (created.code, warnings(&created)),
        (201, vec!["299 - \"201\""])
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_writes_wait_for_a_slow_webhook_at_once() {
    const WRITES: usize = 1000;
    let webhook = Webhook::answering(|review| {
        Box::pin(async move {
            time::sleep(Duration::from_millis(300)).await;
            answer(&review, json!({}))
        })
    })
    .await;
    // The limit of requests in flight would let some of them wait.
    let rules = ServerRules {
        flow: FlowLimits {
            seats: 0,
            ..FlowLimits::default()
        },
        ..uncounted()
    };
    let server = TestServer::at("127.0.0.1:0", rules, MemStore::new()).await;
    let fields = json!({"timeoutSeconds": 30});
    let hooks = json!([hook(&webhook, "a.example.com", &["configmaps"], fields)]);
    server.configure(MUTATING, "m", hooks).await;
    let maps = server
        .client
        .namespaced::<podplane_api::core::ConfigMap>("default");
    let begun = std::time::Instant::now();
    let each = (0..WRITES).map(|number| {
        let maps = maps.clone();
        async move {
            let map = object(
                json!({"metadata": {"name": format!("m-{number}"), "namespace": "default"}}),
            );
            maps.create(&map).await
        }
    });
    let made = time::timeout(3 * DEADLINE, join_all(each)).await.unwrap();
    let failed: Vec<_> = made.into_iter().filter_map(Result::err).collect();
    assert!(
        failed.is_empty(),
        "{} failed: {:?}",
        failed.len(),
        failed[0]
    );
    assert_eq!(webhook.asked().len(), WRITES);
    // One after the other they would take 300 seconds.
    assert!(
        begun.elapsed() < Duration::from_secs(150),
        "{:?}",
        begun.elapsed()
    );
    server.stop().await;
}
