//! Recordings of runs: `recording.jsonl`, with a JSON object on each line.
//!
//! A [`Recorder`] writes it. [Links](crate::link) and [faults](crate::fault) report to it by
//! themselves; [`watch()`] reports changes of objects. [`replay`] reads it.

mod entry;
pub mod replay;
mod watch;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipnet::IpNet;
use serde_json::{Value, json};
use tonic::Code;

pub use self::{
    entry::{EntryEvent, ObjectChange, RecordingEntry},
    watch::watch,
};
use crate::{ClusterError, Result};

/// The name of the file in the directory of a run.
pub const FILE: &str = "recording.jsonl";

/// The default limit of a recording, in bytes.
pub const LIMIT: u64 = 64 << 20;

/// The largest message or object that is recorded, in bytes of JSON. Of a longer one, only its
/// length is.
const LONGEST_MESSAGE: usize = 16 << 10;

/// Writes a recording. Cheap to clone; the default one writes nothing.
///
/// Its size is bounded. Beyond the limit only steps, faults and violations are written, which are
/// few; other entries are counted, and the last line has the counts. Of a message or an object of
/// more than 16 KiB only the length is written. Values of environment variables, and annotations in
/// which kubectl repeats whole objects, are left out, and so are messages with Secrets, ConfigMaps
/// and tokens. Metadata of calls, which may have credentials, is never read.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Arc<RecordingWriter>>);

#[derive(Debug)]
struct RecordingWriter {
    begun: Instant,
    limit: u64,
    state: Mutex<RecorderState>,
}

#[derive(Debug)]
struct RecorderState {
    file: File,
    written: u64,
    step: u64,
    /// The number of entries that were left out, by kind.
    left_out: BTreeMap<&'static str, u64>,
    /// True after a failed write: the disk may be full on purpose.
    broken: bool,
}

/// A call over a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkCall {
    pub(crate) client: String,
    /// The method: `podplane.core.v1.PodService/BindPod`.
    pub(crate) method: String,
    /// `None` if the client or the server closed the connection.
    pub(crate) code: Option<Code>,
    pub(crate) fault: Option<&'static str>,
    /// The number of messages in a stream from the server.
    pub(crate) messages: u64,
    pub(crate) took: Duration,
}

impl Recorder {
    /// Begins a recording in a directory; an old one there is overwritten.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if the file cannot be made.
    pub fn create(dir: &Path) -> Result<Self> {
        Self::with_limit(dir, LIMIT)
    }

    /// [`Recorder::create`] with another limit, in bytes.
    ///
    /// # Errors
    ///
    /// As [`Recorder::create`].
    pub fn with_limit(dir: &Path, limit: u64) -> Result<Self> {
        let path = dir.join(FILE);
        let file =
            File::create(&path).map_err(ClusterError::io(format!("make {}", path.display())))?;
        Ok(Self(Some(Arc::new(RecordingWriter {
            begun: Instant::now(),
            limit,
            state: Mutex::new(RecorderState {
                file,
                written: 0,
                step: 0,
                left_out: BTreeMap::new(),
                broken: false,
            }),
        }))))
    }

    /// Returns true if it writes a recording.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// Records the beginning of a step. Later entries belong to it.
    pub fn step(&self, number: u64, name: &str) {
        if let Some(writer) = &self.0 {
            writer.lock().step = number;
        }
        self.write(EntryEvent::Step {
            name: name.into(),
            outcome: None,
            message: None,
        });
    }

    /// Records the end of a step, with the reason if it failed.
    pub fn step_ended(&self, name: &str, ended: Result<(), &str>) {
        self.write(EntryEvent::Step {
            name: name.into(),
            outcome: Some(if ended.is_ok() { "ok" } else { "failed" }.into()),
            message: ended.err().map(Into::into),
        });
    }

    /// Records a violation of an invariant.
    pub fn violation(&self, violation: &str) {
        self.write(EntryEvent::Violation {
            violation: violation.into(),
        });
    }

    /// Records any other text.
    pub fn log(&self, message: impl Into<String>) {
        self.write(EntryEvent::Log {
            message: message.into(),
            cluster_cidrs: None,
        });
    }

    /// Records the cluster's ranges of pods.
    fn cluster_cidrs(&self, ranges: &[IpNet]) {
        let texts: Vec<_> = ranges.iter().map(ToString::to_string).collect();
        self.write(EntryEvent::Log {
            message: format!("the cluster CIDR is {}", texts.join(",")),
            cluster_cidrs: Some(ranges.to_vec()),
        });
    }

    /// Records the beginning or the end of a fault.
    pub(crate) fn fault(&self, fault: &str, active: bool) {
        self.write(EntryEvent::Fault {
            fault: fault.into(),
            active,
        });
    }

