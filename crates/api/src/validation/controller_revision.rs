use serde_json::json;

use super::{ErrorList, Path, Validate, metadata, workload};
use crate::{apps::ControllerRevision, names};

impl Validate for ControllerRevision {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        if self.data.as_ref().is_none_or(|data| data.0.is_null()) {
            errors.required(&Path::new("data"), "data is mandatory");
        }
        workload::non_negative(&Path::new("revision"), Some(self.revision), &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if self.data != old.data {
            let data = json!(self.data);
            errors.invalid(&Path::new("data"), data, "field is immutable");
        }
        errors
    }
}
