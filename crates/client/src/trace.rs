//! The W3C trace context of the caller, sent with each call.

use opentelemetry::{
    Context,
    propagation::{Injector, TextMapPropagator as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataKey, MetadataMap},
    service::interceptor::InterceptedService,
};

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

struct TraceInjector<'a>(&'a mut MetadataMap);

impl Injector for TraceInjector<'_> {
    fn set(&mut self, key: &str, value: String) {
        let key = key.parse::<MetadataKey<Ascii>>();
        if let (Ok(key), Ok(value)) = (key, value.parse()) {
            self.0.insert(key, value);
        }
    }
}

/// Adds the trace context of the caller's task to a request, if there is one.
pub(crate) fn inject(metadata: &mut MetadataMap) {
    TraceContextPropagator::new().inject_context(&Context::current(), &mut TraceInjector(metadata));
}
