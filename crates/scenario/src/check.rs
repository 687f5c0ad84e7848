//! Turns a scenario into a plan, and reports mistakes that its form does not show.

mod cluster;
mod expectations;
mod names;
mod steps;
mod title;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    document::{Document, Path},
    format::{Network, Scalar, Scenario},
    load::Catalog,
    plan::{PlannedCase, RunValues, WITHIN},
    problem::{Problem, suggestion},
    rule::BadRule,
};

/// Services that run once in each cluster.
const CONTROL_PLANE: [&str; 4] = [
    "apiserver",
    "ipam-controller",
    "controller-manager",
    "scheduler",
];

/// Flags that `restart` takes although they belong to the cluster and not to one service.
pub(crate) const RANGES: [&str; 5] = [
    "cluster-cidr",
    "node-cidr-mask-size",
    "node-cidr-mask-size-ipv4",
    "node-cidr-mask-size-ipv6",
    "service-cluster-ip-range",
];

/// Returns the run that a scenario describes with these values, or all problems in it.
pub(crate) fn check(
    document: &Document<'_>,
    scenario: Scenario,
    values: RunValues,
    catalog: &Catalog,
) -> Result<PlannedCase, Vec<Problem>> {
    let Scenario {
        name,
        description,
        parameters: _,
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
    let mut case = PlannedCase {
        file: file.into(),
        name: name.unwrap_or_else(stem),
        description,
        values: values.matrix,
        parameters: values.parameters,
        cluster,
        steps: Vec::new(),
        marks: BTreeSet::new(),
        within: WITHIN,
    };
    let mut checker = Checker {
        document,
        catalog,
        are_values_complete: values.are_complete,
        network: case.cluster.network(),
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
        let path = root.key("steps").index(index);
        if checker.is_wanted(&path.key("when"), &step.when, &case) {
            let planned = checker.step(&path, step, &case);
            case.steps.extend(planned);
        }
    }
    case.marks = std::mem::take(&mut checker.marks);
    if checker.names_one_node {
        // Otherwise the node could share its processes with others.
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
    /// See [`RunValues::are_complete`].
    are_values_complete: bool,
    network: Network,
    /// The nodes that exist at this step; `None` after a command, which may change them.
    nodes: Option<BTreeSet<String>>,
    /// True if a step is about the processes of a single node.
    names_one_node: bool,
    /// The names of steps so far.
    steps: Vec<String>,
    /// The names of steps from which events are counted.
    marks: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    /// Returns true if the parameters and the values of the matrix are as a step wants them.
    fn is_wanted(
        &mut self,
        path: &Path,
        when: &BTreeMap<String, Scalar>,
        case: &PlannedCase,
    ) -> bool {
        let mut is_wanted = true;
        for (name, Scalar(wanted)) in when {
            let parameter = case.parameters.get(name).map(|parameter| &parameter.value);
            let Some(value) = case.values.get(name).or(parameter) else {
                if !self.are_values_complete {
                    continue;
                }
                let known = case.values.keys().chain(case.parameters.keys());
                let message = format!(
                    "unknown value {name:?}: neither a parameter nor of the matrix{}",
                    suggestion(name, known.map(String::as_str))
                );
                self.wrong_key(&path.key(name), message);
                continue;
            };
            is_wanted &= value == wanted;
        }
        is_wanted
    }

    /// Reports a problem with a value, unless something was taken out of the value, which may be
    /// the cause.
    fn wrong(&mut self, path: &Path, message: impl Into<String>) {
        if self.document.is_damaged(path) {
            return;
        }
        let problem = self.document.problem(path, message);
        self.problems.push(problem);
    }

    /// Reports a problem with a key that is out of place beside others, or without them.
    fn wrong_key(&mut self, path: &Path, message: impl Into<String>) {
        if self.document.is_damaged(&path.parent()) {
            return;
        }
        let problem = self.document.key_problem(path, message);
        self.problems.push(problem);
    }

    /// Returns the rule, or reports the mistake at its place in `text`.
    fn rule<T>(&mut self, path: &Path, text: &str, rule: Result<T, BadRule>) -> Option<T> {
        rule.map_err(|BadRule { offset, message }| {
            let problem = self.document.inner_problem(path, text, offset, message);
            self.problems.push(problem);
        })
        .ok()
    }
}
