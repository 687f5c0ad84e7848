//! A scenario as it is run: read, checked, and with everything in it understood.

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
    rule::{self, Cel, Numbers, TextRule, ValueRule},
};

/// How long a wait or a command may take if it does not say.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// How long what the invariant checker finds may take to become what is expected.
pub(crate) const SETTLE: Duration = Duration::from_secs(20);

/// One run of a scenario: it, and one combination of the values of its matrix.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file, as it was named.
    pub file: PathBuf,
    /// What it is called.
    pub name: String,
    /// What it shows.
    pub description: Option<String>,
    /// The values of the matrix.
    pub values: BTreeMap<String, Value>,
    /// The cluster.
    pub cluster: Cluster,
    pub(crate) steps: Vec<Step>,
    /// The names of steps that something is counted from.
    pub(crate) marks: BTreeSet<String>,
    /// How long may take what has no deadline in the file.
    pub(crate) within: Duration,
}

impl Case {
    /// The same, with deadlines so many times as far: for a machine that is slow.
    #[must_use]
    pub fn patient(mut self, factor: f64) -> Self {
        let stretch = |time: &mut Duration| {
            *time =
                Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX);
        };
        let commands = |expect: &mut [Expectation]| {
            for expectation in expect {
                if let Rule::Command(run) = &mut expectation.rule {
                    stretch(&mut run.within);
                }
            }
        };
        stretch(&mut self.within);
        for step in &mut self.steps {
            stretch(&mut step.settle);
            match &mut step.action {
                Action::Run(run) => stretch(&mut run.within),
                Action::Wait(Wait { within, expect, .. }) => {
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

    /// What a path in the scenario means.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        self.dir().join(path)
    }

    /// Where its file is.
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
pub(crate) struct Step {
    /// Where it stands.
    pub(crate) at: Position,
    pub(crate) title: String,
    pub(crate) action: Action,
    pub(crate) violations: BTreeSet<ViolationKind>,
    pub(crate) settle: Duration,
}

/// What is done.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Only the invariants are checked.
    Check,
    Apply(Vec<Manifest>),
    Delete(Vec<Deletion>),
    Scale(Scale),
    Wait(Wait),
    Expect(Vec<Expectation>),
    Run(Box<Run>),
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
pub(crate) struct Wait {
    pub(crate) within: Duration,
    pub(crate) expect: Vec<Expectation>,
    pub(crate) timing: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) words: Vec<String>,
    pub(crate) exit_code: i32,
    pub(crate) stdout: TextRule,
    pub(crate) stderr: TextRule,
    pub(crate) stdin: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) within: Duration,
}

/// What must hold.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// Where it stands.
    pub(crate) at: Position,
    /// As the scenario has it.
    pub(crate) text: String,
    pub(crate) rule: Rule,
}

#[derive(Clone, Debug)]
pub(crate) enum Rule {
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
        numbers: Numbers,
    },
    Event {
        reason: String,
        on: Option<ObjectRef>,
        namespace: Option<String>,
        message: Option<TextRule>,
        event_type: Option<EventType>,
        since: Option<String>,
        numbers: Numbers,
    },
    Metric {
        name: String,
        service: String,
        labels: BTreeMap<String, String>,
        numbers: Numbers,
    },
    Ping {
        ping: Ping,
        answered_by: Option<String>,
        answers: bool,
    },
    Command(Box<Run>),
    Call {
        method: String,
        of: String,
        numbers: Numbers,
    },
}

/// What of an object.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// Whether it is there.
    Exists(bool),
    Cel(Cel),
    Path {
        text: String,
        path: rule::Path,
        rule: ValueRule,
    },
}

/// Characters of a matrix's value that a title has.
const SHORT: usize = 32;

/// A value as a title has it. Of a long one, or one of several lines, this is the beginning and the
/// first digits of its SHA-256 digest: these are the same in every version, so that reports can be
/// compared.
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

/// `kubelet-*` as a pattern.
pub(crate) fn glob(pattern: &str) -> Option<Regex> {
    if !pattern.contains('*') {
        return None;
    }
    let each: Vec<_> = pattern.split('*').map(regex::escape).collect();
    Regex::new(&format!("^{}$", each.join(".*"))).ok()
}
