//! The part of a pod's worker that gets the images of its containers.

use std::collections::BTreeMap;

use podplane_api::{core::Container, jiff::SignedDuration};
use podplane_client::events::EventType;
use podplane_host::clock::{self, Instant};
use tonic::Status;

use super::{
    super::{
        containers::{
            images::{PullPolicy, pull_policy},
            plan::ContainerPlan,
        },
        node::NodeError,
        runtime::{RuntimeImage, rpc_error},
        trace::SyncTrace,
    },
    Worker,
    containers::{ContainerSync, HeldContainer, after, is_ending, retry_at},
};

/// The time for which a failed pull is shown as such, before it is shown as a delay of the next.
const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);

impl Worker {
    /// The image of a container, pulled as its policy says.
    pub(super) async fn ensure_image(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        container: &Container,
    ) -> Result<Result<RuntimeImage, HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let reference = container.image.clone().unwrap_or_default();
        let present = match self.node.runtime.image(&reference).await {
            Ok(present) => present,
            Err(status) => {
                let message = format!(
                    "Failed to inspect image {reference:?}: {}",
                    rpc_error(&status)
                );
                self.record_warning_once(pod, "InspectFailed", message.clone());
                let reason = "ImageInspectError";
                return Ok(Err(HeldContainer::new(reason, message, retry_at())));
            }
        };
        match (pull_policy(container), present) {
            (PullPolicy::Never | PullPolicy::IfNotPresent, Some(image)) => {
                let message = format!("Container image {reference:?} already present on machine");
                self.record(pod, EventType::Normal, "Pulled", message);
                Ok(Ok(image))
            }
            (PullPolicy::Never, None) => {
                let reason = "ErrImageNeverPull";
                let message = format!(
                    "Container image {reference:?} is not present with pull policy of Never"
                );
                self.record_warning_once(pod, reason, message.clone());
                Ok(Err(HeldContainer::new(reason, message, retry_at())))
            }
            (PullPolicy::Always | PullPolicy::IfNotPresent, _) => {
                self.pull(trace, sync, &reference).await
            }
        }
    }

    async fn pull(
        &mut self,
        trace: &mut SyncTrace<'_>,
        sync: &mut ContainerSync<'_>,
        reference: &str,
    ) -> Result<Result<RuntimeImage, HeldContainer>, NodeError> {
        let pod = &sync.pod.clone();
        let pulls = &self.containers.pulls;
        if let Some(failed) = pulls.delaying(reference, clock::timestamp()) {
            let (retry, error) = (failed.until, failed.error.clone());
            let message = format!("Back-off pulling image {reference:?}");
            self.record(pod, EventType::Normal, "BackOff", message.clone());
            let reason = "ImagePullBackOff";
            self.record(
                pod,
                EventType::Warning,
                "Failed",
                format!("Error: {reason}"),
            );
            let message = format!("{message}: ErrImagePull: {error}");
            return Ok(Err(HeldContainer::new(reason, message, retry)));
        }
        // A pull may take long, and the pod has its address.
        let containers = self.list_containers().await?;
        let creating = self.observed_status(
            sync,
            &containers,
            &ContainerPlan::default(),
            &BTreeMap::new(),
        );
        if let Some(written) = self.write_status(trace, pod, creating).await? {
            sync.pod = written;
        }
        self.record(
            pod,
            EventType::Normal,
            "Pulling",
            format!("Pulling image {reference:?}"),
        );
        let began = Instant::now();
        let mut changes = self.pod.clone();
        let runtime = self.node.runtime.clone();
        let span = trace.begin("PullImage").client();
        let pull = span.around(runtime.pull_image(reference), rpc_error);
        // Cancelling a pull loses what it has fetched, which is not needed then.
        let pulled = tokio::select! {
            _ = changes.wait_for(|pod| is_ending(pod.as_deref())) => {
                let message = format!("Pulling image {reference:?} was cancelled");
                return Ok(Err(HeldContainer::new("ErrImagePull", message, retry_at())));
            }
            pulled = pull => pulled,
        };
        let found = match pulled {
            Ok(()) => runtime.image(reference).await,
            Err(status) => Err(status),
        };
        let missing = || Status::not_found("the runtime does not have the image after the pull");
        match found.and_then(|found| found.ok_or_else(missing)) {
            Ok(image) => {
                self.containers.pulls.forget(reference);
                let took = began.elapsed();
                let message = format!(
                    "Successfully pulled image {reference:?} in {took:.3?}. Image size: {} bytes.",
                    image.size
                );
                self.record(pod, EventType::Normal, "Pulled", message);
                Ok(Ok(image))
            }
            Err(status) => {
                let error = rpc_error(&status);
                let now = clock::timestamp();
                let pulls = &mut self.containers.pulls;
                pulls.note_failure(reference, error.clone(), now);
                let message = format!("Failed to pull image {reference:?}: {error}");
                self.record(pod, EventType::Warning, "Failed", message);
                let reason = "ErrImagePull";
                self.record(
                    pod,
                    EventType::Warning,
                    "Failed",
                    format!("Error: {reason}"),
                );
                let shown = after(now, PULL_ERROR_SHOWN);
                Ok(Err(HeldContainer::new(reason, error, shown)))
            }
        }
    }
}
