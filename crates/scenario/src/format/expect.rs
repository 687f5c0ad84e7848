//! Expectations.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use serde_untagged::UntaggedEnumVisitor;

use super::{
    Command, ObjectRef,
    scalar::{one_of, required},
};

/// An expectation about an object, a count, events, a metric, a ping, a command's output, or calls
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(transform = one_subject)]
pub struct Expect {
    /// An object, KIND/NAME. Alone: it must exist
    pub object: Option<ObjectRef>,
    /// The kind of the objects that are counted
    pub count: Option<String>,
    /// The reason of the events that must have happened
    pub event: Option<String>,
    /// A metric of a service, summed over all its series that have the labels
    pub metric: Option<String>,
    /// An echo request from a pod's network to another
    pub ping: Option<Ping>,
    /// A command, as in `run`, whose output is compared
    pub command: Option<Command>,
    /// The method whose calls by a service are counted: BindPod, RunPodSandbox, …
    pub call: Option<String>,

    /// The namespace. Default: default; of a count and of events: all
    pub namespace: Option<String>,
    /// The path to a value in the object: RFC 9535 ($.status.phase), or as in kubectl
    /// ({.status.phase}, .status.phase)
    pub jsonpath: Option<String>,
    /// A CEL expression about `object`, which must be true
    pub cel: Option<String>,
    /// True if such an object, or a value at the jsonpath, must exist; false if it must not
    pub exists: Option<bool>,
    /// The value that must be there
    #[serde(default, deserialize_with = "given")]
    pub equals: Option<Value>,
    /// The value that must not be there
    #[serde(default, deserialize_with = "given")]
    pub not_equals: Option<Value>,
    /// A regular expression that some part of the value must match
    pub matches: Option<String>,
    /// The number must be this or more
    pub at_least: Option<f64>,
    /// The number must be this or less
    pub at_most: Option<f64>,
    /// A CEL expression about `object`: only objects for which it is true are counted
    #[serde(rename = "where")]
    pub filter: Option<String>,
    /// Only objects with these labels are counted, in Kubernetes' syntax: app=web,tier!=front
    pub selector: Option<String>,
    /// The object that the event is about
    pub on: Option<ObjectRef>,
    /// The message of the event must have this: a part of it, or {equals: …}, {contains: …},
    /// {matches: …}
    pub message: Option<Text>,
    /// Normal or Warning
    #[serde(rename = "type")]
    pub event_type: Option<EventType>,
    /// The name of this step or an earlier one: only events since it began count. Default: all
    pub since: Option<String>,
    /// The service whose metric it is: scheduler, kubelet-node-0, …
    pub service: Option<String>,
    /// The labels that the metric's series must have
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The pod that must send the answer
    pub answered_by: Option<String>,
    /// True if there must be an answer, false if there must be none. Default: true
    pub answers: Option<bool>,
    /// The exit code that the command must have. Default: 0
    pub exit_code: Option<i32>,
    /// The text that the command must print to standard output
    pub stdout: Option<Text>,
    /// The text that the command must print to standard error
    pub stderr: Option<Text>,
    /// The service that makes the calls: scheduler, kubelet-node-0, …
    pub of: Option<String>,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    /// The name of the type in an event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The source and the target of an echo request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ping {
    /// The pod that sends the request
    pub from: String,
    /// The target: a pod, NAMESPACE/POD, or an address
    pub to: String,
}

/// A rule about a text: a part of it, or {equals: …}, {contains: …}, {matches: …}.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Text {
    /// A part of it.
    Part(String),
    /// By rules.
    Rules(TextRules),
}

/// Rules about a text. All of them must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextRules {
    /// The whole text, except for white space around it
    #[serde(default, deserialize_with = "given")]
    pub equals: Option<String>,
    /// A part of it
    pub contains: Option<String>,
    /// A regular expression that some part of it must match
    pub matches: Option<String>,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UntaggedEnumVisitor::new()
            .expecting("a text that must be a part, or {equals: …}, {contains: …} or {matches: …}")
            .string(|part| Ok(Self::Part(part.into())))
            .map(|rules| rules.deserialize().map(Self::Rules))
            .deserialize(from)
    }
}

/// The subject of an expectation, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Subject {
    Object,
    Count,
    Event,
    Metric,
    Ping,
    Command,
    Call,
}

impl Subject {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Object,
        Self::Count,
        Self::Event,
        Self::Metric,
        Self::Ping,
        Self::Command,
        Self::Call,
    ];

    /// The key.
    pub fn key(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Count => "count",
            Self::Event => "event",
            Self::Metric => "metric",
            Self::Ping => "ping",
            Self::Command => "command",
            Self::Call => "call",
        }
    }

    /// The keys that may stand beside it.
    pub fn companions(self) -> &'static [&'static str] {
        match self {
            Self::Object => &[
                "namespace",
                "jsonpath",
                "cel",
                "exists",
                "equals",
                "notEquals",
                "matches",
                "atLeast",
                "atMost",
            ],
            Self::Count => &[
                "namespace",
                "selector",
                "where",
                "equals",
                "atLeast",
                "atMost",
            ],
            Self::Event => &[
                "on",
                "namespace",
                "message",
                "type",
                "since",
                "equals",
                "atLeast",
                "atMost",
            ],
            Self::Metric => &["service", "labels", "equals", "atLeast", "atMost"],
            Self::Ping => &["answeredBy", "answers"],
            Self::Command => &["exitCode", "stdout", "stderr"],
            Self::Call => &["of", "equals", "atLeast", "atMost"],
        }
    }

    /// Returns further constraints on an expectation about it, as JSON schema.
    fn needs(self) -> Value {
        let number = json!({"equals": {"type": "number"}});
        let numbers = required(&["equals", "atLeast", "atMost"]);
        match self {
            Self::Object => {
                let with_path = ["equals", "notEquals", "matches", "atLeast", "atMost"];
                let with_path: Map<_, _> = with_path
                    .map(|key| (key.to_owned(), json!(["jsonpath"])))
                    .into_iter()
                    .collect();
                json!({
                    "dependentRequired": with_path,
                    "dependentSchemas": {"cel": {"propertyNames": {"enum": ["object", "namespace", "cel"]}}},
                })
            }
            Self::Event => json!({"properties": number}),
            Self::Count => json!({"properties": number, "anyOf": numbers}),
            Self::Metric => {
                json!({"properties": number, "anyOf": numbers, "required": ["service"]})
            }
            Self::Call => json!({"properties": number, "anyOf": numbers, "required": ["of"]}),
            Self::Ping => json!({
                "not": {"required": ["answeredBy", "answers"], "properties": {"answers": {"const": false}}},
            }),
            Self::Command => json!({}),
        }
    }
}

/// Tells `equals: null`, which is a value or a mistake, from no `equals`.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

fn one_subject(schema: &mut Schema) {
    one_of(schema, &Subject::ALL.map(Subject::key));
    let each = Subject::ALL.map(|subject| {
        let mut keys = vec![subject.key()];
        keys.extend(subject.companions());
        let mut of = subject.needs();
        of["propertyNames"] = json!({"enum": keys});
        (subject.key().to_owned(), of)
    });
    let each: Map<_, _> = each.into_iter().collect();
    schema.insert("dependentSchemas".into(), each.into());
}
