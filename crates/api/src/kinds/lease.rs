//! Leases.

use jiff::Timestamp;

use crate::{
    coordination::Lease,
    names,
    object::{Object, Scope, json_conversions},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

impl Object for Lease {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "lease";

    json_conversions!();
}

impl FieldSelectable for Lease {}

impl Validate for Lease {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let Some(spec) = &self.spec else {
            return errors;
        };
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.invalid(
                &path.child("leaseDurationSeconds"),
                seconds,
                "must be greater than 0",
            );
        }
        if let Some(count) = spec.lease_transitions.filter(|count| *count < 0) {
            errors.invalid(
                &path.child("leaseTransitions"),
                count,
                "must be greater than or equal to 0",
            );
        }
        errors
    }
}

impl TableRow for Lease {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("HOLDER"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let holder = self
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone());
        vec![
            self.name().into(),
            holder.unwrap_or_default(),
            created(self, now),
        ]
    }
}

impl Strategy for Lease {
    const SERVICE: &'static str = "podplane.core.v1.LeaseService";
    // Two candidates that both renew without reading first would both lead.
    const UNCONDITIONAL_UPDATE: bool = false;
    const CREATE_ON_UPDATE: bool = true;
}
