//! Leases of etcd for what has a lifetime. One serves many keys, as in Kubernetes: each costs etcd
//! memory and a write.

use std::time::Duration;

use podplane_etcd::{EtcdClient, EtcdError};
use podplane_host::clock::Instant;
use tokio::sync::Mutex;

use super::EtcdStore;
use crate::store::Txn;

/// A lease takes keys for this time; theirs is longer by it at most.
const SHARED_FOR: Duration = Duration::from_secs(60);
/// The most commits with one lease.
const MAX_COMMITS: u32 = 1000;

/// The lease that the next commit with a lifetime uses.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Option<SharedLease>>);

#[derive(Debug)]
struct SharedLease {
    id: i64,
    lifetime: Duration,
    granted: Instant,
    commits: u32,
}

impl Leases {
    async fn id(&self, client: &EtcdClient, lifetime: Duration) -> Result<i64, EtcdError> {
        let mut shared = self.0.lock().await;
        if let Some(lease) = &mut *shared
            && lease.lifetime == lifetime
            && lease.granted.elapsed() < SHARED_FOR
            && lease.commits < MAX_COMMITS
        {
            lease.commits += 1;
            return Ok(lease.id);
        }
        let id = client
            .grant_lease(lifetime.saturating_add(SHARED_FOR))
            .await?;
        *shared = Some(SharedLease {
            id,
            lifetime,
            granted: Instant::now(),
            commits: 1,
        });
        Ok(id)
    }
}

impl EtcdStore {
    /// The id of a lease for the commit; 0 without a lifetime, which is etcd's number for none.
    pub(super) async fn lease(&self, txn: &Txn) -> Result<i64, EtcdError> {
        match txn.lifetime {
            None => Ok(0),
            Some(lifetime) => self.leases.id(&self.client, lifetime).await,
        }
    }
}
