//! Records of containers, kept on disk like those of sandboxes.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use podplane_api::pod_exit::ContainerExit;
use serde::{Deserialize, Serialize};

use super::super::{
    id::{ContainerId, SandboxId},
    record::SandboxMetadata,
    record_dir::Record,
};
use super::process::request::ProcessRequest;

/// The stage of a container's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ContainerState {
    /// Created, and not started yet.
    Created,
    /// Started.
    Running {
        /// The time of its start, in nanoseconds since 1970.
        started_at: i64,
    },
    /// Ended. A container does not start again: another attempt of it does.
    Exited(ContainerEnd),
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEnd {
    /// The time of its start, in nanoseconds since 1970; 0 if it never started.
    pub started_at: i64,
    /// The time of its end, in nanoseconds since 1970.
    pub finished_at: i64,
    /// From 0 to 255; 128 and the number of a signal that killed it.
    pub exit_code: i32,
    /// A word for programs; empty if it follows from the exit code.
    pub reason: String,
    /// A text for people.
    pub message: String,
}

impl ContainerEnd {
    /// The reason that clients are told.
    pub fn reason(&self) -> &str {
        match (self.reason.as_str(), self.exit_code) {
            ("", 0) => "Completed",
            ("", _) => "Error",
            (reason, _) => reason,
        }
    }
}

/// The image that a container was created from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerImage {
    /// The image as the client named it, as a rule by its id.
    pub image: String,
    /// The image as the user named it.
    pub user_specified_image: String,
    /// `sha256:…`.
    pub id: String,
    /// The reference with a digest.
    pub repo_digest: String,
}

/// A volume that the client asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMount {
    /// The path inside.
    pub container_path: String,
    /// The path on the machine.
    pub host_path: String,
    /// True if the container must not write there.
    pub readonly: bool,
}

/// Limits of a container, in the units of cgroups; 0 and empty: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerResources {
    /// The period of the CPU quota, in microseconds.
    pub cpu_period: i64,
    /// The CPU time in a period, in microseconds.
    pub cpu_quota: i64,
    /// The relative weight.
    pub cpu_shares: i64,
    /// The limit of memory, in bytes.
    pub memory_limit_in_bytes: i64,
    /// The limit of memory and swap, in bytes.
    pub memory_swap_limit_in_bytes: i64,
    /// The adjustment of the score by which the kernel kills when memory is short.
    pub oom_score_adj: i64,
    /// The processors, such as `0-2`.
    pub cpuset_cpus: String,
    /// The memory nodes.
    pub cpuset_mems: String,
}

/// The exit that annotations ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedExit {
    /// The time from the start to the end.
    pub after: Duration,
    /// The exit code.
    pub code: i32,
}

impl From<ContainerExit> for PlannedExit {
    fn from(exit: ContainerExit) -> Self {
        let ContainerExit { after, code } = exit;
        Self { after, code }
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerRecord {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The pod of the sandbox.
    pub pod: SandboxMetadata,
    /// Its name in the pod.
    pub name: String,
    /// 0 for the first container of the name, incremented for each restart.
    pub attempt: u32,
    /// The stage of its life.
    pub state: ContainerState,
    /// The time at which it was created, in nanoseconds since 1970.
    pub created_at: i64,
    /// The labels from the client's request.
    pub labels: BTreeMap<String, String>,
    /// The annotations from the client's request.
    pub annotations: BTreeMap<String, String>,
    /// Its image.
    pub image: ContainerImage,
    /// The volumes that the client asked for.
    pub mounts: Vec<ContainerMount>,
    /// Its log; absent if the client wants none.
    pub log_path: Option<PathBuf>,
    /// Its limits, as last asked for.
    pub resources: ContainerResources,
    /// The end that annotations ask for; absent if it runs until it is stopped.
    pub exit: Option<PlannedExit>,
    /// The process that the client asked for; absent if none runs for it.
    #[serde(default)]
    pub process: Option<ProcessRequest>,
}

impl ContainerRecord {
    /// Returns true if both have the same pod, name and attempt: the same
    /// [`unique_name`](Self::unique_name).
    pub fn has_name_of(&self, other: &Self) -> bool {
        (&self.pod.uid, &self.name, self.attempt) == (&other.pod.uid, &other.name, other.attempt)
    }

    /// The name that no other container of the node has, in containerd's form.
    pub fn unique_name(&self) -> String {
        let Self {
            name, pod, attempt, ..
        } = self;
        format!(
            "{name}_{}_{}_{}_{attempt}",
            pod.name, pod.namespace, pod.uid
        )
    }
}

impl Record for ContainerRecord {
    /// Annotations may be anybody's secrets.
    const FILE_MODE: u32 = 0o600;

    fn id(&self) -> &str {
        self.id.as_str()
    }
}
