use podplane_api::core::{Service, ServiceStatus};

use super::Strategy;

impl Strategy for Service {
    const SERVICE: &'static str = "podplane.core.v1.ServiceService";

    fn prepare_for_create(&mut self) {
        self.status = Some(ServiceStatus {
            load_balancer: Some(Default::default()),
            ..ServiceStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }
}
