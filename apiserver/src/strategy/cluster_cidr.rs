use podplane_api::networking::ClusterCIDR;

use super::Strategy;

impl Strategy for ClusterCIDR {
    const SERVICE: &'static str = "podplane.networking.v1.ClusterCIDRService";

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
}
