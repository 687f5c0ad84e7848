//! ClusterCIDRs: ranges from which nodes get their blocks.

mod table;
mod validation;

use crate::{
    networking::ClusterCIDR,
    object::{Object, Scope, json_conversions},
    selector::FieldSelectable,
    strategy::Strategy,
};

impl Object for ClusterCIDR {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "clustercidr";

    json_conversions!();
}

impl FieldSelectable for ClusterCIDR {}

impl Strategy for ClusterCIDR {
    const SERVICE: &'static str = "podplane.networking.v1.ClusterCIDRService";

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
}
