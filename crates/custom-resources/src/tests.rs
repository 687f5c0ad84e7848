use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use podplane_api::{
    schema::{ElementIdentity, TypeStructure},
    strategy::Strategy as _,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{CustomKind, validate_definition};

/// A definition with a schema of `spec`, and other fields of its version.
fn definition(spec: Value, more: Value) -> CustomResourceDefinition {
    let mut version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {
            "type": "object",
            "properties": {"spec": spec, "status": {"type": "object", "properties": {
                "replicas": {"type": "integer"}, "selector": {"type": "string"},
            }}},
        }},
    });
    for (name, value) in more.as_object().unwrap() {
        version[name] = value.clone();
    }
    let mut crd: CustomResourceDefinition = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "widgets", "kind": "Widget"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }))
    .unwrap();
    crd.set_defaults();
    crd
}

fn kind_with(spec: Value, more: Value) -> CustomKind {
    let crd = definition(spec, more);
    assert_eq!(validate_definition(&crd, None).to_string(), "[]");
    CustomKind::new(&crd, "v1").unwrap()
}

fn kind(spec: Value) -> CustomKind {
    kind_with(spec, json!({}))
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec})
}

#[track_caller]
fn refused(spec: Value, want: &[&str]) {
    let errors = validate_definition(&definition(spec.clone(), json!({})), None);
    let got: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let prefix = "spec.versions[0].schema.openAPIV3Schema.properties[spec]";
    let got: Vec<_> = got.iter().map(|error| error.replace(prefix, "")).collect();
    assert_eq!(got, want, "{spec}");
}

