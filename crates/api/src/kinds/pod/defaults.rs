//! The defaults of a pod's spec (source: Kubernetes' `pkg/apis/core/v1/defaults.go`).

mod volumes;

use crate::{
    Quantity,
    core::{
        Container, ContainerPort, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
        ObjectFieldSelector, PodSpec, PodTemplateSpec, Probe, ResourceFieldSelector,
        ResourceRequirements, Toleration,
    },
};

/// The time for which a pod tolerates a node that is not ready or unreachable.
const TOLERATE_SECONDS: i64 = 300;

fn default<T>(field: &mut Option<T>, value: impl Into<T>) {
    field.get_or_insert_with(|| value.into());
}

/// Sets a default for a missing or an empty string.
fn default_word(field: &mut Option<String>, value: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(value.to_owned());
    }
}

/// The defaults of a pod template, on every write.
pub(in crate::kinds) fn set_template(template: &mut PodTemplateSpec) {
    set_spec(template.spec.get_or_insert_default());
}

/// The defaults of a pod, on every write: those of a template, and some that only pods have.
pub(super) fn set(spec: &mut PodSpec) {
    set_spec(spec);
    default(&mut spec.enable_service_links, true);
    let host_network = spec.host_network == Some(true);
    let containers = spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten());
    for container in containers {
        request_limits(container);
        if host_network {
            for port in container.ports.iter_mut().flatten() {
                if port.host_port.unwrap_or_default() == 0 {
                    port.host_port = Some(port.container_port);
                }
            }
        }
    }
}

fn set_spec(spec: &mut PodSpec) {
    default_word(&mut spec.restart_policy, "Always");
    default_word(&mut spec.dns_policy, "ClusterFirst");
    default_word(&mut spec.scheduler_name, "default-scheduler");
    default(&mut spec.termination_grace_period_seconds, 30);
    spec.security_context.get_or_insert_default();
    // The older name of the field follows the newer one.
    if let Some(name) = spec
        .service_account_name
        .as_ref()
        .filter(|name| !name.is_empty())
    {
        spec.service_account = Some(name.clone());
    } else {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        volumes::set(volume);
    }
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        Parts::of(container).set();
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        Parts::of_ephemeral(container).set();
    }
}

/// Sets the fields that Kubernetes' admission sets when a pod is created, except those that depend
/// on other objects: see [`set_priority`](super::set_priority) and
/// [`set_account`](super::set_account).
pub(super) fn admit(spec: &mut PodSpec) {
    tolerate(spec);
}

/// The same for an update: a client that leaves out the fields set by admission keeps them.
pub(super) fn admit_again(spec: &mut PodSpec, old: &PodSpec) {
    spec.priority = spec.priority.or(old.priority);
    if spec.preemption_policy.is_none() {
        spec.preemption_policy.clone_from(&old.preemption_policy);
    }
    if spec.service_account_name.is_none() {
        spec.service_account_name
            .clone_from(&old.service_account_name);
        spec.service_account.clone_from(&old.service_account);
    }
    if spec.image_pull_secrets.is_none() {
        spec.image_pull_secrets.clone_from(&old.image_pull_secrets);
    }
    tolerate(spec);
}

fn tolerate(spec: &mut PodSpec) {
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerates = |toleration: &Toleration| {
            matches!(toleration.key.as_deref(), None | Some(""))
                || toleration.key.as_deref() == Some(key)
        };
        let evicts = |toleration: &Toleration| {
            matches!(toleration.effect.as_deref(), None | Some("" | "NoExecute"))
        };
        if !tolerations
            .iter()
            .any(|toleration| tolerates(toleration) && evicts(toleration))
        {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(TOLERATE_SECONDS),
                value: None,
            });
        }
    }
}

/// Sets missing requests to the limits.
fn request_limits(container: &mut Container) {
    let resources = container.resources.get_or_insert_default();
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests
                .entry(name.clone())
                .or_insert_with(|| limit.clone());
        }
    }
}

/// The parts of a container that have defaults; those of an ephemeral container are the same, in
/// another type.
struct Parts<'a> {
    image: &'a str,
    image_pull_policy: &'a mut Option<String>,
    termination_message_path: &'a mut Option<String>,
    termination_message_policy: &'a mut Option<String>,
    ports: Option<&'a mut Vec<ContainerPort>>,
    env: Option<&'a mut Vec<EnvVar>>,
    resources: &'a mut Option<ResourceRequirements>,
    probes: [Option<&'a mut Probe>; 3],
    lifecycle: Option<&'a mut Lifecycle>,
}

macro_rules! parts {
    ($container:ident) => {
        Parts {
            image: $container.image.as_deref().unwrap_or_default(),
            image_pull_policy: &mut $container.image_pull_policy,
            termination_message_path: &mut $container.termination_message_path,
            termination_message_policy: &mut $container.termination_message_policy,
            ports: $container.ports.as_mut(),
            env: $container.env.as_mut(),
            resources: &mut $container.resources,
            probes: [
                $container.liveness_probe.as_mut(),
                $container.readiness_probe.as_mut(),
                $container.startup_probe.as_mut(),
            ],
            lifecycle: $container.lifecycle.as_mut(),
        }
    };
}

impl<'a> Parts<'a> {
    fn of(container: &'a mut Container) -> Self {
        parts!(container)
    }

    fn of_ephemeral(container: &'a mut EphemeralContainer) -> Self {
        parts!(container)
    }

    fn set(self) {
        let policy = pull_policy(self.image);
        default_word(self.image_pull_policy, policy);
        default_word(self.termination_message_path, "/dev/termination-log");
        default_word(self.termination_message_policy, "File");
        self.resources.get_or_insert_default();
        for port in self.ports.into_iter().flatten() {
            default_word(&mut port.protocol, "TCP");
        }
        let sources = self.env.into_iter().flatten();
        for source in sources.filter_map(|variable| variable.value_from.as_mut()) {
            if let Some(field) = &mut source.field_ref {
                set_field(field);
            }
            if let Some(resource) = &mut source.resource_field_ref {
                set_resource_field(resource);
            }
        }
        self.probes.into_iter().flatten().for_each(set_probe);
        if let Some(lifecycle) = self.lifecycle {
            let hooks = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
            let gets = hooks
                .into_iter()
                .flatten()
                .filter_map(|hook| hook.http_get.as_mut());
            gets.for_each(set_http_get);
        }
    }
}

fn set_probe(probe: &mut Probe) {
    for (field, seconds) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        if field.unwrap_or_default() == 0 {
            *field = Some(seconds);
        }
    }
    if let Some(grpc) = &mut probe.grpc {
        default(&mut grpc.service, "");
    }
    if let Some(get) = &mut probe.http_get {
        set_http_get(get);
    }
}

fn set_http_get(get: &mut HTTPGetAction) {
    default_word(&mut get.path, "/");
    default_word(&mut get.scheme, "HTTP");
}

fn set_field(selector: &mut ObjectFieldSelector) {
    default_word(&mut selector.api_version, "v1");
}

/// The divisor is always written, even if it is zero.
fn set_resource_field(selector: &mut ResourceFieldSelector) {
    default(&mut selector.divisor, Quantity("0".into()));
}

/// The default pull policy. An image without tag and digest is `latest`, and `latest` is pulled at
/// each start.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    // A registry's port comes before the last slash.
    let tag = name
        .rsplit('/')
        .next()
        .and_then(|last| last.split_once(':'));
    match (tag, digest) {
        _ if image.is_empty() => "IfNotPresent",
        (Some((_, "latest")), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}
