//! A line of a recording.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The services whose messages hold secrets and tokens. Audit logs leave out the same bodies.
const WITHOUT_MESSAGES: [&str; 3] = [
    ".SecretService/",
    ".ConfigMapService/",
    ".AuthenticationService/",
];

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordingEntry {
    /// Seconds since the beginning of the recording.
    pub at: f64,
    /// The number of the step; 0 before the first.
    pub step: u64,
    /// The event.
    #[serde(flatten)]
    pub what: EntryEvent,
}

/// An event in a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum EntryEvent {
    /// A step began or ended.
    Step {
        /// The name of the step.
        name: String,
        /// `ok` or `failed`; `None` at its beginning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        /// The reason of a failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A call over a link ended; a watch is also a call.
    Request {
        /// The client.
        from: String,
        /// The method: `podplane.core.v1.PodService/BindPod`.
        method: String,
        /// The message of the client.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Value>,
        /// The gRPC code; `None` if a connection ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
        /// The injected fault.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        /// The duration of the call.
        milliseconds: f64,
        /// The number of messages in a stream from the server.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        messages: Option<u64>,
    },
    /// An object changed.
    Object {
        /// The kind of change.
        change: ObjectChange,
        /// The object after the change, or before its deletion.
        object: Value,
    },
    /// A service emitted a Kubernetes event.
    Event {
        /// The object that it is about: `pod/default/web-0`.
        about: String,
        /// `Normal` or `Warning`.
        #[serde(rename = "type")]
        type_: String,
        /// The reason: one CamelCase word.
        reason: String,
        /// The message for people.
        message: String,
        /// The component that emitted it.
        by: String,
        /// The number of times that it has happened so far.
        count: i64,
    },
    /// A service made a decision.
    Decision {
        /// The service.
        by: String,
        /// The object that it is about: `pod/default/web-0`.
        about: String,
        /// The decision: `is bound to node node-0`.
        decision: String,
    },
    /// A fault was injected or healed.
    Fault {
        /// The description of the fault.
        fault: String,
        /// True if it began, false if it ended.
        active: bool,
    },
    /// An invariant was broken.
    Violation {
        /// The invariant, and the objects that break it.
        violation: String,
    },
    /// Anything else.
    Log {
        /// The text.
        message: String,
        /// The cluster's ranges of pods from now on, if the text is about them.
        #[serde(
            default,
            rename = "clusterCIDRs",
            skip_serializing_if = "Option::is_none"
        )]
        cluster_cidrs: Option<Vec<IpNet>>,
    },
}

/// A change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectChange {
    /// The object was created.
    Added,
    /// The object was modified.
    Modified,
    /// The object was deleted.
    Deleted,
}

impl EntryEvent {
    /// The name of the kind in a line.
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

    /// All names of kinds.
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

    /// Returns true for entries without which the others cannot be understood. They are never left
    /// out.
    pub(super) fn is_frame(&self) -> bool {
        matches!(
            self,
            Self::Step { .. } | Self::Fault { .. } | Self::Violation { .. }
        )
    }

    /// Removes secrets, and replaces a part that is longer than `longest` bytes of JSON by its
    /// length.
    pub(super) fn bounded(mut self, longest: usize) -> Self {
        if let Self::Request {
            method, message, ..
        } = &mut self
            && WITHOUT_MESSAGES.iter().any(|one| method.contains(one))
        {
            *message = message.as_ref().map(|_| json!({"omitted": "secret"}));
            return self;
        }
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

/// Returns the parts of an object that identify it.
fn outline(object: &Value, length: usize) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "omitted": format!("{length} bytes"),
    })
}

/// Removes possible secrets, and the copy of the object that kubectl keeps in an annotation.
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
