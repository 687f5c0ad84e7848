//! Validation of ClusterCIDRs, with the messages of Kubernetes 1.28 and of the node IPAM
//! controller's webhook after it.

use serde_json::json;

use crate::{
    kinds::node::{IpFamily, parse_cidr},
    names,
    networking::{ClusterCIDR, ClusterCIDRSpec},
    validation::{ErrorList, FieldPath, Validate, metadata, node_selector},
};

const MIN_PER_NODE_HOST_BITS: i32 = 4;

impl Validate for ClusterCIDR {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_label);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    /// The spec was validated at creation and is immutable.
    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(metadata::validate(self, names::dns1123_label));
        let path = FieldPath::new("spec");
        let [new, old] = [self, old].map(|object| {
            let spec = object.spec.clone().unwrap_or_default();
            [
                ("nodeSelector", json!(spec.node_selector)),
                ("perNodeHostBits", json!(spec.per_node_host_bits)),
                ("ipv4", json!(spec.ipv4.unwrap_or_default())),
                ("ipv6", json!(spec.ipv6.unwrap_or_default())),
            ]
        });
        for ((field, new), (_, old)) in new.into_iter().zip(old) {
            if new != old {
                errors.invalid(&path.child(field), new, "field is immutable");
            }
        }
        errors
    }
}

fn validate_spec(path: &FieldPath, spec: &ClusterCIDRSpec, errors: &mut ErrorList) {
    if let Some(selector) = &spec.node_selector {
        node_selector::validate(&path.child("nodeSelector"), selector, errors);
    }
    let given = |cidr: &Option<String>| cidr.clone().filter(|cidr| !cidr.is_empty());
    let (ipv4, ipv6) = (given(&spec.ipv4), given(&spec.ipv6));
    if ipv4.is_none() && ipv6.is_none() {
        errors.required(path, "one or both of `ipv4` and `ipv6` must be specified");
    }
    for (cidr, family) in [(ipv4, IpFamily::V4), (ipv6, IpFamily::V6)] {
        if let Some(cidr) = cidr {
            range(path, &cidr, family, spec.per_node_host_bits, errors);
        }
    }
}

