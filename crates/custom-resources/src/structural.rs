//! The rules of structural schemas: every field has one type, whatever the logical junctors say.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use podplane_api::validation::{ErrorList, FieldPath};
use podplane_cel_rules::Pattern;
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks that a schema is structural.
pub(crate) fn validate(schema: &JSONSchemaProps, at: &FieldPath, errors: &mut ErrorList) {
    of_schema(schema, Level::Root, at, errors);
    complete(schema, schema, at, at, errors);
}

pub(crate) fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => Some(items),
        _ => None,
    }
}

pub(crate) fn values(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(values)) => Some(values),
        _ => None,
    }
}

/// `integer` or `string`, in the form that the reference allows.
fn is_int_or_string(branches: Option<&Vec<JSONSchemaProps>>) -> bool {
    let of = |ty: &str| JSONSchemaProps {
        type_: Some(ty.into()),
        ..JSONSchemaProps::default()
    };
    branches.is_some_and(|branches| **branches == [of("integer"), of("string")])
}

fn of_schema(schema: &JSONSchemaProps, level: Level, at: &FieldPath, errors: &mut ErrorList) {
    let ty = schema.type_.as_deref().unwrap_or_default();
    let int_or_string = schema.x_kubernetes_int_or_string == Some(true);
    let preserve = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    let embedded = schema.x_kubernetes_embedded_resource == Some(true);
    if ty == "array" && items(schema).is_none() {
        errors.required(&at.child("items"), "must be specified");
    }
    if let Some(items) = items(schema) {
        of_schema(items, Level::Item, &at.child("items"), errors);
    }
    for (name, below) in schema.properties.iter().flatten() {
        of_schema(
            below,
            Level::Field,
            &at.child("properties").key(name),
            errors,
        );
    }
    if schema.additional_properties.is_some() {
        let at = at.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(&at, "must not be used at the root");
        }
        if embedded {
            errors.forbidden(
                &at,
                "must not be used if x-kubernetes-embedded-resource is set",
            );
        }
        if let Some(values) = values(schema) {
            of_schema(values, Level::Field, &at, errors);
        }
    }
    let refused = "must be false if x-kubernetes-int-or-string is true";
    if int_or_string && preserve {
        errors.invalid(
            &at.child("x-kubernetes-preserve-unknown-fields"),
            true,
            refused,
        );
    }
    if int_or_string && embedded {
        errors.invalid(&at.child("x-kubernetes-embedded-resource"), true, refused);
    }
    let skips_any = is_int_or_string(schema.any_of.as_ref());
    let first = schema.all_of.as_ref().and_then(|all| all.first());
    let skips_first = first.is_some_and(|first| is_int_or_string(first.any_of.as_ref()));
    junctors(schema, skips_any, skips_first, at, errors);
    let at_type = at.child("type");
    if embedded && ty != "object" {
        let rule = "must be object if x-kubernetes-embedded-resource is true";
        if ty.is_empty() {
            errors.required(&at_type, rule);
        } else {
            errors.invalid(&at_type, ty, rule);
        }
    } else if ty.is_empty() && !int_or_string && !preserve {
        errors.required(
            &at_type,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        );
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.invalid(&at_type, ty, "must be object at the root");
    }
    let is_resource = level == Level::Root || embedded;
    let property = |name: &str| schema.properties.as_ref().and_then(|all| all.get(name));
    if is_resource {
        for (name, want) in [
            ("kind", "string"),
            ("apiVersion", "string"),
            ("metadata", "object"),
        ] {
            if let Some(below) = property(name).filter(|below| below.type_.as_deref() != Some(want))
            {
                let at = at.child("properties").key(name).child("type");
                let got = below.type_.as_deref().unwrap_or_default();
                errors.invalid(&at, got, &format!("must be {want}"));
            }
        }
    }
    if level == Level::Root
        && let Some(metadata) = property("metadata")
    {
        let mut rest = metadata.clone();
        let names = rest.properties.take().unwrap_or_default();
        rest.type_ = None;
        rest.default = None;
        rest.description = None;
        let is_bare = names
            .keys()
            .all(|name| name == "name" || name == "generateName");
        if !is_bare || rest != JSONSchemaProps::default() {
            let at = at.child("properties").key("metadata");
            let rule = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.forbidden(&at, rule);
        }
    }
    let is_empty = schema.properties.as_ref().is_none_or(|all| all.is_empty());
    if embedded && !preserve && is_empty {
        let rule = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.required(&at.child("properties"), rule);
    }
}

/// The schemas below logical junctors, with their paths.
fn branches<'s>(
    schema: &'s JSONSchemaProps,
    at: &FieldPath,
) -> Vec<(&'s JSONSchemaProps, FieldPath, &'static str)> {
    let mut all = Vec::new();
    for (name, list) in [
        ("anyOf", &schema.any_of),
        ("allOf", &schema.all_of),
        ("oneOf", &schema.one_of),
    ] {
        let list = list.iter().flatten().enumerate();
        all.extend(list.map(|(index, branch)| (branch, at.child(name).index(index), name)));
    }
    all.extend(
        schema
            .not
            .iter()
            .map(|branch| (&**branch, at.child("not"), "not")),
    );
    all
}

