//! Reviews of permissions over gRPC, compared with those over REST.

use podplane_client::endpoint;
use podplane_proto::authorization::{
    CreateLocalSubjectAccessReviewRequest, CreateSelfSubjectAccessReviewRequest,
    CreateSelfSubjectRulesReviewRequest, CreateSubjectAccessReviewRequest, NonResourceAttributes,
    ResourceAttributes, authorization_service_client::AuthorizationServiceClient,
};

use super::*;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1";

fn by<T>(identity: &str, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let bearer = format!("Bearer {}", token(identity)).parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    request
}

#[tokio::test]
async fn reviews_have_the_same_answers_over_grpc() {
    let server = GatedServer::with_cluster().await;
    let channel = endpoint::channel(&server.server.address.parse().unwrap()).unwrap();
    let mut client = AuthorizationServiceClient::new(channel);
    let mut answers = std::collections::BTreeSet::new();
    for (user, namespace, verb, resource) in [
        ("ada", "prod", "create", "pods"),
        ("ada", "test", "create", "pods"),
        ("bob", "prod", "list", "pods"),
        ("nobody", "prod", "get", "pods"),
        ("root", "prod", "delete", "pods"),
    ] {
        let attributes = ResourceAttributes {
            namespace: namespace.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            ..ResourceAttributes::default()
        };
        let asked = json!({"namespace": namespace, "verb": verb, "resource": resource});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}});
        let path = format!("{REVIEWS}/selfsubjectaccessreviews");
        let rest = server.ask(user, Method::POST, &path, &review).await.body;
        let own = CreateSelfSubjectAccessReviewRequest {
            resource_attributes: Some(attributes.clone()),
            non_resource_attributes: None,
        };
        let own = client.create_self_subject_access_review(by(user, own));
        let own = within(own).await.unwrap().into_inner().status.unwrap();
        assert_eq!(
            json!(own.allowed),
            rest["status"]["allowed"],
            "{user} {asked}"
        );
        let reason = rest["status"]["reason"].as_str().unwrap_or_default();
        assert_eq!(own.reason, reason, "{user} {asked}");
        answers.insert(own.allowed);

        let local = CreateLocalSubjectAccessReviewRequest {
            namespace: namespace.to_owned(),
            resource_attributes: Some(ResourceAttributes {
                namespace: String::new(),
                ..attributes.clone()
            }),
            user: user.to_owned(),
            groups: vec!["dev".to_owned()],
            ..CreateLocalSubjectAccessReviewRequest::default()
        };
        let other = CreateSubjectAccessReviewRequest {
            resource_attributes: Some(attributes),
            user: user.to_owned(),
            groups: vec!["dev".to_owned()],
            ..CreateSubjectAccessReviewRequest::default()
        };
        let local = client.create_local_subject_access_review(by("root", local));
        let local = within(local).await.unwrap().into_inner().status;
        let other = client.create_subject_access_review(by("root", other));
        assert_eq!(within(other).await.unwrap().into_inner().status, local);
    }
    assert_eq!(answers.len(), 2, "some are allowed, and some are not");

    let path = CreateSelfSubjectAccessReviewRequest {
        resource_attributes: None,
        non_resource_attributes: Some(NonResourceAttributes {
            path: "/version".to_owned(),
            verb: "get".to_owned(),
        }),
    };
    let path = client.create_self_subject_access_review(by("nobody", path));
    assert!(
        within(path)
            .await
            .unwrap()
            .into_inner()
            .status
            .unwrap()
            .allowed
    );

    let namespace = "prod".to_owned();
    let rules = CreateSelfSubjectRulesReviewRequest { namespace };
    let rules = client.create_self_subject_rules_review(by("ada", rules));
    let rules = within(rules).await.unwrap().into_inner();
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "prod"}});
    let rest_path = format!("{REVIEWS}/selfsubjectrulesreviews");
    let rest = server
        .ask("ada", Method::POST, &rest_path, &review)
        .await
        .body;
    let of_rest = rest["status"]["resourceRules"].as_array().unwrap();
    assert_eq!(rules.resource_rules.len(), of_rest.len());
    assert_eq!(json!(rules.resource_rules[0].verbs), of_rest[0]["verbs"]);

    let nothing = CreateSelfSubjectAccessReviewRequest::default();
    let refused = client.create_self_subject_access_review(by("nobody", nothing));
    let refused = within(refused).await.unwrap_err();
    assert!(refused.message().contains("exactly one of"), "{refused:?}");
    let about = CreateSubjectAccessReviewRequest::default();
    let refused = client.create_subject_access_review(by("nobody", about));
    let refused = within(refused).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    drop(client);
    server.stop().await;
}
