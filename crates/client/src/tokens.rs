//! Tokens of ServiceAccounts.

use kube::api::PostParams;
use podplane_api::{authentication::TokenRequest, core::ServiceAccount};
use podplane_proto::error::ApiError;

use crate::{Client, api::rest::refused};

impl Client {
    /// Requests a token of a ServiceAccount, by the REST API of the same server.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown account, `Forbidden`, `Invalid`, and those of the connection.
    pub async fn create_token(
        &self,
        namespace: &str,
        account: &str,
        request: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let accounts = kube::Api::<ServiceAccount>::namespaced(self.kube(), namespace);
        let params = PostParams::default();
        let created = accounts.create_token_request(account, &params, request);
        created.await.map_err(refused)
    }
}
