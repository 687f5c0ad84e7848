//! Traces: the context that a runtime hands to plugins, and the steps that our plugins hand back.
//!
//! A runtime puts the W3C context of each execution into `TRACEPARENT`, which any plugin may use.
//! To learn the steps of our plugins, it also sets [`ASK`]. Each plugin then prints its steps as
//! lines on standard error, and main plugins pass on those of the plugins they execute. Without
//! these variables, a plugin of ours reads one variable of its environment and does nothing else.

use std::{
    ffi::OsString,
    fmt,
    io::{self, Write as _},
    mem,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::UNIX_EPOCH,
};

use podplane_host::{clock, random};
use serde::{Deserialize, Serialize};

/// The customary environment variable of the W3C context.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The environment variable that asks our plugins for their steps, if it is not empty.
pub const ASK: &str = "PODPLANE_CNI_STEPS";
/// The prefix of a line with a step.
const PREFIX: &[u8] = b"podplane-step ";
/// The number of steps of one execution that are kept.
const KEPT: usize = 64;

/// A W3C trace context: `00-TRACE-SPAN-01`, and 00 at the end if the trace is not sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traceparent {
    /// The trace's id.
    pub trace: u128,
    /// The id of the enclosing step.
    pub step: u64,
    /// True if the trace is sampled: else nobody is asked for steps.
    pub is_sampled: bool,
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace,
            step,
            is_sampled,
        } = self;
        write!(
            f,
            "00-{trace:032x}-{step:016x}-{:02x}",
            u8::from(*is_sampled)
        )
    }
}

/// The error of a text that is not a W3C trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no W3C traceparent")]
pub struct NoTraceparent;

impl FromStr for Traceparent {
    type Err = NoTraceparent;

    fn from_str(text: &str) -> Result<Self, NoTraceparent> {
        let hex = |digits: &str, length: usize| {
            let are_digits = digits
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let number = u128::from_str_radix(digits, 16).ok();
            number.filter(|number| digits.len() == length && are_digits && *number != 0)
        };
        // Later versions may have more fields.
        let mut fields = text.trim().split('-');
        let (Some(version), Some(trace), Some(step), Some(flags)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(NoTraceparent);
        };
        if version.len() != 2 || version == "ff" {
            return Err(NoTraceparent);
        }
        let step = hex(step, 16).and_then(|step| u64::try_from(step).ok());
        let flags = u8::from_str_radix(flags, 16).map_err(|_| NoTraceparent)?;
        Ok(Self {
            trace: hex(trace, 32).ok_or(NoTraceparent)?,
            step: step.ok_or(NoTraceparent)?,
            is_sampled: flags & 1 == 1,
        })
    }
}

/// A finished step of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// The step's id.
    pub id: u64,
    /// The id of the enclosing step.
    pub parent: u64,
    /// The name of the operation.
    pub name: String,
    /// The plugin that did it.
    pub plugin: String,
    /// The time at which it began, in nanoseconds since 1970.
    pub start: u64,
    /// The time at which it ended, in nanoseconds since 1970.
    pub end: u64,
    /// The text of its error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The addresses that it was about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
}

/// The context of an operation, and the steps collected so far. Clones share the steps.
#[derive(Clone, Debug)]
pub struct Trace {
    parent: Traceparent,
    steps: Arc<Mutex<Vec<TraceStep>>>,
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.steps, &other.steps)
    }
}

impl Trace {
    /// An empty trace whose steps are part of `parent`.
    #[must_use]
    pub fn new(parent: Traceparent) -> Self {
        Self {
            parent,
            steps: Arc::default(),
        }
    }

    /// Takes the collected steps.
    #[must_use]
    pub fn take(&self) -> Vec<TraceStep> {
        // A step is pushed whole, so a panic elsewhere does not spoil the list.
        mem::take(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, step: TraceStep) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() < KEPT {
            steps.push(step);
        }
    }

    /// Starts the step of a plugin's execution; `None` if the trace is not sampled.
    pub(crate) fn begin(
        &self,
        name: impl FnOnce() -> String,
        plugin: &str,
    ) -> Option<UnfinishedStep> {
        let is_sampled = self.parent.is_sampled;
        is_sampled.then(|| UnfinishedStep::new(self.parent, name(), plugin))
    }

    /// The environment of a plugin that is executed in this step, as [`Trace::begin`] returned it.
    pub(crate) fn environment(
        &self,
        step: Option<&UnfinishedStep>,
    ) -> Vec<(&'static str, OsString)> {
        match step {
            Some(step) => step.environment().into(),
            // So that a plugin which records spans by itself does not begin a trace of its own.
            None => vec![(TRACEPARENT, self.parent.to_string().into())],
        }
    }

    /// Ends the step; `printed` has the lines with the plugin's own steps.
    pub(crate) fn end(&self, begun: UnfinishedStep, printed: &[u8], error: Option<String>) {
        self.keep(begun.end(error));
        for line in printed.split(|byte| *byte == b'\n') {
            // Other programs may print such lines too: one that does not parse is ignored.
            let step = line.strip_prefix(PREFIX).map(serde_json::from_slice);
            if let Some(Ok(step)) = step {
                self.keep(step);
            }
        }
    }
}

/// A step that has not ended.
#[derive(Debug)]
pub(crate) struct UnfinishedStep {
    trace: u128,
    step: TraceStep,
}

/// The present time in nanoseconds since 1970. Steps of several processes are compared, so both
/// ends of each use the clock that all share.
fn now() -> u64 {
    let since = clock::system_time().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or_default()
}

impl UnfinishedStep {
    fn new(parent: Traceparent, name: String, plugin: &str) -> Self {
        Self {
            trace: parent.trace,
            step: TraceStep {
                id: random::within(1..=u64::MAX),
                parent: parent.step,
                name,
                plugin: plugin.to_owned(),
                start: now(),
                end: 0,
                error: None,
                ips: Vec::new(),
            },
        }
    }

