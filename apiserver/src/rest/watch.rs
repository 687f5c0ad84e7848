//! A watch: a stream of events for as long as the client listens.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, future};
use podplane_host::clock::{self, Instant};
use podplane_proto::{
    error::ApiError,
    kubernetes,
    wire::{ListMeta, WatchEventType},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, ObjectForm, RefusalSubject, RestAnswer},
    request::ListOptions,
    resource::{Resource, WatchNotice},
    table::{self, RowInclusion, TableForm},
};
use crate::{error, metrics::OpenWatch};

/// The duration of a watch without a timeout; Kubernetes' are between 30 and 60 minutes.
const LASTS: Duration = Duration::from_secs(45 * 60);

/// The longest timeout. `timeoutSeconds` may be more than an [`Instant`] holds.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub(super) async fn answer(
    resource: Arc<dyn Resource>,
    options: &ListOptions,
    form: ObjectForm,
    include: RowInclusion,
    stop: CancellationToken,
    watching: OpenWatch,
) -> RestAnswer {
    let lasts = options
        .timeout
        .and_then(|timeout| timeout.try_into().ok())
        .unwrap_or(LASTS);
    // In range, whatever the client asks for.
    let ends = Instant::now() + lasts.min(LONGEST);
    let notices = match resource.watch(options, ends).await {
        Ok(notices) => notices,
        // In the stream, as in Kubernetes: some reflectors look for it only there, and then start
        // over.
        Err(error) if error.is_expired() => {
            let event = error_event(&error, form);
            return answer::stream(form, futures::stream::once(future::ready(Ok(event))));
        }
        Err(error) => {
            return answer::refusal(
                &error,
                RefusalSubject {
                    names: Some(resource.names()),
                    name: "",
                },
            );
        }
    };
    let events = notices.map(move |notice| {
        watching.sent();
        let event = notice.and_then(|notice| event_line(resource.as_ref(), notice, form, include));
        let event = event.unwrap_or_else(|error| error_event(&error, form));
        Ok::<_, Infallible>(event)
    });
    // Ends with the server, so that its clients look for the next one.
    let end = async move {
        _ = clock::timeout_at(ends, stop.cancelled()).await;
    };
    answer::stream(form, events.take_until(Box::pin(end)))
}

fn error_event(error: &ApiError, form: ObjectForm) -> Bytes {
    let status = answer::status(error, RefusalSubject::default());
    // A status can always be encoded.
    event("ERROR", &status, form).unwrap_or_default()
}

fn event_line(
    resource: &dyn Resource,
    notice: WatchNotice,
    form: ObjectForm,
    include: RowInclusion,
) -> Result<Bytes, ApiError> {
    let WatchNotice {
        event_type,
        document,
    } = notice;
    let document = match form {
        ObjectForm::Whole | ObjectForm::Protobuf => document,
        ObjectForm::Metadata(version) => table::metadata_only(&document, version),
        ObjectForm::Table(version) => {
            let revision = document["metadata"]["resourceVersion"].as_str();
            let metadata = ListMeta {
                resource_version: revision.map(str::to_owned),
                ..ListMeta::default()
            };
            TableForm { version, include }.of(resource, &metadata, vec![document])?
        }
    };
    let name = match event_type {
        WatchEventType::Added => "ADDED",
        WatchEventType::Modified => "MODIFIED",
        WatchEventType::Deleted => "DELETED",
        WatchEventType::Bookmark | WatchEventType::Unspecified => "BOOKMARK",
    };
    event(name, &document, form)
}

/// Encodes an event for the stream: in JSON a line, in protobuf a length and a message.
fn event(event_type: &str, object: &Value, form: ObjectForm) -> Result<Bytes, ApiError> {
    if form == ObjectForm::Protobuf {
        let event = kubernetes::encode_event(event_type, object);
        return event
            .map(Bytes::from)
            .map_err(|error| error::internal(&error));
    }
    let mut text = json!({"type": event_type, "object": object}).to_string();
    text.push('\n');
    Ok(text.into())
}
