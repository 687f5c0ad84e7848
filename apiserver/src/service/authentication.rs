//! The service for the caller's identity.

use podplane_proto::authentication::{
    CreateSelfSubjectReviewRequest, CreateSelfSubjectReviewResponse, ExtraValue, UserInfo,
    authentication_service_server::AuthenticationService,
};
use podplane_service_runtime::identity::Identity;
use tonic::{Request, Response, Status};

use super::status;
use crate::authorization::{Authorized, MethodRule};

/// The rights that the methods need.
pub(crate) const AUTHENTICATION_RULES: [MethodRule; 1] = [MethodRule::Needs(
    "CreateSelfSubjectReview",
    "create",
    "authentication.k8s.io",
    "selfsubjectreviews",
)];

/// Answers reviews of the caller itself.
#[derive(Debug)]
pub(crate) struct SelfReviews;

#[tonic::async_trait]
impl AuthenticationService for SelfReviews {
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
