//! The definition of ClusterCIDRs for Kubernetes refuses what podplane's own kind refuses.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use podplane_api::{
    Object as _, networking::ClusterCIDR, strategy::Strategy as _, validation::Validate as _,
};
use podplane_custom_resources::{CustomKind, validate_definition};
use serde_json::{Value, json};

const DEFINITION: &str =
    include_str!("../../../deploy/kubernetes/ipam-controller/clustercidrs.yaml");
/// Facts of the tests of kubernetes-sigs' node-ipam-controller.
const TABLES: &str = include_str!("../../ipam/tests/data/upstream_multi_cidr.json");

fn kind() -> CustomKind {
    let mut definition: CustomResourceDefinition =
        serde_saphyr::from_str(DEFINITION).expect("the definition is valid YAML");
    definition.set_defaults();
    assert_eq!(validate_definition(&definition, None).to_string(), "[]");
    CustomKind::new(&definition, "v1").expect("the definition compiles")
}

fn object(spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.x-k8s.io/v1", "kind": "ClusterCIDR",
        "metadata": {"name": "a", "resourceVersion": "1"}, "spec": spec,
    })
}

/// The spec of a case of the tables.
fn spec(case: &Value) -> Value {
    let mut spec = json!({"perNodeHostBits": case["per_node_host_bits"]});
    for field in ["ipv4", "ipv6"] {
        if case[field].as_str().is_some_and(|cidr| !cidr.is_empty()) {
            spec[field] = case[field].clone();
        }
    }
    if let Some(requirements) = case["node_selector"].as_array() {
        let term = |it: &Value| {
            json!({"matchExpressions": [
                {"key": it["key"], "operator": it["op"], "values": it["values"]}]})
        };
        let terms: Vec<_> = requirements.iter().map(term).collect();
        spec["nodeSelector"] = json!({"nodeSelectorTerms": terms});
    }
    spec
}

#[test]
fn refuses_at_creation_what_the_own_kind_refuses() {
    let kind = kind();
    let selector = |expression: Value| {
        json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8, "nodeSelector": {"nodeSelectorTerms": [
            {"matchExpressions": [expression]}]}})
    };
    let field = |field: Value| {
        json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8, "nodeSelector": {"nodeSelectorTerms": [
            {"matchFields": [field]}]}})
    };
    let tables: Value = serde_json::from_str(TABLES).expect("the tables are valid");
    let cases = tables["validate_create"].as_array().expect("the cases");
    let cases = cases.iter().map(|case| spec(&case["clustercidr"]));
    let own = [
        json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8}),
        json!({"ipv4": "", "ipv6": "fd00::/48", "perNodeHostBits": 64}),
        json!({"ipv4": "10.0.0.0/28", "perNodeHostBits": 4}),
        json!({"ipv4": "10.0.0.0/28", "perNodeHostBits": 5}),
        json!({"ipv4": "10.0.0.0/16", "ipv6": "fd00::/120", "perNodeHostBits": 9}),
        json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 3}),
        json!({"ipv4": "", "ipv6": "", "perNodeHostBits": 8}),
        json!({"perNodeHostBits": 8}),
        json!({"ipv4": "10.0.0.0", "perNodeHostBits": 8}),
        json!({"ipv4": "fd00::/48", "perNodeHostBits": 8}),
        json!({"ipv6": "10.0.0.0/8", "perNodeHostBits": 8}),
        selector(json!({"key": "zone", "operator": "In", "values": ["a", "b"]})),
        selector(json!({"key": "zone", "operator": "In", "values": []})),
        selector(json!({"key": "zone", "operator": "NotIn"})),
        selector(json!({"key": "example.com/zone", "operator": "Exists"})),
        selector(json!({"key": "zone", "operator": "Exists", "values": ["a"]})),
        selector(json!({"key": "cores", "operator": "Gt", "values": ["4"]})),
        selector(json!({"key": "cores", "operator": "Lt", "values": ["4", "5"]})),
        selector(json!({"key": "zone/", "operator": "Exists"})),
        selector(json!({"key": "zone", "operator": "Is", "values": ["a"]})),
        field(json!({"key": "metadata.name", "operator": "In", "values": ["n"]})),
        field(json!({"key": "metadata.name", "operator": "In", "values": ["n", "m"]})),
        field(json!({"key": "spec.x", "operator": "In", "values": ["n"]})),
        field(json!({"key": "metadata.name", "operator": "Exists"})),
        json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8,
            "nodeSelector": {"nodeSelectorTerms": []}}),
    ];
    let mut accepted = 0;
    for spec in cases.chain(own) {
        let document = object(&spec);
        let custom = kind.validate(&document);
        let of_own = ClusterCIDR::from_json(document).expect("a ClusterCIDR");
        let of_own = of_own.validate();
        assert_eq!(
            custom.is_empty(),
            of_own.is_empty(),
            "{spec}: {custom}; {of_own}"
        );
        accepted += usize::from(custom.is_empty());
    }
    assert!(accepted > 5, "{accepted}");
}

#[test]
fn the_spec_is_immutable() {
    let kind = kind();
    let terms = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]);
    let old = json!({"ipv4": "10.0.0.0/8", "perNodeHostBits": 8,
        "nodeSelector": {"nodeSelectorTerms": terms}});
    let change = |field: &str, value: Value| {
        let mut spec = old.clone();
        spec[field] = value;
        if spec[field].is_null()
            && let Some(fields) = spec.as_object_mut()
        {
            fields.remove(field);
        }
        spec
    };
    let other = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "b", "operator": "Exists"}]}]});
    for (spec, is_same) in [
        (old.clone(), true),
        (change("ipv6", json!("")), true),
        (change("ipv4", json!("10.0.0.0/9")), false),
        (change("ipv6", json!("fd00::/48")), false),
        (change("perNodeHostBits", json!(9)), false),
        (change("nodeSelector", other), false),
        (change("nodeSelector", Value::Null), false),
    ] {
        let (new, old) = (object(&spec), object(&old));
        let custom = kind.validate_update(&new, &old);
        let typed = |document| ClusterCIDR::from_json(document).expect("a ClusterCIDR");
        let own = typed(new).validate_update(&typed(old));
        assert_eq!(custom.is_empty(), is_same, "{spec}: {custom}");
        assert_eq!(own.is_empty(), is_same, "{spec}: {own}");
    }
}
