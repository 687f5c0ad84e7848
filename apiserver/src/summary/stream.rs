//! Streams: the whole first, then what changed.
//!
//! A stream takes the next summary when its client has read the line before, so that a slow one
//! costs the others nothing: it sees fewer steps. It keeps what it has shown, and no address space.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use podplane_host::clock::{self, Instant};
use podplane_proto::error::ApiError;
use podplane_summary::{ClusterSummary, MapChange, MapRequest, MapScene, StreamDocument};

use super::{
    Looking, SummaryContext,
    answer::{self, Answer, Refusal, json},
    model::{Snapshot, Subscription},
    of_query,
};
use crate::renderers::Renderers;

/// The media type of a document for each line.
const NDJSON: &str = "application/x-ndjson";
/// The longest time without a line.
const BOOKMARK_EVERY: Duration = Duration::from_secs(15);
/// The duration of a stream. Its client opens the next, which is authorized anew.
const LASTS: Duration = Duration::from_secs(30 * 60);

/// The document of a stream, and the part that it has shown so far.
pub(super) trait Shown: Send + Sized + 'static {
    /// The line about a snapshot; `None` if it looks as the one before.
    fn line(&mut self, snapshot: &Snapshot) -> Result<Option<Vec<u8>>, ApiError>;
}

/// The cluster.
#[derive(Default)]
pub(super) struct ClusterView(Option<Arc<ClusterSummary>>);

impl Shown for ClusterView {
    fn line(&mut self, snapshot: &Snapshot) -> Result<Option<Vec<u8>>, ApiError> {
        let new = Arc::clone(&snapshot.summary);
        let document = match &self.0 {
            None => Some(StreamDocument::Cluster(&new)),
            Some(old) => new.changes_since(old).map(StreamDocument::Changes),
        };
        let line = document.map(|document| json(&document)).transpose()?;
        self.0 = Some(new);
        Ok(line)
    }
}

/// The map of a prefix.
pub(super) struct MapView {
    request: MapRequest,
    shown: Option<MapScene>,
}

impl MapView {
    pub(super) fn new(request: MapRequest) -> Self {
        let shown = None;
        Self { request, shown }
    }
}

impl Shown for MapView {
    fn line(&mut self, snapshot: &Snapshot) -> Result<Option<Vec<u8>>, ApiError> {
        let revision = &snapshot.summary.revision;
        let new = MapScene::new(&snapshot.space, revision, &self.request).map_err(of_query)?;
        let change = match &self.shown {
            None => Some(MapChange::Scene(&new)),
            Some(old) => new.changes_since(old),
        };
        let document = change.map(|change| match change {
            MapChange::Scene(scene) => StreamDocument::Scene(scene),
            MapChange::Cells(cells) => StreamDocument::Cells(cells),
        });
        let line = document.map(|document| json(&document)).transpose()?;
        self.shown = Some(new);
        Ok(line)
    }
}

/// An open stream.
struct Open<V> {
    subscription: Subscription,
    renderers: Renderers,
    /// `None` once it has failed.
    view: Option<V>,
}

impl<V: Shown> Open<V> {
    /// The line about the present summary.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let snapshot = self.subscription.present().await?;
        let Some(mut view) = self.view.take() else {
            return Ok(None);
        };
        let drawn = self.renderers.run(move || {
            let line = view.line(&snapshot);
            (view, line)
        });
        let (view, line) = drawn.await?;
        let line = line?;
        self.view = Some(view);
        Ok(line)
    }

    /// Waits for the next line.
    async fn next(&mut self) -> Result<Vec<u8>, ApiError> {
        let due = Instant::now() + BOOKMARK_EVERY;
        loop {
            match clock::timeout_at(due, self.subscription.changed()).await {
                Ok(changed) => changed?,
                Err(_due) => return json(&StreamDocument::Bookmark),
            }
            if let Some(line) = self.line().await? {
                return Ok(line);
            }
        }
    }
}

/// Answers with a stream.
pub(super) async fn answer(
    context: &SummaryContext,
    looking: Looking,
    view: impl Shown,
) -> Result<Answer, Refusal> {
    let Looking {
        subscription,
        running,
        ..
    } = looking;
    let mut open = Open {
        subscription,
        renderers: context.renderers.clone(),
        view: Some(view),
    };
    let first = open.line().await?;
    let first = first.map(|line| Ok::<_, Infallible>(Bytes::from(line)));
    let rest = stream::unfold(open, |mut open| async move {
        // After an error its client connects again, and is told then.
        let line = open.next().await.ok()?;
        Some((Ok(Bytes::from(line)), open))
    });
    let stop = context.stop.clone();
    let end = async move {
        _ = clock::timeout(LASTS, stop.cancelled_owned()).await;
    };
    let lines = stream::iter(first).chain(rest).take_until(Box::pin(end));
    let answer = answer::of_type(NDJSON, Body::from_stream(lines));
    running.answered(answer.status());
    Ok(answer)
}
