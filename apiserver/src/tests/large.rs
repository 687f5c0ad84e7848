//! Objects of the largest size that the store takes, through gRPC and REST and in each encoding.

use bytes::Bytes;
use http::Method;
use podplane_client::Reason;
use podplane_proto::kubernetes;
use podplane_store::MAX_VALUE_BYTES;

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod of about `bytes` bytes.
fn large_pod(name: &str, bytes: usize) -> Value {
    let env = json!([{"name": "LARGE", "value": "x".repeat(bytes)}]);
    let containers = json!([{"name": "c", "image": "i", "env": env}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}})
}

#[tokio::test]
async fn keeps_objects_of_up_to_one_and_a_half_mebibytes() {
    let server = TestServer::start().await;
    let encodings = [
        ("application/json", false),
        ("application/yaml", false),
        (kubernetes::MEDIA_TYPE, true),
    ];
    for (at, (media, is_protobuf)) in encodings.into_iter().enumerate() {
        for (bytes, code) in [(MAX_VALUE_BYTES, 413), (MAX_VALUE_BYTES - 4096, 201)] {
            let pod = large_pod(&format!("a{at}"), bytes);
            let body: Bytes = match is_protobuf {
                true => kubernetes::encode(&pod).unwrap().into(),
                false => pod.to_string().into(),
            };
            let headers = [("content-type", media)];
            let answer = server.rest.exchange(Method::POST, PODS, &headers, body);
            let answer = within(answer).await.unwrap();
            assert_eq!(answer.code, code, "{media}: {}", answer.body["message"]);
            if code == 413 {
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains("limit is 1572864"), "{message}");
            }
        }
    }
    let patch = json!({"metadata": {"labels": {"patched": "yes"}}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let path = format!("{PODS}/a0");
    let answer = server.rest.exchange(Method::PATCH, &path, &headers, patch);
    assert_eq!(within(answer).await.unwrap().code, 200);
    server.stop().await;
}

#[tokio::test]
async fn grpc_keeps_objects_of_up_to_one_and_a_half_mebibytes() {
    let server = TestServer::start().await;
    let error = server
        .pods()
        .create(&pod_with(large_pod("a", MAX_VALUE_BYTES)))
        .await
        .unwrap_err();
    assert_eq!(error.reason, Reason::RequestEntityTooLarge);
    assert!(error.message.contains("limit is 1572864"), "{error}");
    let created = server
        .pods()
        .create(&pod_with(large_pod("a", MAX_VALUE_BYTES - 4096)))
        .await
        .unwrap();
    assert_eq!(server.pods().get("a").await.unwrap(), created);
    let many = json!({"metadata": {"name": "b"}, "spec": {"containers": vec![json!({"name": "c", "image": "i"}); 40_000]}});
    let error = server.pods().create(&pod_with(many)).await.unwrap_err();
    assert_eq!(error.reason, Reason::RequestEntityTooLarge);
    assert!(
        error.message.contains("limit of values is 50000"),
        "{error}"
    );
    server.stop().await;
}
