//! What a scenario means, and what is wrong with it beyond its form.

mod cluster;
mod expectations;
mod names;
mod steps;
mod title;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    document::{Document, Path},
    format::{Network, Scenario},
    load::Catalog,
    plan::{Case, WITHIN},
    problem::Problem,
    rule::BadRule,
};

/// The services of which a cluster has one.
const CONTROL_PLANE: [&str; 4] = [
    "apiserver",
    "ipam-controller",
    "controller-manager",
    "scheduler",
];

/// Flags that `restart` takes though they are not the service's alone.
pub(crate) const RANGES: [&str; 5] = [
    "cluster-cidr",
    "node-cidr-mask-size",
    "node-cidr-mask-size-ipv4",
    "node-cidr-mask-size-ipv6",
    "service-cluster-ip-range",
];

/// The run that a scenario describes with these values of its matrix.
pub(crate) fn check(
    document: &Document<'_>,
    scenario: Scenario,
    values: BTreeMap<String, Value>,
    catalog: &Catalog,
) -> Result<Case, Vec<Problem>> {
    let Scenario {
        name,
        description,
        matrix: _,
        cluster,
        steps,
    } = scenario;
    let file = document.file();
    let stem = || {
        file.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let mut case = Case {
        file: file.into(),
        name: name.unwrap_or_else(stem),
        description,
        values,
        cluster,
        steps: Vec::new(),
        marks: BTreeSet::new(),
        within: WITHIN,
    };
    let mut checker = Checker {
        document,
        catalog,
        network: case.cluster.network,
        nodes: Some(BTreeSet::new()),
        names_one_node: false,
        steps: Vec::new(),
        marks: BTreeSet::new(),
        problems: Vec::new(),
    };
    let root = Path::default();
    if steps.is_empty() {
        checker.wrong(&root.key("steps"), "a scenario needs at least one step");
    }
    checker.cluster(&root.key("cluster"), &case);
    if document.is_damaged(&root.key("steps")) {
        checker.nodes = None;
    }
    for (index, step) in steps.into_iter().enumerate() {
        let planned = checker.step(&root.key("steps").index(index), step, &case);
        case.steps.extend(planned);
    }
    case.marks = std::mem::take(&mut checker.marks);
    if checker.names_one_node {
        // Else a node's processes could be those of others, too.
        case.cluster.nodes_per_process.get_or_insert(1);
    }
    if checker.problems.is_empty() {
        Ok(case)
    } else {
        Err(checker.problems)
    }
}

struct Checker<'a> {
    document: &'a Document<'a>,
    catalog: &'a Catalog,
    network: Network,
    /// The nodes there are at this step; unknown after a command, which may do anything.
    nodes: Option<BTreeSet<String>>,
    /// Whether a step is about the processes of one node.
    names_one_node: bool,
    /// The names of steps so far.
    steps: Vec<String>,
    /// Those of them that something is counted from.
    marks: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    /// A problem with a value, unless it may be for what was taken out of it that it is one.
    fn wrong(&mut self, path: &Path, message: impl Into<String>) {
        if self.document.is_damaged(path) {
            return;
        }
        let problem = self.document.problem(path, message);
        self.problems.push(problem);
    }

    /// The same with a key that is out of place beside others, or without them.
    fn wrong_key(&mut self, path: &Path, message: impl Into<String>) {
        if self.document.is_damaged(&path.parent()) {
            return;
        }
        let problem = self.document.key_problem(path, message);
        self.problems.push(problem);
    }

    /// The rule that a text is, unless it is none.
    fn rule<T>(&mut self, path: &Path, text: &str, rule: Result<T, BadRule>) -> Option<T> {
        rule.map_err(|BadRule { offset, message }| {
            let problem = self.document.inner_problem(path, text, offset, message);
            self.problems.push(problem);
        })
        .ok()
    }
}
