//! ResourceSlices: the devices that a driver offers.

use std::borrow::Cow;

use jiff::Timestamp;

use crate::{
    object::{Object, Scope, json_conversions_through_values},
    resource::ResourceSlice,
    selector::{FieldSelectable, SelectableField, field::text},
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, always, created},
    validation::Validate,
};

impl Object for ResourceSlice {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "resourceslice";

    json_conversions_through_values!();
}

impl FieldSelectable for ResourceSlice {
    const FIELDS: &'static [SelectableField<Self>] = &[
        ("spec.driver", |slice| Cow::Borrowed(&slice.spec.driver)),
        ("spec.nodeName", |slice| {
            text(slice.spec.node_name.as_deref())
        }),
    ];
}

impl Validate for ResourceSlice {}

impl TableRow for ResourceSlice {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("NODE"),
        always("DRIVER"),
        always("POOL"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            self.spec.node_name.clone().unwrap_or_default(),
            self.spec.driver.clone(),
            self.spec.pool.name.clone(),
            created(self, now),
        ]
    }
}

impl Strategy for ResourceSlice {
    const SERVICE: &'static str = "podplane.resource.v1.ResourceSliceService";
    const RETURNS_DELETED: bool = true;

    generation_of!(spec);
}
