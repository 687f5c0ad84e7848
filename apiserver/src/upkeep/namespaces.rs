//! The end of a namespace: its content is deleted, and when nothing is left, it is removed.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use podplane_api::{Object as _, ObjectKey};
use podplane_host::clock;
use podplane_proto::error::{ApiError, Reason};
use podplane_store::Guard;

use super::Upkeep;
use crate::{
    cache::Query,
    registry::{StreamEvent, WatchOptions, WatchStart},
};

/// The interval of checks of a namespace whose content takes time to end, such as pods.
const AGAIN: Duration = Duration::from_millis(200);

impl Upkeep {
    /// Removes namespaces that were deleted. Never completes.
    pub(crate) async fn end_namespaces(self: Arc<Self>) -> Result<(), ApiError> {
        let mut changes = self.watch().await?;
        loop {
            let left = self.end_all().await;
            // A watch that failed has fallen behind; the next watch, and the next round, begin with
            // the present state.
            let changed = match left {
                0 => changes.next().await,
                _ => match clock::timeout(AGAIN, changes.next()).await {
                    Ok(changed) => changed,
                    Err(_elapsed) => continue,
                },
            };
            if !matches!(changed, Some(Ok(_))) {
                changes = self.watch().await?;
            }
        }
    }

    async fn watch(&self) -> Result<BoxStream<'static, Result<StreamEvent, ApiError>>, ApiError> {
        let all = WatchOptions {
            query: Query::default(),
            start: WatchStart::Present(None),
            ends: None,
            bookmarks: false,
            announce_end: false,
        };
        Ok(self.namespaces.watch(all).await?.boxed())
    }

    /// Advances all ending namespaces; returns the number of those that remain.
    async fn end_all(&self) -> usize {
        let ending = match self
            .namespaces
            .query(String::new(), "", "status.phase=Terminating")
        {
            Ok(query) => self.namespaces.keys(&query).await,
            Err(error) => Err(error),
        };
        let ending = ending.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to list ending namespaces; trying again");
            Vec::new()
        });
        let mut left = 0;
        for key in &ending {
            match self.end(key).await {
                Ok(true) => {}
                Ok(false) => left += 1,
                Err(error) => {
                    tracing::warn!(namespace = key.name, %error, "failed to end the namespace; trying again");
                    left += 1;
                }
            }
        }
        left
    }

    /// Advances an ending namespace; returns true if there is nothing more to do for it.
    async fn end(&self, key: &ObjectKey) -> Result<bool, ApiError> {
        let kinds = self.kinds.now();
        for kind in &kinds.stored {
            if kind.prefix_in(&key.name).is_some() {
                kind.empty(&key.name).await?;
            }
        }
        // Checked by the commit: objects with a grace period or finalizers stay for a while, and an
        // object may have been created before deletion began and acknowledged after the check.
        let nothing_left = kinds
            .stored
            .iter()
            .filter_map(|kind| kind.prefix_in(&key.name))
            .map(Guard::NoneUnder)
            .collect();
        match self.namespaces.release(key, nothing_left).await {
            Ok(namespace) => {
                tracing::info!(namespace = namespace.name(), "namespace is empty");
                Ok(true)
            }
            Err(error) => match error.reason {
                Reason::NotFound => Ok(true),
                Reason::Conflict => Ok(false),
                _ => Err(error),
            },
        }
    }
}
