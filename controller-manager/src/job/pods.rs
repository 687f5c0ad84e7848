//! The pods of a Job: their index, state and construction.

use podplane_api::{
    Object as _,
    batch::{Job, JobSpec},
    core::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
    jiff::{SignedDuration, Timestamp},
    names, pod_ips,
};
use podplane_host::random;

use crate::pod_control::pod_of;

/// The finalizer of pods that their Job has not counted yet.
pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// The annotation, and the label, with the completion index of a pod.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The annotation with the number of failures of the pod's index before it.
pub(super) const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The same, of those that the policy ignores.
pub(super) const INDEX_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The delay after the first failure; each further one doubles it.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The longest delay after a failure.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(600);

/// A pod to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewPod {
    /// Its completion index, in an Indexed Job.
    pub(super) index: Option<i32>,
    /// The failures of its index, and those that are ignored, if the Job limits them.
    pub(super) failures: Option<(i32, i32)>,
}

/// Returns whether the pod has the finalizer of Jobs.
pub(crate) fn is_tracked(pod: &Pod) -> bool {
    let mut finalizers = pod.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == TRACKING)
}

/// The pod without the finalizer of Jobs.
pub(super) fn untracked(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(finalizers) = &mut pod.metadata.finalizers {
        finalizers.retain(|finalizer| finalizer != TRACKING);
    }
    pod
}

/// The number in an annotation of the pod, or 0.
pub(super) fn counted(pod: &Pod, annotation: &str) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|annotations| annotations.get(annotation));
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The pod's completion index, if it has one below `completions`.
pub(super) fn index(pod: &Pod, completions: i32) -> Option<i32> {
    let index: i32 = pod
        .metadata
        .annotations
        .as_ref()?
        .get(INDEX)?
        .parse()
        .ok()?;
    (0..completions).contains(&index).then_some(index)
}

/// The time at which a pod ended.
fn finished(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let ends = status.container_statuses.iter().flatten();
    let ends = ends.filter_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref()?;
        end.finished_at.as_ref().map(|time| time.0)
    });
    let ready = status.conditions.iter().flatten();
    let ready = ready.filter(|condition| condition.type_ == "Ready");
    let since = ready.filter_map(|ready| ready.last_transition_time.as_ref().map(|time| time.0));
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    ends.max().or(deleted).or_else(|| since.max())
}

/// The time from which the Job may create pods again after the failures since its last success, as
/// its pods show them. `is_failed` says which of them failed.
pub(super) fn backoff_until<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    is_failed: impl Fn(&Pod) -> bool,
) -> Option<Timestamp> {
    let mut ended: Vec<(Timestamp, bool)> = pods
        .filter(|pod| pod_ips::is_terminal(pod) || is_failed(pod))
        .filter_map(|pod| Some((finished(pod)?, is_failed(pod))))
        .collect();
    ended.sort();
    let failures = ended.iter().rev().take_while(|(_, failed)| *failed).count();
    let (last, _) = ended.last()?;
    delay_from(*last, failures)
}

/// The end of the delay after so many failures, the last of them at `last`.
fn delay_from(last: Timestamp, failures: usize) -> Option<Timestamp> {
    let doubled = u32::try_from(failures.checked_sub(1)?).unwrap_or(u32::MAX);
    let factor = 2_i32.checked_pow(doubled).unwrap_or(i32::MAX);
    let delay = FIRST_BACKOFF
        .checked_mul(factor)
        .unwrap_or(MAX_BACKOFF)
        .min(MAX_BACKOFF);
    last.checked_add(delay).ok()
}

/// The time from which the index of this failed pod may be tried again.
pub(super) fn index_backoff_until(pod: &Pod) -> Option<Timestamp> {
    let failures = counted(pod, INDEX_FAILURES).saturating_add(counted(pod, INDEX_IGNORED));
    let failures = usize::try_from(failures).unwrap_or_default();
    delay_from(finished(pod)?, failures.saturating_add(1))
}

/// The sum of the restarts of a pod's containers.
pub(super) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.iter();
    let containers = status.flat_map(|status| {
        let all = status.container_statuses.iter().flatten();
        all.chain(status.init_container_statuses.iter().flatten())
    });
    containers.fold(0, |sum, container| {
        sum.saturating_add(container.restart_count)
    })
}

/// The pod itself.
pub(super) fn build(job: &Job, spec: &JobSpec, new: NewPod) -> Pod {
    let mut pod = pod_of(job, &spec.template);
    let mut prefix = format!("{}-", job.name());
    if let Some(index) = new.index {
        let number = index.to_string();
        let hostname = format!("{}-{index}", job.name());
        prefix = format!("{hostname}-");
        for map in [&mut pod.metadata.annotations, &mut pod.metadata.labels] {
            map.get_or_insert_default()
                .insert(INDEX.to_owned(), number.clone());
        }
        let pod_spec = pod.spec.get_or_insert_default();
        pod_spec.hostname = Some(hostname);
        let containers = pod_spec.init_containers.iter_mut().flatten();
        containers
            .chain(&mut pod_spec.containers)
            .for_each(add_index_variable);
    }
    if let Some((failures, ignored)) = new.failures {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED.to_owned(), ignored.to_string());
        }
    }
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    finalizers.push(TRACKING.to_owned());
    pod.metadata.name = Some(names::generated(&prefix, random::value()));
    pod.metadata.generate_name = Some(prefix);
    pod
}

fn add_index_variable(container: &mut Container) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|variable| variable.name == NAME) {
        return;
    }
    variables.push(EnvVar {
        name: NAME.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{INDEX}']"),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    });
}
