//! The rules of a version's schema: what is supported, lists and maps, defaults, and the costs of
//! its rules.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use podplane_api::{
    nesting,
    validation::{ErrorList, FieldPath},
};
use serde_json::{Value, json};

use crate::{
    metadata,
    place::Place,
    prune,
    rules::{self, MAX_REQUEST, RuleRun},
    schema::Schema,
    structural::{self, items, values},
    validate,
};

/// The most that one rule may cost, by the estimate.
const RULE_LIMIT: u64 = 10_000_000;
/// The most that all rules of a schema may cost together, by the estimate.
const SCHEMA_LIMIT: u64 = 100_000_000;
/// The deepest schema: code that traverses it is recursive.
const MAX_DEPTH: usize = 100;
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// The fields that a schema may have at its root if there is a subresource `status`.
const AT_ROOT: [&str; 23] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "nullable",
];

/// Checks a schema. `unchanged` if an update leaves it as it was: its costs are not judged again.
pub(crate) fn validate(
    schema: &JSONSchemaProps,
    unchanged: bool,
    has_status: bool,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let depth = serde_json::to_value(schema).map_or(0, |value| nesting::depth(&value));
    if depth > 2 * MAX_DEPTH {
        return errors.forbidden(
            at,
            &format!("must not be nested deeper than {MAX_DEPTH} levels"),
        );
    }
    let mut found = ErrorList::new();
    if has_status {
        if schema.type_.as_deref() != Some("object") {
            let rule = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            found.invalid(
                &at.child("type"),
                schema.type_.as_deref().unwrap_or_default(),
                rule,
            );
        } else if !structural::has_only(schema, &AT_ROOT) {
            let allowed = AT_ROOT[..22].join(" ");
            let rule = format!(
                "only [{allowed}] fields are allowed at the root of the schema if the status subresource is enabled"
            );
            found.invalid(at, "", &rule);
        }
    }
    if schema.nullable == Some(true) {
        found.forbidden(&at.child("nullable"), "nullable cannot be true at the root");
    }
    structural::validate(schema, at, &mut found);
    let mut supported = Supported {
        errors: ErrorList::new(),
    };
    supported.schema(schema, at, &Context::root(), true);
    found.append(supported.errors);
    if found.is_empty() {
        match Schema::read(schema) {
            Err(error) => found.invalid(at, "", &format!("error building validator: {error}")),
            Ok(mut read) => {
                rules::attach(&mut read, schema, true);
                defaults(&read, at, false, true, &mut found);
                if found.is_empty() {
                    let mut costs = Costs {
                        total: 0,
                        expensive: Vec::new(),
                        unchanged,
                        errors: ErrorList::new(),
                    };
                    costs.schema(&read, at, Some(1), None);
                    costs.finish(at);
                    found.append(costs.errors);
                }
            }
        }
    }
    errors.append(found);
}

/// The surroundings of a schema.
#[derive(Clone)]
struct Context {
    defaults_forbidden: Option<String>,
    in_metadata: bool,
}

impl Context {
    fn root() -> Self {
        Self {
            defaults_forbidden: None,
            in_metadata: false,
        }
    }
}

struct Supported {
    errors: ErrorList,
}

