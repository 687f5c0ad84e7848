//! Calls of webhooks: a document is posted over TLS, and a document is the answer.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use podplane_api::ObjectKey;
use podplane_host::{clock, net, task};
use podplane_proto::error::ApiError;
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

use crate::{rest::request::ListOptions, served::OtherKinds};

/// The most bytes of an answer.
const MAX_ANSWER: usize = 16 << 20;
/// The label of an EndpointSlice with the name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The reason why a webhook gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("invalid configuration of the webhook: {0}")]
    Configuration(String),
    #[error("failed to read the endpoints of the webhook: {0}")]
    Endpoints(#[from] ApiError),
    #[error("service {0:?} not found")]
    NoService(String),
    #[error("no service port {1} found for service {0:?}")]
    NoPort(String, i32),
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
    #[error("Post {url:?}: {source}")]
    Connection {
        url: String,
        #[source]
        source: io::Error,
    },
    #[error("Post {url:?}: {source}")]
    Http {
        url: String,
        #[source]
        source: hyper::Error,
    },
    #[error("Post {url:?}: the answer cannot be read: {why}")]
    Answer { url: String, why: String },
    #[error("Post {url:?}: the answer has the status code {code}: {text}")]
    Status {
        url: String,
        code: u16,
        text: String,
    },
    #[error("Post {url:?}: context deadline exceeded: no answer within {seconds} s")]
    TooLate { url: String, seconds: u64 },
}

/// The place of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WebhookPlace {
    /// `https://HOST[:PORT][/PATH]`
    Url(String),
    /// A Service, by whose endpoints the webhook is reached: its address is not, unless it has
    /// none, since nothing of podplane forwards it on the machine of the API server.
    Service {
        namespace: String,
        name: String,
        path: String,
        port: i32,
    },
}

impl WebhookPlace {
    /// The place of a client configuration: a URL, or the namespace, name, path and port of a
    /// Service.
    pub(crate) fn of(
        url: Option<String>,
        service: Option<(String, String, String, Option<i32>)>,
    ) -> Self {
        match (url, service) {
            (Some(url), _) => Self::Url(url),
            (None, Some((namespace, name, path, port))) => Self::Service {
                namespace,
                name,
                path,
                port: port.unwrap_or(443),
            },
            (None, None) => Self::Url(String::new()),
        }
    }
}

/// A webhook that is called with documents.
#[derive(Clone, Debug)]
pub(crate) struct WebhookClient {
    /// Among them are the Service and its endpoints.
    kinds: OtherKinds,
    place: WebhookPlace,
    /// `Err`: the authority cannot be used.
    tls: Result<Arc<ClientConfig>, String>,
}

/// The address to connect to, and the path to ask for.
struct Route {
    host: String,
    port: u16,
    /// The name in the certificate.
    name: String,
    path: String,
}

impl WebhookClient {
    /// A client of the webhook at a place, whose certificate these authorities in PEM vouch for.
    /// Without any, those of the system do.
    pub(crate) fn new(kinds: OtherKinds, place: WebhookPlace, authorities: &[u8]) -> Self {
        Self {
            kinds,
            place,
            tls: config(authorities),
        }
    }

