use serde_json::{Value, json};

use crate::{
    IntOrString,
    apps::{
        Deployment, DeploymentSpec, DeploymentStatus, DeploymentStrategy, RollingUpdateDeployment,
    },
    names,
    validation::{
        ErrorList, FieldPath, Validate, metadata,
        workload::{self, StatusCounts},
    },
};

impl Validate for Deployment {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            let path = FieldPath::new("spec");
            workload::immutable_selector(&path, &new.selector, &old.selector, &mut errors);
        }
        if let Some(status) = &self.status {
            validate_status(
                &FieldPath::new("status"),
                status,
                old.status.as_ref(),
                &mut errors,
            );
        }
        errors
    }
}

fn validate_spec(path: &FieldPath, spec: &DeploymentSpec, errors: &mut ErrorList) {
    workload::non_negative(&path.child("replicas"), spec.replicas, errors);
    workload::selector_and_template(path, "deployment", &spec.selector, &spec.template, errors);
    let none = DeploymentStrategy::default();
    let strategy = spec.strategy.as_ref().unwrap_or(&none);
    validate_strategy(&path.child("strategy"), strategy, errors);
    for (field, number) in [
        ("minReadySeconds", spec.min_ready_seconds),
        ("revisionHistoryLimit", spec.revision_history_limit),
        ("progressDeadlineSeconds", spec.progress_deadline_seconds),
    ] {
        workload::non_negative(&path.child(field), number, errors);
    }
    let ready = spec.min_ready_seconds.unwrap_or_default();
    if let Some(deadline) = spec
        .progress_deadline_seconds
        .filter(|deadline| *deadline <= ready)
    {
        let path = path.child("progressDeadlineSeconds");
        errors.invalid(&path, deadline, "must be greater than minReadySeconds");
    }
}

fn validate_strategy(path: &FieldPath, strategy: &DeploymentStrategy, errors: &mut ErrorList) {
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref(), &strategy.rolling_update) {
        (Some("Recreate"), None) => {}
        (Some("Recreate"), Some(_)) => errors.forbidden(
            &rolling_path,
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        (Some("RollingUpdate"), None) => {
            errors.required(&rolling_path, "this should be defaulted and never be nil")
        }
        (Some("RollingUpdate"), Some(rolling)) => rolling_update(&rolling_path, rolling, errors),
        _ => errors.not_supported_value(path, json!(strategy), &["Recreate", "RollingUpdate"]),
    }
}

fn rolling_update(path: &FieldPath, rolling: &RollingUpdateDeployment, errors: &mut ErrorList) {
    let zero = IntOrString::Int(0);
    let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&zero);
    let surge = rolling.max_surge.as_ref().unwrap_or(&zero);
    let unavailable_path = path.child("maxUnavailable");
    workload::int_or_percent(&unavailable_path, unavailable, errors);
    workload::int_or_percent(&path.child("maxSurge"), surge, errors);
    if number(unavailable) == 0 && number(surge) == 0 {
        let detail = "may not be 0 when `maxSurge` is 0";
        errors.invalid(&unavailable_path, json!(unavailable), detail);
    }
    workload::at_most_100_percent(&unavailable_path, unavailable, errors);
}

fn number(value: &IntOrString) -> u64 {
    match value {
        IntOrString::Int(number) => u64::from(number.unsigned_abs()),
        IntOrString::String(text) => workload::percent(value)
            .or_else(|| text.parse().ok())
            .unwrap_or(0),
    }
}

fn validate_status(
    path: &FieldPath,
    status: &DeploymentStatus,
    old: Option<&DeploymentStatus>,
    errors: &mut ErrorList,
) {
    let DeploymentStatus {
        available_replicas: available,
        collision_count,
        conditions: _,
        observed_generation,
        ready_replicas: ready,
        replicas,
        terminating_replicas: terminating,
        unavailable_replicas: unavailable,
        updated_replicas: updated,
    } = status;
    workload::non_negative(
        &path.child("observedGeneration"),
        *observed_generation,
        errors,
    );
    let counts = StatusCounts {
        replicas: *replicas,
        own: ("updatedReplicas", *updated),
        ready: *ready,
        available: *available,
        others: &[
            ("unavailableReplicas", unavailable.map(Into::into)),
            ("terminatingReplicas", terminating.map(Into::into)),
            ("collisionCount", collision_count.map(Into::into)),
        ],
    };
    counts.validate(path, errors);
    let before = old.and_then(|old| old.collision_count);
    if before.is_some() && *collision_count < before {
        let now = Value::from(collision_count.unwrap_or_default());
        errors.invalid(&path.child("collisionCount"), now, "cannot be decremented");
    }
}
