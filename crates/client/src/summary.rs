//! The documents that podplane's API server has beside Kubernetes' API.

use http::Request;
use podplane_proto::error::{ApiError, Reason};
use serde::de::DeserializeOwned;

use crate::{Client, api::rest::refused, deadline::answered};

/// The prefix of the paths, with the version of the documents (docs/ui.md).
const PREFIX: &str = "/summary/v1alpha1/";

impl Client {
    /// Reads a document of the summary, such as `blocks`; `None` if the server is not podplane's.
    /// `path` is used as it is. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// `NotFound` if podplane's server does not have it, and those of the connection.
    pub async fn summary<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        let request = Request::get(format!("{PREFIX}{path}")).body(Vec::new());
        let request = request.map_err(|error| {
            ApiError::new(
                Reason::BadRequest,
                format!("invalid path {path:?}: {error}"),
            )
        })?;
        let kube = self.kube();
        let answer =
            answered(async { Ok::<_, ApiError>(kube.request::<T>(request).await) }).await?;
        match answer {
            Ok(document) => Ok(Some(document)),
            // Kubernetes refuses unknown paths to users without rights to all of them.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                if !answered(self.is_podplane()).await? {
                    return Ok(None);
                }
                Err(match status.code {
                    404 => ApiError::new(Reason::NotFound, status.message),
                    _ => refused(kube::Error::Api(status)),
                })
            }
            Err(error) => Err(refused(error)),
        }
    }
}
