//! Validation of objects by their schema, with the messages of the reference. A part that an update
//! leaves as it was is not checked again (ratcheting).

use std::collections::HashMap;

use podplane_api::validation::{ErrorList, ErrorRule, FieldError};
use serde_json::{Map, Value};

use crate::{
    formats,
    place::Place,
    schema::{Additional, Checks, Kind, ListType, Schema},
};

/// Checks a value; `old` is what it was before, if that can be told.
pub(crate) fn validate(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    at: &Place,
    errors: &mut ErrorList,
) {
    if old == Some(value) {
        return;
    }
    if value.is_null() && schema.nullable {
        return;
    }
    if !has_type(schema, value) {
        return wrong_type(schema, value, at, errors);
    }
    let checks = &schema.checks;
    options(checks, value, at, errors);
    match value {
        Value::String(text) => of_text(checks, text, at, errors),
        Value::Number(number) => of_number(
            schema,
            number.as_f64().unwrap_or_default(),
            value,
            at,
            errors,
        ),
        Value::Array(items) => of_list(schema, items, old, at, errors),
        Value::Object(fields) => of_object(schema, fields, old, at, errors),
        Value::Bool(_) | Value::Null => {}
    }
    junctors(checks, value, at, errors);
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    if schema.int_or_string {
        return value.is_string() || value.is_number() && is_whole(value);
    }
    match schema.ty {
        None => true,
        Some(Kind::Object) => value.is_object(),
        Some(Kind::Array) => value.is_array(),
        Some(Kind::String) => value.is_string(),
        Some(Kind::Integer) => value.is_number() && is_whole(value),
        Some(Kind::Number) => value.is_number(),
        Some(Kind::Boolean) => value.is_boolean(),
    }
}

fn wrong_type(schema: &Schema, value: &Value, at: &Place, errors: &mut ErrorList) {
    let want = match schema.ty {
        _ if schema.int_or_string => "integer,string",
        Some(kind) => kind.name(),
        None => "object",
    };
    let got = kind(value);
    let detail = format!("{} in body must be of type {want}: {got:?}", at.text());
    errors.invalid(&at.path(), got, &detail);
}

