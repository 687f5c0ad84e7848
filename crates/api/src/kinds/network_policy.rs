//! NetworkPolicies: the traffic that pods may send and receive. They are stored; nothing here
//! enforces them.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    IntOrString,
    kinds::pod::{in_range, one_of},
    names,
    networking::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, always, created, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload as rules},
};

impl Object for NetworkPolicy {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "networkpolicy";
    const SHORT_NAMES: &'static [&'static str] = &["netpol"];

    json_conversions_through_values!();
}

impl FieldSelectable for NetworkPolicy {}

impl Validate for NetworkPolicy {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }
}

impl TableRow for NetworkPolicy {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("POD-SELECTOR"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let selector = self
            .spec
            .as_ref()
            .and_then(|spec| spec.pod_selector.clone());
        vec![
            self.name().into(),
            workload::selector(&selector.unwrap_or_default()),
            created(self, now),
        ]
    }
}

impl Strategy for NetworkPolicy {
    const SERVICE: &'static str = "podplane.networking.v1.NetworkPolicyService";

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.pod_selector.get_or_insert_default();
        let ports = |ports: &mut Option<Vec<NetworkPolicyPort>>| {
            for port in ports.iter_mut().flatten() {
                values::default_word(&mut port.protocol, "TCP");
            }
        };
        for rule in spec.ingress.iter_mut().flatten() {
            ports(&mut rule.ports);
        }
        for rule in spec.egress.iter_mut().flatten() {
            ports(&mut rule.ports);
        }
        if spec.policy_types.as_ref().is_none_or(Vec::is_empty) {
            let mut types = vec!["Ingress".to_owned()];
            if spec.egress.iter().flatten().next().is_some() {
                types.push("Egress".to_owned());
            }
            spec.policy_types = Some(types);
        }
    }

    generation_of!(spec);
}

fn validate_spec(path: &FieldPath, spec: &NetworkPolicySpec, errors: &mut ErrorList) {
    let selector = spec.pod_selector.clone().unwrap_or_default();
    rules::label_selector(&path.child("podSelector"), &selector, errors);
    for (index, rule) in spec.ingress.iter().flatten().enumerate() {
        let path = path.child("ingress").index(index);
        validate_ports(&path, rule.ports.as_deref(), errors);
        validate_peers(&path.child("from"), rule.from.as_deref(), errors);
    }
    for (index, rule) in spec.egress.iter().flatten().enumerate() {
        let path = path.child("egress").index(index);
        validate_ports(&path, rule.ports.as_deref(), errors);
        validate_peers(&path.child("to"), rule.to.as_deref(), errors);
    }
    let path = path.child("policyTypes");
    let types = spec.policy_types.as_deref().unwrap_or_default();
    if types.len() > 2 {
        errors.invalid(
            &path,
            json!(types),
            "may not specify more than two policyTypes",
        );
    }
    for (index, kind) in types.iter().enumerate() {
        one_of(
            &path.index(index),
            Some(kind),
            &["Egress", "Ingress"],
            errors,
        );
    }
}

fn validate_ports(path: &FieldPath, ports: Option<&[NetworkPolicyPort]>, errors: &mut ErrorList) {
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let path = path.child("ports").index(index);
        let protocol = port.protocol.as_deref();
        one_of(
            &path.child("protocol"),
            protocol,
            &["SCTP", "TCP", "UDP"],
            errors,
        );
        match &port.port {
            Some(IntOrString::Int(number)) => {
                in_range(&path.child("port"), *number, errors);
                if let Some(end) = port.end_port.filter(|end| end < number) {
                    let detail = "must be greater than or equal to `port`";
                    errors.invalid(&path.child("endPort"), end, detail);
                }
            }
            Some(IntOrString::String(name)) => {
                errors.invalid_each(&path.child("port"), name, names::port_name(name));
                if let Some(end) = port.end_port {
                    let detail = "may not be specified when `port` is non-numeric";
                    errors.invalid(&path.child("endPort"), end, detail);
                }
            }
            None if port.end_port.is_some() => {
                let detail = "may not be specified when `port` is not specified";
                errors.invalid(&path.child("endPort"), port.end_port, detail);
            }
            None => {}
        }
        if let Some(end) = port.end_port {
            in_range(&path.child("endPort"), end, errors);
        }
    }
}

