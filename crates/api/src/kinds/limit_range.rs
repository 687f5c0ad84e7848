//! LimitRanges: bounds and defaults of the resources in a namespace.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    core::{LimitRange, LimitRangeItem},
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created_at},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for LimitRange {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "limitrange";
    const SHORT_NAMES: &'static [&'static str] = &["limits"];

    json_conversions_through_values!();
}

impl FieldSelectable for LimitRange {}

impl Validate for LimitRange {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec").child("limits");
        let limits = self.spec.clone().unwrap_or_default().limits;
        let mut seen = BTreeSet::new();
        for (index, limit) in limits.iter().enumerate() {
            let path = path.index(index);
            let kind = path.child("type");
            match limit.type_.as_str() {
                "" => errors.required(&kind, ""),
                text => errors.invalid_each(&kind, text, names::qualified_name(text)),
            }
            if !seen.insert(&limit.type_) {
                errors.duplicate(&kind, limit.type_.as_str());
            }
            validate_item(&path, limit, &mut errors);
        }
        errors
    }
}

impl TableRow for LimitRange {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("CREATED AT")];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        vec![self.name().into(), created_at(self)]
    }
}

impl Strategy for LimitRange {
    const SERVICE: &'static str = "podplane.core.v1.LimitRangeService";
    const CREATE_ON_UPDATE: bool = true;

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        for limit in &mut spec.limits {
            if limit.type_ != "Container" {
                continue;
            }
            // A maximum is also the default limit, and a limit or minimum the default request.
            let defaults = limit.default.get_or_insert_default();
            for (name, value) in limit.max.iter().flatten() {
                defaults
                    .entry(name.clone())
                    .or_insert_with(|| value.clone());
            }
            let requests = limit.default_request.get_or_insert_default();
            for (name, value) in limit.min.iter().flatten().chain(&*defaults) {
                requests
                    .entry(name.clone())
                    .or_insert_with(|| value.clone());
            }
        }
    }
}

fn validate_item(path: &FieldPath, limit: &LimitRangeItem, errors: &mut ErrorList) {
    let maps = [
        ("min", &limit.min),
        ("defaultRequest", &limit.default_request),
        ("default", &limit.default),
        ("max", &limit.max),
    ];
    for (field, map) in maps {
        values::quantities(
            &path.child(field),
            map.as_ref(),
            names::qualified_name,
            errors,
        );
    }
    let is_of_pods = limit.type_ == "Pod";
    for (field, map) in &maps[1..3] {
        if is_of_pods && map.iter().flatten().next().is_some() {
            errors.forbidden(
                &path.child(field),
                "may not be specified when `type` is 'Pod'",
            );
        }
    }
    // Each is at most all that follow.
    for (at, (field, map)) in maps.iter().enumerate() {
        for (name, value) in map.iter().flatten() {
            for (other, above) in &maps[at + 1..] {
                let Some(above) = above.as_ref().and_then(|above| above.get(name)) else {
                    continue;
                };
                if values::millis(value) > values::millis(above) {
                    let detail = format!(
                        "{field} value {} is greater than {other} value {}",
                        value.0, above.0
                    );
                    errors.invalid(&path.child(field).key(name), value.0.as_str(), &detail);
                }
            }
        }
    }
    for (name, ratio) in limit.max_limit_request_ratio.iter().flatten() {
        if values::millis(ratio).is_some_and(|ratio| ratio < 1000) {
            let path = path.child("maxLimitRequestRatio").key(name);
            let detail = format!("ratio {} is less than 1", ratio.0);
            errors.invalid(&path, ratio.0.as_str(), &detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range(limits: serde_json::Value) -> LimitRange {
        let document =
            json!({"metadata": {"name": "a", "namespace": "default"}, "spec": {"limits": limits}});
        let mut range = LimitRange::from_json(document).unwrap();
        range.set_defaults();
        range
    }

    #[test]
    fn containers_get_the_bounds_as_defaults() {
        let good = range(
            json!([{"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2", "memory": "1Gi"}}]),
        );
        assert!(good.validate().is_empty());
        let limit = json!(good.spec.unwrap().limits[0]);
        assert_eq!(limit["default"], json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(
            limit["defaultRequest"],
            json!({"cpu": "1", "memory": "1Gi"})
        );
    }

    #[test]
    fn bounds_are_in_order() {
        for (limits, refused) in [
            (
                json!([{"type": "Container", "min": {"cpu": "3"}, "max": {"cpu": "2"}, "defaultRequest": {"cpu": "2"}}]),
                "min value 3 is greater than max value 2",
            ),
            (
                json!([{"type": "Pod", "default": {"cpu": "1"}}]),
                "may not be specified when `type` is 'Pod'",
            ),
            (json!([{"type": "Pod"}, {"type": "Pod"}]), "Duplicate value"),
            (json!([{"type": ""}]), "spec.limits[0].type: Required value"),
            (
                json!([{"type": "Pod", "maxLimitRequestRatio": {"cpu": "0.5"}}]),
                "ratio 0.5 is less than 1",
            ),
        ] {
            let errors = range(limits).validate().to_string();
            assert!(errors.contains(refused), "{errors}");
        }
    }
}
