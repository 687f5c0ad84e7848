//! Questions about the rights of users.

use podplane_proto::{
    authorization::{
        AccessReviewStatus, CreateSubjectAccessReviewRequest,
        authorization_service_client::AuthorizationServiceClient,
    },
    error::ApiError,
};

use crate::{Client, api::refused};

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
        let mut service = AuthorizationServiceClient::new(self.channel());
        let answer = service
            .create_subject_access_review(self.request(review))
            .await;
        Ok(answer
            .map_err(refused)?
            .into_inner()
            .status
            .unwrap_or_default())
    }
}
