//! The W3C trace context of the caller, sent with each call.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context,
    propagation::{Injector, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::{Request, Status, metadata::MetadataMap, service::interceptor::InterceptedService};

use crate::Channel;

/// A channel that sends the caller's trace context with each call.
pub type TracedChannel =
    InterceptedService<Channel, fn(Request<()>) -> Result<Request<()>, Status>>;

/// Wraps a channel so that it sends the trace context, for clients with generated code.
/// [`Client`](crate::Client) does so by itself.
pub fn traced(channel: Channel) -> TracedChannel {
    InterceptedService::new(channel, |mut request| {
        inject(request.metadata_mut());
        Ok(request)
    })
}

/// Adds the trace context of the caller's task to a request, if there is one.
pub(crate) fn inject(metadata: &mut MetadataMap) {
    let mut headers = std::mem::take(metadata).into_headers();
    inject_headers(&mut headers);
    *metadata = MetadataMap::from_headers(headers);
}

/// The same for a request of HTTP.
pub(crate) fn inject_headers(headers: &mut HeaderMap) {
    TraceContextPropagator::new().inject_context(&Context::current(), &mut HeaderInjector(headers));
}

struct HeaderInjector<'a>(&'a mut HeaderMap);

impl Injector for HeaderInjector<'_> {
    fn set(&mut self, key: &str, value: String) {
        let key = HeaderName::from_bytes(key.as_bytes());
        if let (Ok(key), Ok(value)) = (key, HeaderValue::try_from(value)) {
            self.0.insert(key, value);
        }
    }
}
