//! Reads a recording, step by step.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::Serialize;
use serde_json::Value;

use super::{EntryEvent, FILE, ObjectChange, RecordingEntry};
use crate::{ClusterError, Result};

/// A recording, grouped by steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recording {
    /// The steps in order. Entries before the first step belong to a step with number 0.
    pub steps: Vec<RunStep>,
    /// The lines that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<DamagedLine>,
}

/// A line of a recording that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedLine {
    /// The number of the line, from 1.
    pub line: usize,
    /// The reason.
    pub problem: String,
}

impl fmt::Display for DamagedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

/// A step of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunStep {
    /// The number of the step; 0 for everything before the first.
    pub number: u64,
    /// The name of the step.
    pub name: String,
    /// `ok` or `failed`; `None` if the run ended during the step.
    pub outcome: Option<String>,
    /// The reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The beginning, in seconds since that of the recording.
    pub begun: f64,
    /// The time of its last entry, in seconds since the beginning of the recording.
    pub ended: f64,
    /// The changes of objects in the step, by field.
    pub changes: Vec<FieldChange>,
    /// All entries of the step, except those that begin and end it.
    pub entries: Vec<RecordingEntry>,
}

/// A field that changed during a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// The object: `pod/default/web-0`.
    pub object: String,
    /// The name of the field: `podIPs`.
    pub field: &'static str,
    /// The value before the step, then each later value.
    pub values: Vec<String>,
}

/// A selection of parts of a recording.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this step.
    pub step: Option<u64>,
    /// Only entries about this pod: `web-0`, or `default/web-0`.
    pub pod: Option<String>,
    /// Only these kinds of [`EntryEvent::KINDS`]. If empty: all but objects, and requests that went
    /// well.
    pub kinds: Vec<String>,
}

/// Reads a recording: the file, or the one in a directory.
///
/// # Errors
///
/// [`ClusterError::Io`] if there is none, or no entry in it. Damage beside entries is not an error:
/// see [`Recording::damage`].
pub fn read(path: &Path) -> Result<Recording> {
    read_through(path, |file| file)
}

/// Reads a recording as [`read`] does, through a reader of the caller's, which may count the bytes.
///
/// # Errors
///
/// Those of [`read`].
pub fn read_through<R: Read>(path: &Path, through: impl FnOnce(File) -> R) -> Result<Recording> {
    let path: PathBuf = if path.is_dir() {
        path.join(FILE)
    } else {
        path.into()
    };
    let failed = || format!("read the recording {}", path.display());
    let refused = |problem: String| {
        let problem = io::Error::new(io::ErrorKind::InvalidData, problem);
        ClusterError::io(failed())(problem)
    };
    let file = File::open(&path).map_err(ClusterError::io(failed()))?;
    let mut recording = Recording::default();
    let mut fields = Fields::default();
    let mut reader = BufReader::new(through(file));
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let length = reader
            .read_until(b'\n', &mut text)
            .map_err(ClusterError::io(failed()))?;
        if length == 0 {
            break;
        }
        match serde_json::from_slice::<RecordingEntry>(&text) {
            Ok(entry) => recording.add(entry, &mut fields),
            Err(error) => {
                let problem = if text.last() == Some(&b'\n') {
                    format!("not a recording entry: {error}")
                } else {
                    "truncated line: the recording was cut off".into()
                };
                recording.damage.push(DamagedLine { line, problem });
            }
        }
    }
    match (recording.steps.is_empty(), recording.damage.first()) {
        (false, _) => Ok(recording),
        (true, Some(first)) => Err(refused(format!(
            "not a recording of `podplane test`: {first}"
        ))),
        (true, None) => Err(refused("it has no entries".to_owned())),
    }
}

impl Recording {
    fn add(&mut self, entry: RecordingEntry, fields: &mut Fields) {
        let is_new = self
            .steps
            .last()
            .is_none_or(|step| step.number != entry.step);
        if is_new {
            self.steps.push(RunStep {
                number: entry.step,
                begun: entry.at,
                ..RunStep::default()
            });
        }
        let Some(step) = self.steps.last_mut() else {
            return;
        };
        step.ended = entry.at;
        match entry.what {
            EntryEvent::Step {
                name,
                outcome,
                message,
            } => {
                step.name = name;
                step.outcome = outcome;
                step.message = message;
            }
            what => {
                if let EntryEvent::Object { change, object } = &what {
                    fields.apply(&mut step.changes, *change, object);
                }
                step.entries.push(RecordingEntry { what, ..entry });
            }
        }
    }

    /// Returns the part of the recording that the filter selects.
    #[must_use]
    pub fn filtered(mut self, filter: &Filter) -> Self {
        let Filter { step, pod, kinds } = filter;
        self.steps
            .retain(|each| step.is_none_or(|number| each.number == number));
        for each in &mut self.steps {
            each.entries.retain(|entry| {
                let is_kind = if kinds.is_empty() {
                    !is_quiet(&entry.what)
                } else {
                    kinds.iter().any(|kind| kind == entry.what.kind())
                };
                is_kind && pod.as_deref().is_none_or(|pod| is_about(&entry.what, pod))
            });
            each.changes
                .retain(|change| pod.as_deref().is_none_or(|pod| is_pod(&change.object, pod)));
        }
        self
    }
}

