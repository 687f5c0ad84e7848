//! The service for permissions: the reviews of the REST API, by the same handlers.

use std::{collections::HashMap, sync::Arc};

use podplane_access::ResourceTarget;
use podplane_api::authorization::{SubjectAccessReviewStatus, SubjectRulesReviewStatus};
use podplane_proto::{
    authorization::{
        AccessReviewStatus, CreateLocalSubjectAccessReviewRequest,
        CreateLocalSubjectAccessReviewResponse, CreateSelfSubjectAccessReviewRequest,
        CreateSelfSubjectAccessReviewResponse, CreateSelfSubjectRulesReviewRequest,
        CreateSelfSubjectRulesReviewResponse, CreateSubjectAccessReviewRequest,
        CreateSubjectAccessReviewResponse, ExtraValue, NonResourceAttributes, NonResourceRule,
        ResourceAttributes, ResourceRule, authorization_service_server::AuthorizationService,
    },
    error::ApiError,
};
use podplane_service_runtime::authentication::RequestContext;
use serde_json::{Map, Value, json};
use tonic::{Request, Response, Status};

use super::{authentication::read, methods::DEFAULT_NAMESPACE, status};
use crate::{
    audit::RequestRecord,
    authorization::{Authorized, Gate, Gated, MethodRule},
    error,
    rest::{request::WriteOptions, resource::Resource},
};

const GROUP: &str = "authorization.k8s.io";

/// The rights that the methods need.
pub(crate) const AUTHORIZATION_RULES: [MethodRule; 4] = [
    MethodRule::Needs(
        "CreateSelfSubjectAccessReview",
        "create",
        GROUP,
        "selfsubjectaccessreviews",
    ),
    MethodRule::Needs(
        "CreateSubjectAccessReview",
        "create",
        GROUP,
        "subjectaccessreviews",
    ),
    // Its right is one in its namespace.
    MethodRule::ByMessage("CreateLocalSubjectAccessReview"),
    MethodRule::Needs(
        "CreateSelfSubjectRulesReview",
        "create",
        GROUP,
        "selfsubjectrulesreviews",
    ),
];

/// Answers reviews of permissions.
pub(crate) struct AccessReviews {
    gate: Gate,
    /// By their kinds.
    reviews: Gated<HashMap<String, Arc<dyn Resource>>>,
}

impl AccessReviews {
    /// The reviews among these resources.
    pub(crate) fn among(resources: &[Arc<dyn Resource>], gate: Gate) -> Self {
        let of_group = resources.iter().filter(|one| one.names().group == GROUP);
        let reviews = of_group.map(|one| (one.names().kind.clone().into_owned(), Arc::clone(one)));
        Self {
            gate,
            reviews: Gated::new(reviews.collect()),
        }
    }

    /// The status of a review.
    async fn status<T: serde::de::DeserializeOwned>(
        &self,
        authorized: &Authorized,
        kind: &str,
        namespace: &str,
        spec: Value,
    ) -> Result<T, ApiError> {
        let review = self.reviews.open(authorized).get(kind);
        let review = review.ok_or_else(|| error::bad_request(format!("{kind} is not served")))?;
        let mut document = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {},
            "spec": spec,
        });
        if !namespace.is_empty() {
            document["metadata"]["namespace"] = namespace.into();
        }
        let options = WriteOptions::of_message(authorized.identity());
        let mut answer = review.create(document, &options).await?;
        read(answer.document["status"].take())
    }

    async fn access(
        &self,
        authorized: &Authorized,
        kind: &str,
        namespace: &str,
        spec: Value,
    ) -> Result<AccessReviewStatus, Status> {
        let status = self.status(authorized, kind, namespace, spec).await;
        let status: SubjectAccessReviewStatus = status.map_err(status::of)?;
        Ok(AccessReviewStatus {
            allowed: status.allowed,
            reason: status.reason.unwrap_or_default(),
        })
    }
}

