//! A container in CRI's terms, as Kubernetes' kubelet fills it in.

use std::collections::HashMap;

use podplane_api::{
    Object as _, Quantity,
    core::{Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext},
    quantity,
};
use podplane_proto::cri;

use super::{
    super::{
        runtime::{RuntimeImage, image_spec, labels},
        sandbox_config::{RESTART_COUNT_ANNOTATION, namespaces},
    },
    env::{Environment, PodFacts},
    sources::PodSources,
};

/// The paths that Kubernetes hides from containers that are not privileged.
const MASKED: [&str; 11] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];
/// The paths that Kubernetes makes read-only for containers that are not privileged.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// The period of the CPU quota in microseconds: the kernel's default.
const CPU_PERIOD: i64 = 100_000;
/// The smallest CPU quota in microseconds that the kernel accepts.
const MIN_CPU_QUOTA: i64 = 1000;
/// The CPU shares of one core, and the fewest that the kernel accepts.
const SHARES_PER_CPU: i64 = 1024;
const MIN_SHARES: i64 = 2;
/// The OOM score of containers without requests, as in Kubernetes.
const BEST_EFFORT_OOM_SCORE: i64 = 1000;

/// The reason why a container's settings cannot be used; the container waits with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// In the words of Kubernetes' kubelet.
    #[error("configmap {0:?} not found")]
    MissingConfigMap(String),
    /// In the words of Kubernetes' kubelet.
    #[error("secret {0:?} not found")]
    MissingSecret(String),
    /// A key of a ConfigMap or Secret.
    #[error("{of}: couldn't find key {key} in {object}")]
    MissingKey {
        /// The key.
        key: String,
        /// `ConfigMap` or `Secret`.
        object: &'static str,
        /// The variable or volume that wants it.
        of: String,
    },
    /// A value for the environment that is not UTF-8.
    #[error("the value of key {0} is not UTF-8 text")]
    NotText(String),
    /// `valueFrom` with a source that is not known here.
    #[error("variable {0}: its source is not supported by this kubelet")]
    UnknownSource(String),
    /// A path of a field that is not known here.
    #[error("field {0} is not supported by this kubelet, or not set")]
    UnknownField(String),
    /// A volume of a kind that is not known here.
    #[error("volume {volume}: {kind} volumes are not supported by this kubelet")]
    VolumeKind {
        /// Its name.
        volume: String,
        /// Its kind: the name of the field.
        kind: String,
    },
    /// A mount that cannot be made.
    #[error("volume mount {path}: {problem}")]
    Mount {
        /// The path in the container.
        path: String,
        /// The problem.
        problem: String,
    },
    /// A volume's files cannot be made.
    #[error("volume {volume}: {problem}")]
    Volume {
        /// Its name.
        volume: String,
        /// The problem.
        problem: String,
    },
    /// In the words of Kubernetes' kubelet.
    #[error("container has runAsNonRoot and image will run as root (container: {0})")]
    WouldRunAsRoot(String),
    /// In the words of Kubernetes' kubelet.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (container: {container})"
    )]
    NamedUser {
        /// The image's user.
        user: String,
        /// The container's name.
        container: String,
    },
    /// A setting of the container that is not known here.
    #[error("{0} is not supported by this kubelet")]
    Setting(&'static str),
}

/// The parts of a container.
#[derive(Debug)]
pub(crate) struct ContainerParts<'a> {
    /// The pod, and its addresses.
    pub(crate) facts: PodFacts<'a>,
    /// The container.
    pub(crate) container: &'a Container,
    /// Its number among the containers of that name in the sandbox.
    pub(crate) attempt: u32,
    /// The restarts of the pod's container, this one included.
    pub(crate) restarts: i32,
    /// Its image.
    pub(crate) image: &'a RuntimeImage,
    /// The objects that it names.
    pub(crate) sources: &'a PodSources,
    /// The mounts of its volumes.
    pub(crate) mounts: Vec<cri::Mount>,
}

/// The container for the runtime.
///
/// # Errors
///
/// [`ConfigError`].
pub(crate) fn config(parts: ContainerParts<'_>) -> Result<cri::ContainerConfig, ConfigError> {
    let ContainerParts {
        facts,
        container,
        attempt,
        restarts,
        image,
        sources,
        mounts,
    } = parts;
    let pod = facts.pod;
    check_settings(container)?;
    let environment = Environment::of(container, facts, sources)?;
    let expand = |texts: &Option<Vec<String>>| {
        let texts = texts.iter().flatten();
        texts.map(|text| environment.expand(text)).collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    let envs = environment.into_pairs().into_iter();
    let annotations = [(RESTART_COUNT_ANNOTATION.to_owned(), restarts.to_string())];
    let reference = container.image.clone().unwrap_or_default();
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: container.name.clone(),
            attempt,
        }),
        image: Some(cri::ImageSpec {
            user_specified_image: reference,
            ..image_spec(&image.id)
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: envs
            .map(|(key, value)| cri::KeyValue { key, value })
            .collect(),
        mounts,
        labels: labels(pod.namespace(), pod.name(), pod.uid(), &container.name),
        annotations: HashMap::from(annotations),
        log_path: log_path(&container.name, restarts),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources(container)),
            security_context: Some(security_context(pod, container, image)?),
        }),
        ..cri::ContainerConfig::default()
    })
}