impl Supported {
    fn schema(
        &mut self,
        schema: &JSONSchemaProps,
        at: &FieldPath,
        context: &Context,
        is_root: bool,
    ) {
        self.unsupported(schema, at, context);
        self.extensions(schema, at);
        self.rules(schema, at);
        if let Some(additional) = &schema.additional_properties {
            let has_properties = schema
                .properties
                .as_ref()
                .is_some_and(|all| !all.is_empty());
            if has_properties && *additional != JSONSchemaPropsOrBool::Bool(true) {
                let rule = "additionalProperties and properties are mutual exclusive";
                self.errors
                    .forbidden(&at.child("additionalProperties"), rule);
            }
            if let Some(values) = values(schema) {
                let mut context = context.clone();
                if context.in_metadata {
                    context.defaults_forbidden =
                        Some("inside additionalProperties applying to object metadata".into());
                }
                self.schema(values, &at.child("additionalProperties"), &context, false);
            }
        }
        for (name, below) in schema.properties.iter().flatten() {
            let mut context = context.clone();
            let is_resource = is_root || schema.x_kubernetes_embedded_resource == Some(true);
            if is_resource && ["metadata", "kind", "apiVersion"].contains(&name.as_str()) {
                context.in_metadata = true;
                if is_root {
                    context.defaults_forbidden = Some(format!("in top-level {name}"));
                }
            }
            self.schema(below, &at.child("properties").key(name), &context, false);
        }
        for (name, list) in [
            ("allOf", &schema.all_of),
            ("oneOf", &schema.one_of),
            ("anyOf", &schema.any_of),
        ] {
            for (index, below) in list.iter().flatten().enumerate() {
                self.schema(below, &at.child(name).index(index), context, false);
            }
        }
        if let Some(below) = &schema.not {
            self.schema(below, &at.child("not"), context, false);
        }
        if let Some(below) = items(schema) {
            self.schema(below, &at.child("items"), context, false);
        }
    }

    fn unsupported(&mut self, schema: &JSONSchemaProps, at: &FieldPath, context: &Context) {
        if let Some(ty) = schema
            .type_
            .as_deref()
            .filter(|ty| !ty.is_empty() && !TYPES.contains(ty))
        {
            self.errors.not_supported(&at.child("type"), ty, &TYPES);
        }
        if schema.default.is_some()
            && let Some(reason) = &context.defaults_forbidden
        {
            self.errors
                .forbidden(&at.child("default"), &format!("must not be set {reason}"));
        }
        let is_some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let has_patterns = schema
            .pattern_properties
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        let has_definitions = schema
            .definitions
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        for (field, is_there) in [
            ("id", is_some(&schema.id)),
            ("additionalItems", schema.additional_items.is_some()),
            ("patternProperties", has_patterns),
            ("definitions", has_definitions),
            ("dependencies", schema.dependencies.is_some()),
            ("$ref", schema.ref_path.is_some()),
        ] {
            if is_there {
                self.errors
                    .forbidden(&at.child(field), &format!("{field} is not supported"));
            }
        }
        if schema.type_.as_deref() == Some("null") {
            let rule = "type cannot be set to null, use nullable as an alternative";
            self.errors.forbidden(&at.child("type"), rule);
        }
        if matches!(schema.items, Some(JSONSchemaPropsOrArray::Schemas(_))) {
            self.errors.forbidden(
                &at.child("items"),
                "items must be a schema object and not an array",
            );
        }
        if context.in_metadata && schema.x_kubernetes_embedded_resource == Some(true) {
            let at = at.child("x-kubernetes-embedded-resource");
            self.errors
                .forbidden(&at, "must not be used inside of resource meta");
        }
        if schema.unique_items == Some(true) {
            let rule =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.forbidden(&at.child("uniqueItems"), rule);
        }
        if schema.x_kubernetes_preserve_unknown_fields == Some(false) {
            let at = at.child("x-kubernetes-preserve-unknown-fields");
            self.errors.invalid(&at, false, "must be true or undefined");
        }
    }

