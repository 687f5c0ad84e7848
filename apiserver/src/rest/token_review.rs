//! TokenReviews, which are answered and never stored: whose token it is.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::authentication::{TokenReview, TokenReviewStatus};
use podplane_proto::error::ApiError;
use serde_json::Value;

use super::{
    request::WriteOptions,
    resource::{KindNames, Resource, WriteAnswer},
    review::{self, ReadReview},
};
use crate::{authentication::RequestAuthenticator, error};

const KIND: &str = "TokenReview";

/// Reviews of tokens, by the rules of requests that carry them.
pub(crate) struct TokenReviews {
    names: KindNames,
    /// `None` if no token says anything.
    authenticator: Option<Arc<RequestAuthenticator>>,
}

impl TokenReviews {
    pub(crate) fn new(authenticator: Option<Arc<RequestAuthenticator>>) -> Self {
        let names = KindNames::new(
            "authentication.k8s.io",
            "v1",
            KIND,
            "tokenreviews",
            "tokenreview",
        );
        Self {
            names,
            authenticator,
        }
    }

    fn status(&self, token: &str, audiences: &[String]) -> TokenReviewStatus {
        let authenticator = self.authenticator.as_ref();
        let reviewed = authenticator.map(|known| known.review(token, audiences));
        match reviewed {
            Some(Ok((identity, audiences))) => TokenReviewStatus {
                authenticated: Some(true),
                audiences: Some(audiences),
                error: None,
                user: Some(review::user_info(&identity)),
            },
            Some(Err(why)) => TokenReviewStatus {
                error: Some(why),
                ..TokenReviewStatus::default()
            },
            None => TokenReviewStatus::default(),
        }
    }
}

impl Resource for TokenReviews {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let token = document["spec"]["token"].as_str().unwrap_or_default();
            if token.is_empty() {
                let why = "token is required for TokenReview in authentication";
                return Err(error::bad_request(why));
            }
            if let Some(settled) = self.authenticator.as_ref().and_then(|it| it.settled()) {
                settled.await;
            }
            let mut read = ReadReview::<TokenReview>::of(KIND, document, options)?;
            let spec = &read.review.spec;
            let token = spec.token.as_str();
            let audiences = spec.audiences.as_deref().unwrap_or_default();
            read.review.status = Some(self.status(token, audiences));
            read.answer()
        }
        .boxed()
    }
}
