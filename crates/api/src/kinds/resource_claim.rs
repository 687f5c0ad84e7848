//! ResourceClaims: requests for devices.

use jiff::Timestamp;

use crate::{
    object::{Object, Scope, json_conversions_through_values},
    resource::ResourceClaim,
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, separate_status},
    table::{Column, TableRow, always, created},
    validation::Validate,
};

impl Object for ResourceClaim {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "resourceclaim";

    json_conversions_through_values!();
}

impl FieldSelectable for ResourceClaim {}

impl Validate for ResourceClaim {}

impl TableRow for ResourceClaim {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("STATE"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.as_ref();
        let is_allocated = status.is_some_and(|status| status.allocation.is_some());
        let is_reserved =
            status.is_some_and(|status| status.reserved_for.iter().flatten().next().is_some());
        let states = [
            ("deleted", self.is_deleting()),
            ("pending", !self.is_deleting() && !is_allocated),
            ("allocated", is_allocated),
            ("reserved", is_allocated && is_reserved),
        ];
        let states = states
            .iter()
            .filter(|(_, holds)| *holds)
            .map(|(state, _)| *state);
        vec![
            self.name().into(),
            states.collect::<Vec<_>>().join(","),
            created(self, now),
        ]
    }
}

impl Strategy for ResourceClaim {
    const SERVICE: &'static str = "podplane.resource.v1.ResourceClaimService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    separate_status!();
}