    fn extensions(&mut self, schema: &JSONSchemaProps, at: &FieldPath) {
        let ty = schema.type_.as_deref().unwrap_or_default();
        let mut typed = |want: &str, extension: &str| {
            let rule = format!("must be {want} if {extension} is specified");
            if ty.is_empty() {
                self.errors.required(&at.child("type"), &rule);
            } else if ty != want {
                self.errors.invalid(&at.child("type"), ty, &rule);
            }
        };
        let (map, list) = (
            schema.x_kubernetes_map_type.as_deref(),
            schema.x_kubernetes_list_type.as_deref(),
        );
        if map.is_some() {
            typed("object", "x-kubernetes-map-type");
        }
        if list.is_some() {
            typed("array", "x-kubernetes-list-type");
        }
        if let Some(map) = map.filter(|map| !["atomic", "granular"].contains(map)) {
            self.errors.not_supported(
                &at.child("x-kubernetes-map-type"),
                map,
                &["atomic", "granular"],
            );
        }
        let at_list = at.child("x-kubernetes-list-type");
        let at_keys = at.child("x-kubernetes-list-map-keys");
        let keys = schema
            .x_kubernetes_list_map_keys
            .as_deref()
            .unwrap_or_default();
        if let Some(list) = list.filter(|list| !["atomic", "set", "map"].contains(list)) {
            self.errors
                .not_supported(&at_list, list, &["atomic", "set", "map"]);
        }
        if !keys.is_empty() && list != Some("map") {
            let rule = "must be map if x-kubernetes-list-map-keys is non-empty";
            match list {
                None => self.errors.required(&at_list, rule),
                Some(list) => self.errors.invalid(&at_list, list, rule),
            }
        }
        let below = items(schema);
        let at_items = at.child("items");
        if list == Some("set")
            && let Some(items) = below
        {
            let rule = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let of_list = items.x_kubernetes_list_type.as_deref();
            let of_map = items.x_kubernetes_map_type.as_deref();
            match items.type_.as_deref() {
                Some("array") if of_list.is_some_and(|list| list != "atomic") => {
                    let got = of_list.unwrap_or_default();
                    self.errors
                        .invalid(&at_items.child("x-kubernetes-list-type"), got, rule);
                }
                Some("object") if of_map != Some("atomic") => {
                    let got = json!(of_map);
                    self.errors
                        .invalid(&at_items.child("x-kubernetes-map-type"), got, rule);
                }
                _ => {}
            }
        }
        if let (Some(list @ ("set" | "map")), Some(items)) = (list, below)
            && items.nullable == Some(true)
        {
            let rule = format!("cannot be nullable when x-kubernetes-list-type is {list}");
            self.errors.forbidden(&at_items.child("nullable"), &rule);
        }
        if list == Some("map") {
            self.map_list(keys, below, &at_keys, &at_items);
        }
    }

    fn map_list(
        &mut self,
        keys: &[String],
        items: Option<&JSONSchemaProps>,
        at_keys: &FieldPath,
        at_items: &FieldPath,
    ) {
        if keys.is_empty() {
            self.errors.required(
                at_keys,
                "must not be empty if x-kubernetes-list-type is map",
            );
        }
        let Some(items) = items else {
            return self.errors.required(
                at_items,
                "must have a schema if x-kubernetes-list-type is map",
            );
        };
        if items.type_.as_deref() != Some("object") {
            let got = items.type_.as_deref().unwrap_or_default();
            let rule = "must be object if parent array's x-kubernetes-list-type is map";
            return self.errors.invalid(&at_items.child("type"), got, rule);
        }
        let shown = || json!(keys);
        for (index, key) in keys.iter().enumerate() {
            if keys.iter().take(index).any(|before| before == key) {
                self.errors
                    .invalid(at_keys, shown(), "must not contain duplicate entries");
            }
            let Some(below) = items.properties.as_ref().and_then(|all| all.get(key)) else {
                self.errors.invalid(
                    at_keys,
                    shown(),
                    "entries must all be names of item properties",
                );
                continue;
            };
            let at = at_items.child("properties").key(key);
            if let Some(ty @ ("array" | "object")) = below.type_.as_deref() {
                let rule = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                self.errors.invalid(&at.child("type"), ty, rule);
            }
            let is_required = items
                .required
                .as_ref()
                .is_some_and(|required| required.contains(key));
            if !is_required && below.default.is_none() {
                let rule = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.errors.required(&at.child("default"), rule);
            }
            if below.nullable == Some(true) {
                let rule =
                    "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.errors.forbidden(&at.child("nullable"), rule);
            }
        }
    }

    fn rules(&mut self, schema: &JSONSchemaProps, at: &FieldPath) {
        for (index, rule) in schema.x_kubernetes_validations.iter().flatten().enumerate() {
            self.rule(
                schema,
                rule,
                &at.child("x-kubernetes-validations").index(index),
            );
        }
    }

