//! What happened in a run, as lines of JSON: `recording.jsonl`.
//!
//! A [`Recorder`] writes it: what goes over [links](crate::link) and which [faults](crate::fault) there were it hears by itself, and objects as
//! they change from [`watch()`]. [`replay`] reads it again.

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

use serde_json::{Value, json};
use tonic::Code;

pub use self::{
    entry::{Change, Entry, What},
    watch::watch,
};
use crate::{ClusterError, Result};

/// The name of the file in the directory of a run.
pub const FILE: &str = "recording.jsonl";

/// What a recording may come to if nothing else is said.
pub const LIMIT: u64 = 64 << 20;

/// A message that is longer in JSON is not written, only its length.
const LONGEST_MESSAGE: usize = 16 << 10;

/// Writes a recording. Cheap to clone; the default one writes nothing.
///
/// Its size is bounded: from a limit on, only steps, faults and violations are still written, which are few, and the rest is counted; the last line tells the counts.
/// Of a message or an object of more than 16 KiB only the length is written. Values of environment variables and annotations by which kubectl repeats whole objects
/// are left out, and metadata of calls, where credentials would be, is never looked at.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Arc<Writer>>);

#[derive(Debug)]
struct Writer {
    begun: Instant,
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    written: u64,
    step: u64,
    /// What is not written any more, by kind.
    left_out: BTreeMap<&'static str, u64>,
    /// The disk is full, perhaps because it is to be.
    broken: bool,
}

/// A call over a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) client: String,
    /// `podplane.core.v1.PodService/BindPod`
    pub(crate) method: String,
    /// Absent if the client or the server went away.
    pub(crate) code: Option<Code>,
    pub(crate) fault: Option<&'static str>,
    /// Of a stream: how many came back.
    pub(crate) messages: u64,
    pub(crate) took: Duration,
}

impl Recorder {
    /// Begins a recording in a directory, over one that is there.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if the file cannot be made.
    pub fn create(dir: &Path) -> Result<Self> {
        Self::with_limit(dir, LIMIT)
    }

    /// The same, with another bound in bytes.
    ///
    /// # Errors
    ///
    /// As [`Recorder::create`].
    pub fn with_limit(dir: &Path, limit: u64) -> Result<Self> {
        let path = dir.join(FILE);
        let file =
            File::create(&path).map_err(ClusterError::io(format!("make {}", path.display())))?;
        Ok(Self(Some(Arc::new(Writer {
            begun: Instant::now(),
            limit,
            state: Mutex::new(State {
                file,
                written: 0,
                step: 0,
                left_out: BTreeMap::new(),
                broken: false,
            }),
        }))))
    }

    /// Whether it writes anything.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// A step begins; what comes after is of it.
    pub fn step(&self, number: u64, name: &str) {
        if let Some(writer) = &self.0 {
            writer.lock().step = number;
        }
        self.write(What::Step {
            name: name.into(),
            outcome: None,
            message: None,
        });
    }

    /// The step has ended, well or with what was wrong.
    pub fn step_ended(&self, name: &str, ended: Result<(), &str>) {
        self.write(What::Step {
            name: name.into(),
            outcome: Some(if ended.is_ok() { "ok" } else { "failed" }.into()),
            message: ended.err().map(Into::into),
        });
    }

    /// An invariant is broken.
    pub fn violation(&self, violation: &str) {
        self.write(What::Violation {
            violation: violation.into(),
        });
    }

    /// Something else that is worth a line.
    pub fn log(&self, message: impl Into<String>) {
        self.write(What::Log {
            message: message.into(),
        });
    }

    /// A fault begins or ends.
    pub(crate) fn fault(&self, fault: &str, active: bool) {
        self.write(What::Fault {
            fault: fault.into(),
            active,
        });
    }

    /// A call is over. What was asked and answered is put into words if somebody will read them.
    pub(crate) fn call(&self, call: &Call, said: impl FnOnce() -> (Option<Value>, Option<Value>)) {
        let Some(writer) = &self.0 else { return };
        if is_chatter(call) || writer.leaves_out("request") {
            return;
        }
        let (asked, answered) = said();
        for decision in decisions(call, asked.as_ref(), answered.as_ref()) {
            writer.write(decision);
        }
        writer.write(What::Request {
            from: call.client.clone(),
            method: call.method.clone(),
            message: asked,
            code: call.code.map(|code| format!("{code:?}")),
            fault: call.fault.map(Into::into),
            milliseconds: call.took.as_micros() as f64 / 1000.0,
            messages: (call.messages > 0).then_some(call.messages),
        });
    }

    pub(crate) fn write(&self, what: What) {
        if let Some(writer) = &self.0 {
            writer.write(what);
        }
    }
}

/// What goes on all the time and says nothing: leases that were renewed as ever, and traces that were handed over.
fn is_chatter(call: &Call) -> bool {
    let goes_on = [".LeaseService/", ".TraceService/"];
    goes_on.iter().any(|service| call.method.contains(service))
        && call.code == Some(Code::Ok)
        && call.fault.is_none()
}

/// What a call decides, if it is one that does.
fn decisions(call: &Call, asked: Option<&Value>, answered: Option<&Value>) -> Vec<What> {
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
    let decision = |(about, decision)| What::Decision {
        by: call.client.clone(),
        about,
        decision,
    };
    decided.into_iter().map(decision).collect()
}

/// A node is given its blocks.
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

impl Writer {
    fn write(&self, what: What) {
        if !what.is_frame() && self.leaves_out(what.kind()) {
            return;
        }
        let mut state = self.lock();
        self.put(&mut state, what.bounded(LONGEST_MESSAGE));
    }

    /// Whether there is no room for one more of a kind, which is counted then.
    fn leaves_out(&self, kind: &'static str) -> bool {
        let mut state = self.lock();
        let is_full = state.broken || state.written > self.limit;
        if is_full {
            *state.left_out.entry(kind).or_default() += 1;
        }
        is_full
    }

    fn put(&self, state: &mut State, what: What) {
        if state.broken {
            return;
        }
        let entry = Entry {
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
            // What is recorded must not fail for it.
            Err(_) => state.broken = true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.lock();
        if !state.left_out.is_empty() {
            let counts = json!(state.left_out);
            let message = format!("the recording is full; left out are {counts}");
            self.put(&mut state, What::Log { message });
        }
    }
}

#[cfg(test)]
mod tests;
