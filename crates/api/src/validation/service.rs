use super::{ErrorList, Validate, metadata};
use crate::{core::Service, names};

impl Validate for Service {
    fn validate(&self) -> ErrorList {
        metadata::validate(self, names::dns1035_label)
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        errors
    }
}
