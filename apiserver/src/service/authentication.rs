//! The service for identities: the caller's own, those of tokens, and tokens of ServiceAccounts.

use std::sync::Arc;

use podplane_access::ResourceTarget;
use podplane_api::{
    ObjectKey,
    authentication::{TokenRequest, TokenReview, UserInfo as ReviewedUser},
    core::ServiceAccount,
    strategy::Subresource,
};
use podplane_proto::{
    authentication::{
        BoundObjectReference, CreateSelfSubjectReviewRequest, CreateSelfSubjectReviewResponse,
        CreateTokenRequest, CreateTokenResponse, CreateTokenReviewRequest,
        CreateTokenReviewResponse, ExtraValue, UserInfo,
        authentication_service_server::AuthenticationService,
    },
    error::ApiError,
};
use podplane_service_runtime::{authentication::RequestContext, identity::Identity};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::{methods::default_namespace, status};
use crate::{
    audit::RequestRecord,
    authorization::{Authorized, Gate, Gated, MethodRule},
    error,
    registry::{ActAnswer, Registry, WriteParams},
    rest::{request::WriteOptions, resource::Resource, token_review::TokenReviews},
};

/// The rights that the methods need.
pub(crate) const AUTHENTICATION_RULES: [MethodRule; 3] = [
    MethodRule::Needs(
        "CreateSelfSubjectReview",
        "create",
        "authentication.k8s.io",
        "selfsubjectreviews",
    ),
    MethodRule::Needs(
        "CreateTokenReview",
        "create",
        "authentication.k8s.io",
        "tokenreviews",
    ),
    MethodRule::ByMessage("CreateToken"),
];

/// Answers reviews of the caller itself and of tokens, and issues tokens.
pub(crate) struct IdentityReviews {
    pub(crate) gate: Gate,
    pub(crate) tokens: Gated<Arc<TokenReviews>>,
    pub(crate) accounts: Gated<Registry<ServiceAccount>>,
}

#[tonic::async_trait]
impl AuthenticationService for IdentityReviews {
    async fn create_self_subject_review(
        &self,
        request: Request<CreateSelfSubjectReviewRequest>,
    ) -> Result<Response<CreateSelfSubjectReviewResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let identity = authorized.identity();
        Ok(Response::new(CreateSelfSubjectReviewResponse {
            user_info: Some(user_info(identity)),
        }))
    }

    async fn create_token_review(
        &self,
        request: Request<CreateTokenReviewRequest>,
    ) -> Result<Response<CreateTokenReviewResponse>, Status> {
        let authorized = Authorized::of(request.extensions()).map_err(status::of)?;
        let reviewed = self.review(&authorized, request.into_inner()).await;
        reviewed.map(Response::new).map_err(status::of)
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<CreateTokenResponse>, Status> {
        let caller = RequestContext::of(request.extensions()).identity;
        let record = RequestRecord::of(request.extensions());
        let request = request.into_inner();
        let issued = self.issue(&caller, &record, request).await;
        issued.map(Response::new).map_err(status::of)
    }
}

impl IdentityReviews {
    async fn review(
        &self,
        authorized: &Authorized,
        request: CreateTokenReviewRequest,
    ) -> Result<CreateTokenReviewResponse, ApiError> {
        let CreateTokenReviewRequest { token, audiences } = request;
        let document = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": audiences},
        });
        let options = WriteOptions::of_message(authorized.identity());
        let reviews = self.tokens.open(authorized);
        let answer = reviews.create(document, &options).await?;
        let review: TokenReview = read(answer.document)?;
        let status = review.status.unwrap_or_default();
        Ok(CreateTokenReviewResponse {
            authenticated: status.authenticated.unwrap_or_default(),
            user: status.user.map(reviewed_user),
            audiences: status.audiences.unwrap_or_default(),
            error: status.error.unwrap_or_default(),
        })
    }

    async fn issue(
        &self,
        caller: &Arc<Identity>,
        record: &RequestRecord,
        request: CreateTokenRequest,
    ) -> Result<CreateTokenResponse, ApiError> {
        let CreateTokenRequest {
            namespace,
            name,
            audiences,
            expiration_seconds,
            bound_object_ref,
        } = request;
        let key = ObjectKey::new(default_namespace(namespace), name);
        let target = ResourceTarget {
            version: "v1",
            resource: "serviceaccounts",
            subresource: "token",
            namespace: &key.namespace,
            name: &key.name,
            ..ResourceTarget::default()
        };
        let judged = self.gate.authorize(caller, "create", target, record);
        let accounts = self.accounts.open(&judged.await?);
        let bound = bound_object_ref.map(bound_object);
        let document = json!({"spec": {
            "audiences": audiences,
            "expirationSeconds": expiration_seconds,
            "boundObjectRef": bound,
        }});
        let write = WriteParams::by(Arc::clone(caller));
        let acted = accounts.act(&key, Subresource::Token, &document, write.terms());
        let ActAnswer { document, warnings } = acted.await?;
        let issued: TokenRequest = read(document.unwrap_or_default())?;
        let status = issued.status;
        let expires = status
            .as_ref()
            .and_then(|it| Some(it.expiration_timestamp.as_ref()?.0.to_string()));
        Ok(CreateTokenResponse {
            token: status.and_then(|it| it.token).unwrap_or_default(),
            expiration_timestamp: expires.unwrap_or_default(),
            audiences: issued
                .spec
                .and_then(|spec| spec.audiences)
                .unwrap_or_default(),
            warnings,
        })
    }
}

/// The answer of a handler of the REST API.
pub(super) fn read<T: serde::de::DeserializeOwned>(document: Value) -> Result<T, ApiError> {
    serde_json::from_value(document).map_err(|error| error::internal(&error))
}

fn bound_object(bound: BoundObjectReference) -> Value {
    let BoundObjectReference {
        api_version,
        kind,
        name,
        uid,
    } = bound;
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid})
}

fn reviewed_user(user: ReviewedUser) -> UserInfo {
    let ReviewedUser {
        username,
        uid,
        groups,
        extra,
    } = user;
    user_info(&Identity {
        user: username.unwrap_or_default(),
        uid: uid.unwrap_or_default(),
        groups: groups.unwrap_or_default(),
        extra: extra.unwrap_or_default(),
    })
}

fn user_info(identity: &Identity) -> UserInfo {
    let Identity {
        user,
        uid,
        groups,
        extra,
    } = identity.clone();
    let extra = extra.into_iter();
    UserInfo {
        username: user,
        uid,
        groups,
        extra: extra
            .map(|(key, items)| (key, ExtraValue { items }))
            .collect(),
    }
}