/// The path of a container's log below that of the pod's.
fn log_path(container: &str, restarts: i32) -> String {
    format!("{container}/{restarts}.log")
}

fn check_settings(container: &Container) -> Result<(), ConfigError> {
    if container.lifecycle.is_some() {
        return Err(ConfigError::Setting("lifecycle"));
    }
    let devices = container.volume_devices.as_ref();
    if devices.is_some_and(|devices| !devices.is_empty()) {
        return Err(ConfigError::Setting("volumeDevices"));
    }
    Ok(())
}

/// The limits of a container. Quantities have been validated by the API server; invalid ones count
/// as absent.
fn resources(container: &Container) -> cri::LinuxContainerResources {
    let resources = container.resources.clone().unwrap_or_default();
    let (limits, requests) = (
        resources.limits.unwrap_or_default(),
        resources.requests.unwrap_or_default(),
    );
    let millis = |cpu: Option<&Quantity>| cpu.and_then(|cpu| quantity::millis(cpu).ok());
    let bytes = |memory: Option<&Quantity>| memory.and_then(|m| quantity::units(m).ok());
    let limit = millis(limits.get("cpu"));
    let request = millis(requests.get("cpu")).or(limit);
    let quota = limit.map(|millis| match millis.saturating_mul(CPU_PERIOD) / 1000 {
        0 => 0,
        quota => quota.max(MIN_CPU_QUOTA),
    });
    let shares = request.map_or(MIN_SHARES, |millis| {
        (millis.saturating_mul(SHARES_PER_CPU) / 1000).max(MIN_SHARES)
    });
    let is_best_effort = limits.is_empty() && requests.is_empty();
    cri::LinuxContainerResources {
        cpu_period: quota.map_or(0, |_| CPU_PERIOD),
        cpu_quota: quota.unwrap_or_default(),
        cpu_shares: shares,
        memory_limit_in_bytes: bytes(limits.get("memory")).unwrap_or_default(),
        oom_score_adj: if is_best_effort {
            BEST_EFFORT_OOM_SCORE
        } else {
            0
        },
        ..cri::LinuxContainerResources::default()
    }
}

fn security_context(
    pod: &Pod,
    container: &Container,
    image: &RuntimeImage,
) -> Result<cri::LinuxContainerSecurityContext, ConfigError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let of_pod = spec.security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    check_user(&of_pod, &own, container, image)?;
    let value = |value| cri::Int64Value { value };
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    let run_as_group = own.run_as_group.or(of_pod.run_as_group);
    let is_privileged = own.privileged == Some(true);
    let capabilities = own.capabilities.unwrap_or_default();
    let paths = |paths: &[&str]| match is_privileged {
        true => Vec::new(),
        false => paths.iter().map(|&path| path.to_owned()).collect(),
    };
    let groups = of_pod.supplemental_groups.unwrap_or_default();
    // An image that names no user runs as root.
    let of_image = image.uid.or_else(|| image.username.is_empty().then_some(0));
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            ..cri::Capability::default()
        }),
        privileged: is_privileged,
        namespace_options: Some(namespaces(pod, &spec)),
        run_as_user: run_as_user.or(of_image).map(value),
        run_as_username: match run_as_user {
            None => image.username.clone(),
            Some(_) => String::new(),
        },
        run_as_group: run_as_group.map(value),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups.into_iter().chain(of_pod.fs_group).collect(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: own
            .seccomp_profile
            .or(of_pod.seccomp_profile)
            .map_or(Ok(unconfined()), |profile| seccomp(&profile))
            .map(Some)?,
        ..cri::LinuxContainerSecurityContext::default()
    })
}

fn unconfined() -> cri::SecurityProfile {
    profile(cri::security_profile::ProfileType::Unconfined)
}

fn profile(kind: cri::security_profile::ProfileType) -> cri::SecurityProfile {
    cri::SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: String::new(),
    }
}

fn seccomp(wanted: &SeccompProfile) -> Result<cri::SecurityProfile, ConfigError> {
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(cri::security_profile::ProfileType::RuntimeDefault)),
        "Unconfined" => Ok(unconfined()),
        _ => Err(ConfigError::Setting("seccompProfile.type Localhost")),
    }
}

/// Refuses root for a container that must not run as it (source: `verifyRunAsNonRoot`).
fn check_user(
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
    container: &Container,
    image: &RuntimeImage,
) -> Result<(), ConfigError> {
    if own.run_as_non_root.or(of_pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let name = || container.name.clone();
    match own.run_as_user.or(of_pod.run_as_user) {
        Some(0) => return Err(ConfigError::WouldRunAsRoot(name())),
        Some(_) => return Ok(()),
        None => {}
    }
    match (image.uid, image.username.as_str()) {
        (Some(0), _) | (None, "") => Err(ConfigError::WouldRunAsRoot(name())),
        (None, user) => Err(ConfigError::NamedUser {
            user: user.to_owned(),
            container: name(),
        }),
        (Some(_), _) => Ok(()),
    }
}
