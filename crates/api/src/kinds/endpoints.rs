//! Endpoints: the addresses of a service, in the form before EndpointSlices.

use std::net::IpAddr;

use jiff::Timestamp;

use crate::{
    core::{EndpointSubset, Endpoints},
    kinds::pod::{in_range, one_of},
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::Strategy,
    table::{Column, NONE, TableRow, always, created, first},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

impl Object for Endpoints {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "endpoints";
    const SHORT_NAMES: &'static [&'static str] = &["ep"];

    json_conversions_through_values!();
}

impl FieldSelectable for Endpoints {}

impl Validate for Endpoints {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("subsets");
        for (index, subset) in self.subsets.iter().flatten().enumerate() {
            let path = path.index(index);
            let lists = [
                ("addresses", subset.addresses.as_deref()),
                ("notReadyAddresses", subset.not_ready_addresses.as_deref()),
            ];
            if lists
                .iter()
                .all(|(_, list)| list.is_none_or(<[_]>::is_empty))
            {
                errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
            }
            for (field, list) in lists {
                for (index, address) in list.into_iter().flatten().enumerate() {
                    if address.ip.parse::<IpAddr>().is_err() {
                        let path = path.child(field).index(index).child("ip");
                        let detail =
                            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                        errors.invalid(&path, address.ip.as_str(), detail);
                    }
                }
            }
            let ports = subset.ports.as_deref().unwrap_or_default();
            for (index, port) in ports.iter().enumerate() {
                let path = path.child("ports").index(index);
                let name = port.name.as_deref().unwrap_or_default();
                if name.is_empty() && ports.len() > 1 {
                    errors.required(&path.child("name"), "");
                } else if !name.is_empty() {
                    errors.invalid_each(&path.child("name"), name, names::dns1123_label(name));
                }
                in_range(&path.child("port"), port.port, &mut errors);
                let protocol = port.protocol.as_deref();
                let protocols = ["SCTP", "TCP", "UDP"];
                one_of(&path.child("protocol"), protocol, &protocols, &mut errors);
            }
        }
        errors
    }
}

impl TableRow for Endpoints {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("ENDPOINTS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let subsets = self.subsets.as_deref().unwrap_or_default();
        vec![self.name().into(), shown(subsets), created(self, now)]
    }
}

impl Strategy for Endpoints {
    const SERVICE: &'static str = "podplane.core.v1.EndpointsService";
    const CREATE_ON_UPDATE: bool = true;

    fn set_defaults(&mut self) {
        for subset in self.subsets.iter_mut().flatten() {
            for port in subset.ports.iter_mut().flatten() {
                values::default_word(&mut port.protocol, "TCP");
            }
        }
    }
}

/// The first addresses of all ports.
fn shown(subsets: &[EndpointSubset]) -> String {
    if subsets.is_empty() {
        return NONE.into();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = || subset.addresses.iter().flatten();
        let ports = subset.ports.as_deref().unwrap_or_default();
        if ports.is_empty() {
            all.extend(addresses().map(|address| address.ip.clone()));
        }
        for port in ports {
            all.extend(addresses().map(|address| match address.ip.contains(':') {
                true => format!("[{}]:{}", address.ip, port.port),
                false => format!("{}:{}", address.ip, port.port),
            }));
        }
    }
    first(&all, 3).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_the_first_addresses() {
        let subset = json!({
            "addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "fd00::1"}, {"ip": "10.0.0.4"}],
            "ports": [{"port": 80}]
        });
        let document =
            json!({"metadata": {"name": "a", "namespace": "default"}, "subsets": [subset]});
        let mut endpoints = Endpoints::from_json(document).unwrap();
        endpoints.set_defaults();
        assert!(endpoints.validate().is_empty());
        let shown = "10.0.0.1:80,10.0.0.2:80,[fd00::1]:80 + 1 more...";
        assert_eq!(
            endpoints.cells(Timestamp::UNIX_EPOCH),
            ["a", shown, "<unknown>"]
        );
        endpoints.subsets.as_mut().unwrap()[0].addresses = None;
        assert_eq!(
            endpoints.validate().to_string(),
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"
        );
    }
}
