//! The definitions against a second source that was independently made from the published ones: the
//! schemas in `k8s-openapi`.

#![expect(clippy::unwrap_used, reason = "a test")]

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{SelfSubjectAccessReview, SelfSubjectRulesReview},
    autoscaling::v1::Scale,
    core::v1::{Binding, Node, NodeSelector, Pod},
    events::v1,
    policy::v1::Eviction,
};
use podplane_api::{
    Object as _,
    meta::ObjectMeta,
    networking::{ClusterCIDR, ClusterCIDRSpec},
    schema::{ElementIdentity, Type, TypeStructure, definitions},
    stored_kinds,
};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

#[test]
fn fields_and_types_are_those_of_k8s_openapi() {
    let ours = definitions();
    let mut generator = SchemaSettings::openapi3().into_generator();
    macro_rules! subschema {
        // Not of `k8s-openapi`.
        (ClusterCIDR, $type:ty) => {};
        ($name:ident, $type:ty) => {
            let _ = generator.subschema_for::<$type>();
        };
    }
    macro_rules! subschemas {
        (() $($name:ident: $type:ty,)*) => { $( subschema!($name, $type); )* };
    }
    stored_kinds!(subschemas!());
    subschemas! {
        ()
        SelfSubjectReview: SelfSubjectReview,
        SelfSubjectAccessReview: SelfSubjectAccessReview,
        SelfSubjectRulesReview: SelfSubjectRulesReview,
        Scale: Scale,
        Binding: Binding,
        Event: v1::Event,
        Eviction: Eviction,
    }
    let theirs = generator.take_definitions(true);
    assert!(theirs.len() > 150, "{}", theirs.len());
    for (name, theirs) in &theirs {
        let ours = &ours[name.as_str()];
        let properties = |schema: &Value| {
            schema["properties"]
                .as_object()
                .cloned()
                .unwrap_or_default()
        };
        let (ours, theirs) = (properties(ours), properties(theirs));
        assert!(ours.keys().eq(theirs.keys()), "{name}");
        for (field, theirs) in theirs {
            assert_eq!(shape(&ours[&field]), shape(&theirs), "{name}.{field}");
        }
    }
}

/// The only kind whose Rust type is not from `k8s-openapi`. A field that only one side has fails
/// here, or does not compile.
#[test]
fn a_cluster_cidr_is_as_published() {
    let metadata = ObjectMeta {
        name: Some("a".into()),
        ..ObjectMeta::default()
    };
    let spec = ClusterCIDRSpec {
        ipv4: Some("10.0.0.0/8".into()),
        ipv6: Some("fd00::/48".into()),
        node_selector: Some(NodeSelector::default()),
        per_node_host_bits: 8,
    };
    let spec = Some(spec);
    let object = ClusterCIDR { metadata, spec };
    let document = object.to_json().unwrap();
    let definitions = definitions();
    for (name, value) in [
        ("ClusterCIDR", &document),
        ("ClusterCIDRSpec", &document["spec"]),
    ] {
        let schema = &definitions[&format!("io.x-k8s.networking.v1.{name}")];
        let published = schema["properties"].as_object().unwrap();
        let value = value.as_object().unwrap();
        let mut names: Vec<_> = value.keys().collect();
        names.sort();
        assert!(published.keys().eq(names), "{name}");
        for (field, schema) in published {
            let value = &value[field];
            let fits = match shape(schema).as_str() {
                r#"Some("string") None"# => value.is_string(),
                r#"Some("integer") Some("int32")"# => value.is_i64(),
                reference => reference.starts_with("io.") && value.is_object(),
            };
            assert!(fits, "{name}.{field}: {value}");
        }
    }
    assert_eq!(ClusterCIDR::from_json(document.clone()).unwrap(), object);
    for (field, value, error) in [
        ("apiVersion", json!("v1"), "apiVersion: "),
        ("kind", json!("Pod"), "kind: "),
        (
            "spec",
            json!({"perNodeHostBits": 1_i64 << 31}),
            "spec.perNodeHostBits: ",
        ),
        ("spec", json!({"ipv4": 1}), "spec.ipv4: "),
        (
            "spec",
            json!({"ipv5": "", "perNodeHostBits": null}),
            "unknown field \"spec.ipv5\"",
        ),
        ("status", json!({}), "unknown field \"status\""),
    ] {
        let mut wrong = document.clone();
        wrong[field] = value;
        let error_text = ClusterCIDR::from_json(wrong).unwrap_err().to_string();
        assert!(error_text.starts_with(error), "{error_text}");
    }
}

