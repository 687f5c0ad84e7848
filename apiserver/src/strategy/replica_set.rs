use podplane_api::apps::{ReplicaSet, ReplicaSetStatus};

use super::{Strategy, pod};

impl Strategy for ReplicaSet {
    const SERVICE: &'static str = "podplane.apps.v1.ReplicaSetService";

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
