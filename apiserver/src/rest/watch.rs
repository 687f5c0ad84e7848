//! A watch: one JSON document for each line, for as long as the client listens.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, future};
use podplane_proto::{
    error::ApiError,
    wire::{ListMeta, WatchEventType},
};
use serde_json::{Value, json};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{self, About, Answer, Form},
    request::ListOptions,
    resource::{Notice, Resource},
    table::{self, Include, Tables},
};

/// How long a watch lasts that names no time: the reference's are between 30 and 60 minutes.
const LASTS: Duration = Duration::from_secs(45 * 60);

pub(super) async fn answer(
    resource: Arc<dyn Resource>,
    options: &ListOptions,
    form: Form,
    include: Include,
    stop: CancellationToken,
) -> Answer {
    let lasts = options
        .timeout
        .and_then(|timeout| timeout.try_into().ok())
        .unwrap_or(LASTS);
    let ends = Instant::now() + lasts;
    let notices = match resource.watch(options, ends).await {
        Ok(notices) => notices,
        // In the stream, as from the reference: there are reflectors that look for it only there, and begin anew then.
        Err(error) if error.is_expired() => {
            let line = line("ERROR", &answer::status(&error, About::default()));
            return answer::stream(futures::stream::once(future::ready(Ok(line))));
        }
        Err(error) => {
            return answer::refusal(
                &error,
                About {
                    names: Some(resource.names()),
                    name: "",
                },
            );
        }
    };
    let lines = notices.map(move |notice| {
        let line = notice.and_then(|notice| told(resource.as_ref(), notice, form, include));
        let line = line.unwrap_or_else(|error| line_of_error(&error));
        Ok::<_, Infallible>(line)
    });
    // Ends with the server, so that its clients look for the next one.
    let end = async move {
        _ = time::timeout_at(ends, stop.cancelled()).await;
    };
    answer::stream(lines.take_until(Box::pin(end)))
}

fn line_of_error(error: &ApiError) -> Bytes {
    line("ERROR", &answer::status(error, About::default()))
}

fn told(
    resource: &dyn Resource,
    notice: Notice,
    form: Form,
    include: Include,
) -> Result<Bytes, ApiError> {
    let Notice {
        event_type,
        document,
    } = notice;
    let document = match form {
        Form::Whole => document,
        Form::Metadata(version) => table::metadata_only(&document, version),
        Form::Table(version) => {
            let revision = document["metadata"]["resourceVersion"].as_str();
            let metadata = ListMeta {
                resource_version: revision.map(str::to_owned),
                ..ListMeta::default()
            };
            Tables { version, include }.of(resource, &metadata, vec![document])?
        }
    };
    let name = match event_type {
        WatchEventType::Added => "ADDED",
        WatchEventType::Modified => "MODIFIED",
        WatchEventType::Deleted => "DELETED",
        WatchEventType::Bookmark | WatchEventType::Unspecified => "BOOKMARK",
    };
    Ok(line(name, &document))
}

fn line(event_type: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": event_type, "object": object}).to_string();
    text.push('\n');
    text.into()
}
