//! The rules of ClusterRoles that consist of others, kept up to date as the others change.

use std::{collections::BTreeMap, time::Duration};

use futures::StreamExt as _;
use podplane_access::rbac::aggregation;
use podplane_api::{Object as _, ObjectKey, rbac::ClusterRole};
use podplane_host::clock;
use podplane_proto::error::ApiError;

use crate::{
    cache::Query,
    engine::Engine,
    registry::{ChangeTerms, ObjectPart, Operation, Registry, WatchOptions, WatchStart},
    storage,
};

/// The pause after a round that wrote, or failed. Roles that are aggregated from each other in a
/// circle may change with every round.
const PAUSE: Duration = Duration::from_millis(100);

/// Keeps the rules. Never completes.
///
/// # Errors
///
/// If the server stops.
pub(crate) async fn keep(engine: Engine, roles: Registry<ClusterRole>) -> Result<(), ApiError> {
    loop {
        let all = WatchOptions {
            query: Query::default(),
            start: WatchStart::Present(None),
            ends: None,
            bookmarks: false,
            announce_end: false,
        };
        let mut changes = roles.watch(all).await?.boxed();
        // A watch that has fallen behind ends with an error; the next begins with all roles.
        while let Some(Ok(_)) = changes.next().await {
            // One round for all changes that are there already.
            while let Some(Some(Ok(_))) = futures::FutureExt::now_or_never(changes.next()) {}
            match settle(&engine, &roles).await {
                Ok(0) => {}
                Ok(changed) => {
                    tracing::debug!(changed, "aggregated cluster roles");
                    clock::sleep(PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to aggregate cluster roles; trying again");
                    clock::sleep(PAUSE).await;
                    break;
                }
            }
        }
    }
}

/// Fills the rules of all aggregated roles; returns the number of those that changed.
async fn settle(engine: &Engine, roles: &Registry<ClusterRole>) -> Result<usize, ApiError> {
    let stored = storage::list::<ClusterRole>(engine, storage::prefix::<ClusterRole>()).await?;
    let named = stored
        .into_iter()
        .map(|role| (role.name().to_owned(), role));
    let mut settled: BTreeMap<String, ClusterRole> = named.collect();
    let changed = aggregation::settle(&mut settled);
    for name in &changed {
        let Some(wanted) = settled.get(name) else {
            continue;
        };
        let fill = |role: &mut ClusterRole| {
            // Someone else may have turned it into a role with rules of its own.
            if role.aggregation_rule == wanted.aggregation_rule {
                role.rules.clone_from(&wanted.rules);
            }
            Ok(())
        };
        let key = ObjectKey::new("", name.as_str());
        let operation = Operation::Update(ObjectPart::Main);
        let filled = roles.modify(&key, operation, ChangeTerms::by_server(), fill);
        match filled.await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(changed.len())
}
