use super::{ErrorList, Path, Validate, metadata};
use crate::{Object, core::Event, names};

impl Validate for Event {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let involved = self
            .involved_object
            .namespace
            .as_deref()
            .unwrap_or_default();
        // What lives in no namespace has its events in the default one.
        let agrees = match involved {
            "" => self.namespace() == "default",
            namespace => self.namespace() == namespace,
        };
        if !agrees {
            let path = Path::new("involvedObject").child("namespace");
            errors.invalid(&path, involved, "does not match event.namespace");
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        errors
    }
}
