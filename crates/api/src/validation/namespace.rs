use super::{ErrorList, Path, Validate, metadata};
use crate::{core::Namespace, names};

impl Validate for Namespace {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_label);
        let path = Path::new("spec").child("finalizers");
        for finalizer in self
            .spec
            .iter()
            .flat_map(|spec| spec.finalizers.iter().flatten())
        {
            errors.invalid_each(&path, finalizer, names::qualified_name(finalizer));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        errors
    }
}