#[test]
fn definitions_have_the_rules_of_the_reference() {
    let valid = definition(json!({"type": "object"}), json!({}));
    assert_eq!(validate_definition(&valid, None).to_string(), "[]");
    let change = |change: fn(&mut CustomResourceDefinition)| {
        let mut crd = valid.clone();
        change(&mut crd);
        validate_definition(&crd, Some(&valid)).to_string()
    };
    for (got, want) in [
        (
            change(|crd| crd.metadata.name = Some("x.example.com".into())),
            "metadata.name: Invalid value: \"x.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            change(|crd| crd.spec.scope = "Galaxy".into()),
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        (
            change(|crd| crd.spec.versions[0].storage = false),
            "spec.versions: Invalid value: [\"v1\"]: must have exactly one version marked as storage version",
        ),
        (
            change(|crd| crd.spec.names.list_kind = Some("Widget".into())),
            "spec.names.listKind: Invalid value: \"Widget\": kind and listKind may not be the same",
        ),
        (
            change(|crd| crd.spec.versions[0].schema = None),
            "spec.versions[0].schema.openAPIV3Schema: Required value",
        ),
        (
            change(|crd| crd.spec.versions[0].deprecation_warning = Some("x".into())),
            "spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions",
        ),
        (
            change(|crd| crd.spec.conversion.as_mut().unwrap().strategy = "Webhook".into()),
            "[spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook, spec.conversion.conversionReviewVersions: Required value]",
        ),
    ] {
        assert_eq!(got, want);
    }
    assert!(change(|crd| crd.spec.names.plural = "Widgets".into()).contains("spec.names.plural"));
    assert!(
        change(|crd| crd.spec.names.short_names = Some(vec!["W".into()]))
            .contains("spec.names.shortNames[0]")
    );
    let mut protected = valid.clone();
    protected.spec.group = "x.k8s.io".into();
    protected.metadata.name = Some("widgets.x.k8s.io".into());
    assert!(
        validate_definition(&protected, None)
            .to_string()
            .contains("protected groups must have approval")
    );
}

#[test]
fn schemas_are_structural() {
    refused(
        json!({"type": "object", "properties": {"a": {}}}),
        &[".properties[a].type: Required value: must not be empty for specified object fields"],
    );
    refused(
        json!({"type": "array"}),
        &[".items: Required value: must be specified"],
    );
    refused(
        json!({"type": "object", "anyOf": [{"properties": {"a": {"type": "string", "default": "x"}}}]}),
        &[
            ".anyOf[0].properties[a].type: Forbidden: must be empty to be structural",
            ".anyOf[0].properties[a].default: Forbidden: must be undefined to be structural",
            ".properties[a]: Required value: because it is defined in .anyOf[0].properties[a]",
        ],
    );
    refused(
        json!({"type": "string", "pattern": "("}),
        &[
            ".pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: unclosed group: `(`",
        ],
    );
    refused(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        &[
            ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ],
    );
    refused(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &[
            ".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ],
    );
    refused(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
        &[
            ".items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
    refused(
        json!({"type": "object", "x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
        &[
            ".x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
        ],
    );
    refused(json!({"type": "string", "default": 1}), &[
        ".default: Invalid value: \"integer\": spec.versions[0].schema.openAPIV3Schema.properties[spec].default in body must be of type string: \"integer\"".replace("spec.versions[0].schema.openAPIV3Schema.properties[spec]", "").as_str(),
    ]);
    refused(
        json!({"type": "object", "default": {"x": 1}}),
        &[".default: Invalid value: {\"x\":1}: must not have unknown fields"],
    );
    refused(
        json!({"type": "object", "x-kubernetes-list-type": "set"}),
        &[".type: Invalid value: \"object\": must be array if x-kubernetes-list-type is specified"],
    );
    let int_or_string = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    kind(int_or_string);
}

#[test]
fn rules_are_compiled_and_their_costs_limited() {
    refused(
        json!({"type": "object", "x-kubernetes-validations": [{"rule": ""}]}),
        &[".x-kubernetes-validations[0].rule: Required value: rule is not specified"],
    );
    let errors = validate_definition(
        &definition(
            json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.x"}]}),
            json!({}),
        ),
        None,
    );
    assert!(
        errors
            .to_string()
            .contains("compilation failed: ERROR: <input>:1:6: undefined field 'x'"),
        "{errors}"
    );
    let list = |max: Option<u64>| {
        let mut list = json!({"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b))"}]});
        if let Some(max) = max {
            list["maxItems"] = max.into();
            list["items"]["maxLength"] = 10.into();
        }
        list
    };
    let errors = validate_definition(&definition(list(None), json!({})), None).to_string();
    assert!(
        errors.contains("estimated rule cost exceeds budget by factor of more than 100x"),
        "{errors}"
    );
    kind(list(Some(100)));
    let errors = validate_definition(
        &definition(
            json!({"type": "array", "maxItems": 3, "items": {"type": "integer",
                "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}),
            json!({}),
        ),
        None,
    );
    assert!(
        errors
            .to_string()
            .contains("oldSelf cannot be used on the uncorrelatable portion"),
        "{errors}"
    );
}

#[track_caller]
fn invalid(schema: &Value, value: Value, want: &[&str]) {
    let errors = kind(schema.clone()).validate(&object(value.clone()));
    let got: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(got, want, "{value}");
}

#[test]
fn objects_are_validated_with_the_messages_of_the_reference() {
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
        "size": {"type": "integer", "minimum": 1, "maximum": 5, "format": "int32"},
        "step": {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": true, "minimum": 0},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "address": {"type": "string", "format": "ipv4"},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "maxItems": 3},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "required": ["port"], "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
        "free": {"type": "string", "nullable": true},
        "either": {"x-kubernetes-int-or-string": true},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1},
        "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    }});
    let with = |name: &str, value: Value| json!({"name": "abc", name: value});
    invalid(
        &schema,
        json!({"name": "abc", "free": null, "either": 1, "labels": {"x": 1}, "one": {"a": ""}}),
        &[],
    );
    invalid(&schema, json!({}), &["spec.name: Required value"]);
    invalid(
        &schema,
        json!({"name": 1}),
        &[
            "spec.name: Invalid value: \"integer\": spec.name in body must be of type string: \"integer\"",
        ],
    );
    invalid(
        &schema,
        json!({"name": "A"}),
        &[
            "spec.name: Invalid value: \"A\": spec.name in body should be at least 2 chars long",
            "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]+$'",
        ],
    );
    invalid(
        &schema,
        json!({"name": "abcde"}),
        &["spec.name: Too long: may not be more than 4 bytes"],
    );
    invalid(
        &schema,
        with("size", json!(6)),
        &["spec.size: Invalid value: 6: spec.size in body should be less than or equal to 5"],
    );
    invalid(
        &schema,
        with("size", json!(1.5)),
        &[
            "spec.size: Invalid value: \"number\": spec.size in body must be of type integer: \"number\"",
        ],
    );
    invalid(
        &schema,
        with("step", json!(0)),
        &["spec.step: Invalid value: 0: spec.step in body should be greater than 0"],
    );
    invalid(
        &schema,
        with("step", json!(0.7)),
        &["spec.step: Invalid value: 0.7: spec.step in body should be a multiple of 0.5"],
    );
    invalid(
        &schema,
        with("color", json!("green")),
        &["spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\""],
    );
    invalid(
        &schema,
        with("address", json!("x")),
        &["spec.address: Invalid value: \"x\": spec.address in body must be of type ipv4: \"x\""],
    );
    invalid(
        &schema,
        with("set", json!(["a", "b", "a", "c"])),
        &[
            "spec.set: Too many: 4: must have at most 3 items",
            "spec.set[2]: Duplicate value: \"a\"",
        ],
    );
    invalid(
        &schema,
        with(
            "ports",
            json!([{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "TCP"}]),
        ),
        &["spec.ports[1]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}"],
    );
    invalid(
        &schema,
        with("either", json!(true)),
        &[
            "spec.either: Invalid value: \"boolean\": spec.either in body must be of type integer,string: \"boolean\"",
        ],
    );
    invalid(
        &schema,
        with("labels", json!({"x": "1"})),
        &[
            "spec.labels.x: Invalid value: \"string\": spec.labels.x in body must be of type integer: \"string\"",
        ],
    );
    invalid(
        &schema,
        with("one", json!({"a": "", "b": ""})),
        &[
            "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ],
    );
    let widget = kind(schema);
    let mut other = object(json!({"name": "abc"}));
    other["kind"] = "Gadget".into();
    assert_eq!(
        widget.validate(&other).to_string(),
        "kind: Invalid value: \"Gadget\": must be Widget"
    );
}

#[test]
fn what_an_update_leaves_is_not_checked_again() {
    let widget = kind(json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 2},
        "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 5", "message": "too large"}]},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
            "type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
    }}));
    let old = object(json!({"name": "long", "size": 9, "list": [{"k": "a", "v": "long"}]}));
    assert_eq!(widget.validate_update(&old, &old).to_string(), "[]");
    let new = object(
        json!({"name": "long", "size": 9, "list": [{"k": "b", "v": "x"}, {"k": "a", "v": "long"}]}),
    );
    assert_eq!(widget.validate_update(&new, &old).to_string(), "[]");
    let new = object(json!({"name": "longer", "size": 8, "list": []}));
    assert_eq!(
        widget.validate_update(&new, &old).to_string(),
        "spec.name: Too long: may not be more than 2 bytes"
    );
    let new = object(json!({"name": "a", "size": 8}));
    assert_eq!(
        widget.validate_update(&new, &old).to_string(),
        "spec.size: Invalid value: 8: too large"
    );
}

#[test]
fn rules_see_the_object_and_what_was_before() {
    let widget = kind(json!({"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "max": {"type": "integer"},
        "frozen": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "is frozen"}]},
        "once": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
            {"rule": "oldSelf.hasValue() || self == 'first'", "optionalOldSelf": true, "reason": "FieldValueForbidden"}]},
        "items": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string", "maxLength": 5}, "n": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n", "fieldPath": ".n", "message": "only grows"}]}},
    }, "x-kubernetes-validations": [{
        "rule": "!has(self.max) || !has(self.replicas) || self.replicas <= self.max",
        "messageExpression": "'%d is more than %d'.format([self.replicas, self.max])",
    }]}));
    let check = |new: Value, old: Option<Value>| match old {
        None => widget.validate(&object(new)).to_string(),
        Some(old) => widget
            .validate_update(&object(new), &object(old))
            .to_string(),
    };
    assert_eq!(
        check(json!({"replicas": 3, "max": 2}), None),
        "spec: Invalid value: 3 is more than 2"
    );
    assert_eq!(
        check(json!({"replicas": 1, "max": 2, "frozen": "a"}), None),
        "[]"
    );
    assert_eq!(
        check(json!({"frozen": "b"}), Some(json!({"frozen": "a"}))),
        "spec.frozen: Invalid value: \"b\": is frozen"
    );
    assert_eq!(
        check(json!({"once": "second"}), None),
        "spec.once: Forbidden: failed rule: oldSelf.hasValue() || self == 'first'"
    );
    assert_eq!(
        check(json!({"once": "second"}), Some(json!({"once": "first"}))),
        "[]"
    );
    let items = |a: i64, b: i64| json!({"items": [{"k": "b", "n": b}, {"k": "a", "n": a}]});
    assert_eq!(check(items(2, 5), Some(items(1, 5))), "[]");
    assert_eq!(
        check(items(0, 5), Some(items(1, 5))),
        "spec.items[1].n: Invalid value: only grows"
    );
}

