//! What a pod's spec says when it does not say (source: Kubernetes' `pkg/apis/core/v1/defaults.go`).

use podplane_api::core::{Container, PodSpec, PodTemplateSpec, Probe, Toleration};

/// How long a pod stays on a node that is not ready or unreachable.
const TOLERATE_SECONDS: i64 = 300;

fn default<T>(field: &mut Option<T>, value: impl Into<T>) {
    field.get_or_insert_with(|| value.into());
}

/// An empty string means the same as none where a word is expected.
fn default_word(field: &mut Option<String>, value: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(value.to_owned());
    }
}

/// The defaults of a pod template, on every write.
pub(in crate::strategy) fn set_template(template: &mut PodTemplateSpec) {
    set(template.spec.get_or_insert_default());
}

/// The defaults of every write.
pub(super) fn set(spec: &mut PodSpec) {
    default_word(&mut spec.restart_policy, "Always");
    default_word(&mut spec.dns_policy, "ClusterFirst");
    default_word(&mut spec.scheduler_name, "default-scheduler");
    default(&mut spec.termination_grace_period_seconds, 30);
    default(&mut spec.enable_service_links, true);
    spec.security_context.get_or_insert_default();
    match (
        spec.service_account_name.as_ref(),
        spec.service_account.as_ref(),
    ) {
        (Some(name), None) => spec.service_account = Some(name.clone()),
        (None, Some(name)) => spec.service_account_name = Some(name.clone()),
        _ => {}
    }
    let host_network = spec.host_network == Some(true);
    let containers = spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten());
    for container in containers {
        set_container(container);
        for port in container.ports.iter_mut().flatten() {
            default_word(&mut port.protocol, "TCP");
            if host_network && port.host_port.unwrap_or_default() == 0 {
                port.host_port = Some(port.container_port);
            }
        }
    }
}

/// What Kubernetes' admission sets when a pod is created.
pub(super) fn admit(spec: &mut PodSpec) {
    default(&mut spec.priority, 0);
    default(&mut spec.preemption_policy, "PreemptLowerPriority");
    tolerate(spec);
}

/// The same when it is updated: whoever leaves out what admission set keeps it.
pub(super) fn admit_again(spec: &mut PodSpec, old: &PodSpec) {
    spec.priority = spec.priority.or(old.priority);
    if spec.preemption_policy.is_none() {
        spec.preemption_policy.clone_from(&old.preemption_policy);
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

fn set_container(container: &mut Container) {
    let policy = match tag(container.image.as_deref().unwrap_or_default()) {
        None | Some("latest") => "Always",
        Some(_) => "IfNotPresent",
    };
    default_word(&mut container.image_pull_policy, policy);
    default_word(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
    default_word(&mut container.termination_message_policy, "File");
    let resources = container.resources.get_or_insert_default();
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_default();
        for (name, limit) in limits {
            requests
                .entry(name.clone())
                .or_insert_with(|| limit.clone());
        }
    }
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    probes.into_iter().flatten().for_each(set_probe);
}

fn set_probe(probe: &mut Probe) {
    default(&mut probe.timeout_seconds, 1);
    default(&mut probe.period_seconds, 10);
    default(&mut probe.success_threshold, 1);
    default(&mut probe.failure_threshold, 3);
    if let Some(get) = &mut probe.http_get {
        default_word(&mut get.path, "/");
        default_word(&mut get.scheme, "HTTP");
    }
}

/// The tag of an image's name; a digest counts as one, since it names one content.
fn tag(image: &str) -> Option<&str> {
    if let Some((_, digest)) = image.split_once('@') {
        return Some(digest);
    }
    let last = image.rsplit('/').next()?;
    last.split_once(':').map(|(_, tag)| tag)
}
