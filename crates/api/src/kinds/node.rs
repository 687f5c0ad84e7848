//! Nodes.

mod table;
mod validation;

use jiff::Timestamp;

use crate::{
    core::Node,
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField, field::truth},
    strategy::{Strategy, Subresource},
    table::{Column, TableRow},
};

pub use table::{is_unschedulable, pod_cidrs, pod_ips, roles, shown_status};
use validation::sync_pod_cidrs;
pub(super) use validation::{IpFamily, parse_cidr};

impl Object for Node {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "node";
    const SHORT_NAMES: &'static [&'static str] = &["no"];

    json_conversions!();
}

impl FieldSelectable for Node {
    const FIELDS: &'static [SelectableField<Self>] = &[("spec.unschedulable", |node| {
        truth(node.spec.as_ref().and_then(|spec| spec.unschedulable))
    })];
}

impl TableRow for Node {
    const COLUMNS: &'static [Column] = table::COLUMNS;

    fn cells(&self, now: Timestamp) -> Vec<String> {
        table::cells(self, now)
    }
}

impl Strategy for Node {
    const SERVICE: &'static str = "podplane.core.v1.NodeService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const STATUS_HAS_METADATA: bool = true;

    fn set_defaults(&mut self) {
        sync_pod_cidrs(self.spec.get_or_insert_default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
        let (own, update) = (&mut self.metadata, &update.metadata);
        own.labels.clone_from(&update.labels);
        own.annotations.clone_from(&update.annotations);
    }
}
