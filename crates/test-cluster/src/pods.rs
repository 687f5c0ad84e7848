//! Pods for tests: makes and reads them.

use std::fmt;

use podplane_api::{
    Object as _,
    core::{Container, Pod, PodSpec},
    meta::ObjectMeta,
};

/// Makes a pod with one container, for any namespace.
#[must_use]
pub fn pod(name: &str) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "pause".into(),
                image: Some("registry.k8s.io/pause".into()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

/// The phase of a pod; `Pending` if it has none yet.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending")
}

/// The first address of a pod; empty if it has none yet.
#[must_use]
pub fn ip(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.pod_ip.as_deref())
        .unwrap_or_default()
}

/// The node to which a pod is bound; empty if it waits for one.
#[must_use]
pub fn node(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// The pods in a phase.
pub fn in_phase<'a>(pods: &'a [Pod], wanted: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| phase(pod) == wanted)
}

/// Returns the number of pods that are Running.
#[must_use]
pub fn running(pods: &[Pod]) -> usize {
    in_phase(pods, "Running").count()
}

/// The scheduler's reason for not placing a pod; empty if there is none.
#[must_use]
pub fn unscheduled(pod: &Pod) -> &str {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut unscheduled = conditions
        .flatten()
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let condition = unscheduled.next();
    condition
        .and_then(|condition| condition.message.as_deref())
        .unwrap_or_default()
}

/// Pods, formatted for people with a line for each.
pub(crate) struct Summary(pub(crate) Vec<Pod>);

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pods", self.0.len())?;
        for pod in &self.0 {
            write!(f, "\n  {}/{} {}", pod.namespace(), pod.name(), phase(pod))?;
            let status = pod.status.as_ref();
            let message = status.and_then(|status| status.message.as_deref());
            let told = [
                node(pod),
                ip(pod),
                unscheduled(pod),
                message.unwrap_or_default(),
            ];
            for text in told.into_iter().filter(|text| !text.is_empty()) {
                write!(f, " {text}")?;
            }
        }
        Ok(())
    }
}
