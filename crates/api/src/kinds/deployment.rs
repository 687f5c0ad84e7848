//! Deployments.

mod validation;

use jiff::Timestamp;

use crate::{
    IntOrString,
    apps::{Deployment, DeploymentSpec, DeploymentStatus},
    kinds::pod,
    object::{Object, Scope, json_conversions},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource},
    table::{
        Column, TableRow, always, created, wide,
        workload::{containers, count, selector},
    },
};

impl Object for Deployment {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "deployment";
    const SHORT_NAMES: &'static [&'static str] = &["deploy"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions!();
}

impl FieldSelectable for Deployment {}

impl TableRow for Deployment {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("READY"),
        always("UP-TO-DATE"),
        always("AVAILABLE"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let none = DeploymentStatus::default();
        let status = self.status.as_ref().unwrap_or(&none);
        let spec = self.spec.clone().unwrap_or_default();
        let [containers, images] = containers(Some(&spec.template));
        vec![
            self.name().into(),
            format!("{}/{}", count(status.ready_replicas), count(spec.replicas)),
            count(status.updated_replicas).to_string(),
            count(status.available_replicas).to_string(),
            created(self, now),
            containers,
            images,
            selector(&spec.selector),
        ]
    }
}

impl Strategy for Deployment {
    const SERVICE: &'static str = "podplane.apps.v1.DeploymentService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];

    fn set_defaults(&mut self) {
        set_defaults(self.spec.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(DeploymentStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    /// Annotations are copied too: the controller writes the revision there, which does not change
    /// the spec.
    fn set_status(&mut self, update: &Self) {
        self.metadata
            .annotations
            .clone_from(&update.metadata.annotations);
        self.status.clone_from(&update.status);
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    /// Annotations count too, since the controller copies them to the ReplicaSets.
    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec || self.metadata.annotations != old.metadata.annotations
    }
}

/// As Kubernetes' `SetDefaults_Deployment` of apps/v1.
fn set_defaults(spec: &mut DeploymentSpec) {
    spec.replicas.get_or_insert(1);
    spec.revision_history_limit.get_or_insert(10);
    spec.progress_deadline_seconds.get_or_insert(600);
    let strategy = spec.strategy.get_or_insert_default();
    if strategy.type_.as_deref().is_none_or(str::is_empty) {
        strategy.type_ = Some("RollingUpdate".into());
    }
    if strategy.type_.as_deref() == Some("RollingUpdate") {
        let rolling = strategy.rolling_update.get_or_insert_default();
        let quarter = || IntOrString::String("25%".into());
        rolling.max_unavailable.get_or_insert_with(quarter);
        rolling.max_surge.get_or_insert_with(quarter);
    }
    pod::set_template_defaults(&mut spec.template);
}
