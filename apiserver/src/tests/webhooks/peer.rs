//! An HTTPS server that answers reviews, for the tests of admission webhooks.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};
use rustls::{ServerConfig, crypto::ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use super::super::DEADLINE;

type Answer = Arc<dyn Fn(Value) -> BoxFuture<'static, Value> + Send + Sync>;

/// A webhook, which remembers what it was asked.
pub(super) struct Webhook {
    pub(super) port: u16,
    authority: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    _running: JoinSet<()>,
}

/// The answer to a review.
pub(super) fn answer(review: &Value, response: Value) -> Value {
    let mut all = json!({"uid": review["request"]["uid"], "allowed": true});
    all.as_object_mut()
        .unwrap()
        .extend(response.as_object().unwrap().clone());
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": all})
}

/// The fields of a response with a JSON patch.
pub(super) fn patch(operations: &Value) -> Value {
    json!({"patchType": "JSONPatch", "patch": BASE64.encode(operations.to_string())})
}

impl Webhook {
    /// A webhook that answers each review with the fields of a response.
    pub(super) async fn start(respond: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let respond = move |review: Value| -> BoxFuture<'static, Value> {
            let answered = answer(&review, respond(&review));
            Box::pin(async { answered })
        };
        Self::answering(respond).await
    }

    /// A webhook that answers with documents.
    pub(super) async fn answering(
        answer: impl Fn(Value) -> BoxFuture<'static, Value> + Send + Sync + 'static,
    ) -> Self {
        let now = podplane_host::clock::timestamp();
        let authority = Authority::create("webhooks", now).unwrap();
        let terms = CertificateTerms {
            subject: Subject::new("hook", "dev"),
            usage: Usage::Server,
            names: vec![
                "127.0.0.1".parse().unwrap(),
                "hook.default.svc".parse().unwrap(),
            ],
            lifetime: 60 * DEADLINE,
        };
        let credentials = authority.issue(&terms, now).unwrap();
        let chain = CertificateDer::pem_slice_iter(credentials.certificate.as_bytes());
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::default();
        let mut running = JoinSet::new();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        running.spawn(serve(
            listener,
            acceptor,
            Arc::new(answer),
            Arc::clone(&requests),
        ));
        Self {
            port,
            authority: authority.certificate().to_owned(),
            requests,
            _running: running,
        }
    }

    /// The client configuration of the webhook.
    pub(super) fn client(&self) -> Value {
        let url = format!("https://127.0.0.1:{}/hook", self.port);
        json!({"url": url, "caBundle": self.bundle()})
    }

    pub(super) fn bundle(&self) -> String {
        BASE64.encode(&self.authority)
    }

    /// Takes the requests of the reviews so far.
    pub(super) fn reviewed(&self) -> Vec<Value> {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        let requests = requests.into_iter();
        requests
            .map(|(_, mut review)| review["request"].take())
            .collect()
    }

    /// Takes the paths and the reviews so far.
    pub(super) fn asked(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    answer: Answer,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, answer) = (acceptor.clone(), Arc::clone(&answer));
        let requests = Arc::clone(&requests);
        connections.spawn(async move {
            // A client that does not trust the certificate leaves.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request: Request<Incoming>| {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                async move {
                    let path = request.uri().to_string();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let review: Value = serde_json::from_slice(&body).unwrap();
                    requests.lock().unwrap().push((path, review.clone()));
                    let answered = match answer(review).await {
                        Value::String(garbage) => garbage,
                        document => document.to_string(),
                    };
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answered))))
                }
            });
            let connection = http1::Builder::new();
            // A client that gives up cuts the connection.
            _ = connection
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