    fn rule(&mut self, schema: &JSONSchemaProps, rule: &ValidationRule, at: &FieldPath) {
        let text = rule.rule.trim();
        let message = rule.message.as_deref().unwrap_or_default();
        let has_lines = |text: &str| text.contains(['\n', '\r']);
        if text.is_empty() {
            self.errors
                .required(&at.child("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            self.errors.invalid(
                &at.child("message"),
                message,
                "must be non-empty if specified",
            );
        } else if has_lines(message.trim()) {
            self.errors.invalid(
                &at.child("message"),
                message,
                "must not contain line breaks",
            );
        } else if has_lines(text) && message.trim().is_empty() {
            let rule = "message must be specified if rule contains line breaks";
            self.errors.required(&at.child("message"), rule);
        }
        if rule
            .message_expression
            .as_deref()
            .is_some_and(|text| !text.is_empty() && text.trim().is_empty())
        {
            let rule = "messageExpression must be non-empty if specified";
            self.errors.required(&at.child("messageExpression"), rule);
        }
        if let Some(reason) = rule
            .reason
            .as_deref()
            .filter(|reason| !REASONS.contains(reason))
        {
            self.errors
                .not_supported(&at.child("reason"), reason, &REASONS);
        }
        if let Some(path) = rule.field_path.as_deref().filter(|path| !path.is_empty()) {
            let at = at.child("fieldPath");
            if path.trim().is_empty() {
                self.errors
                    .invalid(&at, path, "must be non-empty if specified");
            } else if has_lines(path) {
                self.errors
                    .invalid(&at, path, "must not contain line breaks");
            } else if field_schema(Some(schema), path, true).is_err() {
                self.errors.invalid(&at, path, "must be a valid path");
            }
        }
    }
}

/// The schema of the field at a path of names: `.spec.color`, and with brackets `['a.b']`.
pub(crate) fn field_schema<'s>(
    schema: Option<&'s JSONSchemaProps>,
    path: &str,
    with_brackets: bool,
) -> Result<&'s JSONSchemaProps, String> {
    let unknown = || "does not refer to a valid field".to_owned();
    let mut at = schema.ok_or_else(unknown)?;
    let mut rest = path;
    while !rest.is_empty() {
        let name: String;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (found, after) = after.split_at(end);
            if found.is_empty() {
                return Err("unexpected end of JSON path".to_owned());
            }
            name = found.to_owned();
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            if !with_brackets {
                return Err("array notation is not allowed".to_owned());
            }
            let quoted = after
                .strip_prefix('\'')
                .and_then(|after| after.split_once("']"));
            let Some((found, after)) = quoted else {
                return Err(format!("expected single quoted string but got {after}"));
            };
            name = found.replace("\\'", "'").replace("\\\\", "\\");
            rest = after;
        } else {
            return Err(format!("expected [ or . but got: {rest}"));
        }
        at = match &at.properties {
            Some(properties) => properties.get(&name),
            None => values(at),
        }
        .ok_or_else(unknown)?;
    }
    Ok(at)
}

/// Checks that defaults are pruned and valid.
fn defaults(
    schema: &Schema,
    at: &FieldPath,
    in_metadata: bool,
    is_root: bool,
    errors: &mut ErrorList,
) {
    let in_metadata = in_metadata && !schema.embedded;
    if let Some(default) = &schema.default {
        let at = at.child("default");
        let place = Place::of(&at);
        let mut pruned = default.clone();
        let mut dropped = Vec::new();
        prune::prune(schema, &mut pruned, schema.embedded, &place, &mut dropped);
        if !dropped.is_empty() {
            errors.invalid(&at, default.clone(), "must not have unknown fields");
        }
        if let Err(error) = metadata::coerce(schema, &mut pruned, schema.embedded) {
            errors.invalid(
                &at,
                default.clone(),
                &format!("must result in valid metadata: {error}"),
            );
        }
        let mut found = ErrorList::new();
        metadata::validate(schema, default, schema.embedded, &place, &mut found);
        if found.is_empty() {
            validate::validate(schema, default, None, &place, &mut found);
        }
        if found.is_empty() {
            RuleRun::new(&mut found).validate(schema, default, None, false, &place);
        }
        errors.append(found);
    }
    if let Some(items) = &schema.items {
        defaults(items, &at.child("items"), in_metadata, false, errors);
    }
    for (name, below) in &schema.properties {
        let is_meta = (is_root || schema.embedded)
            && ["metadata", "kind", "apiVersion"].contains(&name.as_str());
        defaults(
            below,
            &at.child("properties").key(name),
            in_metadata || is_meta,
            false,
            errors,
        );
    }
}

