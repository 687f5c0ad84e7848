//! The rules of schemas in CEL (`x-kubernetes-validations`): their data, compilation and
//! evaluation.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, ValidationRule,
};
use podplane_api::validation::{ErrorList, ErrorRule, FieldError};
use podplane_cel_rules::{
    CALL_LIMIT, DataShape, Declaration, DeclaredField, Environment, Failure, ListIdentity, Program,
    Type, Value as CelValue, escape,
};
use serde_json::Value;

use crate::{
    place::Place,
    schema::{Additional, Kind, ListType, Schema},
    validate::Correlated,
};

/// The most that all rules together may cost for one object.
const OBJECT_BUDGET: u64 = 10_000_000;
/// The size of the largest request, from which sizes without a bound follow.
pub(crate) const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// A rule that was compiled, or the error of its compilation.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) source: ValidationRule,
    pub(crate) program: Result<Program, String>,
    pub(crate) message: Option<Result<Program, String>>,
    pub(crate) uses_old: bool,
}

/// The data of a schema in expressions; `None` if it is not visible there.
pub(crate) fn declare(schema: &Schema, is_resource: bool) -> Option<Arc<Declaration>> {
    let whole = MAX_REQUEST - 2;
    let leaf = |shape, max_elements, min_size| {
        Some(Arc::new(Declaration {
            shape,
            max_elements,
            min_size,
        }))
    };
    let max_length = schema.checks.max_length;
    if schema.int_or_string {
        return leaf(
            DataShape::Any,
            max_length.map_or(whole, |max| max.saturating_mul(4)),
            1,
        );
    }
    match schema.ty? {
        Kind::Boolean => leaf(DataShape::Bool, 0, 4),
        Kind::Integer => leaf(DataShape::Int, 0, 1),
        Kind::Number => leaf(DataShape::Double, 0, 1),
        Kind::String => match schema.checks.format.as_deref() {
            Some("byte") => leaf(DataShape::Bytes, max_length.unwrap_or(whole), 2),
            Some("duration") => leaf(DataShape::Duration, 32, 3),
            Some("date") => leaf(DataShape::Timestamp, 12, 12),
            Some("date-time") => leaf(DataShape::Timestamp, 32, 21),
            _ => {
                let options = schema
                    .checks
                    .options
                    .as_ref()
                    .filter(|options| !options.is_empty());
                let longest = options
                    .map(|options| options.iter().filter_map(Value::as_str).map(str::len).max());
                let max = match (max_length, longest) {
                    (Some(max), _) => max.saturating_mul(4),
                    (None, Some(longest)) => {
                        u64::try_from(longest.unwrap_or_default()).unwrap_or(whole)
                    }
                    (None, None) => whole,
                };
                leaf(DataShape::String, max, 2)
            }
        },
        Kind::Array => {
            let items = schema.items.as_deref()?;
            let items = declare(items, items.embedded)?;
            let max = schema
                .checks
                .max_items
                .unwrap_or(whole / (items.min_size + 1));
            let escaped = |name: &String| escape(name).unwrap_or_else(|| name.clone());
            let identity = match &schema.list {
                ListType::Atomic => ListIdentity::Position,
                ListType::Set => ListIdentity::Value,
                ListType::Map(keys) => ListIdentity::Fields(keys.iter().map(escaped).collect()),
            };
            leaf(DataShape::List { items, identity }, max, 2)
        }
        Kind::Object => {
            if let Some(Additional::Values(values)) = schema.additional.as_deref()
                && !is_resource
            {
                let values = declare(values, values.embedded)?;
                let max = schema
                    .checks
                    .max_properties
                    .unwrap_or(whole / (values.min_size + 6));
                return leaf(DataShape::Map(values), max, 2);
            }
            Some(Arc::new(object(schema, is_resource)))
        }
    }
}

