//! Extraction of the W3C trace context from requests and the environment.

use std::task::{Context as TaskContext, Poll};

use opentelemetry::{
    Context,
    context::{FutureExt as _, WithContext},
    propagation::{Extractor, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::codegen::{
    Service,
    http::{HeaderMap, Request},
};

const TRACEPARENT: &str = "traceparent";

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

struct Environment<'a>(&'a str);

impl Extractor for Environment<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// Handles each request in the trace context of its headers, if they have one.
#[derive(Clone, Debug)]
pub(crate) struct AdoptContext<S>(pub(crate) S);

impl<S: Service<Request<B>>, B> Service<Request<B>> for AdoptContext<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = WithContext<S::Future>;

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let context = match request.headers().contains_key(TRACEPARENT) {
            true => extract(&Headers(request.headers())),
            false => Context::new(),
        };
        self.0.call(request).with_context(context)
    }
}

/// The trace context in `TRACEPARENT`, as the caller of a command sets it; an empty one if the
/// value is invalid.
pub fn from_environment(traceparent: &str) -> Context {
    extract(&Environment(traceparent))
}

fn extract(from: &dyn Extractor) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), from)
}
