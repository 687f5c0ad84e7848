//! The history of an API server: lists at a revision, and the changes after it.

use std::pin::pin;

use anyhow::Context as _;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::{
    api::{ListParams, Request, VersionMatch, WatchParams},
    core::WatchEvent,
};
use podplane_api::Object;
use podplane_client::{ApiError, Client, ObjectEvent};
use serde::Deserialize;
use serde_json::Value;

/// The number of objects requested at once; kubectl's number.
const PAGE: u32 = 500;
/// The duration of a watch of a Kubernetes API server, in seconds. It sends a bookmark two seconds
/// before the end.
const WATCH_SECONDS: u32 = 3;
/// The first revision that any store can have.
const FIRST: u64 = 1;

/// An API server.
pub(super) enum HistorySource {
    /// podplane's, through gRPC.
    Podplane(Client),
    /// Any, through REST.
    Kubernetes(kube::Client),
}

/// A failed read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The server no longer has the revision.
    Expired(String),
    /// Any other failure.
    Failed(anyhow::Error),
}

impl From<ApiError> for ReadError {
    fn from(error: ApiError) -> Self {
        match error.is_expired() {
            true => Self::Expired(error.message),
            false => Self::Failed(error.into()),
        }
    }
}

impl From<kube::Error> for ReadError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 410 => Self::Expired(status.message.clone()),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<ReadError> for anyhow::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Expired(message) => Self::msg(message),
            ReadError::Failed(error) => error,
        }
    }
}

/// All objects of a kind at a revision.
#[derive(Debug)]
pub(super) struct KindList<K> {
    pub(super) revision: u64,
    pub(super) items: Vec<K>,
}

impl HistorySource {
    /// The oldest revision from which the kind can be watched. `None` if the server does not say
    /// it.
    pub(super) async fn oldest<K: Object>(&self) -> Result<Option<u64>, ReadError> {
        let refused = match self {
            Self::Podplane(client) => {
                let params = podplane_client::ListParams::default();
                let watch = client.all::<K>().watch(&params, &FIRST.to_string()).await;
                watch.map(|_| ()).map_err(ReadError::from)
            }
            Self::Kubernetes(client) => first_event::<K>(client, FIRST).await,
        };
        match refused {
            Ok(()) => Ok(Some(FIRST)),
            Err(ReadError::Expired(message)) => Ok(oldest_in(&message)),
            Err(error) => Err(error),
        }
    }

    /// Lists all objects, at exactly that revision or, if there is none, at the present one.
    pub(super) async fn list<K: Object>(&self, at: Option<u64>) -> Result<KindList<K>, ReadError> {
        match self {
            Self::Podplane(client) => {
                let exact = at.map(|at| podplane_client::ListParams {
                    resource_version: at.to_string(),
                    resource_version_match: "Exact".into(),
                    ..podplane_client::ListParams::default()
                });
                let list = client.all::<K>().list(&exact.unwrap_or_default()).await?;
                Ok(KindList {
                    revision: revision(&list.resource_version)?,
                    items: list.items,
                })
            }
            Self::Kubernetes(client) => list_pages(client, at).await,
        }
    }

    /// Reads the changes after a revision up to the present, in order, and returns the revision
    /// that the server says was reached; `None` if it ended the watch without saying so.
    pub(super) async fn changes<K: Object>(
        &self,
        after: u64,
        mut on_change: impl FnMut(ObjectEvent<K>) -> Result<(), ReadError>,
    ) -> Result<Option<u64>, ReadError> {
        match self {
            Self::Podplane(client) => {
                let params = podplane_client::ListParams::default();
                let events = client.all::<K>().watch(&params, &after.to_string()).await?;
                let mut events = pin!(events);
                while let Some(event) = events.next().await {
                    match event? {
                        ObjectEvent::Bookmark(at) => return Ok(Some(revision(&at)?)),
                        change => on_change(change)?,
                    }
                }
            }
            Self::Kubernetes(client) => {
                let mut events = pin!(watch::<K>(client, after).await?);
                while let Some(event) = events.try_next().await? {
                    let object = |object| decode::<K>(object).map_err(ReadError::Failed);
                    on_change(match event {
                        WatchEvent::Added(added) => ObjectEvent::Added(object(added)?),
                        WatchEvent::Modified(changed) => ObjectEvent::Modified(object(changed)?),
                        WatchEvent::Deleted(last) => ObjectEvent::Deleted(object(last)?),
                        WatchEvent::Bookmark(at) => {
                            return Ok(Some(revision(&at.metadata.resource_version)?));
                        }
                        WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
                    })?;
                }
            }
        }
        Ok(None)
    }
}

/// Parses a resourceVersion. The servers that are supported have one counter for all objects
/// (KEP-5504).
pub(super) fn revision(text: &str) -> Result<u64, ReadError> {
    let parsed = text.parse().with_context(|| {
        format!("invalid resourceVersion {text:?}: an audit of the history needs numbers")
    });
    parsed.map_err(ReadError::Failed)
}

/// The oldest revision in Kubernetes' message `too old resource version: ASKED (OLDEST)`.
fn oldest_in(message: &str) -> Option<u64> {
    let (_, oldest) = message.rsplit_once('(')?;
    oldest.trim_end_matches(')').parse().ok()
}

fn path<K: Object>() -> String {
    format!("/api/{}/{}", K::API_VERSION, K::PLURAL)
}

async fn watch<K: Object>(
    client: &kube::Client,
    after: u64,
) -> Result<impl Stream<Item = Result<WatchEvent<Value>, kube::Error>> + use<K>, ReadError> {
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let request = Request::new(path::<K>()).watch(&params, &after.to_string());
    let request = request.map_err(kube::Error::BuildRequest)?;
    Ok(client.request_events::<Value>(request).await?)
}

/// Waits for the first event of a watch after a revision, or its end.
async fn first_event<K: Object>(client: &kube::Client, after: u64) -> Result<(), ReadError> {
    let mut events = pin!(watch::<K>(client, after).await?);
    match events.try_next().await? {
        Some(WatchEvent::Error(status)) => Err(kube::Error::Api(status).into()),
        _ => Ok(()),
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct ListPage {
    metadata: PageMeta,
    items: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

async fn list_pages<K: Object>(
    client: &kube::Client,
    at: Option<u64>,
) -> Result<KindList<K>, ReadError> {
    let first = ListParams::default().limit(PAGE);
    let mut params = match at {
        Some(at) => first.at(&at.to_string()).matching(VersionMatch::Exact),
        None => first,
    };
    let mut items = Vec::new();
    loop {
        let request = Request::new(path::<K>()).list(&params);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let page: ListPage = client.request(request).await?;
        for item in page.items.into_iter().flatten() {
            items.push(decode(item).map_err(ReadError::Failed)?);
        }
        if page.metadata.next.is_empty() {
            let revision = revision(&page.metadata.resource_version)?;
            return Ok(KindList { revision, items });
        }
        // All pages are of the revision of the first.
        let next = page.metadata.next;
        params = ListParams::default().limit(PAGE).continue_token(&next);
    }
}

/// Decodes an object. Fields that this version does not know are ignored.
fn decode<K: Object>(object: Value) -> anyhow::Result<K> {
    let (object, _unknown) = K::from_json_noting(object)
        .with_context(|| format!("the server sent an invalid {}", K::KIND))?;
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_oldest_revision_in_the_message_of_the_server() {
        let message = "too old resource version: 1 (812)";
        assert_eq!(oldest_in(message), Some(812));
        assert_eq!(oldest_in("The resourceVersion is too old."), None);
        assert_eq!(oldest_in("too old (at all)"), None);
    }
}