/// Returns true for entries that are only shown on request: requests that went well, watches that
/// ended with a connection, and objects, whose changes are shown by field.
fn is_quiet(what: &EntryEvent) -> bool {
    match what {
        EntryEvent::Request {
            code,
            fault,
            messages,
            ..
        } => {
            let went_well = match code.as_deref() {
                Some(code) => code == "Ok",
                None => messages.is_some(),
            };
            went_well && fault.is_none()
        }
        EntryEvent::Object { .. } => true,
        _ => false,
    }
}

/// Returns true if `object`, such as `pod/default/web-0`, is the pod called `web-0` or
/// `default/web-0`.
fn is_pod(object: &str, pod: &str) -> bool {
    object.strip_prefix("pod/").is_some_and(|name| {
        name == pod || name.split_once('/').is_some_and(|(_, name)| name == pod)
    })
}

fn is_about(what: &EntryEvent, pod: &str) -> bool {
    match what {
        EntryEvent::Event { about, .. } | EntryEvent::Decision { about, .. } => is_pod(about, pod),
        EntryEvent::Object { object, .. } => is_pod(&name_of(object), pod),
        EntryEvent::Request { message, .. } => message
            .as_ref()
            .is_some_and(|message| mentions(message, pod)),
        // A fault concerns every pod.
        EntryEvent::Fault { .. } | EntryEvent::Step { .. } => true,
        EntryEvent::Violation { violation: text } | EntryEvent::Log { message: text, .. } => {
            text.contains(pod.rsplit('/').next().unwrap_or(pod))
        }
    }
}

/// Returns true if an object in a request has the pod's name, and its namespace if that is given.
fn mentions(message: &Value, pod: &str) -> bool {
    let (namespace, name) = match pod.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, pod),
    };
    match message {
        Value::Object(fields) => {
            let is_here = fields.get("name").and_then(Value::as_str) == Some(name)
                && namespace.is_none_or(|wanted| {
                    let given = fields.get("namespace").and_then(Value::as_str);
                    given.unwrap_or("default") == wanted
                });
            is_here || fields.values().any(|value| mentions(value, pod))
        }
        Value::Array(items) => items.iter().any(|item| mentions(item, pod)),
        _ => false,
    }
}

/// Returns the kind and the name of an object: `pod/default/web-0`, `node/node-0`.
fn name_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object");
    let metadata = &object["metadata"];
    let parts = [&metadata["namespace"], &metadata["name"]];
    let parts = parts.into_iter().filter_map(Value::as_str);
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    format!("{}/{}", kind.to_ascii_lowercase(), parts.join("/"))
}

/// The present values of the fields that are shown, by object and field.
#[derive(Debug, Default)]
struct Fields(BTreeMap<String, BTreeMap<&'static str, String>>);

/// The text for a field without a value.
const NONE: &str = "none";

impl Fields {
    fn apply(&mut self, changes: &mut Vec<FieldChange>, change: ObjectChange, object: &Value) {
        let name = name_of(object);
        let now = match change {
            ObjectChange::Deleted => BTreeMap::new(),
            ObjectChange::Added | ObjectChange::Modified => fields(object),
        };
        let before = self.0.insert(name.clone(), now.clone()).unwrap_or_default();
        let mut named: Vec<_> = before.keys().chain(now.keys()).copied().collect();
        named.sort_unstable();
        named.dedup();
        for field in named {
            let value = |of: &BTreeMap<&'static str, String>| {
                of.get(field).cloned().unwrap_or_else(|| NONE.into())
            };
            let (was, is) = (value(&before), value(&now));
            if was == is {
                continue;
            }
            let known = changes
                .iter_mut()
                .find(|known| known.object == name && known.field == field);
            match known {
                Some(known) => known.values.push(is),
                None => changes.push(FieldChange {
                    object: name.clone(),
                    field,
                    values: vec![was, is],
                }),
            }
        }
    }
}

fn fields(object: &Value) -> BTreeMap<&'static str, String> {
    let text = |value: &Value| match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(true) => Some("true".into()),
        _ => None,
    };
    let list = |value: &Value, each: fn(&Value) -> Option<&str>| {
        let items: Vec<_> = value.as_array()?.iter().filter_map(each).collect();
        (!items.is_empty()).then(|| items.join(", "))
    };
    let condition = |type_: &str| {
        let conditions = object["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|each| each["type"] == type_)?;
        let (status, reason) = (found["status"].as_str()?, found["reason"].as_str());
        Some(match (status, reason) {
            ("True", _) | (_, None) => status.to_owned(),
            (_, Some(reason)) => format!("{status} ({reason})"),
        })
    };
    let (spec, status) = (&object["spec"], &object["status"]);
    let of_kind: Vec<(&'static str, Option<String>)> = match object["kind"].as_str() {
        Some("Node") => vec![
            ("podCIDRs", list(&spec["podCIDRs"], Value::as_str)),
            ("Ready", condition("Ready")),
            ("unschedulable", text(&spec["unschedulable"])),
            (
                "free pod IPs",
                text(&status["allocatable"]["podplane.io/pod-ips"]),
            ),
        ],
        Some("Pod") => vec![
            ("node", text(&spec["nodeName"])),
            ("phase", text(&status["phase"])),
            ("reason", text(&status["reason"])),
            ("podIPs", list(&status["podIPs"], |ip| ip["ip"].as_str())),
            ("PodScheduled", condition("PodScheduled")),
        ],
        Some("Deployment" | "ReplicaSet") => vec![
            ("replicas wanted", text(&spec["replicas"])),
            ("replicas", text(&status["replicas"])),
            ("replicas ready", text(&status["readyReplicas"])),
        ],
        _ => Vec::new(),
    };
    let common = [
        ("uid", text(&object["metadata"]["uid"])),
        (
            "being deleted since",
            text(&object["metadata"]["deletionTimestamp"]),
        ),
    ];
    let all = of_kind.into_iter().chain(common);
    all.filter_map(|(field, value)| Some((field, value?)))
        .collect()
}

