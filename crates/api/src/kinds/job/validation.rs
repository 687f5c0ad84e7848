use crate::{
    batch::{JobSpec, PodFailurePolicy},
    kinds::pod::one_of,
    validation::{ErrorList, FieldPath, values, workload},
};

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const RULES_MAX: usize = 20;

/// Checks the spec of a job, or of the jobs of a CronJob, except the selector, which the latter
/// have not.
pub(in crate::kinds) fn spec(path: &FieldPath, spec: &JobSpec, errors: &mut ErrorList) {
    for (field, number) in [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        (
            "ttlSecondsAfterFinished",
            spec.ttl_seconds_after_finished.map(i64::from),
        ),
        (
            "backoffLimitPerIndex",
            spec.backoff_limit_per_index.map(i64::from),
        ),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ] {
        workload::non_negative(&path.child(field), number, errors);
    }
    let mode = spec.completion_mode.as_deref();
    one_of(
        &path.child("completionMode"),
        mode,
        &["Indexed", "NonIndexed"],
        errors,
    );
    let is_indexed = mode == Some("Indexed");
    if is_indexed && spec.completions.is_none() {
        let detail = "when completion mode is Indexed";
        errors.required(&path.child("completions"), detail);
    }
    if !is_indexed && spec.backoff_limit_per_index.is_some() {
        let path = path.child("backoffLimitPerIndex");
        errors.invalid(
            &path,
            spec.backoff_limit_per_index,
            "requires indexed completion mode",
        );
    }
    if let Some(selector) = &spec.selector {
        workload::label_selector(&path.child("selector"), selector, errors);
    }
    if let Some(policy) = spec.pod_replacement_policy.as_deref() {
        let path = path.child("podReplacementPolicy");
        one_of(
            &path,
            Some(policy),
            &["Failed", "TerminatingOrFailed"],
            errors,
        );
    }
    if let Some(policy) = &spec.pod_failure_policy {
        failure_policy(&path.child("podFailurePolicy"), policy, errors);
    }
    let template = path.child("template");
    workload::template(&template, &spec.template, errors);
    let restart = spec
        .template
        .spec
        .as_ref()
        .and_then(|spec| spec.restart_policy.as_deref());
    let restart_path = template.child("spec").child("restartPolicy");
    if !matches!(restart, Some("OnFailure" | "Never")) {
        errors.required(&restart_path, r#"valid values: "OnFailure", "Never""#);
    } else if spec.pod_failure_policy.is_some() && restart != Some("Never") {
        let detail = r#"only "Never" is supported when podFailurePolicy is specified"#;
        errors.invalid(&restart_path, restart.unwrap_or_default(), detail);
    }
}

fn failure_policy(path: &FieldPath, policy: &PodFailurePolicy, errors: &mut ErrorList) {
    let path = path.child("rules");
    if policy.rules.len() > RULES_MAX {
        errors.invalid(&path, policy.rules.len(), "must have at most 20 items");
    }
    for (index, rule) in policy.rules.iter().enumerate() {
        let path = path.index(index);
        one_of(&path.child("action"), Some(&rule.action), &ACTIONS, errors);
        let has_conditions = rule.on_pod_conditions.iter().flatten().next().is_some();
        match (&rule.on_exit_codes, has_conditions) {
            (None, false) => {
                let detail = "specifying one of OnExitCodes and OnPodConditions is required";
                errors.invalid(&path, index, detail);
            }
            (Some(_), true) => {
                let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
                errors.invalid(&path, index, detail);
            }
            (Some(codes), false) => {
                let path = path.child("onExitCodes");
                let operator = Some(codes.operator.as_str());
                one_of(&path.child("operator"), operator, &["In", "NotIn"], errors);
                if codes.values.is_empty() {
                    errors.invalid(&path.child("values"), 0, "at least one value is required");
                }
            }
            (None, true) => {}
        }
    }
}

/// Checks that what identifies a job's pods has not changed. The number of completions of an
/// indexed job may change together with the parallelism, and the pods' scheduling while the job is
/// suspended.
pub(super) fn update(new: &JobSpec, old: &JobSpec, errors: &mut ErrorList) {
    let path = FieldPath::new("spec");
    let is_indexed = new.completion_mode.as_deref() == Some("Indexed");
    let is_elastic = is_indexed && new.completions == new.parallelism;
    if !is_elastic {
        values::immutable(
            &path.child("completions"),
            &new.completions,
            &old.completions,
            errors,
        );
    }
    values::immutable(
        &path.child("selector"),
        &new.selector,
        &old.selector,
        errors,
    );
    let suspended = old.suspend == Some(true);
    if !suspended {
        values::immutable(
            &path.child("template"),
            &new.template,
            &old.template,
            errors,
        );
    }
    let mode = path.child("completionMode");
    values::immutable(&mode, &new.completion_mode, &old.completion_mode, errors);
    let policy = path.child("podFailurePolicy");
    values::immutable(
        &policy,
        &new.pod_failure_policy,
        &old.pod_failure_policy,
        errors,
    );
    let limit = path.child("backoffLimitPerIndex");
    values::immutable(
        &limit,
        &new.backoff_limit_per_index,
        &old.backoff_limit_per_index,
        errors,
    );
    values::immutable(
        &path.child("managedBy"),
        &new.managed_by,
        &old.managed_by,
        errors,
    );
}