#[test]
fn unknown_fields_are_dropped_and_named() {
    let widget = kind(json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "x"},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"b": {"type": "object"}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "integer", "default": 1}}}},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }}));
    let mut it = object(json!({
        "u": 1, "open": {"x": 1, "b": {"y": 1}}, "list": [{"c": 2, "d": 1}, {}],
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "nope": 1}, "spec": {"z": 1}},
    }));
    it["more"] = 1.into();
    let mut dropped = widget.prune(&mut it);
    dropped.sort();
    assert_eq!(
        dropped,
        ["more", "spec.list[0].d", "spec.open.b.y", "spec.u"]
    );
    assert_eq!(
        widget.coerce_metadata(&mut it).unwrap(),
        ["spec.template.metadata.nope"]
    );
    widget.default(&mut it);
    assert_eq!(
        it["spec"],
        json!({
            "a": "x", "open": {"x": 1, "b": {}}, "list": [{"c": 2}, {"c": 1}],
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"z": 1}},
        })
    );
    assert_eq!(widget.validate(&it).to_string(), "[]");
    it["spec"]["template"]["metadata"]["labels"] = json!({"a": 1});
    assert!(
        widget
            .coerce_metadata(&mut it)
            .unwrap_err()
            .to_string()
            .starts_with("spec.template.metadata: Invalid value")
    );
    it["spec"]["template"] = json!({"metadata": {"name": "a/b"}});
    assert_eq!(
        widget.validate(&it).to_string(),
        "[spec.template.apiVersion: Required value, spec.template.kind: Required value, spec.template.metadata.name: Invalid value: \"a/b\": may not contain '/']"
    );
}

