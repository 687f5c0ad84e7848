//! Lists, rendered in parts by threads of a low priority.
//!
//! A list of 20,000 pods takes half a second of processor time. On the threads that serve requests
//! all other requests would wait for it. So a long list is rendered by threads of its own, which
//! yield to those, and a part at a time: the parts of several lists take turns, and none is
//! rendered before the client has taken the one before.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::StatusCode;
use podplane_host::task;
use podplane_proto::{
    error::{ApiError, Reason},
    wire::ListMeta,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    answer::{self, ObjectForm, RestAnswer},
    resource::{Documents, ListedItem, Resource},
    table::{self, RowInclusion, TableForm},
};
use crate::error;

/// The most objects of a list that is rendered at once, and of a part of a longer one: two or three
/// milliseconds of processor time.
const PART: usize = 100;

/// A function that renders something.
type Work = Box<dyn FnOnce() + Send>;

/// Threads that render. Clones share them, and they end with the last clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Renderers(Arc<RenderThreads>);

#[derive(Debug, Default)]
struct RenderThreads(Arc<WorkQueue>);

#[derive(Default)]
struct WorkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    work: VecDeque<Work>,
    threads: usize,
    is_closed: bool,
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}

impl Drop for RenderThreads {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

/// Half of the processors: the others are for requests.
fn most_threads() -> usize {
    available_parallelism().map_or(1, |count| count.get().div_ceil(2))
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Only code that does not panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work of the queue until it is closed.
    fn run(&self) {
        loop {
            let work = {
                let mut state = self.lock();
                loop {
                    match state.work.pop_front() {
                        Some(work) => break work,
                        None if state.is_closed => return,
                        None => {
                            let woken = self.changed.wait(state);
                            state = woken.unwrap_or_else(PoisonError::into_inner);
                        }
                    }
                }
            };
            // Whoever waits for the result learns of a panic by its absence.
            _ = catch_unwind(AssertUnwindSafe(work));
        }
    }
}

impl Renderers {
    /// Runs `work` on one of the threads.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        self.add(Box::new(move || _ = sender.send(work())));
        result.await.map_err(|_dropped| {
            let why = "failed to render the answer; the server's log has more";
            ApiError::new(Reason::InternalError, why)
        })
    }

    fn add(&self, work: Work) {
        let queue = &self.0.0;
        let mut state = queue.lock();
        state.work.push_back(work);
        if state.threads < most_threads() {
            let shared = Arc::clone(queue);
            match task::background_thread("render", move || shared.run()) {
                Ok(_) => state.threads += 1,
                // The threads that there are do it.
                Err(error) if state.threads > 0 => {
                    tracing::debug!(%error, "failed to start a thread");
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to start a thread");
                    // Dropped, so that its request fails.
                    state.work.clear();
                }
            }
        }
        drop(state);
        queue.changed.notify_one();
    }
}

/// A list in the form that a client wants.
pub(super) struct ListRendering {
    pub(super) resource: Arc<dyn Resource>,
    pub(super) form: ObjectForm,
    pub(super) include: RowInclusion,
}

