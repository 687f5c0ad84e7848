//! Waits for states of the cluster, by list and watch.

use std::time::Duration;

use podplane_api::Object;
use podplane_client::{Api, Cache, ListParams, reflector};

/// Waits until `done` returns a value for the objects that match, and returns it; `None` when the
/// time is over. `done` is called at first and after changes, over reconnects.
pub(crate) async fn until<K: Object, T>(
    api: Api<K>,
    params: ListParams,
    timeout: Option<Duration>,
    mut done: impl FnMut(&Cache<K>) -> Option<T>,
) -> Option<T> {
    let (cache, driver) = reflector(api, params);
    let watch = async {
        cache.synced().await;
        let mut changes = cache.subscribe();
        loop {
            while changes.try_next().is_some() {}
            if let Some(found) = done(&cache) {
                return found;
            }
            changes.next().await;
        }
    };
    let over = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    // The first to end decides; the others own nothing that outlives this call.
    tokio::select! {
        found = watch => Some(found),
        () = driver => None,
        () = over => None,
    }
}