fn options(checks: &Checks, value: &Value, at: &Place, errors: &mut ErrorList) {
    let Some(options) = &checks.options else {
        return;
    };
    if options.iter().any(|option| same(option, value)) {
        return;
    }
    let texts: Vec<String> = options
        .iter()
        .map(|option| {
            option
                .as_str()
                .map_or_else(|| option.to_string(), str::to_owned)
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    errors.not_supported_value(&at.path(), value.clone(), &texts);
}

/// Equality of JSON, in which `1` and `1.0` are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn invalid(at: &Place, value: impl Into<Value>, rule: &str, errors: &mut ErrorList) {
    errors.invalid(&at.path(), value, &format!("{} in body {rule}", at.text()));
}

fn of_text(checks: &Checks, text: &str, at: &Place, errors: &mut ErrorList) {
    let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
    if let Some(max) = checks.max_length.filter(|max| length > *max) {
        errors.too_long(&at.path(), usize::try_from(max).unwrap_or(usize::MAX));
    }
    if let Some(min) = checks.min_length.filter(|min| length < *min) {
        invalid(
            at,
            text,
            &format!("should be at least {min} chars long"),
            errors,
        );
    }
    if let Some((pattern, _)) = checks
        .pattern
        .as_ref()
        .filter(|(_, pattern)| !pattern.is_match(text))
    {
        invalid(at, text, &format!("should match '{pattern}'"), errors);
    }
    if let Some(format) = checks
        .format
        .as_ref()
        .filter(|format| !formats::is_valid(format, text))
    {
        invalid(
            at,
            text,
            &format!("must be of type {format}: {text:?}"),
            errors,
        );
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the bounds of formats are exact"
)]
fn of_number(schema: &Schema, number: f64, value: &Value, at: &Place, errors: &mut ErrorList) {
    let checks = &schema.checks;
    if let Some((max, exclusive)) = checks.maximum {
        if exclusive && number >= max {
            invalid(
                at,
                value.clone(),
                &format!("should be less than {max}"),
                errors,
            );
        } else if number > max {
            invalid(
                at,
                value.clone(),
                &format!("should be less than or equal to {max}"),
                errors,
            );
        }
    }
    if let Some((min, exclusive)) = checks.minimum {
        if exclusive && number <= min {
            invalid(
                at,
                value.clone(),
                &format!("should be greater than {min}"),
                errors,
            );
        } else if number < min {
            invalid(
                at,
                value.clone(),
                &format!("should be greater than or equal to {min}"),
                errors,
            );
        }
    }
    if let Some(factor) = checks.multiple_of
        && factor > 0.0
    {
        let times = number / factor;
        if (times - times.round()).abs() > 1e-9 * times.abs().max(1.0) {
            invalid(
                at,
                value.clone(),
                &format!("should be a multiple of {factor}"),
                errors,
            );
        }
    }
    let range = match (schema.ty, checks.format.as_deref()) {
        (Some(Kind::Integer), Some("int32")) => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        (Some(Kind::Integer), Some("int64")) => Some((i64::MIN as f64, i64::MAX as f64)),
        (Some(Kind::Number), Some("float")) => Some((f64::from(f32::MIN), f64::from(f32::MAX))),
        _ => None,
    };
    if let Some((min, max)) = range
        && !(min..=max).contains(&number)
    {
        let format = checks.format.as_deref().unwrap_or_default();
        let rule = format!("must be of type {format}: {value}");
        invalid(at, value.clone(), &rule, errors);
    }
}

fn of_list(
    schema: &Schema,
    items: &[Value],
    old: Option<&Value>,
    at: &Place,
    errors: &mut ErrorList,
) {
    let checks = &schema.checks;
    let length = u64::try_from(items.len()).unwrap_or(u64::MAX);
    if let Some(max) = checks.max_items.filter(|max| length > *max) {
        errors.too_many(&at.path(), items.len(), max);
    }
    if let Some(min) = checks.min_items.filter(|min| length < *min) {
        invalid(
            at,
            items.len(),
            &format!("should have at least {min} items"),
            errors,
        );
    }
    let Some(below) = &schema.items else { return };
    let before = Correlated::new(schema, old);
    for (index, item) in items.iter().enumerate() {
        validate(below, item, before.get(item), &at.index(index), errors);
    }
}

fn of_object(
    schema: &Schema,
    fields: &Map<String, Value>,
    old: Option<&Value>,
    at: &Place,
    errors: &mut ErrorList,
) {
    let checks = &schema.checks;
    let length = u64::try_from(fields.len()).unwrap_or(u64::MAX);
    if let Some(max) = checks.max_properties.filter(|max| length > *max) {
        errors.too_many(&at.path(), fields.len(), max);
    }
    if let Some(min) = checks.min_properties.filter(|min| length < *min) {
        let rule = format!("should have at least {min} properties");
        invalid(at, fields.len(), &rule, errors);
    }
    for name in checks
        .required
        .iter()
        .filter(|name| !fields.contains_key(*name))
    {
        errors.required(&at.child(name).path(), "");
    }
    let old = old
        .filter(|_| !schema.atomic_map)
        .and_then(Value::as_object);
    for (name, value) in fields {
        let below = match (schema.properties.get(name), schema.additional.as_deref()) {
            (Some(below), _) | (None, Some(Additional::Values(below))) => below,
            (None, _) => continue,
        };
        let old = old.and_then(|old| old.get(name));
        validate(below, value, old, &at.child(name), errors);
    }
}

fn junctors(checks: &Checks, value: &Value, at: &Place, errors: &mut ErrorList) {
    let attempt = |schema: &Schema| {
        let mut found = ErrorList::new();
        validate(schema, value, None, at, &mut found);
        found
    };
    let mut refuse = |rule: &str| {
        let detail = format!("{:?} {rule}", at.text());
        errors.invalid(&Place::default().path(), "", &detail);
    };
    let mut of_branches = ErrorList::new();
    if !checks.any_of.is_empty() {
        let branches: Vec<_> = checks.any_of.iter().map(attempt).collect();
        if branches.iter().all(|branch| !branch.is_empty()) {
            refuse("must validate at least one schema (anyOf)");
            of_branches.append(best(branches));
        }
    }
    if !checks.one_of.is_empty() {
        let branches: Vec<_> = checks.one_of.iter().map(attempt).collect();
        match branches.iter().filter(|branch| branch.is_empty()).count() {
            1 => {}
            0 => {
                refuse("must validate one and only one schema (oneOf). Found none valid");
                of_branches.append(best(branches));
            }
            n => refuse(&format!(
                "must validate one and only one schema (oneOf). Found {n} valid alternatives"
            )),
        }
    }
    let branches: Vec<_> = checks.all_of.iter().map(attempt).collect();
    if branches.iter().any(|branch| !branch.is_empty()) {
        refuse("must validate all the schemas (allOf)");
        for branch in branches {
            of_branches.append(branch);
        }
    }
    if checks
        .not
        .as_deref()
        .is_some_and(|not| attempt(not).is_empty())
    {
        refuse("must not validate the schema (not)");
    }
    errors.append(of_branches);
}

/// The errors of the branch that has the fewest.
fn best(branches: Vec<ErrorList>) -> ErrorList {
    branches
        .into_iter()
        .min_by_key(|branch| branch.iter().count())
        .unwrap_or_default()
}

/// The elements of a list before an update, by their keys.
pub(crate) struct Correlated<'o> {
    keys: &'o [String],
    schema: Option<&'o Schema>,
    by_key: HashMap<String, &'o Value>,
}

