//! ReplicaSets.

use std::borrow::Cow;

use jiff::Timestamp;

use crate::{
    apps::{ReplicaSet, ReplicaSetSpec, ReplicaSetStatus},
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField},
    strategy::{Strategy, Subresource},
    table::{
        Column, TableRow, always, created, integer, wide,
        workload::{containers, count, selector},
    },
    validation::{
        ErrorList, FieldPath, Validate, metadata,
        workload::{self, StatusCounts},
    },
};

impl Object for ReplicaSet {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "replicaset";
    const SHORT_NAMES: &'static [&'static str] = &["rs"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions!();
}

impl FieldSelectable for ReplicaSet {
    const FIELDS: &'static [SelectableField<Self>] = &[("status.replicas", |set| {
        let replicas = set.status.as_ref().map_or(0, |status| status.replicas);
        Cow::Owned(replicas.to_string())
    })];
}

impl Validate for ReplicaSet {
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
        if let Some(status) = self.status.as_ref() {
            validate_status(&FieldPath::new("status"), status, &mut errors);
        }
        errors
    }
}

impl TableRow for ReplicaSet {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("DESIRED"),
        integer("CURRENT"),
        integer("READY"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.as_ref();
        let spec = self.spec.clone().unwrap_or_default();
        let [containers, images] = containers(spec.template.as_ref());
        vec![
            self.name().into(),
            count(spec.replicas).to_string(),
            status.map_or(0, |status| status.replicas).to_string(),
            count(status.and_then(|status| status.ready_replicas)).to_string(),
            created(self, now),
            containers,
            images,
            selector(&spec.selector),
        ]
    }
}

impl Strategy for ReplicaSet {
    const SERVICE: &'static str = "podplane.apps.v1.ReplicaSetService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        pod::set_template_defaults(spec.template.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(ReplicaSetStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
}

fn validate_spec(path: &FieldPath, spec: &ReplicaSetSpec, errors: &mut ErrorList) {
    workload::non_negative(&path.child("replicas"), spec.replicas, errors);
    let seconds = spec.min_ready_seconds;
    workload::non_negative(&path.child("minReadySeconds"), seconds, errors);
    let template = spec.template.clone().unwrap_or_default();
    workload::selector_and_template(path, "deployment", &spec.selector, &template, errors);
}

fn validate_status(path: &FieldPath, status: &ReplicaSetStatus, errors: &mut ErrorList) {
    let ReplicaSetStatus {
        available_replicas: available,
        conditions: _,
        fully_labeled_replicas: labeled,
        observed_generation,
        ready_replicas: ready,
        replicas,
        terminating_replicas: terminating,
    } = status;
    let counts = StatusCounts {
        replicas: Some(*replicas),
        own: ("fullyLabeledReplicas", *labeled),
        ready: *ready,
        available: *available,
        others: &[
            ("terminatingReplicas", terminating.map(Into::into)),
            ("observedGeneration", *observed_generation),
        ],
    };
    counts.validate(path, errors);
}
