use super::{ErrorList, Path, Validate, metadata, workload};
use crate::{
    apps::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus},
    names,
};

impl Validate for ReplicaSet {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&Path::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            let path = Path::new("spec");
            workload::immutable_selector(&path, &new.selector, &old.selector, &mut errors);
        }
        if let Some(status) = self.status.as_ref() {
            validate_status(&Path::new("status"), status, &mut errors);
        }
        errors
    }
}

fn validate_spec(path: &Path, spec: &ReplicaSetSpec, errors: &mut ErrorList) {
    workload::non_negative(&path.child("replicas"), spec.replicas, errors);
    let seconds = spec.min_ready_seconds;
    workload::non_negative(&path.child("minReadySeconds"), seconds, errors);
    let template = spec.template.clone().unwrap_or_default();
    workload::selector_and_template(path, &spec.selector, &template, errors);
}

fn validate_status(path: &Path, status: &ReplicaSetStatus, errors: &mut ErrorList) {
    let ReplicaSetStatus {
        available_replicas: available,
        conditions: _,
        fully_labeled_replicas: labeled,
        observed_generation,
        ready_replicas: ready,
        replicas,
        terminating_replicas: terminating,
    } = status;
    let all = Some(*replicas);
    for (field, count) in [
        ("replicas", all),
        ("fullyLabeledReplicas", *labeled),
        ("readyReplicas", *ready),
        ("availableReplicas", *available),
        ("terminatingReplicas", *terminating),
    ] {
        workload::non_negative(&path.child(field), count, errors);
    }
    workload::non_negative(
        &path.child("observedGeneration"),
        *observed_generation,
        errors,
    );
    for (field, count) in [
        ("fullyLabeledReplicas", *labeled),
        ("readyReplicas", *ready),
        ("availableReplicas", *available),
    ] {
        workload::at_most(&path.child(field), count, "status.replicas", all, errors);
    }
    let path = path.child("availableReplicas");
    workload::at_most(&path, *available, "readyReplicas", *ready, errors);
}
