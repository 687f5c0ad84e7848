//! Registration of a node: creates its object and takes its lease.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use podplane_api::{Object as _, core::Node as NodeObject, node::LEAVING};
use podplane_client::ApiError;
use podplane_host::{clock, random};

use super::{
    super::{
        lease::{self, LeaseError},
        node_status::{self, ObservedNetwork},
    },
    BeginError, NodeContext,
};

impl NodeContext {
    /// Registers the node and takes its lease, once no other instance of the node has it. Tries
    /// until it succeeds.
    ///
    /// # Errors
    ///
    /// [`BeginError`]: the API server says that the Node is invalid; or another instance has the
    /// lease, and this is the only node of the process.
    pub(super) async fn begin(&self) -> Result<(), BeginError> {
        let mut waits = unlimited_backoff().build();
        let mut is_reported = false;
        loop {
            let error = match self.try_to_begin().await {
                Ok(()) => return Ok(()),
                Err(BeginError::Lease(error)) => error,
                Err(error) => return Err(error),
            };
            let wait = match error {
                LeaseError::Taken(taken) if self.is_alone => {
                    return Err(LeaseError::Taken(taken).into());
                }
                LeaseError::Taken(taken) => {
                    let wait = taken.wait();
                    if !is_reported {
                        tracing::error!(node = self.name(), error = %taken, "another instance has the node; waiting");
                    }
                    is_reported = true;
                    wait
                }
                LeaseError::Api(error) => {
                    let wait = waits.next().unwrap_or(self.resync);
                    tracing::warn!(node = self.name(), %error, retry_in = ?wait, "failed to take the node's lease; trying again");
                    wait
                }
            };
            clock::sleep(wait).await;
        }
    }

    async fn try_to_begin(&self) -> Result<(), BeginError> {
        // Before anything is written.
        let found = lease::check(self).await?;
        let registered = self.register().await.map_err(BeginError::Invalid)?;
        let taken = lease::take(self, &registered, found).await?;
        *self.lease.lock().await = Some(taken);
        self.tenure.send_replace(true);
        Ok(())
    }

    /// Creates the Node, or takes over the one that is there: its labels become ours, its block is
    /// used. Tries until it succeeds.
    ///
    /// # Errors
    ///
    /// The API server's, if it says that the Node is invalid.
    pub async fn register(&self) -> Result<NodeObject, ApiError> {
        let register = async || {
            let nodes = self.client.all::<NodeObject>();
            let mut node = node_status::object(&self.machine);
            let network = ObservedNetwork {
                fault: Some("kubelet is starting".to_owned()),
                ..ObservedNetwork::default()
            };
            node.status = Some(node_status::status(
                &self.machine,
                &network,
                None,
                clock::timestamp(),
            ));
            match nodes.create(&node).await {
                Ok(made) => {
                    tracing::info!(node = self.name(), uid = made.uid(), "registered node");
                    Ok(made)
                }
                Err(error) if error.is_already_exists() => self.adopt().await,
                Err(error) => Err(error),
            }
        };
        let invalid = |error: &ApiError| error.reason == podplane_client::Reason::Invalid;
        register
            .retry(unlimited_backoff())
            .when(|error| !invalid(error))
            .notify(|error, wait| {
                tracing::warn!(node = self.name(), %error, retry_in = ?wait, "failed to register node; trying again");
            })
            .await
    }

    async fn adopt(&self) -> Result<NodeObject, ApiError> {
        let nodes = self.client.all::<NodeObject>();
        let mut node = nodes.get(self.name()).await?;
        let found = node.clone();
        let labels = node.metadata.labels.get_or_insert_default();
        labels.extend(node_status::labels(&self.machine));
        // An earlier start has left; this one is here.
        if let Some(annotations) = &mut node.metadata.annotations {
            annotations.remove(LEAVING);
        }
        if let Some(id) = &self.machine.provider_id {
            let present = &mut node.spec.get_or_insert_default().provider_id;
            if present.as_deref().is_none_or(str::is_empty) {
                *present = Some(id.clone());
            }
        }
        if node != found {
            node = nodes.update(&node).await?;
        }
        tracing::info!(node = self.name(), uid = node.uid(), "adopted node");
        Ok(node)
    }
}

/// Pauses between attempts, whose number has no limit: from 50 ms, doubled up to 5 s, with jitter.
pub fn unlimited_backoff() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .with_jitter_seed(random::value())
        .without_max_times()
}