fn junctors(
    schema: &JSONSchemaProps,
    skips_any: bool,
    skips_first: bool,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    for (index, (branch, at, name)) in branches(schema, at).into_iter().enumerate() {
        if name == "anyOf" && skips_any {
            continue;
        }
        let is_first = name == "allOf" && index == schema.any_of.as_ref().map_or(0, Vec::len);
        nested(branch, is_first && skips_first, &at, errors);
    }
    if let Some(pattern) = schema
        .pattern
        .as_deref()
        .filter(|pattern| !pattern.is_empty())
        && let Err(error) = Pattern::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid(&at.child("pattern"), pattern, &detail);
    }
}

/// A schema below a junctor, which restricts values and declares nothing.
fn nested(schema: &JSONSchemaProps, skips_any: bool, at: &FieldPath, errors: &mut ErrorList) {
    junctors(schema, skips_any, false, at, errors);
    if let Some(items) = items(schema) {
        nested(items, false, &at.child("items"), errors);
    }
    for (name, below) in schema.properties.iter().flatten() {
        nested(below, false, &at.child("properties").key(name), errors);
    }
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let is_true = |flag: Option<bool>| flag == Some(true);
    let (empty, undefined, is_false) = (
        "must be empty to be structural",
        "must be undefined to be structural",
        "must be false to be structural",
    );
    let has_rules = schema
        .x_kubernetes_validations
        .as_ref()
        .is_some_and(|rules| !rules.is_empty());
    let has_keys = schema
        .x_kubernetes_list_map_keys
        .as_ref()
        .is_some_and(|keys| !keys.is_empty());
    for (field, is_there, rule) in [
        ("type", is_set(&schema.type_), empty),
        (
            "additionalProperties",
            schema.additional_properties.is_some(),
            undefined,
        ),
        ("default", schema.default.is_some(), undefined),
        ("title", is_set(&schema.title), empty),
        ("description", is_set(&schema.description), empty),
        ("nullable", is_true(schema.nullable), is_false),
        (
            "x-kubernetes-preserve-unknown-fields",
            is_true(schema.x_kubernetes_preserve_unknown_fields),
            is_false,
        ),
        (
            "x-kubernetes-embedded-resource",
            is_true(schema.x_kubernetes_embedded_resource),
            is_false,
        ),
        (
            "x-kubernetes-int-or-string",
            is_true(schema.x_kubernetes_int_or_string),
            is_false,
        ),
        ("x-kubernetes-list-map-keys", has_keys, empty),
        (
            "x-kubernetes-list-type",
            schema.x_kubernetes_list_type.is_some(),
            undefined,
        ),
        (
            "x-kubernetes-map-type",
            schema.x_kubernetes_map_type.is_some(),
            undefined,
        ),
        ("x-kubernetes-validations", has_rules, empty),
    ] {
        if is_there {
            errors.forbidden(&at.child(field), rule);
        }
    }
    if schema
        .properties
        .as_ref()
        .is_some_and(|all| all.contains_key("metadata"))
    {
        let at = at.child("properties").key("metadata");
        errors.forbidden(&at, "must not be specified in a nested context");
    }
}

/// Checks that what junctors restrict is declared outside of them.
fn complete(
    spine: &JSONSchemaProps,
    schema: &JSONSchemaProps,
    at: &FieldPath,
    here: &FieldPath,
    errors: &mut ErrorList,
) {
    for (branch, below, _) in branches(schema, here) {
        covered(spine, branch, at, &below, errors);
    }
    if let (Some(spine), Some(below)) = (items(spine), items(schema)) {
        complete(
            spine,
            below,
            &at.child("items"),
            &here.child("items"),
            errors,
        );
    }
    for (name, below) in schema.properties.iter().flatten() {
        if let Some(spine) = spine.properties.as_ref().and_then(|all| all.get(name)) {
            let path = |at: &FieldPath| at.child("properties").key(name);
            complete(spine, below, &path(at), &path(here), errors);
        }
    }
    if let (Some(spine), Some(below)) = (values(spine), values(schema)) {
        let path = |at: &FieldPath| at.child("additionalProperties");
        complete(spine, below, &path(at), &path(here), errors);
    }
}

fn covered(
    spine: &JSONSchemaProps,
    branch: &JSONSchemaProps,
    at: &FieldPath,
    here: &FieldPath,
    errors: &mut ErrorList,
) {
    for (below, here, _) in branches(branch, here) {
        covered(spine, below, at, &here, errors);
    }
    let because = |here: &FieldPath| format!("because it is defined in {here}");
    if let Some(below) = items(branch) {
        let (at, here) = (at.child("items"), here.child("items"));
        match items(spine) {
            Some(spine) => covered(spine, below, &at, &here, errors),
            None => errors.required(&at, &because(&here)),
        }
    }
    for (name, below) in branch.properties.iter().flatten() {
        let (at, here) = (
            at.child("properties").key(name),
            here.child("properties").key(name),
        );
        let found = spine
            .properties
            .as_ref()
            .and_then(|all| all.get(name))
            .or_else(|| values(spine));
        match found {
            Some(spine) => covered(spine, below, &at, &here, errors),
            None => errors.required(&at, &because(&here)),
        }
    }
}

/// True if a schema has no fields but these, and is no default.
pub(crate) fn has_only(schema: &JSONSchemaProps, allowed: &[&str]) -> bool {
    let fields = serde_json::to_value(schema).unwrap_or(Value::Null);
    fields
        .as_object()
        .is_some_and(|fields| fields.keys().all(|name| allowed.contains(&name.as_str())))
}