fn validate_peers(path: &FieldPath, peers: Option<&[NetworkPolicyPeer]>, errors: &mut ErrorList) {
    for (index, peer) in peers.into_iter().flatten().enumerate() {
        let path = path.index(index);
        let selectors = [
            ("podSelector", &peer.pod_selector),
            ("namespaceSelector", &peer.namespace_selector),
        ];
        for (field, selector) in selectors {
            if let Some(selector) = selector {
                rules::label_selector(&path.child(field), selector, errors);
            }
        }
        let has_selector = selectors.iter().any(|(_, selector)| selector.is_some());
        match &peer.ip_block {
            None if !has_selector => errors.required(&path, "must specify a peer"),
            Some(_) if has_selector => {
                let detail = "may not specify both ipBlock and another peer";
                errors.forbidden(&path, detail);
            }
            Some(block) => validate_block(&path.child("ipBlock"), block, errors),
            None => {}
        }
    }
}

fn validate_block(path: &FieldPath, block: &IPBlock, errors: &mut ErrorList) {
    let cidr = path.child("cidr");
    if block.cidr.is_empty() {
        return errors.required(&cidr, "");
    }
    let Some(net) = values::cidr(&cidr, &block.cidr, errors) else {
        return;
    };
    for (index, part) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(index);
        let inner = values::cidr(&path, part, errors);
        if inner.is_some_and(|inner| !net.contains(&inner) || inner == net) {
            let detail = "must be a strict subset of `cidr`";
            errors.invalid(&path, part.as_str(), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spec: serde_json::Value) -> NetworkPolicy {
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut policy = NetworkPolicy::from_json(document).unwrap();
        policy.set_defaults();
        policy
    }

    #[test]
    fn types_and_protocols_have_defaults() {
        let policy = policy(
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "egress": [{"ports": [{"port": 53}]}]}),
        );
        assert!(policy.validate().is_empty());
        let spec = json!(policy.spec);
        assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(spec["egress"][0]["ports"][0]["protocol"], "TCP");
        assert_eq!(
            policy.cells(Timestamp::UNIX_EPOCH),
            ["a", "a=b", "<unknown>"]
        );
    }

    #[test]
    fn ports_and_peers_are_checked() {
        let from = |peer: serde_json::Value| {
            policy(json!({"ingress": [{"from": [peer]}]}))
                .validate()
                .to_string()
        };
        assert_eq!(
            from(json!({})),
            "spec.ingress[0].from[0]: Required value: must specify a peer"
        );
        assert_eq!(
            from(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}})),
            "[]"
        );
        assert!(
            from(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}))
                .contains("strict subset")
        );
        assert!(
            from(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}))
                .contains("may not specify both")
        );
        assert!(
            from(json!({"ipBlock": {"cidr": "10.0.0.0"}})).contains("must be a valid CIDR value")
        );
        let port = |port: serde_json::Value| {
            policy(json!({"ingress": [{"ports": [port]}]}))
                .validate()
                .to_string()
        };
        assert_eq!(port(json!({"port": 80, "endPort": 90})), "[]");
        assert!(
            port(json!({"port": 80, "endPort": 70}))
                .contains("must be greater than or equal to `port`")
        );
        assert!(port(json!({"port": "http", "endPort": 70})).contains("is non-numeric"));
        assert!(port(json!({"protocol": "ICMP"})).contains("Unsupported value"));
        assert!(
            policy(json!({"policyTypes": ["Both"]}))
                .validate()
                .to_string()
                .contains("Unsupported value")
        );
    }
}
