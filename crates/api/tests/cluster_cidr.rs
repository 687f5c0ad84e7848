//! Validation of ClusterCIDRs against the tables of the node IPAM controller's webhook.

use podplane_api::{Object as _, networking::ClusterCIDR, validation::Validate as _};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Tables {
    validate_create: Vec<Case>,
    validate_update_old: Spec,
    validate_update: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    clustercidr: Spec,
    err: bool,
}

#[derive(Deserialize)]
struct Spec {
    per_node_host_bits: i32,
    ipv4: String,
    ipv6: String,
    node_selector: Option<Vec<Requirement>>,
}

#[derive(Deserialize)]
struct Requirement {
    key: String,
    op: String,
    values: Vec<String>,
}

impl Spec {
    fn cluster_cidr(&self) -> ClusterCIDR {
        let mut spec = json!({"perNodeHostBits": self.per_node_host_bits});
        for (field, cidr) in [("ipv4", &self.ipv4), ("ipv6", &self.ipv6)] {
            if !cidr.is_empty() {
                spec[field] = json!(cidr);
            }
        }
        if let Some(requirements) = &self.node_selector {
            let term = |Requirement { key, op, values }: &Requirement| json!({"matchExpressions": [{"key": key, "operator": op, "values": values}]});
            let terms: Vec<Value> = requirements.iter().map(term).collect();
            spec["nodeSelector"] = json!({"nodeSelectorTerms": terms});
        }
        let object = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": spec});
        ClusterCIDR::from_json(object).expect("the table's fields are those of ClusterCIDR")
    }
}

fn tables() -> Tables {
    let text = include_str!("../../ipam/tests/data/upstream_multi_cidr.json");
    serde_json::from_str(text).expect("the table is valid")
}

#[test]
fn refuses_at_creation_what_the_reference_refuses() {
    for Case {
        name,
        clustercidr,
        err,
    } in tables().validate_create
    {
        let errors = clustercidr.cluster_cidr().validate();
        assert_eq!(!errors.is_empty(), err, "{name}: {errors:?}");
    }
}

#[test]
fn the_spec_is_immutable() {
    let Tables {
        validate_update_old,
        validate_update,
        ..
    } = tables();
    let old = validate_update_old.cluster_cidr();
    assert_eq!(validate_update.len(), 5);
    for case in validate_update {
        let errors = case.clustercidr.cluster_cidr().validate_update(&old);
        assert_eq!(!errors.is_empty(), case.err, "{}: {errors:?}", case.name);
    }
}