    /// Posts a document, and returns the document of the answer. `tells_timeout` adds the timeout
    /// to the URL, as admission webhooks expect.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(crate) async fn call(
        &self,
        document: &Value,
        timeout: Duration,
        tells_timeout: bool,
    ) -> Result<Value, WebhookError> {
        let mut route = self.route().await?;
        if tells_timeout {
            route.path = format!("{}?timeout={}s", route.path, timeout.as_secs());
        }
        let url = format!("https://{}:{}{}", route.name, route.port, route.path);
        let answer = clock::timeout(timeout, self.post(&route, &url, document)).await;
        answer.unwrap_or_else(|_elapsed| {
            Err(WebhookError::TooLate {
                url,
                seconds: timeout.as_secs(),
            })
        })
    }

    async fn route(&self) -> Result<Route, WebhookError> {
        match &self.place {
            WebhookPlace::Url(url) => {
                let invalid = |why: &str| WebhookError::Configuration(format!("{url:?} {why}"));
                let uri: Uri = url.parse().map_err(|_| invalid("is not a URL"))?;
                if uri.scheme_str() != Some("https") {
                    return Err(invalid("does not begin with https://"));
                }
                let host = uri.host().ok_or_else(|| invalid("has no host"))?;
                let host = host.trim_matches(['[', ']']).to_owned();
                let path = uri.path_and_query().map_or("/", |path| path.as_str());
                Ok(Route {
                    name: host.clone(),
                    host,
                    port: uri.port_u16().unwrap_or(443),
                    path: path.to_owned(),
                })
            }
            WebhookPlace::Service {
                namespace,
                name,
                path,
                port,
            } => {
                let key = ObjectKey::new(namespace.as_str(), name.as_str());
                let (host, port) = self.endpoint(&key, *port).await?;
                let slash = if path.starts_with('/') { "" } else { "/" };
                Ok(Route {
                    host,
                    port,
                    name: format!("{name}.{namespace}.svc"),
                    path: format!("{slash}{path}"),
                })
            }
        }
    }

    /// The host and port of a Service's port: a ready endpoint of its EndpointSlices, or of its
    /// Endpoints if it has no slices. A Service without either is reached at its own address, which
    /// works where something forwards it.
    async fn endpoint(&self, key: &ObjectKey, port: i32) -> Result<(String, u16), WebhookError> {
        let kinds = self.kinds.now();
        let none = || WebhookError::NoEndpoints(key.to_string());
        let get = async |group: &str, plural: &str| match kinds.find(group, "v1", plural) {
            None => Ok(None),
            Some(kind) => match kind.get(key).await {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            },
        };
        let service = get("", "services").await?;
        let service = service.ok_or_else(|| WebhookError::NoService(key.to_string()))?;
        let spec = &service["spec"];
        if spec["type"] == "ExternalName" {
            let host = spec["externalName"].as_str().unwrap_or_default();
            let port = u16::try_from(port).map_err(|_| none())?;
            return Ok((host.to_owned(), port));
        }
        let served = items(&spec["ports"]).find(|served| served["port"] == port);
        let served = served.ok_or_else(|| WebhookError::NoPort(key.to_string(), port))?;
        let mut sets = Vec::new();
        if let Some(slices) = kinds.find("discovery.k8s.io", "v1", "endpointslices") {
            let of_service = format!("{SERVICE_NAME}={}", key.name);
            let options = ListOptions::labelled(&key.namespace, &of_service);
            for slice in slices.list(&options).await?.items {
                sets.push(EndpointSet::of_slice(&slice.document()?, served));
            }
        }
        if sets.is_empty()
            && let Some(endpoints) = get("", "endpoints").await?
        {
            let subsets = items(&endpoints["subsets"]);
            sets.extend(subsets.map(|subset| EndpointSet::of_subset(subset, served)));
        }
        let has_sets = !sets.is_empty();
        let found = sets.into_iter().find_map(EndpointSet::first);
        let own = || {
            let address = spec["clusterIP"].as_str()?.parse::<IpAddr>().ok()?;
            let port = u16::try_from(port).ok()?;
            Some((address.to_string(), port)).filter(|_| !has_sets)
        };
        found.or_else(own).ok_or_else(none)
    }

    async fn post(
        &self,
        route: &Route,
        url: &str,
        document: &Value,
    ) -> Result<Value, WebhookError> {
        let invalid = |why: String| WebhookError::Configuration(why);
        let connection = |source| WebhookError::Connection {
            url: url.to_owned(),
            source,
        };
        let http = |source| WebhookError::Http {
            url: url.to_owned(),
            source,
        };
        let tls = self.tls.clone().map_err(invalid)?;
        let name = ServerName::try_from(route.name.clone());
        let name = name.map_err(|error| invalid(error.to_string()))?;
        let stream = net::connect_tcp((route.host.as_str(), route.port)).await;
        let stream = stream.map_err(connection)?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = TokioIo::new(UnclosedTls(stream.map_err(connection)?));
        let (mut sender, running) = http1::handshake(stream).await.map_err(http)?;
        // Errors of the connection are those of the request and of its body.
        let mut tasks = JoinSet::new();
        task::spawn(&mut tasks, async move { _ = running.await });
        let body = Full::new(Bytes::from(document.to_string()));
        let request = Request::builder()
            .method(Method::POST)
            .uri(&route.path)
            .header(header::HOST, format!("{}:{}", route.name, route.port))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, HeaderValue::from_static("application/json"))
            .body(body)
            .map_err(|error| invalid(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(http)?;
        let code = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let unreadable = |why: String| WebhookError::Answer {
            url: url.to_owned(),
            why,
        };
        let body = body.map_err(|error| unreadable(error.to_string()))?;
        let body = body.to_bytes();
        if !code.is_success() {
            let text = String::from_utf8_lossy(&body);
            return Err(WebhookError::Status {
                url: url.to_owned(),
                code: code.as_u16(),
                text: text.chars().take(200).collect(),
            });
        }
        serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))
    }
}

/// A TLS stream whose peer may end it without saying so, as Python's server does: the length of the
/// answer, or its JSON, tells whether it is whole.
struct UnclosedTls<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for UnclosedTls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(context, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            polled => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UnclosedTls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The addresses of endpoints, and their port.
struct EndpointSet {
    addresses: Vec<IpAddr>,
    port: Option<u16>,
}

/// The elements of a list.
fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

impl EndpointSet {
    fn of_slice(slice: &Value, served: &Value) -> Self {
        let ready = items(&slice["endpoints"]);
        let ready = ready.filter(|endpoint| endpoint["conditions"]["ready"] != false);
        let addresses = ready.flat_map(|endpoint| items(&endpoint["addresses"]));
        Self::new(addresses, &slice["ports"], served)
    }

    fn of_subset(subset: &Value, served: &Value) -> Self {
        let addresses = items(&subset["addresses"]).map(|address| &address["ip"]);
        Self::new(addresses, &subset["ports"], served)
    }

    /// The port is the one with the name of the Service's; without a number it is the target port.
    fn new<'a>(addresses: impl Iterator<Item = &'a Value>, ports: &Value, served: &Value) -> Self {
        let name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
        let port = items(ports).find(|port| name(port) == name(served));
        let number = port.and_then(|port| port["port"].as_u64());
        let number = number.or_else(|| served["targetPort"].as_u64());
        let addresses = addresses.filter_map(|address| address.as_str()?.parse().ok());
        Self {
            addresses: addresses.collect(),
            port: number.and_then(|number| u16::try_from(number).ok()),
        }
    }

    fn first(self) -> Option<(String, u16)> {
        Some((self.addresses.first()?.to_string(), self.port?))
    }
}

/// The configuration with the authorities of the system, which are read once.
static OF_SYSTEM: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    with_roots(roots)
});

fn config(authorities: &[u8]) -> Result<Arc<ClientConfig>, String> {
    if authorities.is_empty() {
        return OF_SYSTEM.clone();
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        let certificate = certificate.map_err(|error| format!("caBundle: {error}"))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("caBundle: {error}"))?;
    }
    with_roots(roots)
}

fn with_roots(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
