//! The format: what a scenario file may say. The documentation of these types is that of the JSON schema, and so what editors show.

mod cluster;
mod expect;
mod scalar;
mod step;

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, json_schema, transform::transform_subschemas};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_untagged::UntaggedEnumVisitor;

pub(crate) use self::{cluster::word, scalar::plain};
pub use self::{
    cluster::{
        CidrAllocatorType, Cluster, CniTemplate, Compat, Flag, IpPolicy, MOST_NODES, Network,
        NodeSpec, Nodes,
    },
    expect::{EventType, Expect, Ping, Subject, Text, TextRules},
    scalar::{Block, ObjectRef, Period, Ranges, Several, Signal, ViolationKind},
    step::{
        ACTIONS, AddNodes, Calls, Code, Command, Cut, Deleted, Deletion, Disk, Heal, Kill,
        Manifest, Node, Pause, Process, Restart, Run, Scale, Side, Step, Wait,
    },
};

/// A scenario: a cluster, what is done to it, and what must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with `steps`")]
pub struct Scenario {
    /// What reports call it. Default: the name of the file, without its ending
    pub name: Option<String>,
    /// What it shows, in a sentence
    pub description: Option<String>,
    /// Values by name: lists of them, of which each combination is run, or a list of the combinations. `${name}` in any value stands for the one of that
    /// run; `$${name}` is that text itself
    pub matrix: Option<Matrix>,
    /// The cluster that is started for it, with `podplane up`
    #[serde(default)]
    pub cluster: Cluster,
    /// What is done, one after another. After each the invariants are checked
    pub steps: Vec<Step>,
}

/// Values by name.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Matrix {
    /// Each combination of these is run.
    Lists(BTreeMap<String, Vec<Value>>),
    /// These combinations are run.
    Combinations(Vec<BTreeMap<String, Value>>),
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
    /// The values of each run.
    pub fn combinations(&self) -> Vec<BTreeMap<String, Value>> {
        let lists = match self {
            Self::Combinations(each) => return each.clone(),
            Self::Lists(lists) => lists,
        };
        let mut all = vec![BTreeMap::new()];
        for (name, values) in lists {
            all = all
                .iter()
                .flat_map(|base: &BTreeMap<String, Value>| {
                    values.iter().map(|value| {
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

/// Where editors find the schema, wherever a scenario is.
const SCHEMA: &str =
    "https://raw.githubusercontent.com/podplane/podplane/main/docs/scenario.schema.json";

/// The JSON schema of scenario files.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Scenario);
    schema.insert("$id".into(), SCHEMA.into());
    schema.insert("title".into(), "podplane scenario".into());
    or_reference(&mut schema);
    schema.to_value()
}

/// In the place of what is no text there may be a `${…}` of the matrix.
fn or_reference(schema: &mut Schema) {
    let is_scalar = |kind: &Value| {
        ["integer", "number", "boolean"]
            .iter()
            .any(|scalar| kind == scalar)
    };
    let kind = schema.get("type").cloned().unwrap_or_default();
    let is_const = |schema: &Value| schema.get("const").is_some();
    let each = schema.get("oneOf").and_then(Value::as_array);
    let is_enum =
        schema.get("enum").is_some() || each.is_some_and(|each| each.iter().all(is_const));
    if !is_enum
        && !is_scalar(&kind)
        && !kind
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(is_scalar))
    {
        return transform_subschemas(&mut or_reference, schema);
    }
    let own = std::mem::take(schema);
    let description = own.get("description").cloned();
    *schema = json_schema!({"anyOf": [own, {"type": "string", "pattern": r"\$\{.+\}"}]});
    if let Some(description) = description {
        schema.insert("description".into(), description);
    }
}
