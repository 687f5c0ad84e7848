//! Jobs: pods that run to their end.

pub(super) mod validation;

use std::borrow::Cow;

use jiff::Timestamp;

use crate::{
    batch::{Job, JobSpec, JobStatus},
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::{FieldSelectable, SelectableField},
    strategy::{Strategy, Subresource, generation_of},
    table::{Column, TableRow, age, always, created, wide, workload},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

impl Object for Job {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "job";
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for Job {
    const FIELDS: &'static [SelectableField<Self>] = &[("status.successful", |job| {
        let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
        Cow::Owned(succeeded.unwrap_or_default().to_string())
    })];
}

impl Validate for Job {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        let path = FieldPath::new("spec");
        validation::spec(&path, &spec, &mut errors);
        if spec.selector.is_none() {
            errors.required(&path.child("selector"), "");
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let (new, old) = (self.spec.clone(), old.spec.clone());
        validation::update(
            &new.unwrap_or_default(),
            &old.unwrap_or_default(),
            &mut errors,
        );
        errors
    }
}

impl TableRow for Job {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("STATUS"),
        always("COMPLETIONS"),
        always("DURATION"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let succeeded = workload::count(status.succeeded);
        let completions = match (spec.completions, workload::count(spec.parallelism)) {
            (Some(completions), _) => format!("{succeeded}/{completions}"),
            (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            (None, _) => format!("{succeeded}/1"),
        };
        let duration = status
            .start_time
            .as_ref()
            .map_or_else(String::new, |start| {
                let end = status.completion_time.as_ref().map_or(now, |end| end.0);
                age::between(start.0, end)
            });
        let [containers, images] = workload::containers(Some(&spec.template));
        vec![
            self.name().into(),
            state(self).into(),
            completions,
            duration,
            created(self, now),
            containers,
            images,
            workload::selector(&spec.selector.unwrap_or_default()),
        ]
    }
}

impl Strategy for Job {
    const SERVICE: &'static str = "podplane.batch.v1.JobService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        set_spec_defaults(self.spec.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(JobStatus::default());
        set_selector(self);
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }

    generation_of!(spec);
}

/// The labels of a job's pods.
const LABELS: [(&str, Owner); 4] = [
    ("batch.kubernetes.io/controller-uid", Owner::Uid),
    ("batch.kubernetes.io/job-name", Owner::Name),
    // Of clients from before there was a prefix.
    ("controller-uid", Owner::Uid),
    ("job-name", Owner::Name),
];

#[derive(Clone, Copy)]
enum Owner {
    Uid,
    Name,
}

/// The defaults of a job, or of the jobs of a CronJob.
pub(super) fn set_spec_defaults(spec: &mut JobSpec) {
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    if spec.backoff_limit.is_none() {
        let by_index = spec.backoff_limit_per_index.is_some();
        spec.backoff_limit = Some(if by_index { i32::MAX } else { 6 });
    }
    spec.completion_mode
        .get_or_insert_with(|| "NonIndexed".to_owned());
    spec.suspend.get_or_insert(false);
    let replacement = match spec.pod_failure_policy {
        Some(_) => "Failed",
        None => "TerminatingOrFailed",
    };
    spec.pod_replacement_policy
        .get_or_insert_with(|| replacement.to_owned());
    pod::set_template_defaults(&mut spec.template);
}

/// Gives a job a selector that no other job has, unless it has one of its own.
fn set_selector(job: &mut Job) {
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let spec = job.spec.get_or_insert_default();
    if spec.manual_selector == Some(true) {
        return;
    }
    let meta = spec.template.metadata.get_or_insert_default();
    let labels = meta.labels.get_or_insert_default();
    for (label, owner) in LABELS {
        let value = match owner {
            Owner::Uid => &uid,
            Owner::Name => &name,
        };
        labels
            .entry(label.to_owned())
            .or_insert_with(|| value.clone());
    }
    let selector = spec.selector.get_or_insert_default();
    let selected = selector.match_labels.get_or_insert_default();
    selected.entry(LABELS[0].0.to_owned()).or_insert(uid);
}

/// The state that the conditions report.
fn state(job: &Job) -> &'static str {
    let conditions = job
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let holds = |kind: &str| {
        let mut of_kind = conditions
            .clone()
            .filter(|condition| condition.type_ == kind);
        of_kind
            .next()
            .is_some_and(|condition| condition.status == "True")
    };
    match () {
        () if holds("Complete") => "Complete",
        () if holds("Failed") => "Failed",
        () if job.is_deleting() => "Terminating",
        () if holds("Suspended") => "Suspended",
        () if holds("FailureTarget") => "FailureTarget",
        () if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(more: serde_json::Value) -> Job {
        let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let metadata = json!({"name": "a", "namespace": "default", "uid": "u"});
        let mut job = Job::from_json(json!({"metadata": metadata, "spec": spec})).unwrap();
        job.set_defaults();
        job.prepare_for_create();
        job
    }

    #[test]
    fn a_job_selects_its_pods_by_its_uid() {
        let job = job(json!({}));
        assert!(job.validate().is_empty(), "{}", job.validate());
        let spec = json!(job.spec);
        assert_eq!(
            spec["selector"],
            json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}})
        );
        assert_eq!(
            spec["template"]["metadata"]["labels"],
            json!({
                "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "a",
                "controller-uid": "u", "job-name": "a"
            })
        );
        assert_eq!(
            [
                &spec["completions"],
                &spec["parallelism"],
                &spec["backoffLimit"]
            ],
            [&json!(1), &json!(1), &json!(6)]
        );
        let cells = job.cells(Timestamp::UNIX_EPOCH);
        assert_eq!(cells[..5], ["a", "Running", "0/1", "", "<unknown>"]);
    }

    #[test]
    fn counts_policies_and_the_restart_of_pods_are_checked() {
        for (more, refused) in [
            (
                json!({"parallelism": -1}),
                "spec.parallelism: Invalid value: -1",
            ),
            (
                json!({"ttlSecondsAfterFinished": -1}),
                "spec.ttlSecondsAfterFinished: Invalid value: -1",
            ),
            (
                json!({"completionMode": "Indexed", "parallelism": 2}),
                "spec.completions: Required value: when completion mode is Indexed",
            ),
            (
                json!({"completionMode": "x"}),
                r#"spec.completionMode: Unsupported value: "x""#,
            ),
            (
                json!({"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}),
                r#"spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never""#,
            ),
            (
                json!({"podFailurePolicy": {"rules": [{"action": "Stop"}]}}),
                r#"spec.podFailurePolicy.rules[0].action: Unsupported value: "Stop""#,
            ),
        ] {
            let errors = job(more).validate().to_string();
            assert!(errors.contains(refused), "{errors}");
        }
    }

    #[test]
    fn completions_selector_and_template_stay() {
        let old = job(json!({"completions": 2}));
        assert!(
            job(json!({"completions": 2, "parallelism": 5}))
                .validate_update(&old)
                .is_empty()
        );
        let errors = job(json!({"completions": 3}))
            .validate_update(&old)
            .to_string();
        assert_eq!(
            errors,
            "spec.completions: Invalid value: 3: field is immutable"
        );
        let other = json!({"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}});
        let errors = job(json!({"completions": 2, "template": other})).validate_update(&old);
        assert!(
            errors
                .to_string()
                .starts_with("spec.template: Invalid value"),
            "{errors}"
        );
    }
}