#[tonic::async_trait]
impl AuthorizationService for AccessReviews {
    async fn create_self_subject_access_review(
        &self,
        request: Request<CreateSelfSubjectAccessReviewRequest>,
    ) -> Result<Response<CreateSelfSubjectAccessReviewResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let CreateSelfSubjectAccessReviewRequest {
            resource_attributes,
            non_resource_attributes,
        } = request.into_inner();
        let spec = asked(resource_attributes, non_resource_attributes);
        let kind = "SelfSubjectAccessReview";
        let status = Some(self.access(&authorized, kind, "", spec.into()).await?);
        let response = CreateSelfSubjectAccessReviewResponse { status };
        Ok(Response::new(response))
    }

    async fn create_subject_access_review(
        &self,
        request: Request<CreateSubjectAccessReviewRequest>,
    ) -> Result<Response<CreateSubjectAccessReviewResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let CreateSubjectAccessReviewRequest {
            resource_attributes,
            non_resource_attributes,
            user,
            uid,
            groups,
            extra,
        } = request.into_inner();
        let mut spec = asked(resource_attributes, non_resource_attributes);
        spec.extend(subject(user, uid, groups, extra));
        let kind = "SubjectAccessReview";
        let status = Some(self.access(&authorized, kind, "", spec.into()).await?);
        Ok(Response::new(CreateSubjectAccessReviewResponse { status }))
    }

    async fn create_local_subject_access_review(
        &self,
        request: Request<CreateLocalSubjectAccessReviewRequest>,
    ) -> Result<Response<CreateLocalSubjectAccessReviewResponse>, Status> {
        let caller = RequestContext::of(request.extensions()).identity;
        let record = RequestRecord::of(request.extensions());
        let CreateLocalSubjectAccessReviewRequest {
            namespace,
            mut resource_attributes,
            user,
            uid,
            groups,
            extra,
        } = request.into_inner();
        let namespace = or_default(namespace);
        let target = ResourceTarget {
            group: GROUP,
            version: "v1",
            resource: "localsubjectaccessreviews",
            namespace: &namespace,
            ..ResourceTarget::default()
        };
        let judged = self.gate.authorize(&caller, "create", target, &record);
        let authorized = judged.await.map_err(status::of)?;
        if let Some(asked) = &mut resource_attributes
            && asked.namespace.is_empty()
        {
            asked.namespace.clone_from(&namespace);
        }
        let mut spec = asked(resource_attributes, None);
        spec.extend(subject(user, uid, groups, extra));
        let kind = "LocalSubjectAccessReview";
        let status = self.access(&authorized, kind, &namespace, spec.into());
        let status = Some(status.await?);
        let response = CreateLocalSubjectAccessReviewResponse { status };
        Ok(Response::new(response))
    }

    async fn create_self_subject_rules_review(
        &self,
        request: Request<CreateSelfSubjectRulesReviewRequest>,
    ) -> Result<Response<CreateSelfSubjectRulesReviewResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let namespace = or_default(request.into_inner().namespace);
        let spec = json!({"namespace": namespace});
        let kind = "SelfSubjectRulesReview";
        let status = self.status(&authorized, kind, "", spec).await;
        let SubjectRulesReviewStatus {
            evaluation_error,
            incomplete,
            non_resource_rules,
            resource_rules,
        } = status.map_err(status::of)?;
        let resource_rules = resource_rules.into_iter().map(|rule| ResourceRule {
            verbs: rule.verbs,
            api_groups: rule.api_groups.unwrap_or_default(),
            resources: rule.resources.unwrap_or_default(),
            resource_names: rule.resource_names.unwrap_or_default(),
        });
        let paths = non_resource_rules.into_iter().map(|rule| NonResourceRule {
            verbs: rule.verbs,
            non_resource_urls: rule.non_resource_urls.unwrap_or_default(),
        });
        Ok(Response::new(CreateSelfSubjectRulesReviewResponse {
            resource_rules: resource_rules.collect(),
            non_resource_rules: paths.collect(),
            incomplete,
            evaluation_error: evaluation_error.unwrap_or_default(),
        }))
    }
}

fn or_default(namespace: String) -> String {
    match namespace.is_empty() {
        true => DEFAULT_NAMESPACE.to_owned(),
        false => namespace,
    }
}

/// The request that a review asks about, as fields of its spec.
fn asked(
    resource: Option<ResourceAttributes>,
    other: Option<NonResourceAttributes>,
) -> Map<String, Value> {
    let resource = resource.map(|asked| {
        let ResourceAttributes {
            namespace,
            verb,
            group,
            version,
            resource,
            subresource,
            name,
            field_selector,
            label_selector,
        } = asked;
        let mut fields = texts([
            ("namespace", namespace),
            ("verb", verb),
            ("group", group),
            ("version", version),
            ("resource", resource),
            ("subresource", subresource),
            ("name", name),
        ]);
        for (field, selector) in [
            ("fieldSelector", field_selector),
            ("labelSelector", label_selector),
        ] {
            if !selector.is_empty() {
                fields.insert(field.to_owned(), json!({"rawSelector": selector}));
            }
        }
        ("resourceAttributes".to_owned(), fields.into())
    });
    let other = other.map(|asked| {
        let NonResourceAttributes { path, verb } = asked;
        let fields = texts([("path", path), ("verb", verb)]);
        ("nonResourceAttributes".to_owned(), fields.into())
    });
    resource.into_iter().chain(other).collect()
}

/// The user that a review asks about, as fields of its spec.
fn subject(
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: HashMap<String, ExtraValue>,
) -> Map<String, Value> {
    let mut fields = texts([("user", user), ("uid", uid)]);
    fields.insert("groups".to_owned(), groups.into());
    let extra = extra
        .into_iter()
        .map(|(key, value)| (key, value.items.into()));
    let extra: Map<String, Value> = extra.collect();
    fields.insert("extra".to_owned(), extra.into());
    fields
}

/// The fields that are not empty.
fn texts<const N: usize>(fields: [(&str, String); N]) -> Map<String, Value> {
    let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
    let texts = fields.map(|(field, text)| (field.to_owned(), Value::from(text)));
    texts.collect()
}