impl ListRendering {
    /// Answers with the list: at once if it is short, else as a stream of its parts.
    pub(super) async fn answer(
        self,
        documents: Documents,
        renderers: &Renderers,
    ) -> Result<RestAnswer, ApiError> {
        let Documents { metadata, items } = documents;
        if items.len() <= PART {
            let items = self.elements(items)?;
            let list = self.list(&metadata, items);
            return Ok(self.form.answer(StatusCode::OK, &list));
        }
        if self.form == ObjectForm::Protobuf {
            return self.message(metadata, items, renderers).await;
        }
        let list = self.list(&metadata, Vec::new());
        let (head, tail) = around(list, self.elements_field());
        let parts = ListParts {
            rendering: self,
            items: items.into_iter(),
            head: Some(head),
            tail: Some(tail),
        };
        // The first part decides whether the answer is an error.
        let (parts, first) = parts.next(renderers.clone()).await?;
        let renderers = renderers.clone();
        let rest = stream::unfold(Some(parts), move |parts| {
            let renderers = renderers.clone();
            async move {
                match parts?.next(renderers).await {
                    Ok((_, None)) => None,
                    Ok((parts, Some(part))) => Some((Ok(part), Some(parts))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        });
        let all = stream::iter(first.map(Ok)).chain(rest);
        let body = axum::body::Body::from_stream(all);
        Ok(answer::body(StatusCode::OK, "application/json", body))
    }

    /// A long list in protobuf, which has its length first: objects in parts, and the message as a
    /// whole.
    async fn message(
        self,
        metadata: ListMeta,
        items: Vec<ListedItem>,
        renderers: &Renderers,
    ) -> Result<RestAnswer, ApiError> {
        let mut items = items.into_iter();
        let mut documents = Vec::with_capacity(items.len());
        while items.len() > 0 {
            let part: Vec<_> = items.by_ref().take(PART).collect();
            let rendered = renderers.run(move || {
                let each = part.into_iter().map(ListedItem::document);
                each.collect::<Result<Vec<_>, _>>()
            });
            documents.extend(rendered.await??);
        }
        let list = self.list(&metadata, documents);
        let form = self.form;
        renderers
            .run(move || form.answer(StatusCode::OK, &list))
            .await
    }

    /// The name of the field with the elements.
    fn elements_field(&self) -> &'static str {
        match self.form {
            ObjectForm::Table(_) => "rows",
            ObjectForm::Whole | ObjectForm::Protobuf | ObjectForm::Metadata(_) => "items",
        }
    }

    /// The elements of a list: objects, their metadata or their rows.
    fn elements(
        &self,
        items: impl IntoIterator<Item = ListedItem>,
    ) -> Result<Vec<Value>, ApiError> {
        let documents = items.into_iter().map(ListedItem::document);
        match self.form {
            ObjectForm::Whole | ObjectForm::Protobuf => documents.collect(),
            ObjectForm::Metadata(version) => documents
                .map(|document| Ok(table::metadata_only(&document?, version)))
                .collect(),
            ObjectForm::Table(version) => {
                let form = TableForm {
                    version,
                    include: self.include,
                };
                form.rows(self.resource.as_ref(), documents)
            }
        }
    }

    fn list(&self, metadata: &ListMeta, elements: Vec<Value>) -> Value {
        let names = self.resource.names();
        match self.form {
            ObjectForm::Table(version) => {
                let form = TableForm {
                    version,
                    include: self.include,
                };
                form.table(self.resource.as_ref(), metadata, elements)
            }
            ObjectForm::Metadata(version) => {
                json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": table::list_meta(metadata), "items": elements})
            }
            ObjectForm::Whole | ObjectForm::Protobuf => {
                json!({"kind": format!("{}List", names.kind), "apiVersion": names.api_version(), "metadata": table::list_meta(metadata), "items": elements})
            }
        }
    }
}

/// The text of a document before and after the elements of its field `elements`.
fn around(document: Value, elements: &str) -> (String, String) {
    let mut tail = String::from("]");
    if let Value::Object(fields) = document {
        for (name, value) in fields {
            if name != elements {
                let name = Value::from(name).to_string();
                tail.extend([",", &name, ":", &value.to_string()]);
            }
        }
    }
    tail.push('}');
    (format!("{{\"{elements}\":["), tail)
}

/// The rest of a list.
struct ListParts {
    rendering: ListRendering,
    items: std::vec::IntoIter<ListedItem>,
    /// The text before the first element; `None` once it was rendered.
    head: Option<String>,
    /// The text after the last element; `None` once it was rendered.
    tail: Option<String>,
}

impl ListParts {
    /// Renders the next part; `None` if there are no more.
    async fn next(mut self, renderers: Renderers) -> Result<(Self, Option<Bytes>), ApiError> {
        if self.tail.is_none() {
            return Ok((self, None));
        }
        let rendered = renderers.run(move || {
            let part = self.part();
            (self, part)
        });
        let (parts, part) = rendered.await?;
        Ok((parts, Some(part?)))
    }

    fn part(&mut self) -> Result<Bytes, ApiError> {
        let head = self.head.take();
        let mut separator = match &head {
            Some(_) => "",
            None => ",",
        };
        let mut text = head.unwrap_or_default().into_bytes();
        let items = self.items.by_ref().take(PART);
        for element in self.rendering.elements(items)? {
            text.extend_from_slice(separator.as_bytes());
            separator = ",";
            serde_json::to_writer(&mut text, &element).map_err(|error| error::internal(&error))?;
        }
        if self.items.len() == 0 {
            text.extend_from_slice(self.tail.take().unwrap_or_default().as_bytes());
        }
        Ok(text.into())
    }
}
