//! EndpointSlices: parts of the addresses of a service.

use std::{collections::BTreeSet, net::IpAddr};

use jiff::Timestamp;

use crate::{
    discovery::EndpointSlice,
    kinds::pod::{in_range, one_of},
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, UNSET, always, created, first},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;

impl Object for EndpointSlice {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "endpointslice";

    json_conversions_through_values!();
}

impl FieldSelectable for EndpointSlice {}

impl Validate for EndpointSlice {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("addressType");
        one_of(&path, Some(&self.address_type), &TYPES, &mut errors);
        let path = FieldPath::new("endpoints");
        if self
            .endpoints
            .as_ref()
            .is_some_and(|all| all.len() > ENDPOINTS_MAX)
        {
            errors.invalid(&path, "", "must have at most 1000 items");
        }
        for (index, endpoint) in self.endpoints.iter().flatten().enumerate() {
            let path = path.index(index);
            let addresses = path.child("addresses");
            match endpoint.addresses.len() {
                0 => errors.required(&addresses, "must contain at least 1 address"),
                1..=ADDRESSES_MAX => {}
                _ => errors.invalid(&addresses, "", "must have at most 100 items"),
            }
            for (index, address) in endpoint.addresses.iter().enumerate() {
                let is_of_type = match (self.address_type.as_str(), address.parse::<IpAddr>()) {
                    ("IPv4", Ok(ip)) => ip.is_ipv4(),
                    ("IPv6", Ok(ip)) => ip.is_ipv6(),
                    ("IPv4" | "IPv6", Err(_)) => false,
                    _ => names::dns1123_subdomain(address).is_empty(),
                };
                if !is_of_type {
                    let detail = format!("must be a valid {} address", self.address_type);
                    errors.invalid(&addresses.index(index), address.as_str(), &detail);
                }
            }
            if let Some(name) = endpoint.node_name.as_deref() {
                let rules = names::dns1123_subdomain(name);
                errors.invalid_each(&path.child("nodeName"), name, rules);
            }
            if let Some(name) = endpoint.hostname.as_deref() {
                errors.invalid_each(&path.child("hostname"), name, names::dns1123_label(name));
            }
        }
        let path = FieldPath::new("ports");
        let mut seen = BTreeSet::new();
        for (index, port) in self.ports.iter().flatten().enumerate() {
            let path = path.index(index);
            let name = port.name.as_deref().unwrap_or_default();
            if !name.is_empty() {
                errors.invalid_each(&path.child("name"), name, names::dns1123_label(name));
            }
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
            let protocol = port.protocol.as_deref();
            let protocols = ["SCTP", "TCP", "UDP"];
            one_of(&path.child("protocol"), protocol, &protocols, &mut errors);
            if let Some(number) = port.port {
                in_range(&path.child("port"), number, &mut errors);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let path = FieldPath::new("addressType");
        values::immutable(&path, &self.address_type, &old.address_type, &mut errors);
        errors
    }
}

impl TableRow for EndpointSlice {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("ADDRESSTYPE"),
        always("PORTS"),
        always("ENDPOINTS"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let ports = self
            .ports
            .iter()
            .flatten()
            .map(|port| match (port.port, &port.name) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.clone(),
                (None, None) => "*".into(),
            });
        let addresses = self
            .endpoints
            .iter()
            .flatten()
            .flat_map(|endpoint| endpoint.addresses.clone());
        let shown = |all: Vec<String>| {
            first(&all, 3)
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| UNSET.into())
        };
        vec![
            self.name().into(),
            self.address_type.clone(),
            shown(ports.collect()),
            shown(addresses.collect()),
            created(self, now),
        ]
    }
}

impl Strategy for EndpointSlice {
    const SERVICE: &'static str = "podplane.discovery.v1.EndpointSliceService";

    fn set_defaults(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            values::default_word(&mut port.protocol, "TCP");
        }
    }

    generation_of!(address_type, endpoints, ports);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(document: serde_json::Value) -> EndpointSlice {
        let mut slice = EndpointSlice::from_json(document).unwrap();
        slice.metadata.name = Some("a".into());
        slice.metadata.namespace = Some("default".into());
        slice.set_defaults();
        slice
    }

    #[test]
    fn addresses_are_of_the_type() {
        let good = slice(json!({
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]
        }));
        assert!(good.validate().is_empty(), "{}", good.validate());
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            ["a", "IPv4", "80", "10.0.0.1", "<unknown>"]
        );
        let wrong = slice(json!({
            "addressType": "IPv6", "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": []}],
            "ports": [{"name": "a", "port": 0}, {"name": "a", "protocol": "x"}]
        }));
        assert_eq!(
            wrong.validate_update(&good).to_string(),
            r#"[endpoints[0].addresses[0]: Invalid value: "10.0.0.1": must be a valid IPv6 address, endpoints[1].addresses: Required value: must contain at least 1 address, ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive, ports[1].name: Duplicate value: "a", ports[1].protocol: Unsupported value: "x": supported values: "SCTP", "TCP", "UDP", addressType: Invalid value: "IPv6": field is immutable]"#
        );
    }
}
