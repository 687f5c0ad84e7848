//! The service account controller: creates the default ServiceAccount of a namespace again after it
//! was deleted (source: Kubernetes' `pkg/controller/serviceaccount`). A new namespace has one from
//! its first commit.

use std::time::Duration;

use podplane_api::{
    Object as _, ObjectKey,
    core::{Namespace, ServiceAccount},
    kinds::service_account::{DEFAULT_ACCOUNT, default_account},
};
use podplane_client::{ApiError, Cache, CacheChange, Client, WorkQueue, answered};

use crate::work::Latch;

/// The controller. It reconciles namespaces by name, with the client of a leader; a standby only
/// observes.
#[derive(Debug)]
pub(crate) struct ServiceAccounts {
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
    pub(crate) queue: WorkQueue<String>,
}

impl ServiceAccounts {
    /// A controller whose queue is closed.
    pub(crate) fn new(namespaces: Cache<Namespace>, accounts: Cache<ServiceAccount>) -> Self {
        Self {
            namespaces,
            accounts,
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all namespaces.
    pub(crate) fn open(&self) {
        self.queue.open();
        for namespace in self.namespaces.list() {
            self.queue.add(namespace.name().to_owned());
        }
    }

    /// Observes deletions, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(&self, ready: &Latch) {
        tokio::join!(self.namespaces.synced(), self.accounts.synced());
        let mut accounts = self.accounts.subscribe();
        ready.arrive();
        loop {
            if let CacheChange::Deleted(account) = accounts.next().await
                && account.name() == DEFAULT_ACCOUNT
            {
                self.queue.add(account.namespace().to_owned());
            }
        }
    }

    /// Creates the default account of a namespace that has none.
    pub(crate) async fn reconcile(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<Duration>, ApiError> {
        let namespace = self.namespaces.get(&ObjectKey::new("", name));
        let is_active = namespace.is_some_and(|namespace| !namespace.is_deleting());
        let account = self.accounts.get(&ObjectKey::new(name, DEFAULT_ACCOUNT));
        if !is_active || account.is_some() {
            return Ok(None);
        }
        match answered(client.namespaced(name).create(&default_account(name))).await {
            Ok(_) => tracing::info!(namespace = name, "created the default service account"),
            Err(error) if error.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        Ok(None)
    }
}
