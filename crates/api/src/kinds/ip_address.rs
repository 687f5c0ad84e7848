//! IPAddresses: addresses that services have taken.

use jiff::Timestamp;

use crate::{
    names,
    networking::IPAddress,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, TableRow, always},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for IPAddress {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "ipaddress";
    const SHORT_NAMES: &'static [&'static str] = &["ip"];

    json_conversions_through_values!();
}

impl FieldSelectable for IPAddress {}

impl Validate for IPAddress {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, values::canonical_ip);
        let path = FieldPath::new("spec").child("parentRef");
        let parent = &self.spec.parent_ref;
        if let Some(group) = parent.group.as_deref().filter(|group| !group.is_empty()) {
            let field = path.child("group");
            errors.invalid_each(&field, group, names::dns1123_subdomain(group));
        }
        let segment = names::path_segment;
        values::named(
            &path.child("resource"),
            &parent.resource,
            segment,
            &mut errors,
        );
        values::named(&path.child("name"), &parent.name, segment, &mut errors);
        if let Some(namespace) = parent.namespace.as_deref() {
            errors.invalid_each(&path.child("namespace"), namespace, segment(namespace));
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("spec").child("parentRef");
        values::immutable(
            &path,
            &self.spec.parent_ref,
            &old.spec.parent_ref,
            &mut errors,
        );
        errors
    }
}

impl TableRow for IPAddress {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("PARENTREF")];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        let parent = &self.spec.parent_ref;
        let present = |part: &Option<String>, before: &str| match part.as_deref() {
            Some(part) if !part.is_empty() => format!("{before}{part}"),
            _ => String::new(),
        };
        let group = present(&parent.group, ".");
        let namespace = present(&parent.namespace, "/");
        let resource = format!("{}{group}", parent.resource).to_lowercase();
        vec![
            self.name().into(),
            format!("{resource}{namespace}/{}", parent.name),
        ]
    }
}

impl Strategy for IPAddress {
    const SERVICE: &'static str = "podplane.networking.v1.IPAddressService";
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_name_is_a_canonical_address() {
        let address = |name: &str| {
            let parent = json!({"resource": "services", "namespace": "default", "name": "s"});
            let document = json!({"metadata": {"name": name}, "spec": {"parentRef": parent}});
            IPAddress::from_json(document).unwrap()
        };
        for good in ["10.0.0.1", "fd00::1"] {
            assert!(address(good).validate().is_empty(), "{good}");
        }
        for bad in ["a", "10.0.0", "fd00:0:0::1", "FD00::1"] {
            assert!(!address(bad).validate().is_empty(), "{bad}");
        }
        let cells = address("10.0.0.1").cells(Timestamp::UNIX_EPOCH);
        assert_eq!(cells, ["10.0.0.1", "services/default/s"]);
    }
}
