//! The fence of each election: a record that every change of leader replaces.
//!
//! It is written in the commit of the Lease, so its revision is the Lease's at that write: the
//! epoch that the leader knows. One guard checks that it is still at that revision.

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, future::ready};
use http::HeaderMap;
use podplane_api::{Object as _, coordination::Lease};
use podplane_proto::{
    error::{ApiError, Reason},
    fence::{Fence, InvalidFence, METADATA},
};
use podplane_store::{Guard, Key, KeyError, Revision, Write};

use super::{Admission, CommitAdditions, ProposedChange};
use crate::{engine::Engine, error};

/// Replaces the fences as Leases change.
#[derive(Debug)]
pub(crate) struct Fences;

/// The fence that the sender of a request states.
///
/// # Errors
///
/// `BadRequest` for one that is none.
pub(crate) fn sent(headers: &HeaderMap) -> Result<Option<Fence>, ApiError> {
    let Some(value) = headers.get(METADATA) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    text.parse()
        .map(Some)
        .map_err(|error: InvalidFence| error::bad_request(error.to_string()))
}

/// `/podplane/fences/NAMESPACE/LEASE`
fn key(namespace: &str, lease: &str) -> Result<Key, KeyError> {
    Key::try_from(format!("/podplane/fences/{namespace}/{lease}"))
}

/// The holder of a Lease and the time since when: the term of one leader.
fn term(lease: &Lease) -> Option<(Option<&str>, Option<podplane_api::jiff::Timestamp>)> {
    let spec = lease.spec.as_ref()?;
    let acquired = spec.acquire_time.as_ref().map(|time| time.0);
    Some((spec.holder_identity.as_deref(), acquired))
}

impl Admission<Lease> for Fences {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Lease>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        let additions = || {
            let mut additions = CommitAdditions::default();
            let Some(lease) = change.new.or(change.old) else {
                return Ok(additions);
            };
            let key = key(lease.namespace(), lease.name());
            let key = key.map_err(|error| error::internal(&error))?;
            match (change.old.map(term), change.new.map(term)) {
                (Some(old), Some(new)) if old == new => {}
                (_, Some(new)) => {
                    let holder = new.and_then(|(holder, _)| holder).unwrap_or_default();
                    let value = Bytes::copy_from_slice(holder.as_bytes());
                    additions.writes.push(Write::Put { key, value });
                }
                // Nobody leads by a Lease that is gone.
                (_, None) => additions.writes.push(Write::Delete { key }),
            }
            Ok(additions)
        };
        ready(additions()).boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, Lease>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // There are no guards.
        ready(Ok(())).boxed()
    }
}

/// Checks the fence; the guard ensures that it holds until the commit. `None` for a writer without
/// a fence.
pub(crate) async fn guard(
    engine: &Engine,
    fence: Option<&Fence>,
) -> Result<Option<Guard>, ApiError> {
    let Some(fence) = fence else {
        return Ok(None);
    };
    // A name that no Lease can have has no fence.
    let (Ok(key), epoch) = (
        key(&fence.namespace, &fence.name),
        Revision::new(fence.epoch),
    ) else {
        return Err(lost(fence, "there is no such lease"));
    };
    let found = engine.get(&key).await.map_err(error::store)?;
    match found {
        Some(item) if Some(item.modified) == epoch => Ok(Some(Guard::At {
            key,
            revision: item.modified,
        })),
        Some(item) if item.value_len() == 0 => Err(lost(fence, "the lease was released")),
        Some(item) => {
            let holder = item.value();
            let holder = String::from_utf8_lossy(&holder);
            let why = format!("{holder:?} has the lease since revision {}", item.modified);
            Err(lost(fence, &why))
        }
        None => Err(lost(fence, "the lease is gone")),
    }
}

fn lost(fence: &Fence, why: &str) -> ApiError {
    let message = format!("the fence {fence} is lost: {why}");
    ApiError::new(Reason::FenceLost, message)
}
