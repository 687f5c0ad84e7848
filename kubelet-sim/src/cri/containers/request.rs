//! The container that a `CreateContainer` asks for.

use std::{collections::BTreeMap, path::PathBuf};

use podplane_proto::cri;
use tonic::Status;

use super::{
    process::request::ProcessRequest,
    record::{ContainerMount, ContainerResources},
};

/// A client's request for a container.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// The id of its sandbox, or a unique prefix of it.
    pub sandbox: String,
    /// Its name in the pod.
    pub name: String,
    /// The number of its restart.
    pub attempt: u32,
    /// The image: an id or a reference.
    pub image: String,
    /// The image as the user named it.
    pub user_specified_image: String,
    /// Labels, kept for the client.
    pub labels: BTreeMap<String, String>,
    /// Annotations, kept for the client.
    pub annotations: BTreeMap<String, String>,
    /// Volumes, kept for the client.
    pub mounts: Vec<ContainerMount>,
    /// The log; absent if the client wants none.
    pub log_path: Option<PathBuf>,
    /// Limits.
    pub resources: ContainerResources,
    /// The process; absent if none is to run.
    pub process: Option<ProcessRequest>,
}

/// The use of a container's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUse {
    /// They are told.
    Pretend,
    /// A process is to have them.
    Process,
}

impl ContainerSpec {
    /// The container of a request.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`, with the field that is missing or refused.
    pub fn of(request: cri::CreateContainerRequest, used: RequestUse) -> Result<Self, Status> {
        let missing = |field: &str| Status::invalid_argument(format!("{field} is missing"));
        let cri::CreateContainerRequest {
            pod_sandbox_id,
            config,
            sandbox_config,
        } = request;
        let config = config.ok_or_else(|| missing("config"))?;
        let process = match used {
            RequestUse::Pretend => None,
            RequestUse::Process => Some(ProcessRequest::of(&config)?),
        };
        let metadata = config.metadata.ok_or_else(|| missing("config.metadata"))?;
        let image = config.image.ok_or_else(|| missing("config.image"))?;
        for (field, value) in [
            ("pod_sandbox_id", &pod_sandbox_id),
            ("config.metadata.name", &metadata.name),
            ("config.image.image", &image.image),
        ] {
            if value.is_empty() {
                return Err(missing(field));
            }
        }
        let directory = sandbox_config.unwrap_or_default().log_directory;
        // As with containerd: without both there is no log.
        let log_path = match (directory.as_str(), config.log_path.as_str()) {
            ("", _) | (_, "") => None,
            (directory, path) => Some(PathBuf::from(directory).join(path)),
        };
        let mounts = config.mounts.into_iter().map(ContainerMount::from);
        let linux = config.linux.unwrap_or_default();
        Ok(Self {
            sandbox: pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            image: image.image,
            user_specified_image: image.user_specified_image,
            labels: config.labels.into_iter().collect(),
            annotations: config.annotations.into_iter().collect(),
            mounts: mounts.collect(),
            log_path,
            resources: linux.resources.unwrap_or_default().into(),
            process,
        })
    }
}

impl From<cri::Mount> for ContainerMount {
    fn from(mount: cri::Mount) -> Self {
        Self {
            container_path: mount.container_path,
            host_path: mount.host_path,
            readonly: mount.readonly,
        }
    }
}

impl From<cri::LinuxContainerResources> for ContainerResources {
    fn from(resources: cri::LinuxContainerResources) -> Self {
        Self {
            cpu_period: resources.cpu_period,
            cpu_quota: resources.cpu_quota,
            cpu_shares: resources.cpu_shares,
            memory_limit_in_bytes: resources.memory_limit_in_bytes,
            memory_swap_limit_in_bytes: resources.memory_swap_limit_in_bytes,
            oom_score_adj: resources.oom_score_adj,
            cpuset_cpus: resources.cpuset_cpus,
            cpuset_mems: resources.cpuset_mems,
        }
    }
}