fn scaled() -> CustomKind {
    kind_with(
        json!({"type": "object", "properties": {
            "replicas": {"type": "integer"}, "color": {"type": "string"}, "on": {"type": "boolean"}}}),
        json!({
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.on"}],
            "additionalPrinterColumns": [
                {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
                {"name": "Note", "type": "string", "jsonPath": ".metadata.annotations.example\\.com/note"},
                {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
        }),
    )
}

#[test]
fn tables_selectors_and_scale() {
    let widget = scaled();
    let mut it = object(json!({"color": "red", "replicas": 3, "on": true}));
    it["metadata"] = json!({"name": "a", "annotations": {"example.com/note": "n"}, "creationTimestamp": "2024-01-01T00:00:00Z"});
    it["status"] = json!({"replicas": 2, "selector": "app=a", "conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]});
    let now = "2024-01-01T00:05:00Z".parse().unwrap();
    assert_eq!(
        widget.cells(&it, now),
        [
            json!("red"),
            json!(3),
            json!("n"),
            json!("True"),
            json!("5m")
        ]
    );
    assert_eq!(
        widget.cells(&object(json!({})), now),
        [
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Null,
            Value::Null
        ]
    );
    assert_eq!(
        widget
            .selectable_value(it.as_object().unwrap(), "spec.on")
            .as_deref(),
        Some("true")
    );
    assert_eq!(
        widget
            .selectable_value(object(json!({})).as_object().unwrap(), "spec.color")
            .as_deref(),
        Some("")
    );
    assert_eq!(
        widget.selectable_value(it.as_object().unwrap(), "spec.replicas"),
        None
    );
    let mut scale = widget.scale(&it).unwrap();
    assert_eq!(scale.spec.as_ref().unwrap().replicas, Some(3));
    let status = scale.status.as_ref().unwrap();
    assert_eq!(
        (status.replicas, status.selector.as_deref()),
        (2, Some("app=a"))
    );
    scale.spec.as_mut().unwrap().replicas = Some(7);
    widget.apply_scale(&mut it, &scale).unwrap();
    assert_eq!(it["spec"]["replicas"], 7);
    it["spec"]["replicas"] = (-1).into();
    assert_eq!(
        widget.validate(&it).to_string(),
        ".spec.replicas: Invalid value: -1: should be a non-negative integer"
    );
    it["spec"]["replicas"] = "x".into();
    assert!(widget.scale(&it).is_err());
    assert_eq!(kind(json!({"type": "object"})).columns()[0].name, "Age");
}

#[test]
fn the_status_is_validated_alone() {
    let widget = scaled();
    let old = object(json!({"color": "red"}));
    let mut new = old.clone();
    new["status"] = json!({"replicas": 5});
    assert_eq!(widget.validate_status_update(&new, &old).to_string(), "[]");
}

#[test]
fn types_for_patches_and_openapi() {
    let widget = kind(json!({"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
            "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "v": {"type": "string"}}}},
        "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "free": {"type": "string", "nullable": true},
    }}));
    let ty = widget.patch_type();
    let spec = ty.field("spec").unwrap();
    let TypeStructure::List(ports) = spec.field("ports").unwrap().kind() else {
        panic!("a list")
    };
    assert!(matches!(&ports.identity, ElementIdentity::Keys(keys) if keys[0].name == "port"));
    assert!(spec.field("atomic").unwrap().is_atomic_map());
    assert!(matches!(
        spec.field("open").unwrap().kind(),
        TypeStructure::Any
    ));
    assert!(ty.field("metadata").unwrap().field("labels").is_some());
    assert!(ty.field("nope").is_none());
    let v3 = widget.openapi_v3();
    let it = &v3["com.example.v1.Widget"];
    assert_eq!(
        it["x-kubernetes-group-version-kind"],
        json!([{"group": "example.com", "kind": "Widget", "version": "v1"}])
    );
    assert!(
        it["properties"]["metadata"]["allOf"][0]["$ref"]
            .as_str()
            .unwrap()
            .ends_with("ObjectMeta")
    );
    assert_eq!(
        it["properties"]["spec"]["properties"]["free"]["nullable"],
        true
    );
    assert_eq!(
        v3["com.example.v1.WidgetList"]["required"],
        json!(["items"])
    );
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..9).prop_map(Value::from),
        prop::sample::select(vec!["", "a", "red", "long text"]).prop_map(Value::from),
    ];
    let name = prop::sample::select(vec![
        "a", "b", "n", "list", "map", "k", "v", "u", "metadata", "kind",
    ]);
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop::sample::select(vec![
        json!({"type": "string"}),
        json!({"type": "string", "default": "red"}),
        json!({"type": "string", "nullable": true, "enum": ["red", "a"]}),
        json!({"type": "integer", "default": 2, "maximum": 5}),
        json!({"type": "boolean"}),
        json!({"x-kubernetes-int-or-string": true}),
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
    ]);
    let name = prop::sample::select(vec!["a", "b", "n", "list", "map", "k"]);
    leaf.prop_recursive(3, 20, 4, move |inner| {
        prop_oneof![
            inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            inner.clone().prop_map(|mut values| {
                // Maps have no defaults of their values.
                if let Some(fields) = values.as_object_mut() {
                    fields.remove("default");
                }
                json!({"type": "object", "additionalProperties": values})
            }),
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 1..4).prop_map(|fields| {
                json!({"type": "object", "properties": Value::Object(fields.into_iter().collect())})
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn pruning_and_defaults_are_idempotent_and_keep_objects_valid(schema in any_schema(), value in json_value()) {
        let has_embedded = schema.to_string().contains("embedded");
        let crd = definition(schema, json!({}));
        prop_assume!(validate_definition(&crd, None).is_empty());
        let widget = CustomKind::new(&crd, "v1").unwrap();
        let mut it = object(value);
        widget.prune(&mut it);
        let once = it.clone();
        prop_assert_eq!(widget.prune(&mut it), Vec::<String>::new());
        prop_assert_eq!(&it, &once);
        let was_valid = widget.validate(&it).is_empty();
        widget.default(&mut it);
        let defaulted = it.clone();
        widget.default(&mut it);
        prop_assert_eq!(&it, &defaulted);
        prop_assert_eq!(widget.prune(&mut it), Vec::<String>::new());
        if was_valid {
            prop_assert_eq!(widget.validate(&it).to_string(), "[]");
        }
        // The metadata of embedded resources is checked at each write, as in the reference.
        if was_valid || !has_embedded {
            prop_assert_eq!(widget.validate_update(&it, &it).to_string(), "[]");
        }
        let _ = widget.coerce_metadata(&mut it);
    }
}
