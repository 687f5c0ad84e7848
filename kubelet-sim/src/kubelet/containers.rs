//! The containers of a pod, which the runtime creates and starts in the pod's sandbox.
//!
//! [`plan`](plan::plan) decides which containers start, restart or wait; [`config`] and
//! [`env`](mod@env) fill in a container for the runtime, [`volumes`] makes its files, and [`status`]
//! reports all. The worker of the pod carries it out.

pub(super) mod config;
pub(super) mod env;
pub(super) mod images;
pub(super) mod plan;
pub(super) mod sources;
pub(super) mod status;
pub(super) mod volumes;

use podplane_api::{
    core::{Container, Pod},
    jiff::Timestamp,
};

/// A container of a pod, as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodContainer {
    /// Its id.
    pub(crate) id: String,
    /// The id of its sandbox.
    pub(crate) sandbox: String,
    /// Its name in the pod.
    pub(crate) name: String,
    /// Its number among the containers of that name.
    pub(crate) attempt: u32,
    /// Its state.
    pub(crate) phase: ContainerPhase,
    /// The time at which it was created.
    pub(crate) created: Timestamp,
    /// The time at which it was started.
    pub(crate) started: Option<Timestamp>,
    /// The time at which it exited.
    pub(crate) finished: Option<Timestamp>,
    /// Its exit code, if it exited.
    pub(crate) exit_code: i32,
    /// The runtime's word for its end.
    pub(crate) reason: String,
    /// The runtime's text on its end.
    pub(crate) message: String,
    /// The id of its image.
    pub(crate) image_id: String,
    /// The restarts of the pod's container so far, this one included.
    pub(crate) restarts: i32,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerPhase {
    /// Created and not started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Lost by the runtime: its process is gone, and its exit code is unknown.
    Unknown,
}

impl PodContainer {
    /// Returns true if it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, ContainerPhase::Exited | ContainerPhase::Unknown)
    }

    /// Its exit code; as with Kubernetes' kubelet, that of SIGKILL if it is not known.
    pub(crate) fn code(&self) -> i32 {
        match self.phase {
            ContainerPhase::Unknown => UNKNOWN_EXIT,
            _ => self.exit_code,
        }
    }

    /// The time of its end.
    pub(crate) fn end(&self) -> Timestamp {
        self.finished.unwrap_or(self.created)
    }
}

/// The exit code of a container whose end nobody saw.
pub(super) const UNKNOWN_EXIT: i32 = 137;

/// The newest container of a name in a sandbox.
pub(super) fn newest<'a>(
    containers: &'a [PodContainer],
    sandbox: &str,
    name: &str,
) -> Option<&'a PodContainer> {
    let of_name = containers
        .iter()
        .filter(|container| container.sandbox == sandbox && container.name == name);
    of_name.max_by_key(|container| container.attempt)
}

/// The pod's init containers, sidecars included.
pub(super) fn init_containers(pod: &Pod) -> &[Container] {
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_deref());
    inits.unwrap_or_default()
}

/// The pod's containers other than init containers.
pub(super) fn app_containers(pod: &Pod) -> &[Container] {
    let spec = pod.spec.as_ref();
    spec.map(|spec| spec.containers.as_slice())
        .unwrap_or_default()
}

/// Returns true for an init container that runs as long as the pod does.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}