impl fmt::Display for RunStep {
    /// Formats the step for people: its entries, then the changes of objects.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            name,
            outcome,
            message,
            begun,
            ended,
            changes,
            entries,
        } = self;
        match number {
            0 if name.is_empty() => f.write_str("before the first step")?,
            _ => write!(f, "step {number}: {name}")?,
        }
        writeln!(
            f,
            "  [{begun:.3} s to {ended:.3} s, {}]",
            outcome.as_deref().unwrap_or("not ended")
        )?;
        if let Some(message) = message {
            for line in message.lines() {
                writeln!(f, "  {line}")?;
            }
        }
        for RecordingEntry { at, what, .. } in entries {
            writeln!(f, "  {:>+9.3}  {:<9}  {what}", at - begun, what.kind())?;
        }
        // A UID only matters when it changes, because the object is then another one.
        let is_first_uid = |change: &&FieldChange| matches!((change.field, change.values.as_slice()), ("uid", [none, _]) if none == NONE);
        let mut changes = changes
            .iter()
            .filter(|change| !is_first_uid(change))
            .peekable();
        if changes.peek().is_some() {
            writeln!(f, "  changed:")?;
        }
        let mut shown = "";
        for FieldChange {
            object,
            field,
            values,
        } in changes
        {
            let values: Vec<_> = values
                .iter()
                .map(|value| match *field {
                    "uid" => value.split('-').next().unwrap_or_default(),
                    _ => value.as_str(),
                })
                .collect();
            let name = if object == shown { "" } else { object };
            writeln!(f, "    {name:<28} {field}: {}", values.join(" → "))?;
            shown = object;
        }
        Ok(())
    }
}

impl fmt::Display for EntryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { name, outcome, .. } => {
                write!(f, "{name} {}", outcome.as_deref().unwrap_or("begins"))
            }
            Self::Request {
                from,
                method,
                message,
                code,
                fault,
                milliseconds,
                messages,
            } => {
                let method = method.rsplit('/').next().unwrap_or(method);
                write!(f, "{from}: {method}")?;
                if let Some(about) = message.as_ref().and_then(subject) {
                    write!(f, " {about}")?;
                }
                let code = code.as_deref().unwrap_or("no answer");
                write!(f, ": {code} after {milliseconds:.1} ms")?;
                if let Some(messages) = messages {
                    write!(f, ", {messages} messages")?;
                }
                match fault {
                    Some(fault) => write!(f, " (on purpose: {fault})"),
                    None => Ok(()),
                }
            }
            Self::Object { change, object } => {
                let change = match change {
                    ObjectChange::Added => "added",
                    ObjectChange::Modified => "modified",
                    ObjectChange::Deleted => "deleted",
                };
                write!(f, "{} {change}", name_of(object))?;
                let revision = object["metadata"]["resourceVersion"].as_str();
                revision.map_or(Ok(()), |revision| write!(f, " at revision {revision}"))
            }
            Self::Event {
                about,
                reason,
                message,
                by,
                count,
                ..
            } => {
                write!(f, "{about} {reason}: {message} (by {by}")?;
                match count {
                    ..=1 => f.write_str(")"),
                    _ => write!(f, ", {count} times)"),
                }
            }
            Self::Decision {
                by,
                about,
                decision,
            } => write!(f, "{by}: {about} {decision}"),
            Self::Fault { fault, active } => {
                write!(
                    f,
                    "{}: {fault}",
                    if *active { "begins" } else { "is healed" }
                )
            }
            Self::Violation { violation } => f.write_str(violation),
            Self::Log { message, .. } => f.write_str(message),
        }
    }
}

/// Returns the name of the object that a request is about, if the request has one.
fn subject(message: &Value) -> Option<String> {
    let metadata = message.as_object()?.values().find_map(|field| {
        field
            .get("metadata")
            .filter(|metadata| metadata.is_object())
    });
    let of = metadata.unwrap_or(message);
    let name = of["name"].as_str().filter(|name| !name.is_empty())?;
    Some(
        match of["namespace"].as_str().filter(|text| !text.is_empty()) {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        },
    )
}