/// The estimate of the costs of rules.
struct Costs {
    total: u64,
    expensive: Vec<(FieldPath, u64)>,
    unchanged: bool,
    errors: ErrorList,
}

impl Costs {
    /// `cardinality` is how often the data may occur, if there is a bound; `uncorrelated` is the
    /// list around, whose elements cannot be told from those before an update.
    fn schema(
        &mut self,
        schema: &Schema,
        at: &FieldPath,
        cardinality: Option<u64>,
        uncorrelated: Option<&FieldPath>,
    ) {
        if !schema.has_rules {
            return;
        }
        if let Some(data) = &schema.data {
            let times = cardinality.unwrap_or(MAX_REQUEST / (data.min_size + 1));
            for (index, rule) in schema.rules.iter().enumerate() {
                let at = at.child("x-kubernetes-validations").index(index);
                let shown = || serde_json::to_value(&rule.source).unwrap_or(Value::Null);
                match &rule.program {
                    Ok(program) => {
                        let cost = program.cost().max.saturating_mul(times);
                        self.observe("estimated rule cost", cost, at.child("rule"));
                    }
                    Err(error) => self.errors.invalid(&at.child("rule"), shown(), error),
                }
                match &rule.message {
                    Some(Ok(program)) => {
                        let cost = program.cost().max;
                        self.observe(
                            "estimated messageExpression cost",
                            cost,
                            at.child("messageExpression"),
                        );
                    }
                    Some(Err(error)) => {
                        self.errors
                            .invalid(&at.child("messageExpression"), shown(), error)
                    }
                    None => {}
                }
                if rule.uses_old {
                    if let Some(path) = uncorrelated {
                        let detail = format!(
                            "oldSelf cannot be used on the uncorrelatable portion of the schema within {path}"
                        );
                        self.errors
                            .invalid(&at.child("rule"), rule.source.rule.as_str(), &detail);
                    }
                } else if let (Ok(_), Some(optional)) =
                    (&rule.program, rule.source.optional_old_self)
                {
                    let detail = "may not be set if oldSelf is not used in rule";
                    self.errors
                        .invalid(&at.child("optionalOldSelf"), optional, detail);
                }
            }
        } else if !schema.rules.is_empty() {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules";
            self.errors
                .internal(&at.child("x-kubernetes-validations"), detail);
        }
        let times = |max: Option<u64>| {
            cardinality
                .zip(max)
                .map(|(times, max)| times.saturating_mul(max))
        };
        for (name, below) in &schema.properties {
            self.schema(
                below,
                &at.child("properties").key(name),
                cardinality,
                uncorrelated,
            );
        }
        if let Some(crate::schema::Additional::Values(below)) = schema.additional.as_deref() {
            let times = times(schema.checks.max_properties);
            self.schema(
                below,
                &at.child("additionalProperties"),
                times,
                uncorrelated,
            );
        }
        if let Some(below) = &schema.items {
            let is_correlated = matches!(schema.list, crate::schema::ListType::Map(_));
            let uncorrelated = uncorrelated.or((!is_correlated).then_some(at));
            self.schema(
                below,
                &at.child("items"),
                times(schema.checks.max_items),
                uncorrelated,
            );
        }
    }

    fn observe(&mut self, name: &str, cost: u64, at: FieldPath) {
        if cost > RULE_LIMIT && !self.unchanged {
            self.errors
                .forbidden(&at, &exceeded(name, cost, RULE_LIMIT));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.expensive.push((at, cost));
        }
    }

    fn finish(&mut self, at: &FieldPath) {
        if self.total <= SCHEMA_LIMIT || self.unchanged {
            return;
        }
        self.expensive
            .sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (at, _) in self.expensive.iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.forbidden(at, detail);
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors
            .forbidden(at, &exceeded(name, self.total, SCHEMA_LIMIT));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a factor to show")]
fn exceeded(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
