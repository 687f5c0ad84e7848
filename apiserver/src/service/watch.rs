//! A watch, as the stream of messages for a gRPC client.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use podplane_api::{any::AnyKind, meta::ObjectMeta};
use podplane_proto::{
    codec,
    error::ApiError,
    wire::{WatchEvent, WatchEventType, WatchRequest},
};
use podplane_store::Revision;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, server::ServerStreamingService};

use super::{KindCall, status};
use crate::{
    cache::INITIAL_EVENTS_END,
    error,
    metrics::OpenWatch,
    registry::{StreamEvent, WatchOptions, WatchStart},
};

pub(super) struct Watch {
    pub(super) call: KindCall,
    pub(super) stop: CancellationToken,
    pub(super) watching: Arc<OpenWatch>,
}

impl ServerStreamingService<WatchRequest> for Watch {
    type Response = WatchEvent;
    type ResponseStream = BoxStream<'static, Result<WatchEvent, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<WatchRequest>) -> Self::Future {
        let (call, stop) = (self.call.clone(), self.stop.clone());
        let watching = self.watching.clone();
        async move {
            let WatchRequest {
                namespace,
                label_selector,
                field_selector,
                resource_version,
                allow_watch_bookmarks,
            } = request.into_inner();
            let registry = call.open_selected("watch", &namespace, &field_selector);
            let registry = registry.await.map_err(status::of)?;
            let query = registry
                .query(namespace, &label_selector, &field_selector)
                .map_err(status::of)?;
            let options = WatchOptions {
                query,
                start: WatchStart::parse(&resource_version).map_err(status::of)?,
                bookmarks: allow_watch_bookmarks,
                ends: None,
                announce_end: allow_watch_bookmarks,
            };
            let events = registry.watch(options).await.map_err(status::of)?;
            let kind = Arc::clone(registry.shared_kind());
            let events = events.map(move |event| {
                watching.sent();
                event.and_then(|event| encode(&*kind, &event))
            });
            // Ends with the server, so that its clients look for the next one.
            let events = events
                .map(|event| event.map_err(status::of))
                .take_until(stop.cancelled_owned());
            Ok(Response::new(events.boxed()))
        }
        .boxed()
    }
}

fn encode(kind: &dyn AnyKind, event: &StreamEvent) -> Result<WatchEvent, ApiError> {
    let (event_type, message) = match event {
        StreamEvent::Change(change) => (change.event_type(), change.message(kind)?),
        StreamEvent::Bookmark(revision) => {
            (WatchEventType::Bookmark, bookmark(kind, *revision, None)?)
        }
        StreamEvent::InitialEnd(revision) => (
            WatchEventType::Bookmark,
            bookmark(kind, *revision, Some(INITIAL_EVENTS_END))?,
        ),
    };
    Ok(WatchEvent {
        r#type: event_type.into(),
        object: Some(message),
    })
}

fn bookmark(
    kind: &dyn AnyKind,
    revision: Revision,
    annotation: Option<&str>,
) -> Result<Bytes, ApiError> {
    let mut object = kind.empty();
    *object.metadata_mut() = ObjectMeta {
        resource_version: Some(revision.to_string()),
        annotations: annotation.map(|name| [(name.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    };
    codec::encode_any(kind, &*object).map_err(|error| error::unencodable(&error))
}
