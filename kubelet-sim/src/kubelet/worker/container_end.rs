//! The part of a pod's worker that stops its containers.

use std::{collections::BTreeMap, future, sync::Arc, time::Duration};

use futures::future::join_all;
use podplane_api::{core::Pod, pod_ips::is_terminal};
use podplane_client::events::EventType;
use podplane_host::clock::{self, Instant};

use super::{
    super::{
        containers::{
            ContainerPhase, PodContainer, init_containers, is_sidecar,
            status::{PodObservation, status},
        },
        node::NodeError,
        status::ReadySandbox,
    },
    Worker,
};

/// The least grace period of containers that are stopped after others.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// The grace period of a pod whose specification has none: Kubernetes' default.
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl Worker {
    /// The pod with the final status of its containers, which are stopped first: sidecars last.
    /// `sandbox` is the pod's sandbox if it is ready. A terminal pod is returned as it is.
    pub(super) async fn end_containers(
        &mut self,
        pod: &Arc<Pod>,
        sandbox: Option<(&str, &ReadySandbox)>,
    ) -> Result<Arc<Pod>, NodeError> {
        if is_terminal(pod) {
            return Ok(pod.clone());
        }
        let began = Instant::now();
        let mut grace = grace_period(pod);
        let mut is_first = true;
        let containers = loop {
            let containers = self.list_containers().await?;
            let stop = next_to_stop(pod, &containers);
            if stop.is_empty() {
                break containers;
            }
            if is_first {
                for container in &stop {
                    let message = format!("Stopping container {}", container.name);
                    self.record(pod, EventType::Normal, "Killing", message);
                }
            }
            let left = grace.saturating_sub(began.elapsed());
            let left = if is_first { grace } else { left.max(MIN_GRACE) };
            let runtime = self.node.runtime.clone();
            let stops = join_all(stop.iter().map(|c| runtime.stop_container(&c.id, left)));
            let mut changes = self.pod.clone();
            let shorter = async {
                let is_shorter = |pod: &Option<Arc<Pod>>| {
                    pod.as_deref().map_or(Duration::ZERO, grace_period) < grace
                };
                let found = changes.wait_for(is_shorter).await.ok();
                let found = found.map(|pod| pod.as_deref().map_or(Duration::ZERO, grace_period));
                match found {
                    Some(grace) => grace,
                    // The kubelet stops, which ends no container.
                    None => future::pending().await,
                }
            };
            // Cancelling the calls loses nothing: the containers are stopped again.
            tokio::select! {
                stopped = stops => {
                    for stopped in stopped {
                        stopped.map_err(NodeError::runtime("stop a container"))?;
                    }
                    is_first = false;
                }
                shorter = shorter => grace = shorter,
            }
        };
        let newest_sandbox = containers.iter().max_by_key(|c| c.created);
        let sandbox_id = match (sandbox, newest_sandbox) {
            (Some((id, _)), _) => id,
            (None, Some(container)) => &container.sandbox,
            (None, None) => "",
        };
        let observed = PodObservation {
            sandbox_id,
            sandbox: sandbox.map(|(_, ready)| ready),
            host: &self.node.machine.ips,
            runtime: self.node.machine.runtime_name(),
            containers: &containers,
            waiting: &BTreeMap::new(),
            is_ending: true,
            now: clock::timestamp(),
        };
        let mut ended = Pod::clone(pod);
        ended.status = Some(status(pod, observed));
        Ok(Arc::new(ended))
    }
}

/// The time that the pod's containers have to end.
pub(super) fn grace_period(pod: &Pod) -> Duration {
    let of_spec = || pod.spec.as_ref()?.termination_grace_period_seconds;
    let seconds = pod.metadata.deletion_grace_period_seconds;
    let seconds = seconds.or_else(of_spec).unwrap_or(DEFAULT_GRACE_SECONDS);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The containers to stop next: all but sidecars at once, then the sidecars, the last one first.
fn next_to_stop<'a>(pod: &Pod, containers: &'a [PodContainer]) -> Vec<&'a PodContainer> {
    let runs = |container: &&PodContainer| container.phase == ContainerPhase::Running;
    let sidecars = init_containers(pod).iter().filter(|init| is_sidecar(init));
    let order: Vec<_> = sidecars.map(|sidecar| sidecar.name.as_str()).collect();
    let position = |container: &PodContainer| order.iter().position(|name| *name == container.name);
    let running: Vec<_> = containers.iter().filter(runs).collect();
    let apps: Vec<_> = running
        .iter()
        .copied()
        .filter(|c| position(c).is_none())
        .collect();
    if !apps.is_empty() {
        return apps;
    }
    let last = running
        .into_iter()
        .max_by_key(|container| position(container));
    last.into_iter().collect()
}
