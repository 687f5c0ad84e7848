//! Requests of the page to the API server, with the user's credentials.

use std::sync::Arc;

use anyhow::Context as _;
use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use http::{HeaderMap, HeaderName, Method, StatusCode, Uri, Version, header};
use http_body_util::{BodyExt as _, Limited};
use podplane_client::{Channel, refused};
use serde_json::Value;
use tower::{Service as _, ServiceExt as _};

use super::UiParts;
use crate::{page::refusal, report::unanswered};

/// The longest document that is read whole: of a node, and of the session.
const LONGEST: usize = 16 << 20;

/// The failure at a server of another kind.
const OTHER_SERVER: &str = "the server is not an API server of podplane, which alone has the page; `podplane map` and `podplane audit --html` read any cluster";

/// Headers for one connection alone (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Headers that are between the page and the listener: whose data it is, and where it is from.
const OF_LISTENER: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::ORIGIN,
];

/// The API server.
pub(super) enum Upstream {
    /// podplane's, as `--server` or the data directory names it.
    Channel(Channel),
    /// That of a kubeconfig.
    Kube(kube::Client),
}

impl Upstream {
    /// Sends a request, and passes the answer on as it comes.
    pub(super) async fn send(&self, request: Request) -> anyhow::Result<Response> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut sent = http::Request::builder()
            .method(parts.method)
            .uri(path.parse::<Uri>()?)
            .body(body)?;
        *sent.headers_mut() = without(parts.headers, &OF_LISTENER);
        let mut answer = match self {
            Self::Channel(channel) => {
                let mut channel = channel.clone();
                let ready = channel.ready().await?;
                let answer = ready.call(sent.map(tonic::body::Body::new)).await?;
                answer.map(Body::new)
            }
            Self::Kube(client) => {
                let (parts, body) = sent.into_parts();
                // The page sends short documents, or none.
                let body = kube::client::Body::from(whole(body).await?);
                let answer = client.send(http::Request::from_parts(parts, body));
                answer.await?.map(Body::new)
            }
        };
        *answer.version_mut() = Version::HTTP_11;
        let headers = std::mem::take(answer.headers_mut());
        // Nobody else may set the cookies of the listener.
        *answer.headers_mut() = without(headers, &[header::SET_COOKIE]);
        Ok(answer)
    }

    /// The user as whom the server knows the credentials; `None` if it does not say.
    pub(super) async fn user(&self) -> anyhow::Result<Option<String>> {
        let request = http::Request::builder()
            .method(Method::GET)
            .uri(podplane_ui::SESSION_PATH)
            .body(Body::empty())?;
        let answer = self.send(request).await;
        let answer = answer.map_err(|error| match error.downcast::<kube::Error>() {
            Ok(error) => refused(error),
            Err(error) => unanswered(&error),
        })?;
        match (answer.status(), self) {
            (StatusCode::OK, _) => {
                let session = document(answer).await.ok();
                let session = session.filter(|session| session["source"].is_string());
                let session = session.context(OTHER_SERVER)?;
                Ok(session["user"].as_str().map(str::to_owned))
            }
            (StatusCode::UNAUTHORIZED, Self::Channel(_)) => anyhow::bail!(
                "the server needs credentials: pass --token-file, --client-certificate or --kubeconfig"
            ),
            (StatusCode::UNAUTHORIZED, Self::Kube(_)) => {
                anyhow::bail!("the server does not accept the credentials of the kubeconfig")
            }
            // Kubernetes refuses paths that a user has no rule for, whether they exist or not.
            (StatusCode::NOT_FOUND | StatusCode::FORBIDDEN, _) => anyhow::bail!(OTHER_SERVER),
            (code, _) => anyhow::bail!(
                "the server answered {code} to {}",
                podplane_ui::SESSION_PATH
            ),
        }
    }
}

/// The headers without those for one connection, and without `others`.
fn without(mut headers: HeaderMap, others: &[HeaderName]) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter();
    let named: Vec<HeaderName> = named
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP).chain(others) {
        headers.remove(name);
    }
    headers
}

/// Reads a whole body.
async fn whole(body: Body) -> anyhow::Result<Bytes> {
    let body = Limited::new(body, LONGEST).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!(error))?;
    Ok(body.to_bytes())
}

/// Reads the whole document of an answer.
pub(super) async fn document(answer: Response) -> anyhow::Result<Value> {
    let body = whole(answer.into_body()).await?;
    serde_json::from_slice(&body).context("the answer is not JSON")
}

/// Passes a request on.
pub(super) async fn pass(State(parts): State<Arc<UiParts>>, request: Request) -> Response {
    let sent = parts.upstream.send(request).await;
    sent.unwrap_or_else(|error| unreachable(&error))
}

/// The refusal when the API server does not answer: the page tries again.
pub(super) fn unreachable(error: &anyhow::Error) -> Response {
    let message = format!("the API server does not answer: {}", error.root_cause());
    refusal(
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        &message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_and_of_the_listener_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "application/yaml"),
            ("connection", "keep-alive, X-Hop"),
            ("cookie", "podplane-session=secret"),
            ("authorization", "Bearer secret"),
            ("host", "podplane-1.localhost:1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("x-hop", "1"),
            ("x-end-to-end", "1"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let passed = without(headers, &OF_LISTENER);
        let mut names: Vec<_> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "x-end-to-end"]);
    }
}