    /// Records a call that is over. `said` decodes the messages, and is called only if they are
    /// needed.
    pub(crate) fn call(
        &self,
        call: &LinkCall,
        said: impl FnOnce() -> (Option<Value>, Option<Value>),
    ) {
        let Some(writer) = &self.0 else { return };
        if is_chatter(call) || writer.leaves_out("request") {
            return;
        }
        let (asked, answered) = said();
        for decision in decisions(call, asked.as_ref(), answered.as_ref()) {
            writer.write(decision);
        }
        writer.write(EntryEvent::Request {
            from: call.client.clone(),
            method: call.method.clone(),
            message: asked,
            code: call.code.map(|code| format!("{code:?}")),
            fault: call.fault.map(Into::into),
            milliseconds: call.took.as_micros() as f64 / 1000.0,
            messages: (call.messages > 0).then_some(call.messages),
        });
    }

    pub(crate) fn write(&self, what: EntryEvent) {
        if let Some(writer) = &self.0 {
            writer.write(what);
        }
    }
}

/// Returns true for calls that go on all the time and mean nothing: Leases that were renewed, and
/// traces that were exported.
fn is_chatter(call: &LinkCall) -> bool {
    let goes_on = [".LeaseService/", ".TraceService/"];
    goes_on.iter().any(|service| call.method.contains(service))
        && call.code == Some(Code::Ok)
        && call.fault.is_none()
}

/// Returns the decisions that a call carries, such as a binding; most calls carry none.
fn decisions(call: &LinkCall, asked: Option<&Value>, answered: Option<&Value>) -> Vec<EntryEvent> {
    let (Some(Code::Ok), Some(asked)) = (call.code, asked) else {
        return Vec::new();
    };
    let text = |field: &str| asked[field].as_str().unwrap_or_default();
    let decided = match call.method.rsplit('/').next() {
        Some("BindPod") => vec![(
            format!("pod/{}/{}", text("namespace"), text("name")),
            format!("is bound to node {}", text("nodeName")),
        )],
        Some("AssignPodCIDRs") => vec![given(asked)],
        Some("AssignBlocks") => {
            let answers = items(answered.map_or(&Value::Null, |answer| &answer["results"]));
            let assigned = items(&asked["assignments"]).iter().zip(answers);
            let taken = assigned.filter(|(_, answer)| answer["refusal"].is_null());
            taken.map(|(assignment, _)| given(assignment)).collect()
        }
        _ => Vec::new(),
    };
    let decision = |(about, decision)| EntryEvent::Decision {
        by: call.client.clone(),
        about,
        decision,
    };
    decided.into_iter().map(decision).collect()
}

/// The decision that gives a node its blocks: what it is about, and its text.
fn given(assignment: &Value) -> (String, String) {
    let blocks = items(&assignment["podCIDRs"]);
    let blocks: Vec<_> = blocks.iter().filter_map(Value::as_str).collect();
    let name = assignment["name"].as_str().unwrap_or_default();
    (
        format!("node/{name}"),
        format!("is given {}", blocks.join(", ")),
    )
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl RecordingWriter {
    fn write(&self, what: EntryEvent) {
        if !what.is_frame() && self.leaves_out(what.kind()) {
            return;
        }
        let mut state = self.lock();
        self.put(&mut state, what.bounded(LONGEST_MESSAGE));
    }

    /// Returns true if there is no room for another entry of a kind, and counts it then.
    fn leaves_out(&self, kind: &'static str) -> bool {
        let mut state = self.lock();
        let is_full = state.broken || state.written > self.limit;
        if is_full {
            *state.left_out.entry(kind).or_default() += 1;
        }
        is_full
    }

    fn put(&self, state: &mut RecorderState, what: EntryEvent) {
        if state.broken {
            return;
        }
        let entry = RecordingEntry {
            at: self.begun.elapsed().as_micros() as f64 / 1_000_000.0,
            step: state.step,
            what,
        };
        let written = serde_json::to_vec(&entry)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                state.file.write_all(&line)?;
                Ok(line.len())
            });
        match written {
            Ok(length) => state.written += length as u64,
            // The run must not fail because its recording cannot be written.
            Err(_) => state.broken = true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecorderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RecordingWriter {
    fn drop(&mut self) {
        let mut state = self.lock();
        if !state.left_out.is_empty() {
            let counts = json!(state.left_out);
            let message = format!("the recording is full; left out are {counts}");
            let cluster_cidrs = None;
            self.put(
                &mut state,
                EntryEvent::Log {
                    message,
                    cluster_cidrs,
                },
            );
        }
    }
}

#[cfg(test)]
mod tests;