/// The structure of a property, without descriptions and extensions.
fn shape(schema: &Value) -> String {
    let reference = schema
        .get("$ref")
        .or_else(|| schema.pointer("/allOf/0/$ref"));
    if let Some(reference) = reference {
        return reference
            .as_str()
            .unwrap()
            .rsplit('/')
            .next()
            .unwrap()
            .to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => format!("[{}]", shape(&schema["items"])),
        Some("object") => match schema.get("additionalProperties") {
            Some(values) => format!("{{{}}}", shape(values)),
            None => "object".into(),
        },
        other => format!("{other:?} {:?}", schema["format"].as_str()),
    }
}

/// All lists and maps with special merge rules, as published.
#[test]
fn merge_keys_of_a_pod_are_as_published() {
    let pod = Type::of::<Pod>().unwrap();
    let spec = pod.field("spec").unwrap();
    let TypeStructure::Struct(fields) = spec.kind() else {
        panic!("{spec:?}")
    };
    let merge_key = |name: &str| fields.field(name).unwrap().patch.merge_key.as_deref();
    assert_eq!(merge_key("containers"), Some("name"));
    assert_eq!(merge_key("topologySpreadConstraints"), Some("topologyKey"));
    assert_eq!(merge_key("tolerations"), None);
    assert!(fields.field("volumes").unwrap().patch.retain_keys);
    assert!(spec.field("nodeSelector").unwrap().is_atomic_map());
    let keys = |ty: Type| match ty.kind() {
        TypeStructure::List(list) => match &list.identity {
            ElementIdentity::Keys(keys) => keys
                .iter()
                .map(|key| (key.name.clone(), key.default.clone()))
                .collect(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let TypeStructure::List(containers) = spec.field("containers").unwrap().kind() else {
        panic!("containers is a list")
    };
    let ports: Vec<_> = keys(containers.items().field("ports").unwrap());
    assert_eq!(
        ports,
        [
            ("containerPort".to_owned(), None),
            ("protocol".to_owned(), Some("TCP".into()))
        ]
    );
    let node = Type::of::<Node>().unwrap().field("spec").unwrap();
    for (field, expected) in [
        ("podCIDRs", ElementIdentity::Set),
        ("taints", ElementIdentity::Atomic),
    ] {
        let TypeStructure::List(list) = node.field(field).unwrap().kind() else {
            panic!("{field} is a list")
        };
        assert_eq!(list.identity, expected);
    }
}

/// Every reference has a target, and every served kind a definition.
#[test]
fn the_definitions_are_complete() {
    let all = definitions();
    let text = serde_json::to_string(&all).unwrap();
    for reference in text.split("\"$ref\":\"").skip(1) {
        let name = reference.split('"').next().unwrap();
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        assert!(all.contains_key(name), "{name}");
    }
    for (group, version, kind) in [
        ("", "v1", "Node"),
        ("apps", "v1", "Deployment"),
        ("policy", "v1", "Eviction"),
        ("events.k8s.io", "v1", "Event"),
        ("networking.x-k8s.io", "v1", "ClusterCIDR"),
    ] {
        assert!(Type::of_kind(group, version, kind).is_some(), "{kind}");
    }
}
