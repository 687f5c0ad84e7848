//! Creates, awaits and deletes pods.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use podplane_api::{Object as _, ObjectKey, core::Pod};
use podplane_client::{Cache, Client, DeleteParams, ListParams, reflector};
use podplane_test_cluster::{Cluster, ClusterError, Result, pods};
use tokio::task::JoinSet;

const NAMESPACE: &str = "default";
/// The time between two looks at all pods.
const LOOK: Duration = Duration::from_millis(20);
/// The number of calls that are under way at a time.
const CALLS: usize = 64;

/// The pods of a cluster.
pub(crate) struct Load {
    client: Client,
    pods: Cache<Pod>,
    _watch: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let client = cluster.client().clone();
        let (pods, driver) = reflector(client.all::<Pod>(), ListParams::default());
        let mut watch = JoinSet::new();
        watch.spawn(driver);
        Self {
            client,
            pods,
            _watch: watch,
        }
    }

    /// Creates pods, and returns when all are acknowledged.
    pub(crate) async fn create(&self, count: u32) -> Result<()> {
        let api = self.client.namespaced::<Pod>(NAMESPACE);
        stream::iter(0..count)
            .map(|number| {
                let api = api.clone();
                async move { api.create(&pods::pod(&format!("pod-{number}"))).await }
            })
            .buffer_unordered(CALLS)
            .try_for_each(|_| async { Ok(()) })
            .await
            .map_err(ClusterError::from)
    }

    pub(crate) async fn create_one(&self, name: &str) -> Result<()> {
        let api = self.client.namespaced::<Pod>(NAMESPACE);
        api.create(&pods::pod(name)).await?;
        Ok(())
    }

    pub(crate) async fn until_has_address(&self, name: &str) -> Result<()> {
        let key = ObjectKey::new(NAMESPACE, name);
        let mut changes = self.pods.subscribe();
        while self
            .pods
            .get(&key)
            .is_none_or(|pod| pods::ip(&pod).is_empty())
        {
            changes.next().await;
        }
        Ok(())
    }

    /// Deletes all pods, as `kubectl delete pods --all` does, without waiting for their end.
    pub(crate) async fn delete(&self) -> Result<()> {
        let api = self.client.namespaced::<Pod>(NAMESPACE);
        stream::iter(self.pods.list())
            .map(|pod| {
                let api = api.clone();
                async move { api.delete(pod.name(), &DeleteParams::default()).await }
            })
            .buffer_unordered(CALLS)
            .try_for_each(|_| async { Ok(()) })
            .await
            .map_err(ClusterError::from)
    }

    pub(crate) async fn until_running(&self, count: u32) -> Result<()> {
        let is_enough = |pods: &[Arc<Pod>]| {
            let running = pods.iter().filter(|pod| pods::phase(pod) == "Running");
            running.count() == usize::try_from(count).unwrap_or(usize::MAX)
        };
        self.until(is_enough).await
    }

    pub(crate) async fn until_none(&self) -> Result<()> {
        self.until(<[_]>::is_empty).await
    }

    async fn until(&self, is_enough: impl Fn(&[Arc<Pod>]) -> bool) -> Result<()> {
        let mut changes = self.pods.subscribe();
        loop {
            while changes.try_next().is_some() {}
            if is_enough(&self.pods.list()) {
                return Ok(());
            }
            changes.next().await;
            // Pauses, so that ten thousand pods are not read again for each change.
            tokio::time::sleep(LOOK).await;
        }
    }
}