fn object(schema: &Schema, is_resource: bool) -> Declaration {
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    let mut add = |name: &str, data: Arc<Declaration>| {
        if let Some(escaped) = escape(name) {
            let name = name.to_owned();
            fields.insert(escaped, DeclaredField { name, data });
        }
    };
    for (name, below) in &schema.properties {
        let Some(data) = declare(below, below.embedded) else {
            continue;
        };
        let is_required = schema.checks.required.contains(name) && below.default.is_none();
        if is_required {
            let length = u64::try_from(name.len()).unwrap_or_default();
            min_size += length + data.min_size + 4;
        }
        add(name, data);
    }
    if is_resource {
        let text = || {
            Arc::new(Declaration {
                shape: DataShape::String,
                max_elements: MAX_REQUEST - 2,
                min_size: 2,
            })
        };
        let known = |name: &str| match schema.properties.get("metadata")?.properties.get(name) {
            Some(below) => declare(below, false),
            None => None,
        };
        let names = ["name", "generateName"].map(|name| {
            let data = known(name).unwrap_or_else(text);
            (
                name.to_owned(),
                DeclaredField {
                    name: name.to_owned(),
                    data,
                },
            )
        });
        for name in ["apiVersion", "kind"] {
            let below = schema
                .properties
                .get(name)
                .and_then(|below| declare(below, false));
            add(name, below.unwrap_or_else(text));
        }
        let metadata = Declaration {
            shape: DataShape::Object(names.into()),
            max_elements: 0,
            min_size: 2,
        };
        add("metadata", Arc::new(metadata));
    }
    Declaration {
        shape: DataShape::Object(fields),
        max_elements: 0,
        min_size,
    }
}

/// Compiles a rule about data.
pub(crate) fn compile(rule: &ValidationRule, data: &Arc<Declaration>) -> CompiledRule {
    let environment = Environment::default().with_data("self", Arc::clone(data));
    let environment = if rule.optional_old_self == Some(true) {
        environment.with_type("oldSelf", Type::Optional(Arc::new(Type::of(data))))
    } else {
        environment.with_data("oldSelf", Arc::clone(data))
    };
    let program = match environment.compile(rule.rule.trim()) {
        Ok(program) if matches!(program.ty(), Type::Bool) => Ok(program),
        Ok(_) => Err("cel expression must evaluate to a bool".to_owned()),
        Err(error) => Err(format!("compilation failed: {error}")),
    };
    let message = rule
        .message_expression
        .as_deref()
        .filter(|text| !text.trim().is_empty());
    let message = message.map(|text| match environment.compile(text.trim()) {
        Ok(program) if matches!(program.ty(), Type::String) => Ok(program),
        Ok(_) => Err("messageExpression must evaluate to a string".to_owned()),
        Err(error) => Err(format!("messageExpression compilation failed: {error}")),
    });
    CompiledRule {
        source: rule.clone(),
        uses_old: program
            .as_ref()
            .is_ok_and(|program| program.reads("oldSelf")),
        program,
        message,
    }
}

/// Compiles the rules of a schema and of all below it. `props` is where it was read from.
pub(crate) fn attach(schema: &mut Schema, props: &JSONSchemaProps, is_resource: bool) {
    let rules = props
        .x_kubernetes_validations
        .as_deref()
        .unwrap_or_default();
    if !rules.is_empty() {
        schema.data = declare(schema, is_resource);
        if let Some(data) = &schema.data {
            let rules = rules.iter().filter(|rule| !rule.rule.trim().is_empty());
            schema.rules = rules.map(|rule| compile(rule, data)).collect();
        }
    }
    schema.has_rules = !schema.rules.is_empty();
    for (name, below) in &mut schema.properties {
        if let Some(props) = props.properties.as_ref().and_then(|all| all.get(name)) {
            attach(below, props, below.embedded);
            schema.has_rules |= below.has_rules;
        }
    }
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    };
    if let (Some(below), Some(JSONSchemaPropsOrArray::Schema(props))) =
        (schema.items.as_deref_mut(), &props.items)
    {
        attach(below, props, below.embedded);
        schema.has_rules |= below.has_rules;
    }
    if let (Some(Additional::Values(below)), Some(JSONSchemaPropsOrBool::Schema(props))) = (
        schema.additional.as_deref_mut(),
        &props.additional_properties,
    ) {
        attach(below, props, below.embedded);
        schema.has_rules |= below.has_rules;
    }
}

/// The evaluation of all rules of an object.
pub(crate) struct RuleRun<'e> {
    budget: u64,
    ended: bool,
    errors: &'e mut ErrorList,
}

impl<'e> RuleRun<'e> {
    pub(crate) fn new(errors: &'e mut ErrorList) -> Self {
        Self {
            budget: OBJECT_BUDGET,
            ended: false,
            errors,
        }
    }

