//! Containers as CRI has them.

use podplane_proto::cri;

use super::process::stats::ProcessUsage;
use super::record::{
    ContainerEnd, ContainerImage, ContainerMount, ContainerRecord, ContainerResources,
    ContainerState,
};
use crate::cri::{record::SandboxRecord, sandboxes::now_nanos};

/// The state of a container, for clients.
pub(super) fn wire_state(state: &ContainerState) -> cri::ContainerState {
    match state {
        ContainerState::Created => cri::ContainerState::ContainerCreated,
        ContainerState::Running { .. } => cri::ContainerState::ContainerRunning,
        ContainerState::Exited(_) => cri::ContainerState::ContainerExited,
    }
}

fn metadata(record: &ContainerRecord) -> cri::ContainerMetadata {
    cri::ContainerMetadata {
        name: record.name.clone(),
        attempt: record.attempt,
    }
}

impl From<&ContainerImage> for cri::ImageSpec {
    fn from(image: &ContainerImage) -> Self {
        Self {
            image: image.image.clone(),
            user_specified_image: image.user_specified_image.clone(),
            ..Self::default()
        }
    }
}

impl From<&ContainerMount> for cri::Mount {
    fn from(mount: &ContainerMount) -> Self {
        Self {
            container_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            readonly: mount.readonly,
            ..Self::default()
        }
    }
}

impl From<&ContainerResources> for cri::LinuxContainerResources {
    fn from(resources: &ContainerResources) -> Self {
        let ContainerResources {
            cpu_period,
            cpu_quota,
            cpu_shares,
            memory_limit_in_bytes,
            memory_swap_limit_in_bytes,
            oom_score_adj,
            cpuset_cpus,
            cpuset_mems,
        } = resources.clone();
        Self {
            cpu_period,
            cpu_quota,
            cpu_shares,
            memory_limit_in_bytes,
            memory_swap_limit_in_bytes,
            oom_score_adj,
            cpuset_cpus,
            cpuset_mems,
            ..Self::default()
        }
    }
}

impl From<&ContainerRecord> for cri::Container {
    fn from(record: &ContainerRecord) -> Self {
        Self {
            id: record.id.clone().into(),
            pod_sandbox_id: record.sandbox.clone().into(),
            metadata: Some(metadata(record)),
            image: Some((&record.image).into()),
            image_ref: record.image.id.clone(),
            image_id: record.image.id.clone(),
            state: wire_state(&record.state).into(),
            created_at: record.created_at,
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
        }
    }
}

impl From<&ContainerRecord> for cri::ContainerStatus {
    fn from(record: &ContainerRecord) -> Self {
        let log_path = record
            .log_path
            .as_deref()
            .map(|path| path.to_string_lossy());
        let mut status = Self {
            id: record.id.clone().into(),
            metadata: Some(metadata(record)),
            state: wire_state(&record.state).into(),
            created_at: record.created_at,
            image: Some((&record.image).into()),
            image_ref: record.image.repo_digest.clone(),
            image_id: record.image.id.clone(),
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
            mounts: record.mounts.iter().map(Into::into).collect(),
            log_path: log_path.unwrap_or_default().into_owned(),
            resources: Some(cri::ContainerResources {
                linux: Some((&record.resources).into()),
                ..cri::ContainerResources::default()
            }),
            ..Self::default()
        };
        match &record.state {
            ContainerState::Created => {}
            ContainerState::Running { started_at } => status.started_at = *started_at,
            ContainerState::Exited(end) => {
                let ContainerEnd {
                    started_at,
                    finished_at,
                    exit_code,
                    reason: _,
                    message,
                } = end;
                status.started_at = *started_at;
                status.finished_at = *finished_at;
                status.exit_code = *exit_code;
                status.reason = end.reason().to_owned();
                status.message.clone_from(message);
            }
        }
        status
    }
}

/// Returns true if a client that filters so wants the container.
pub(super) fn matches(record: &ContainerRecord, filter: &cri::ContainerFilter) -> bool {
    let cri::ContainerFilter {
        id,
        state,
        pod_sandbox_id,
        label_selector,
    } = filter;
    let has = |(key, value): (&String, &String)| record.labels.get(key) == Some(value);
    record.id.as_str().starts_with(id)
        && record.sandbox.as_str().starts_with(pod_sandbox_id)
        && state.is_none_or(|state| state.state() == wire_state(&record.state))
        && label_selector.iter().all(has)
}

/// The statistics of a container.
pub(super) fn stats(
    record: &ContainerRecord,
    usage: &ProcessUsage,
    mountpoint: &str,
) -> cri::ContainerStats {
    let timestamp = now_nanos();
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: record.id.clone().into(),
            metadata: Some(metadata(record)),
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
        }),
        cpu: Some(cpu(timestamp, usage)),
        memory: Some(memory(timestamp, usage)),
        writable_layer: Some(cri::FilesystemUsage {
            timestamp,
            fs_id: Some(cri::FilesystemIdentifier {
                mountpoint: mountpoint.to_owned(),
            }),
            used_bytes: number(usage.written_bytes),
            inodes_used: number(usage.written_files),
        }),
        ..cri::ContainerStats::default()
    }
}

fn number(value: u64) -> Option<cri::UInt64Value> {
    Some(cri::UInt64Value { value })
}

fn cpu(timestamp: i64, usage: &ProcessUsage) -> cri::CpuUsage {
    cri::CpuUsage {
        timestamp,
        usage_core_nano_seconds: number(usage.cpu_nanoseconds),
        // Kubelets compute the rate.
        usage_nano_cores: None,
    }
}

fn memory(timestamp: i64, usage: &ProcessUsage) -> cri::MemoryUsage {
    let resident = number(usage.resident_bytes);
    cri::MemoryUsage {
        timestamp,
        available_bytes: None,
        working_set_bytes: resident,
        usage_bytes: resident,
        rss_bytes: resident,
        page_faults: number(usage.minor_faults + usage.major_faults),
        major_page_faults: number(usage.major_faults),
    }
}

/// What a sandbox and its running containers use.
pub(super) fn sandbox_stats(
    record: &SandboxRecord,
    containers: &[(&ContainerRecord, ProcessUsage)],
    mountpoint: &str,
) -> cri::PodSandboxStats {
    let timestamp = now_nanos();
    let all = containers.iter().map(|(_, usage)| *usage);
    let all: ProcessUsage = all.sum();
    let stats = containers
        .iter()
        .map(|(record, usage)| stats(record, usage, mountpoint));
    cri::PodSandboxStats {
        attributes: Some(cri::PodSandboxAttributes {
            id: record.id.clone().into(),
            metadata: Some(record.metadata.clone().into()),
            labels: record.labels.clone().into_iter().collect(),
            annotations: record.annotations.clone().into_iter().collect(),
        }),
        linux: Some(cri::LinuxPodSandboxStats {
            cpu: Some(cpu(timestamp, &all)),
            memory: Some(memory(timestamp, &all)),
            process: Some(cri::ProcessUsage {
                timestamp,
                process_count: number(all.processes),
            }),
            containers: stats.collect(),
            ..cri::LinuxPodSandboxStats::default()
        }),
        ..cri::PodSandboxStats::default()
    }
}
