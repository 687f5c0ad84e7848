//! The plan of a run: a scenario that was read and checked, with all its rules parsed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use regex::Regex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    format::{
        AddNodes, Calls, Cluster, Cut, Deletion, EventType, Heal, Kill, Manifest, Node, ObjectRef,
        Pause, Ping, Process, Reboot, Restart, Scale, ViolationKind, plain,
    },
    problem::Position,
    rule::{self, Cel, NumberRule, TextRule, ValueRule},
};

/// The time limit of a wait or a command that does not name one.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// The time that findings of the invariant checker may take to become the expected ones.
pub(crate) const SETTLE: Duration = Duration::from_secs(20);

/// One run of a scenario, with one combination of the values of its matrix.
#[derive(Clone, Debug)]
pub struct PlannedCase {
    /// The path of the file, as it was given.
    pub file: PathBuf,
    /// The name of the scenario.
    pub name: String,
    /// A sentence about what it shows.
    pub description: Option<String>,
    /// The values of the matrix.
    pub values: BTreeMap<String, Value>,
    /// The values of the parameters.
    pub parameters: BTreeMap<String, Parameter>,
    /// The cluster.
    pub cluster: Cluster,
    pub(crate) steps: Vec<PlannedStep>,
    /// The names of steps from which events are counted.
    pub(crate) marks: BTreeSet<String>,
    /// The time limit of everything that has none in the file.
    pub(crate) within: Duration,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The value.
    pub value: Value,
    /// True if it is not the scenario's default.
    pub is_set: bool,
}

/// The values that a run of a scenario is made with.
pub(crate) struct RunValues {
    /// A combination of the matrix.
    pub(crate) matrix: BTreeMap<String, Value>,
    pub(crate) parameters: BTreeMap<String, Parameter>,
    /// False if a problem in the matrix or in the parameters has left some of them out.
    pub(crate) are_complete: bool,
}

impl PlannedCase {
    /// Multiplies all deadlines by `factor`, for a slow machine.
    #[must_use]
    pub fn patient(mut self, factor: f64) -> Self {
        let stretch = |time: &mut Duration| {
            *time =
                Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX);
        };
        let commands = |expect: &mut [Expectation]| {
            for expectation in expect {
                if let ExpectedState::Command(run) = &mut expectation.rule {
                    stretch(&mut run.within);
                }
            }
        };
        stretch(&mut self.within);
        for step in &mut self.steps {
            stretch(&mut step.settle);
            match &mut step.action {
                Action::Run(run) => stretch(&mut run.within),
                Action::Wait(PlannedWait { within, expect, .. }) => {
                    stretch(within);
                    commands(expect);
                }
                Action::Expect(expect) => commands(expect),
                _ => {}
            }
        }
        self
    }

    /// The name, with the values of the matrix: `full[mask=30,policy=off]`. Long values are
    /// shortened.
    pub fn title(&self) -> String {
        if self.values.is_empty() {
            return self.name.clone();
        }
        let each = self.values.iter();
        let each: Vec<_> = each
            .map(|(name, value)| format!("{name}={}", short(&plain(value))))
            .collect();
        format!("{}[{}]", self.name, each.join(","))
    }

    /// Resolves a path in the scenario, which is relative to its file.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        self.dir().join(path)
    }

    /// The directory of its file.
    pub(crate) fn dir(&self) -> PathBuf {
        let dir = self.file.parent().unwrap_or(Path::new(""));
        let dir = if dir.as_os_str().is_empty() {
            Path::new(".")
        } else {
            dir
        };
        std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
    }
}

/// A step.
#[derive(Clone, Debug)]
pub(crate) struct PlannedStep {
    /// The position in the scenario.
    pub(crate) at: Position,
    pub(crate) title: String,
    /// The title, of which nothing is left out.
    pub(crate) full_title: String,
    /// True if the scenario has a name for it.
    pub(crate) is_named: bool,
    pub(crate) action: Action,
    pub(crate) violations: BTreeSet<ViolationKind>,
    pub(crate) settle: Duration,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Only the invariants are checked.
    Check,
    Apply(Vec<Manifest>),
    Delete(Vec<Deletion>),
    Scale(Scale),
    Wait(PlannedWait),
    Expect(Vec<Expectation>),
    Run(Box<PlannedCommand>),
    Kill(Kill),
    Pause(Pause),
    Resume(Process),
    Partition(Cut),
    Heal(Heal),
    FillDisk(Node),
    FreeDisk(Node),
    Calls(Calls),
    Restart(Restart),
    AddNodes(AddNodes),
    RemoveNode(Node),
    RebootNode(Reboot),
}

#[derive(Clone, Debug)]
pub(crate) struct PlannedWait {
    pub(crate) within: Duration,
    pub(crate) expect: Vec<Expectation>,
    pub(crate) timing: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct PlannedCommand {
    pub(crate) words: Vec<String>,
    pub(crate) exit_code: i32,
    pub(crate) stdout: TextRule,
    pub(crate) stderr: TextRule,
    pub(crate) stdin: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) within: Duration,
}

/// A condition that must hold.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// The position in the scenario.
    pub(crate) at: Position,
    /// The expectation in a line.
    pub(crate) text: String,
    pub(crate) rule: ExpectedState,
}

#[derive(Clone, Debug)]
pub(crate) enum ExpectedState {
    Object {
        object: ObjectRef,
        namespace: String,
        look: Look,
    },
    Count {
        kind: String,
        namespace: Option<String>,
        selector: Option<String>,
        filter: Option<Cel>,
        numbers: NumberRule,
    },
    Event {
        reason: String,
        on: Option<ObjectRef>,
        namespace: Option<String>,
        message: Option<TextRule>,
        event_type: Option<EventType>,
        since: Option<String>,
        numbers: NumberRule,
    },
    Metric {
        name: String,
        service: String,
        labels: BTreeMap<String, String>,
        numbers: NumberRule,
    },
    Ping {
        ping: Ping,
        answered_by: Option<String>,
        answers: bool,
    },
    Command(Box<PlannedCommand>),
    Call {
        method: String,
        of: String,
        numbers: NumberRule,
    },
}

/// The part of an object that a rule is about.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// The object exists (true), or does not.
    Exists(bool),
    Cel(Cel),
    Path {
        text: String,
        path: rule::Path,
        rule: ValueRule,
    },
}

/// The number of characters of a matrix value in a title.
const SHORT: usize = 32;

/// Returns a value as titles show it. A long value, or one of several lines, becomes its beginning
/// and the first digits of its SHA-256 digest: these are the same in every version, so that reports
/// can be compared.
fn short(text: &str) -> String {
    if text.chars().count() <= SHORT && !text.contains(char::is_control) {
        return text.to_owned();
    }
    let line = text.trim_start().lines().next().unwrap_or_default();
    let beginning = line.chars().filter(|c| !c.is_control()).take(SHORT);
    let digest = Sha256::digest(text);
    let digest = digest.iter().take(4).map(|byte| format!("{byte:02x}"));
    beginning.chain(['…']).collect::<String>() + &digest.collect::<String>()
}

/// Returns a pattern such as `kubelet-*` as a regular expression; `None` without a `*`.
pub(crate) fn glob(pattern: &str) -> Option<Regex> {
    if !pattern.contains('*') {
        return None;
    }
    let each: Vec<_> = pattern.split('*').map(regex::escape).collect();
    Regex::new(&format!("^{}$", each.join(".*"))).ok()
}
