//! ConfigMaps: configuration as keys and values.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    core::ConfigMap,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, data, metadata},
};

impl Object for ConfigMap {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "configmap";
    const SHORT_NAMES: &'static [&'static str] = &["cm"];

    json_conversions_through_values!();
}

impl FieldSelectable for ConfigMap {}

impl Validate for ConfigMap {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let (text, binary) = (FieldPath::new("data"), FieldPath::new("binaryData"));
        let has_binary = |key: &String| {
            let all = self.binary_data.as_ref();
            all.is_some_and(|all| all.contains_key(key))
        };
        let mut bytes = 0;
        for (key, value) in self.data.iter().flatten() {
            data::key(&text, key, &mut errors);
            if has_binary(key) {
                let detail = "duplicate of key present in binaryData";
                errors.invalid(&text.key(key), key.as_str(), detail);
            }
            bytes += value.len();
        }
        for (key, value) in self.binary_data.iter().flatten() {
            data::key(&binary, key, &mut errors);
            bytes += value.0.len();
        }
        if bytes > data::MAX_BYTES {
            // The reference's name for the object as a whole.
            errors.too_long(&FieldPath::new("[]"), data::MAX_BYTES);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        let parts = [
            ("data", self.data == old.data),
            ("binaryData", self.binary_data == old.binary_data),
        ];
        data::immutable(old.immutable, self.immutable, &parts, &mut errors);
        errors.append(self.validate());
        errors
    }
}

impl TableRow for ConfigMap {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("DATA"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let text = self.data.as_ref().map_or(0, BTreeMap::len);
        let binary = self.binary_data.as_ref().map_or(0, BTreeMap::len);
        vec![
            self.name().into(),
            (text + binary).to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for ConfigMap {
    const SERVICE: &'static str = "podplane.core.v1.ConfigMapService";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(document: serde_json::Value) -> ConfigMap {
        let mut map = ConfigMap::from_json(document).unwrap();
        map.metadata.name = Some("a".into());
        map.metadata.namespace = Some("default".into());
        map
    }

    #[test]
    fn keys_are_in_one_of_the_maps_and_values_have_a_limit() {
        let good = map(json!({"data": {"a": "1"}, "binaryData": {"b": "AA=="}}));
        assert!(good.validate().is_empty());
        assert_eq!(good.cells(Timestamp::UNIX_EPOCH), ["a", "2", "<unknown>"]);
        let both = map(json!({"data": {"a": "1"}, "binaryData": {"a": "AA=="}}));
        assert_eq!(
            both.validate().to_string(),
            r#"data[a]: Invalid value: "a": duplicate of key present in binaryData"#
        );
        let large = map(json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}}));
        assert_eq!(
            large.validate().to_string(),
            "[]: Too long: may not be more than 1048576 bytes"
        );
    }

    #[test]
    fn an_immutable_map_stays() {
        let old = map(json!({"immutable": true, "data": {"a": "1"}}));
        assert!(old.validate_update(&old).is_empty());
        let new = map(json!({"data": {"a": "2"}, "binaryData": {"b": "AA=="}}));
        let why = "Forbidden: field is immutable when `immutable` is set";
        assert_eq!(
            new.validate_update(&old).to_string(),
            format!("[immutable: {why}, data: {why}, binaryData: {why}]")
        );
        assert!(old.validate_update(&new).is_empty());
    }
}
