//! A watch, as the stream that a client reads.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream, stream::BoxStream};
use podplane_proto::{
    error::ApiError,
    wire::{WatchEvent, WatchRequest},
};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, server::ServerStreamingService};

use super::status;
use crate::{
    cache::{Query, Watcher},
    registry::Registry,
    strategy::Strategy,
};

/// How long a watch is idle before it gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Watch<K> {
    pub(super) registry: Registry<K>,
    pub(super) stop: CancellationToken,
}

impl<K: Strategy> ServerStreamingService<WatchRequest> for Watch<K> {
    type Response = WatchEvent;
    type ResponseStream = BoxStream<'static, Result<WatchEvent, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<WatchRequest>) -> Self::Future {
        let (registry, stop) = (self.registry.clone(), self.stop.clone());
        async move {
            let WatchRequest {
                namespace,
                label_selector,
                field_selector,
                resource_version,
                allow_watch_bookmarks,
            } = request.into_inner();
            let query = Query::parse::<K>(namespace, &label_selector, &field_selector)
                .map_err(status::of)?;
            let watcher = registry
                .watch(query, &resource_version)
                .await
                .map_err(status::of)?;
            let bookmarks = if allow_watch_bookmarks {
                Bookmarks::Wanted
            } else {
                Bookmarks::Unwanted
            };
            let begin = if resource_version.is_empty() || resource_version == "0" {
                Phase::Present
            } else {
                Phase::Following
            };
            // Ends with the server, so that its clients look for the next one.
            let events = events(Open {
                watcher,
                bookmarks,
                phase: begin,
            })
            .take_until(stop.cancelled_owned());
            Ok(Response::new(events.boxed()))
        }
        .boxed()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bookmarks {
    Wanted,
    Unwanted,
}

#[derive(Clone, Copy)]
enum Phase {
    /// What was there when the watch began is yet to be sent.
    Present,
    /// It was sent; changes follow.
    Following,
    /// An error was sent; nothing follows.
    Ended,
}

struct Open<K> {
    watcher: Watcher<K>,
    bookmarks: Bookmarks,
    phase: Phase,
}

fn events<K: Strategy>(open: Open<K>) -> impl futures::Stream<Item = Result<WatchEvent, Status>> {
    let batches = stream::unfold(open, |mut open| async move {
        if matches!(open.phase, Phase::Ended) {
            return None;
        }
        let batch = open.next().await;
        let batch: Vec<_> = match batch {
            Ok(events) => events.into_iter().map(Ok).collect(),
            Err(error) => {
                open.phase = Phase::Ended;
                vec![Err(status::of(error))]
            }
        };
        Some((stream::iter(batch), open))
    });
    batches.flatten()
}

impl<K: Strategy> Open<K> {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, ApiError> {
        if matches!(self.phase, Phase::Present) {
            self.phase = Phase::Following;
            let mut events = self.watcher.present();
            if self.bookmarks == Bookmarks::Wanted {
                events.push(self.watcher.initial_end()?);
            }
            return Ok(events);
        }
        loop {
            // Dropping `next` when the time is up loses nothing.
            match time::timeout(BOOKMARK_EVERY, self.watcher.next()).await {
                Ok(events) => return events,
                Err(_elapsed) if self.bookmarks == Bookmarks::Wanted => {
                    if let Some(bookmark) = self.watcher.bookmark()? {
                        return Ok(vec![bookmark]);
                    }
                }
                Err(_elapsed) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