    /// Evaluates the rules of a value and of all below it. `unchanged` if an update left as it was
    /// what can be compared of it.
    pub(crate) fn validate(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        unchanged: bool,
        at: &Place,
    ) {
        if self.ended || !schema.has_rules || value.is_null() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        let unchanged = unchanged || old == Some(value);
        if let Some(data) = &schema.data {
            for rule in &schema.rules {
                self.rule(schema, data, rule, value, old, unchanged, at);
                if self.ended {
                    return;
                }
            }
        }
        match value {
            Value::Object(fields) => {
                let before = old.and_then(Value::as_object);
                for (name, value) in fields {
                    let (below, at) =
                        match (schema.properties.get(name), schema.additional.as_deref()) {
                            (Some(below), _) => (below, at.child(name)),
                            (None, Some(Additional::Values(below))) => (below, at.key(name)),
                            (None, _) => continue,
                        };
                    let old = before.and_then(|before| before.get(name));
                    self.validate(below, value, old, unchanged, &at);
                }
            }
            Value::Array(items) => {
                let Some(below) = schema.items.as_deref() else {
                    return;
                };
                let before = Correlated::new(schema, old);
                for (index, item) in items.iter().enumerate() {
                    self.validate(below, item, before.get(item), unchanged, &at.index(index));
                }
            }
            _ => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a rule is about")]
    fn rule(
        &mut self,
        schema: &Schema,
        data: &Arc<Declaration>,
        rule: &CompiledRule,
        value: &Value,
        old: Option<&Value>,
        unchanged: bool,
        at: &Place,
    ) {
        let kind = schema.ty.map_or("", Kind::name);
        let program = match &rule.program {
            Ok(program) => program,
            Err(error) => {
                return self.errors.invalid(
                    &at.path(),
                    kind,
                    &format!("rule compile error: {error}"),
                );
            }
        };
        let optional = rule.source.optional_old_self == Some(true);
        if rule.uses_old && old.is_none() && !optional {
            return;
        }
        let variables = || {
            let before = old.map(|old| CelValue::of(old, data));
            let before = if optional {
                CelValue::Optional(before.map(Arc::new))
            } else {
                before.unwrap_or(CelValue::Null)
            };
            [CelValue::of(value, data), before]
        };
        let name = rule
            .source
            .message
            .as_deref()
            .filter(|text| !text.is_empty())
            .unwrap_or(&rule.source.rule);
        let name = name.trim();
        let outcome = program.evaluate(variables(), CALL_LIMIT);
        let is_over = outcome.cost > self.budget;
        self.budget = self.budget.saturating_sub(outcome.cost);
        if is_over {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.errors.invalid(&at.path(), kind, detail);
            self.ended = true;
            return;
        }
        match outcome.result {
            Ok(CelValue::Bool(true)) => return,
            Ok(_) => {}
            Err(error @ Failure::Cost) => {
                let detail = format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                );
                self.errors.invalid(&at.path(), kind, &detail);
                self.ended = true;
                return;
            }
            Err(error @ Failure::NoSuchOverload) => {
                let detail = format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                );
                return self.errors.invalid(&at.path(), kind, &detail);
            }
            Err(error) => {
                return self.errors.invalid(
                    &at.path(),
                    kind,
                    &format!("{error} evaluating rule: {name}"),
                );
            }
        }
        if unchanged && !rule.uses_old {
            return;
        }
        let message = match &rule.message {
            Some(Ok(program)) => self.message(program, variables()),
            _ => None,
        };
        let detail = message.unwrap_or_else(|| match rule.source.message.as_deref() {
            Some(message) if !message.is_empty() => message.trim().to_owned(),
            _ => format!("failed rule: {name}"),
        });
        let at = match rule.source.field_path.as_deref() {
            Some(path) if !path.is_empty() => {
                Place::of(&podplane_api::validation::FieldPath::new(&format!(
                    "{}{}",
                    at.text(),
                    if at.text().is_empty() {
                        path.trim_start_matches('.')
                    } else {
                        path
                    }
                )))
            }
            _ => at.clone(),
        };
        let shown = (!value.is_object() && !value.is_array()).then(|| value.clone());
        let (rule, value) = match rule.source.reason.as_deref() {
            Some("FieldValueForbidden") => (ErrorRule::Forbidden, None),
            Some("FieldValueRequired") => (ErrorRule::Required, None),
            Some("FieldValueDuplicate") => (ErrorRule::Duplicate, shown),
            _ => (ErrorRule::Invalid, shown),
        };
        self.errors.add(FieldError {
            path: at.path(),
            detail: if rule == ErrorRule::Duplicate {
                String::new()
            } else {
                detail
            },
            rule,
            value,
        });
    }

    /// The message that an expression makes; `None` if it makes none that can be shown.
    fn message(&mut self, program: &Program, variables: [CelValue<'_>; 2]) -> Option<String> {
        let outcome = program.evaluate(variables, CALL_LIMIT.min(self.budget));
        self.budget = self.budget.saturating_sub(outcome.cost);
        outcome.result.ok()?.message().map(str::to_owned)
    }
}
