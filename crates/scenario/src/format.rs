//! The format of a scenario file. The doc comments of these types are the descriptions in the JSON
//! schema, which editors show.

mod cluster;
mod expect;
mod scalar;
mod step;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeMap};

pub use podplane_api::node::NetworkBackend;
pub use podplane_cluster::settings::Network;
pub use podplane_ipam::{AllocatorType, Compat, IpPolicy};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, transform::transform_subschemas};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use serde_untagged::UntaggedEnumVisitor;

pub(crate) use self::{cluster::word, scalar::plain};
pub use self::{
    cluster::{Cluster, CniTemplate, Flag, MOST_NODES, NodeSpec, Nodes},
    expect::{EventType, Expect, Ping, Subject, Text, TextRules},
    scalar::{Block, ObjectRef, Period, Ranges, Scalar, Several, Signal, ViolationKind},
    step::{
        ACTIONS, AddNodes, Calls, Code, Command, Cut, Deleted, Deletion, Disk, Heal, Kill,
        Manifest, Node, Pause, Process, Reboot, Restart, Run, Scale, Side, Step, Wait,
    },
};

/// A scenario: a cluster, the actions on it, and what must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `steps`")]
pub struct Scenario {
    /// The name in reports. Default: the name of the file, without its ending
    pub name: Option<String>,
    /// A sentence about what it shows
    pub description: Option<String>,
    /// Values by name, and their defaults: `${name}` in any value, as of the matrix, whose values
    /// may refer to them. `podplane test --set NAME=VALUE` sets another value of the same type
    #[serde(default)]
    pub parameters: BTreeMap<String, Scalar>,
    /// Values by name: lists of them, of which each combination is run, or a list of the
    /// combinations. `${name}` in any value stands for its value in that run; `$${name}` is that
    /// text itself
    pub matrix: Option<Matrix>,
    /// The cluster that is started for it, with `podplane up`
    #[serde(default)]
    pub cluster: Cluster,
    /// The steps, one after another. The invariants are checked after each
    #[schemars(length(min = 1))]
    pub steps: Vec<Step>,
}

/// The values of a matrix, by name.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// Lists of values, of which each combination is run.
    Lists(BTreeMap<String, Vec<Scalar>>),
    /// The combinations that are run.
    Combinations(Vec<BTreeMap<String, Scalar>>),
}

impl JsonSchema for Matrix {
    fn schema_name() -> Cow<'static, str> {
        "Matrix".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<Scalar>();
        json_schema!({"anyOf": [
            {"type": "object", "additionalProperties": {"type": "array", "items": value, "minItems": 1}},
            {"type": "array", "items": {"type": "object", "additionalProperties": value}, "minItems": 1},
        ]})
    }
}

impl<'de> Deserialize<'de> for Matrix {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting("lists of values by name, or a list of combinations of them")
            .map(|lists| lists.deserialize().map(Self::Lists))
            .seq(|each| each.deserialize().map(Self::Combinations))
            .deserialize(from)
    }
}

impl Matrix {
    /// Returns the values of each run.
    pub fn combinations(&self) -> Vec<BTreeMap<String, Value>> {
        let lists = match self {
            Self::Combinations(each) => return each.iter().map(plain_values).collect(),
            Self::Lists(lists) => lists,
        };
        let mut all = vec![BTreeMap::new()];
        for (name, values) in lists {
            all = all
                .iter()
                .flat_map(|base: &BTreeMap<String, Value>| {
                    values.iter().map(|Scalar(value)| {
                        let mut with = base.clone();
                        with.insert(name.clone(), value.clone());
                        with
                    })
                })
                .collect();
        }
        all
    }
}

fn plain_values(values: &BTreeMap<String, Scalar>) -> BTreeMap<String, Value> {
    let values = values.iter();
    values
        .map(|(name, Scalar(value))| (name.clone(), value.clone()))
        .collect()
}

/// The address of the schema for editors, wherever a scenario is.
const SCHEMA: &str =
    "https://raw.githubusercontent.com/podplane/podplane/main/docs/scenario.schema.json";

/// The JSON schema of scenario files.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Scenario);
    schema.insert("$id".into(), SCHEMA.into());
    schema.insert("title".into(), "podplane scenario".into());
    without_null(&mut schema);
    within_range(&mut schema);
    or_reference(&mut schema);
    schema.to_value()
}

/// Removes null from a schema: a key without a value is a mistake, and not the same as no key.
fn without_null(schema: &mut Schema) {
    let is_null = |kind: &Value| kind == "null";
    if let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) {
        kinds.retain(|kind| !is_null(kind));
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            schema.insert("type".into(), kind);
        }
    }
    if let Some(each) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        each.retain(|each| !is_null(&each["type"]));
        if let [Value::Object(one)] = each.as_slice() {
            let one = one.clone();
            schema.remove("anyOf");
            schema.ensure_object().extend(one);
        }
    }
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    transform_subschemas(&mut without_null, schema);
}

/// Adds the limits of integer types to a schema, in which `format` is only a note.
fn within_range(schema: &mut Schema) {
    let range = match schema.get("format").and_then(Value::as_str) {
        Some("int32") => Some((json!(i32::MIN), json!(i32::MAX))),
        Some("uint32") => Some((json!(0), json!(u32::MAX))),
        Some("uint64") => Some((json!(0), json!(u64::MAX))),
        _ => None,
    };
    if let Some((least, most)) = range {
        let schema = schema.ensure_object();
        schema.entry("minimum").or_insert(least);
        schema.entry("maximum").or_insert(most);
    }
    transform_subschemas(&mut within_range, schema);
}

/// Lets a schema accept a `${…}` of the matrix in the place of a value that is not text.
fn or_reference(schema: &mut Schema) {
    let is_scalar = ["integer", "number", "boolean"]
        .iter()
        .any(|scalar| schema.get("type").is_some_and(|kind| kind == scalar));
    let is_const = |schema: &Value| schema.get("const").is_some();
    let each = schema.get("oneOf").and_then(Value::as_array);
    let is_enum =
        schema.get("enum").is_some() || each.is_some_and(|each| each.iter().all(is_const));
    if !is_enum && !is_scalar {
        // Keys cannot be references.
        let names = schema.remove("propertyNames");
        transform_subschemas(&mut or_reference, schema);
        // `transform_subschemas` does not visit these.
        let dependents = schema.get_mut("dependentSchemas");
        for dependent in dependents
            .and_then(Value::as_object_mut)
            .into_iter()
            .flatten()
        {
            if let Ok(dependent) = dependent.1.try_into() {
                or_reference(dependent);
            }
        }
        if let Some(names) = names {
            schema.insert("propertyNames".into(), names);
        }
        return;
    }
    // A number or a boolean is one reference and nothing else.
    let pattern = match is_enum {
        true => r"\$\{.+\}",
        false => r"^\$\{[A-Za-z_][A-Za-z0-9_.-]*\}$",
    };
    let own = std::mem::take(schema);
    let description = own.get("description").cloned();
    *schema = json_schema!({"anyOf": [own, {"type": "string", "pattern": pattern}]});
    if let Some(description) = description {
        schema.insert("description".into(), description);
    }
}