/// Validates a range. The path has the family's name (`IPv4`), although the field is in lower case,
/// as in Kubernetes' messages.
fn range(path: &FieldPath, cidr: &str, family: IpFamily, host_bits: i32, errors: &mut ErrorList) {
    let (name, width) = match family {
        IpFamily::V4 => ("IPv4", 32),
        IpFamily::V6 => ("IPv6", 128),
    };
    let Some((found, prefix)) = parse_cidr(cidr) else {
        let detail = format!("must be a valid CIDR: {cidr}");
        errors.invalid(&path.child(name), cidr, &detail);
        return;
    };
    if found != family {
        let detail = format!("must be a valid {name} CIDR");
        errors.invalid(&path.child(name), cidr, &detail);
    }
    let path = path.child("perNodeHostBits");
    let most = width - i32::from(prefix);
    if host_bits < MIN_PER_NODE_HOST_BITS {
        let detail = format!("must be greater than or equal to {MIN_PER_NODE_HOST_BITS}");
        errors.invalid(&path, host_bits, &detail);
    }
    if host_bits > most {
        let detail = format!("must be less than or equal to {most}");
        errors.invalid(&path, host_bits, &detail);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Object as _;

    fn cluster_cidr(spec: &Value) -> ClusterCIDR {
        ClusterCIDR::from_json(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_valid_cluster_cidrs() {
        for spec in [
            json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8}),
            json!({"ipv6": "fd00::/48", "perNodeHostBits": 64}),
            json!({"ipv4": "10.0.0.0/16", "ipv6": "fd00::/112", "perNodeHostBits": 4}),
            json!({"ipv4": "10.0.0.0/28", "perNodeHostBits": 4, "nodeSelector": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"}]},
                {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]},
            ]}}),
        ] {
            assert_eq!(texts(&cluster_cidr(&spec).validate()), [""; 0], "{spec}");
        }
    }

    #[test]
    fn reports_violations_with_kubernetes_messages() {
        let required = "spec: Required value: one or both of `ipv4` and `ipv6` must be specified";
        let term = |term: Value| json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8, "nodeSelector": {"nodeSelectorTerms": [term]}});
        let label = |key: &str, operator: &str, values: &[&str]| {
            term(
                json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}),
            )
        };
        let field = |key: &str, operator: &str, values: &[&str]| {
            term(json!({"matchFields": [{"key": key, "operator": operator, "values": values}]}))
        };
        for (spec, want) in [
            (json!({}), &[required][..]),
            (json!({"ipv4": "", "perNodeHostBits": 0}), &[required]),
            (
                json!({"ipv4": "10.0.0.0", "perNodeHostBits": 8}),
                &[r#"spec.IPv4: Invalid value: "10.0.0.0": must be a valid CIDR: 10.0.0.0"#],
            ),
            (
                json!({"ipv4": "fd00::/112", "perNodeHostBits": 8}),
                &[
                    r#"spec.IPv4: Invalid value: "fd00::/112": must be a valid IPv4 CIDR"#,
                    "spec.perNodeHostBits: Invalid value: 8: must be less than or equal to -80",
                ],
            ),
            (
                json!({"ipv6": "10.0.0.0/8", "perNodeHostBits": 8}),
                &[r#"spec.IPv6: Invalid value: "10.0.0.0/8": must be a valid IPv6 CIDR"#],
            ),
            (
                json!({"ipv4": "10.0.0.0/8"}),
                &["spec.perNodeHostBits: Invalid value: 0: must be greater than or equal to 4"],
            ),
            (
                json!({"ipv4": "10.0.0.0/24", "ipv6": "fd00::/120", "perNodeHostBits": 9}),
                &["spec.perNodeHostBits: Invalid value: 9: must be less than or equal to 8"; 2],
            ),
            (
                json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8, "nodeSelector": {"nodeSelectorTerms": []}}),
                &[
                    "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
                ],
            ),
            (
                label("a", "In", &[]),
                &[
                    "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                ],
            ),
            (
                label("a", "Exists", &["x"]),
                &[
                    "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ],
            ),
            (
                label("a", "Gt", &["1", "2"]),
                &[
                    "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
                ],
            ),
            (
                label("a/", "Is", &[]),
                &[
                    r#"spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator"#,
                    r#"spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key: Invalid value: "a/": name part must be non-empty"#,
                    r#"spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key: Invalid value: "a/": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
                ],
            ),
            (
                field("metadata.name", "In", &["a", "b"]),
                &[
                    "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                ],
            ),
            (
                field("spec.x", "Exists", &[]),
                &[
                    r#"spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator: Invalid value: "Exists": not a valid selector operator"#,
                    r#"spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key: Invalid value: "spec.x": not a valid field selector key"#,
                ],
            ),
        ] {
            assert_eq!(texts(&cluster_cidr(&spec).validate()), want, "{spec}");
        }
    }

    #[test]
    fn the_spec_is_immutable() {
        let old = cluster_cidr(&json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8}));
        assert!(old.validate_update(&old).is_empty());
        let new = cluster_cidr(&json!({"ipv6": "fd00::/48", "perNodeHostBits": 9,
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}));
        assert_eq!(
            texts(&new.validate_update(&old)),
            [
                r#"spec.nodeSelector: Invalid value: {"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}]}: field is immutable"#,
                "spec.perNodeHostBits: Invalid value: 9: field is immutable",
                r#"spec.ipv4: Invalid value: "": field is immutable"#,
                r#"spec.ipv6: Invalid value: "fd00::/48": field is immutable"#,
            ]
        );
    }

    #[test]
    fn refuses_names_that_are_not_labels() {
        let mut dotted = cluster_cidr(&json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8}));
        dotted.metadata.name = Some("a.b".into());
        assert!(texts(&dotted.validate())[0].starts_with(
            r#"metadata.name: Invalid value: "a.b": a lowercase RFC 1123 label must consist of"#
        ));
    }
}
