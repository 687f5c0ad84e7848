use super::{ErrorList, Path, Validate, metadata};
use crate::{coordination::Lease, names};

impl Validate for Lease {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = Path::new("spec");
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

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        errors
    }
}
