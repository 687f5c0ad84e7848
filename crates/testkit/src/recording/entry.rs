//! One line of a recording.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since the beginning.
    pub at: f64,
    /// Of which step; 0 before the first.
    pub step: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum What {
    /// A step began, or ended.
    Step {
        /// What it is called.
        name: String,
        /// `ok` or `failed`; absent at its beginning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A call over a link was over. A watch is one.
    Request {
        /// Whose it was.
        from: String,
        /// `podplane.core.v1.PodService/BindPod`
        method: String,
        /// What was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Value>,
        /// What came of it, as gRPC has it; absent if a connection ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// What was wrong with it on purpose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        /// How long it took.
        milliseconds: f64,
        /// How many messages a stream brought.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        messages: Option<u64>,
    },
    /// An object changed.
    Object {
        /// How.
        change: Change,
        /// What it is now, or was last.
        object: Value,
    },
    /// Somebody told people of something.
    Event {
        /// Of what: `pod/default/web-0`.
        about: String,
        /// `Normal` or `Warning`.
        #[serde(rename = "type")]
        type_: String,
        /// In a word.
        reason: String,
        /// In words.
        message: String,
        /// Who.
        by: String,
        /// How often by now.
        count: i64,
    },
    /// A service decided something.
    Decision {
        /// Which one.
        by: String,
        /// Of what: `pod/default/web-0`.
        about: String,
        /// `is bound to node node-0`
        decision: String,
    },
    /// A fault on purpose.
    Fault {
        /// What is wrong.
        fault: String,
        /// Whether it began, or else ended.
        active: bool,
    },
    /// An invariant was broken.
    Violation {
        /// Which, and by what.
        violation: String,
    },
    /// Something else.
    Log {
        /// In words.
        message: String,
    },
}

/// How an object changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is new.
    Added,
    /// It is otherwise.
    Modified,
    /// It is gone.
    Deleted,
}

impl What {
    /// As it stands in the line.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Step { .. } => "step",
            Self::Request { .. } => "request",
            Self::Object { .. } => "object",
            Self::Event { .. } => "event",
            Self::Decision { .. } => "decision",
            Self::Fault { .. } => "fault",
            Self::Violation { .. } => "violation",
            Self::Log { .. } => "log",
        }
    }

    /// Every kind.
    pub const KINDS: [&'static str; 8] = [
        "step",
        "request",
        "object",
        "event",
        "decision",
        "fault",
        "violation",
        "log",
    ];

    /// Whether the rest cannot be understood without it.
    pub(super) fn is_frame(&self) -> bool {
        matches!(
            self,
            Self::Step { .. } | Self::Fault { .. } | Self::Violation { .. }
        )
    }

    /// Without what nobody should read, and what is too long.
    pub(super) fn bounded(mut self, longest: usize) -> Self {
        let (value, is_object) = match &mut self {
            Self::Request {
                message: Some(value),
                ..
            } => (value, false),
            Self::Object { object, .. } => (object, true),
            _ => return self,
        };
        hide(value);
        let length = value.to_string().len();
        if length > longest {
            *value = match is_object {
                true => outline(value, length),
                false => json!({"omitted": format!("{length} bytes")}),
            };
        }
        self
    }
}

/// Enough of an object to know which it is.
fn outline(object: &Value, length: usize) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "omitted": format!("{length} bytes"),
    })
}

/// Takes out what may be a secret, and the copy of the object that kubectl keeps in it.
fn hide(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::Object(fields) => {
            fields.remove("kubectl.kubernetes.io/last-applied-configuration");
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("env", Value::Array(variables)) => {
                        for variable in variables {
                            if let Some(value) = variable.get_mut("value") {
                                *value = "(hidden)".into();
                            }
                        }
                    }
                    (_, value) => hide(value),
                }
            }
        }
        _ => {}
    }
}
