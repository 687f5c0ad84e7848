//! ServiceCIDRs: ranges from which services get their addresses.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    names,
    networking::ServiceCIDR,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, separate_status},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for ServiceCIDR {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "servicecidr";

    json_conversions_through_values!();
}

impl FieldSelectable for ServiceCIDR {}

impl Validate for ServiceCIDR {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec").child("cidrs");
        let cidrs = self
            .spec
            .clone()
            .unwrap_or_default()
            .cidrs
            .unwrap_or_default();
        if cidrs.is_empty() {
            errors.required(&path, "at least one CIDR required");
        }
        if cidrs.len() > 2 {
            let detail = "may only hold up to 2 values";
            errors.invalid(&path, json!(cidrs), detail);
        }
        let texts = cidrs.iter().enumerate();
        let ranges: Vec<_> = texts
            .filter_map(|(index, text)| values::cidr(&path.index(index), text, &mut errors))
            .collect();
        if let [one, other] = ranges[..]
            && one.addr().is_ipv4() == other.addr().is_ipv4()
        {
            let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.invalid(&path, json!(cidrs), detail);
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let cidrs = |object: &Self| object.spec.as_ref().and_then(|spec| spec.cidrs.clone());
        let (new, old) = (
            cidrs(self).unwrap_or_default(),
            cidrs(old).unwrap_or_default(),
        );
        let path = FieldPath::new("spec").child("cidrs");
        // A second family may be added.
        if !new.starts_with(&old) {
            errors.invalid(&path, json!(new), "field is immutable");
        }
        errors
    }
}

impl TableRow for ServiceCIDR {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("CIDRS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let cidrs = self.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
        let cidrs = cidrs.map_or_else(String::new, |cidrs| cidrs.join(","));
        vec![self.name().into(), cidrs, created(self, now)]
    }
}

impl Strategy for ServiceCIDR {
    const SERVICE: &'static str = "podplane.networking.v1.ServiceCIDRService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    separate_status!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cidrs: serde_json::Value) -> ServiceCIDR {
        let document = json!({"metadata": {"name": "a"}, "spec": {"cidrs": cidrs}});
        ServiceCIDR::from_json(document).unwrap()
    }

    #[test]
    fn one_range_of_each_family() {
        let one = range(json!(["10.0.0.0/16"]));
        let both = range(json!(["10.0.0.0/16", "fd00::/112"]));
        assert!(one.validate().is_empty() && both.validate().is_empty());
        assert!(both.validate_update(&one).is_empty());
        assert!(!one.validate_update(&both).is_empty());
        for bad in [
            json!([]),
            json!(["10.0.0.0/16", "10.1.0.0/16"]),
            json!(["10.0.0.0"]),
            json!(["::/64", "10.0.0.0/8", "::/65"]),
        ] {
            assert!(!range(bad.clone()).validate().is_empty(), "{bad}");
        }
        assert_eq!(
            both.cells(Timestamp::UNIX_EPOCH),
            ["a", "10.0.0.0/16,fd00::/112", "<unknown>"]
        );
    }
}
