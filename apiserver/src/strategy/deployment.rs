use podplane_api::{
    IntOrString,
    apps::{Deployment, DeploymentSpec, DeploymentStatus},
};

use super::{Strategy, pod};

impl Strategy for Deployment {
    const SERVICE: &'static str = "podplane.apps.v1.DeploymentService";

    fn set_defaults(&mut self) {
        set_defaults(self.spec.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(DeploymentStatus::default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    /// With the annotations: the controller writes the revision there, which is no change of what is wanted.
    fn set_status(&mut self, update: &Self) {
        self.metadata
            .annotations
            .clone_from(&update.metadata.annotations);
        self.status.clone_from(&update.status);
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    /// Annotations count too, as the controller copies them to the ReplicaSets.
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
