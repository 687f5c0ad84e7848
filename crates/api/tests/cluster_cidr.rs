//! Validation of ClusterCIDRs against the tables of the node IPAM controller's webhook.

use podplane_api::{Object as _, networking::ClusterCIDR, validation::Validate as _};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct ClusterCidrTables {
    validate_create: Vec<ClusterCidrCase>,
    validate_update_old: ClusterCidrFields,
    validate_update: Vec<ClusterCidrCase>,
}

#[derive(Deserialize)]
struct ClusterCidrCase {
    name: String,
    clustercidr: ClusterCidrFields,
    err: bool,
}

#[derive(Deserialize)]
struct ClusterCidrFields {
    per_node_host_bits: i32,
    ipv4: String,
    ipv6: String,
    node_selector: Option<Vec<RequirementFields>>,
}

#[derive(Deserialize)]
struct RequirementFields {
    key: String,
    op: String,
    values: Vec<String>,
}

impl ClusterCidrFields {
    fn cluster_cidr(&self) -> ClusterCIDR {
        let mut spec = json!({"perNodeHostBits": self.per_node_host_bits});
        for (field, cidr) in [("ipv4", &self.ipv4), ("ipv6", &self.ipv6)] {
            if !cidr.is_empty() {
                spec[field] = json!(cidr);
            }
        }
        if let Some(requirements) = &self.node_selector {
            let term = |RequirementFields { key, op, values }: &RequirementFields| json!({"matchExpressions": [{"key": key, "operator": op, "values": values}]});
            let terms: Vec<Value> = requirements.iter().map(term).collect();
            spec["nodeSelector"] = json!({"nodeSelectorTerms": terms});
        }
        let object = json!({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": spec});
        ClusterCIDR::from_json(object).expect("the table's fields are those of ClusterCIDR")
    }
}

fn tables() -> ClusterCidrTables {
    let text = include_str!("../../ipam/tests/data/upstream_multi_cidr.json");
    serde_json::from_str(text).expect("the table is valid")
}

#[test]
fn refuses_at_creation_what_the_reference_refuses() {
    for ClusterCidrCase {
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
    let ClusterCidrTables {
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
