use podplane_api::{core::Node, validation::sync_pod_cidrs};

use super::Strategy;

impl Strategy for Node {
    const SERVICE: &'static str = "podplane.core.v1.NodeService";

    fn set_defaults(&mut self) {
        sync_pod_cidrs(self.spec.get_or_insert_default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }
}