impl<'o> Correlated<'o> {
    pub(crate) fn new(schema: &'o Schema, old: Option<&'o Value>) -> Self {
        let mut by_key = HashMap::new();
        let keys: &[String] = match &schema.list {
            ListType::Map(keys) => keys,
            _ => &[],
        };
        let below = schema.items.as_deref();
        if !keys.is_empty() {
            for item in old.and_then(Value::as_array).into_iter().flatten() {
                by_key.entry(identity(keys, below, item)).or_insert(item);
            }
        }
        Self {
            keys,
            schema: below,
            by_key,
        }
    }

    /// The element that an element was.
    pub(crate) fn get(&self, item: &Value) -> Option<&'o Value> {
        if self.keys.is_empty() {
            return None;
        }
        self.by_key
            .get(&identity(self.keys, self.schema, item))
            .copied()
    }
}

/// The keys of an element as a text; absent ones have their defaults.
fn identity(keys: &[String], schema: Option<&Schema>, item: &Value) -> String {
    let of_key = |key: &String| {
        let value = item
            .get(key)
            .or_else(|| schema?.properties.get(key)?.default.as_ref());
        value.map_or_else(String::new, Value::to_string)
    };
    keys.iter().map(of_key).collect::<Vec<_>>().join("\u{0}")
}

/// Checks that sets and maps in the form of lists have no element twice.
pub(crate) fn unique(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    at: &Place,
    errors: &mut ErrorList,
) {
    if old == Some(value) {
        return;
    }
    match value {
        Value::Array(items) => {
            match &schema.list {
                ListType::Atomic => {}
                ListType::Set => {
                    for index in repeated(items.iter().map(Value::to_string)) {
                        duplicate(
                            &at.index(index),
                            items.get(index).cloned().unwrap_or_default(),
                            errors,
                        );
                    }
                }
                ListType::Map(keys) => map_list(keys, items, at, errors),
            }
            if let Some(below) = &schema.items {
                let before = Correlated::new(schema, old);
                for (index, item) in items.iter().enumerate() {
                    unique(below, item, before.get(item), &at.index(index), errors);
                }
            }
        }
        Value::Object(fields) => {
            let old = old
                .filter(|_| !schema.atomic_map)
                .and_then(Value::as_object);
            for (name, value) in fields {
                let old = old.and_then(|old| old.get(name));
                match (schema.properties.get(name), schema.additional.as_deref()) {
                    (Some(below), _) => unique(below, value, old, &at.child(name), errors),
                    (None, Some(Additional::Values(below))) => {
                        unique(below, value, old, &at.key(name), errors)
                    }
                    (None, _) => {}
                }
            }
        }
        _ => {}
    }
}

fn duplicate(at: &Place, value: Value, errors: &mut ErrorList) {
    errors.add(FieldError {
        path: at.path(),
        rule: ErrorRule::Duplicate,
        value: Some(value),
        detail: String::new(),
    });
}

/// The places at which a text occurs for the second time.
fn repeated(texts: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen = HashMap::<String, usize>::new();
    let mut places = Vec::new();
    for (index, text) in texts.enumerate() {
        let times = seen.entry(text).or_default();
        *times += 1;
        if *times == 2 {
            places.push(index);
        }
    }
    places
}

fn map_list(keys: &[String], items: &[Value], at: &Place, errors: &mut ErrorList) {
    let odd = items
        .iter()
        .position(|item| !item.is_object() && !item.is_null());
    if let Some((index, item)) = odd.and_then(|index| Some((index, items.get(index)?))) {
        let detail = "must be an object for an array of list-type map";
        return errors.invalid(&at.index(index).path(), item.clone(), detail);
    }
    let of = |item: &Value| -> Value {
        let present = keys
            .iter()
            .filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(present.collect())
    };
    for index in repeated(items.iter().map(|item| of(item).to_string())) {
        duplicate(
            &at.index(index),
            items.get(index).map(of).unwrap_or_default(),
            errors,
        );
    }
}