    fn traceparent(&self) -> Traceparent {
        Traceparent {
            trace: self.trace,
            step: self.step.id,
            is_sampled: true,
        }
    }

    /// The environment of a plugin that is executed in this step.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            (TRACEPARENT, self.traceparent().to_string().into()),
            (ASK, "1".into()),
        ]
    }

    fn end(self, error: Option<String>) -> TraceStep {
        TraceStep {
            end: now().max(self.step.start),
            error,
            ..self.step
        }
    }
}

/// The sink of a plugin's steps: it prints them if the environment asks, and otherwise does
/// nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepPrinter {
    parent: Option<Traceparent>,
    plugin: &'static str,
}

impl StepPrinter {
    /// A sink as the environment asks for it.
    pub(crate) fn new(plugin: &'static str, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let is_asked = env(ASK).is_some_and(|value| !value.is_empty());
        let parent = is_asked.then(|| env(TRACEPARENT)).flatten();
        let parent = parent.and_then(|text| text.to_str()?.parse().ok());
        let parent = parent.filter(|parent: &Traceparent| parent.is_sampled);
        Self { parent, plugin }
    }

    /// Starts a step.
    pub fn begin(self, name: &str) -> StartedStep {
        let parent = self.parent;
        StartedStep(parent.map(|parent| UnfinishedStep::new(parent, name.to_owned(), self.plugin)))
    }
}

/// A started step of one of our plugins; empty if nobody asked for steps.
#[derive(Debug)]
pub struct StartedStep(Option<UnfinishedStep>);

impl StartedStep {
    /// The additional environment of a plugin that is executed in this step.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, OsString)> {
        self.0.iter().flat_map(UnfinishedStep::environment)
    }

    /// Sets the addresses that the step is about.
    pub fn ips(&mut self, ips: impl Iterator<Item = impl fmt::Display>) {
        if let Some(begun) = &mut self.0 {
            begun.step.ips = ips.map(|ip| ip.to_string()).collect();
        }
    }

    /// Ends the step and prints it.
    pub fn end(self, error: Option<&dyn fmt::Display>) {
        let Some(begun) = self.0 else { return };
        let step = begun.end(error.map(ToString::to_string));
        let mut line = PREFIX.to_vec();
        if serde_json::to_writer(&mut line, &step).is_ok() {
            line.push(b'\n');
            // One write, so that lines of several threads do not mix. A missing reader is not an
            // error.
            _ = io::stderr().write_all(&line);
        }
    }
}

/// Removes the lines with steps from a plugin's standard error, and returns them.
pub(crate) fn split(stderr: &mut Vec<u8>) -> Vec<u8> {
    let is_step = |line: &[u8]| line.starts_with(PREFIX);
    let lines = || stderr.split_inclusive(|byte| *byte == b'\n');
    if !lines().any(is_step) {
        return Vec::new();
    }
    let (steps, rest): (Vec<_>, Vec<_>) = lines().partition(|line| is_step(line));
    let (steps, rest) = (steps.concat(), rest.concat());
    *stderr = rest;
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparents_round_trip() {
        let parsed: Traceparent = TEXT.parse().unwrap();
        assert_eq!(parsed.to_string(), TEXT);
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes";
        assert_eq!(later.parse(), Ok(parsed));
        assert!(parsed.is_sampled);
        let not_sampled = TEXT.replace("-01", "-00");
        let parsed: Traceparent = not_sampled.parse().unwrap();
        assert!(!parsed.is_sampled);
        assert_eq!(parsed.to_string(), not_sampled);
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-no",
        ] {
            assert_eq!(text.parse::<Traceparent>(), Err(NoTraceparent), "{text}");
        }
    }

    #[test]
    fn a_plugin_reports_steps_only_on_request() {
        let env = |ask: &'static str, parent: &'static str| {
            move |key: &str| match key {
                ASK => Some(OsString::from(ask)),
                TRACEPARENT => Some(OsString::from(parent)),
                _ => None,
            }
        };
        let asked = |env: &dyn Fn(&str) -> Option<OsString>| StepPrinter::new("p", env).parent;
        assert_eq!(asked(&env("1", TEXT)), TEXT.parse().ok());
        assert_eq!(asked(&env("", TEXT)), None);
        assert_eq!(asked(&env("1", "junk")), None);
        let not_sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        assert_eq!(asked(&env("1", not_sampled)), None);
        assert_eq!(asked(&|_| None), None);
    }

    #[test]
    fn removes_the_steps_from_stderr() {
        let trace = Trace::new(TEXT.parse().unwrap());
        let begun = trace.begin(|| "ADD p".into(), "p").unwrap();
        let inner = UnfinishedStep::new(begun.traceparent(), "lock".into(), "q").end(None);
        let line = serde_json::to_string(&inner).unwrap();
        let mut stderr =
            format!("hello\npodplane-step {line}\npodplane-step junk\nworld").into_bytes();
        let printed = split(&mut stderr);
        assert_eq!(String::from_utf8_lossy(&stderr), "hello\nworld");
        trace.end(begun, &printed, Some("no".into()));
        let [outer, kept] = &trace.take()[..] else {
            panic!("{trace:?}");
        };
        assert_eq!(*kept, inner);
        assert_eq!(
            (kept.parent, outer.parent),
            (outer.id, 0xb7ad_6b71_6920_3331)
        );
        assert_eq!(outer.error.as_deref(), Some("no"));
        let mut plain = b"plain\n".to_vec();
        assert_eq!(split(&mut plain), b"");
        assert_eq!(plain, b"plain\n");
    }
}
