//! Questions about the rights of users.

use podplane_api::authorization::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use podplane_proto::{
    authorization::{
        AccessReviewStatus, CreateSubjectAccessReviewRequest,
        authorization_service_client::AuthorizationServiceClient,
    },
    error::ApiError,
};

use crate::{
    Client,
    api::{
        Transport,
        grpc::refused,
        rest::{RestCalls, path_of},
    },
};

impl Client {
    /// Asks whether a user may do something: a SubjectAccessReview.
    ///
    /// # Errors
    ///
    /// `Forbidden` for a caller who may not ask, `Invalid` for a review without a user or a
    /// request, and those of the connection.
    pub async fn create_subject_access_review(
        &self,
        review: CreateSubjectAccessReviewRequest,
    ) -> Result<AccessReviewStatus, ApiError> {
        let calls = match self.transport() {
            Transport::Grpc(calls) => calls,
            Transport::Rest(calls) => return review_by_rest(calls, review).await,
        };
        let mut service = AuthorizationServiceClient::new(calls.channel());
        let answer = service
            .create_subject_access_review(calls.request(review))
            .await;
        Ok(answer
            .map_err(refused)?
            .into_inner()
            .status
            .unwrap_or_default())
    }
}

async fn review_by_rest(
    calls: &RestCalls,
    review: CreateSubjectAccessReviewRequest,
) -> Result<AccessReviewStatus, ApiError> {
    let CreateSubjectAccessReviewRequest {
        resource_attributes,
        non_resource_attributes,
        user,
        uid,
        groups,
        extra,
    } = review;
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let extra = extra.into_iter().map(|(key, value)| (key, value.items));
    let spec = SubjectAccessReviewSpec {
        resource_attributes: resource_attributes.map(|of| ResourceAttributes {
            namespace: given(of.namespace),
            verb: given(of.verb),
            group: given(of.group),
            version: given(of.version),
            resource: given(of.resource),
            subresource: given(of.subresource),
            name: given(of.name),
            ..ResourceAttributes::default()
        }),
        non_resource_attributes: non_resource_attributes.map(|of| NonResourceAttributes {
            path: given(of.path),
            verb: given(of.verb),
        }),
        user: given(user),
        uid: given(uid),
        groups: Some(groups),
        extra: Some(extra.collect()),
    };
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    let path = path_of::<SubjectAccessReview>();
    let reviewed: SubjectAccessReview = calls.post(&path, &review).await?;
    let status = reviewed.status.unwrap_or_default();
    Ok(AccessReviewStatus {
        allowed: status.allowed,
        reason: status.reason.unwrap_or_default(),
    })
}
