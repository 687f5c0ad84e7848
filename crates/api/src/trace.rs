//! Names in the traces of pods' journeys that both writers and readers know, and the
//! [`Outline`] in which all readers show a trace.

use serde::{Deserialize, Serialize};

pub use self::outline::{Outline, OutlineLine, OutlineStep, StepFold, StepGap, TraceStep};

mod outline;

/// The attribute with the name of the CNI plugin of a step.
pub const CNI_PLUGIN: &str = "cni.plugin";

/// The deepest nesting of steps in which the reason of a failure is looked for.
const DEEPEST: usize = 32;

/// The reason for which a step failed, in the words of the innermost step that did: the errors
/// around it repeat it, with ids of their own. A step without an error failed if the last one
/// within it did.
pub fn failure<'a, S: Copy>(
    step: S,
    error: &impl Fn(S) -> Option<&'a str>,
    parts: &impl Fn(S) -> Vec<S>,
) -> Option<&'a str> {
    failure_within(step, error, parts, DEEPEST)
}

fn failure_within<'a, S: Copy>(
    step: S,
    error: &impl Fn(S) -> Option<&'a str>,
    parts: &impl Fn(S) -> Vec<S>,
    depth: usize,
) -> Option<&'a str> {
    let own = error(step);
    let Some(depth) = depth.checked_sub(1) else {
        return own;
    };
    let within = parts(step);
    let of_part = |part: &S| failure_within(*part, error, parts, depth);
    match own {
        Some(_) => within.iter().find_map(of_part).or(own),
        None => within.last().and_then(of_part),
    }
}

/// The steps of a trace that the API server has dropped, because there were too many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedSteps {
    /// Their number.
    #[serde(default, rename = "droppedSpans")]
    pub count: u64,
    /// The failed attempts among them, as far as they are known.
    #[serde(default, rename = "droppedAttempts")]
    pub attempts: Vec<DroppedAttempts>,
}

/// The failed attempts at one step that the API server has dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DroppedAttempts {
    /// The name of the step, which is a part of the root.
    pub name: String,
    /// The process that did it: a CNI plugin, or the service.
    pub process: String,
    /// The number of attempts.
    pub count: u64,
}

/// The most steps whose dropped attempts are counted. Spans come from any process, and have any
/// name.
const MOST_COUNTED: usize = 4;

impl DroppedSteps {
    /// Counts a failed attempt.
    pub fn add_attempt(&mut self, name: &str, process: &str) {
        let is_same = |one: &&mut DroppedAttempts| (&*one.name, &*one.process) == (name, process);
        if let Some(same) = self.attempts.iter_mut().find(is_same) {
            same.count += 1;
        } else if self.attempts.len() < MOST_COUNTED {
            self.attempts.push(DroppedAttempts {
                name: name.to_owned(),
                process: process.to_owned(),
                count: 1,
            });
        }
    }

    /// A remark on the trace; `None` if it has all steps.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some("1 step in between is not kept".to_owned()),
            count => Some(format!("{count} steps in between are not kept")),
        }
    }
}
