//! The stream of `GetContainerEvents`.

use futures::{Stream, StreamExt as _};
use podplane_proto::cri::{self, ContainerEventType};
use tokio::sync::broadcast;
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::Status;

/// The events that a slow client may be behind. Its stream ends then, and it lists again.
const BACKLOG: usize = 1024;

/// The events of a node.
#[derive(Debug)]
pub(super) struct ContainerEvents(broadcast::Sender<cri::ContainerEventResponse>);

impl Default for ContainerEvents {
    fn default() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }
}

impl ContainerEvents {
    /// Sends an event to all who listen, if anybody does. `id` is a container's, or that of the
    /// sandbox itself, as with containerd.
    pub(super) fn send(
        &self,
        id: &str,
        kind: ContainerEventType,
        created_at: i64,
        pod: impl FnOnce() -> (Option<cri::PodSandboxStatus>, Vec<cri::ContainerStatus>),
    ) {
        if self.0.receiver_count() == 0 {
            return;
        }
        let (sandbox, containers) = pod();
        // An error says that the last listener has just gone.
        _ = self.0.send(cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at,
            pod_sandbox_status: sandbox,
            containers_statuses: containers,
        });
    }

    /// The events from now on.
    pub(super) fn listen(
        &self,
    ) -> impl Stream<Item = Result<cri::ContainerEventResponse, Status>> + Send + use<> {
        let events = BroadcastStream::new(self.0.subscribe());
        events.map(|event| {
            event.map_err(|BroadcastStreamRecvError::Lagged(missed)| {
                Status::data_loss(format!(
                    "{missed} events were not read in time: list the containers again"
                ))
            })
        })
    }
}
