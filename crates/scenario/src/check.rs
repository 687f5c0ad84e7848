//! What a scenario means, and what is wrong with it beyond its form.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::Value;

use crate::{
    document::{Document, Path},
    format::{
        self, ACTIONS, Cluster, Command, Deletion, Expect, Manifest, Network, NodeSpec, Nodes,
        Scenario, Several, Side, Subject,
    },
    load::{Catalog, services},
    plan::{Action, Case, Expectation, Look, Rule, Run, SETTLE, Step, WITHIN, Wait, glob},
    problem::{Problem, listed, suggestion},
    rule::{self, BadRule, Cel, Numbers, TextRule, ValueRule},
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
    };
    let mut checker = Checker {
        document,
        catalog,
        network: case.cluster.network,
        nodes: Some(BTreeSet::new()),
        names_one_node: false,
        problems: Vec::new(),
    };
    let root = Path::default();
    if steps.is_empty() {
        checker.wrong(&root.key("steps"), "a scenario needs at least one step");
    }
    checker.cluster(&root.key("cluster"), &case);
    for (index, step) in steps.into_iter().enumerate() {
        let planned = checker.step(&root.key("steps").index(index), step, &case);
        case.steps.extend(planned);
    }
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
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn wrong(&mut self, path: &Path, message: impl Into<String>) {
        let problem = self.document.problem(path, message);
        self.problems.push(problem);
    }

    fn wrong_key(&mut self, path: &Path, message: impl Into<String>) {
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

    fn cluster(&mut self, path: &Path, case: &Case) {
        let Cluster {
            nodes,
            cni_bin_dir,
            extra_config,
            nodes_per_process,
            ..
        } = &case.cluster;
        let names = match nodes {
            Some(Nodes::Named(nodes)) => nodes.iter().map(|node| node.name.clone()).collect(),
            Some(Nodes::Number(number)) => numbered(*number),
            None => numbered(3),
        };
        self.nodes = Some(names);
        if let Some(Nodes::Named(nodes)) = nodes {
            let mut seen = BTreeSet::new();
            for (index, NodeSpec { name, network, .. }) in nodes.iter().enumerate() {
                let path = path.key("nodes").index(index);
                if !seen.insert(name) {
                    self.wrong(&path.key("name"), format!("there are two nodes {name:?}"));
                }
                if self.network == Network::Ledger && *network == Some(Network::Kernel) {
                    self.wrong(&path.key("network"), "a cluster in ledger mode has no nodes of the other: set cluster.network to kernel");
                }
            }
        }
        if *nodes_per_process == Some(0) {
            self.wrong(&path.key("nodesPerProcess"), "want 1 or more");
        }
        for dir in cni_bin_dir.iter().flat_map(|Several(dirs)| dirs) {
            let dir = case.resolve(dir);
            if !dir.is_dir() {
                let message = format!("there is no directory {}", dir.display());
                self.wrong(&path.key("cniBinDir"), message);
            }
        }
        for (service, flags) in extra_config {
            let path = path.key("extraConfig").key(service);
            if !self.catalog.flags.contains_key(service) {
                let message = self.unknown_service(service);
                self.wrong_key(&path, message);
                continue;
            }
            for flag in flags.keys() {
                self.flag(&path, service, flag);
            }
        }
    }

    /// Whether objects of this kind are served; `word` is what stands at `path`, or its beginning.
    fn kind(&mut self, path: &Path, word: &str) {
        let known = &self.catalog.kinds;
        if !known.contains(&word.to_lowercase()) {
            let hint = suggestion(word, known.iter().map(String::as_str));
            self.wrong(path, format!("the API server serves no {word:?}{hint}"));
        }
    }

    fn unknown_service(&self, service: &str) -> String {
        let known = self.catalog.flags.keys().map(String::as_str);
        format!(
            "no service is called {service:?}; there are {}{}",
            services(self.catalog),
            suggestion(service, known)
        )
    }

    /// Whether a service has a flag; `path` is that of all of its flags.
    fn flag(&mut self, path: &Path, service: &str, flag: &str) {
        let Some(known) = self.catalog.flags.get(service) else {
            return;
        };
        if !known.contains(flag) {
            let hint = suggestion(flag, known.iter().map(String::as_str));
            let see = if hint.is_empty() {
                format!(": see podplane {service} --help")
            } else {
                hint
            };
            self.wrong_key(
                &path.key(flag),
                format!("{service} has no flag {flag:?}{see}"),
            );
        }
    }

    fn node(&mut self, path: &Path, name: &str) {
        let Some(nodes) = &self.nodes else { return };
        let is_known = match glob(name) {
            Some(pattern) => nodes.iter().any(|node| pattern.is_match(node)),
            None => nodes.contains(name),
        };
        if !is_known {
            let each: Vec<_> = nodes.iter().take(10).collect();
            let more = if nodes.len() > 10 { ", …" } else { "" };
            let hint = suggestion(name, nodes.iter().map(String::as_str));
            let message = format!(
                "there is no node {name:?} at this step; there are {}{more}{hint}",
                listed(&each)
            );
            self.wrong(path, message);
        }
    }

    /// A process, by the name that `podplane status` has for it.
    fn process(&mut self, path: &Path, name: &str) {
        let of_nodes = |name: &str| name.starts_with("kubelet-") || name.starts_with("cri-");
        self.names_one_node |= of_nodes(name) && !name.contains("-nodes-");
        let Some(nodes) = &self.nodes else { return };
        let of_nodes = nodes
            .iter()
            .flat_map(|node| [format!("kubelet-{node}"), format!("cri-{node}")]);
        // Nodes of ledger mode may share processes.
        let shared = (self.network != Network::Kernel)
            .then(|| ["kubelet-nodes-0", "cri-nodes-0"].map(String::from));
        let known: BTreeSet<String> = CONTROL_PLANE
            .map(String::from)
            .into_iter()
            .chain(of_nodes)
            .chain(shared.into_iter().flatten())
            .collect();
        let is_known = match glob(name) {
            Some(pattern) => known.iter().any(|process| pattern.is_match(process)),
            None => {
                known.contains(name)
                    || name.starts_with("kubelet-nodes-")
                    || name.starts_with("cri-nodes-")
            }
        };
        if !is_known {
            let hint = suggestion(name, known.iter().map(String::as_str));
            let message = format!(
                "there is no process {name:?} at this step; there are {}, and kubelet-NODE and cri-NODE of each node{hint}",
                CONTROL_PLANE.join(", ")
            );
            self.wrong(path, message);
        }
    }

    fn step(&mut self, path: &Path, step: format::Step, case: &Case) -> Option<Step> {
        let present = self.document.keys(path);
        let actions: Vec<&str> = present
            .into_iter()
            .filter(|key| ACTIONS.contains(key))
            .collect();
        if let [first, second, ..] = actions.as_slice() {
            let message = format!(
                "a step has one action, and this one has {first} before {second}: make {second} a step of its own"
            );
            self.wrong_key(&path.key(second), message);
            return None;
        }
        if actions.is_empty() && step.violations.is_empty() {
            self.wrong(
                path,
                format!("a step needs an action: one of {}", ACTIONS.join(", ")),
            );
            return None;
        }
        let action = actions.first().copied().unwrap_or_default().to_owned();
        let title = step
            .name
            .clone()
            .unwrap_or_else(|| self.title(path, &action));
        let violations = step.violations.iter().copied().collect();
        let settle = step.settle.map_or(SETTLE, |settle| settle.0);
        let action = self.action(&path.key(&action), step, case)?;
        Some(Step {
            at: self.document.at(path),
            title,
            action,
            violations,
            settle,
        })
    }

    /// What a step without a name is called.
    fn title(&self, path: &Path, action: &str) -> String {
        if action.is_empty() {
            return "look at the invariants".into();
        }
        let value = self.document.value_at(&path.key(action));
        let detail = match (action, &value) {
            (_, Value::String(text)) => text.clone(),
            ("wait", Value::Object(wait)) => {
                return format!("wait until {}", brief(&wait["expect"]));
            }
            ("expect", expect) => brief(expect),
            ("run", Value::Object(run)) => match run.get("command") {
                Some(Value::Array(words)) => words
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(" "),
                Some(Value::String(line)) => line.lines().next().unwrap_or_default().to_owned(),
                _ => String::new(),
            },
            ("apply", Value::Object(object)) => format!(
                "{}/{}",
                object
                    .get("kind")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_lowercase(),
                object
                    .get("metadata")
                    .and_then(|metadata| metadata.get("name")?.as_str())
                    .unwrap_or_default()
            ),
            ("apply", Value::Array(objects)) => format!("{} objects or files", objects.len()),
            (_, Value::Object(fields)) => {
                let plain = |(key, value): (&String, &Value)| match value {
                    Value::String(text) => format!("{key} {text}"),
                    other => format!("{key} {other}"),
                };
                fields.iter().map(plain).collect::<Vec<_>>().join(", ")
            }
            (_, other) => other.to_string(),
        };
        format!("{action} {detail}")
    }

    fn action(&mut self, path: &Path, step: format::Step, case: &Case) -> Option<Action> {
        // Exactly one of them is there, or none; `null` is as none.
        Some(if let Some(Several(manifests)) = step.apply {
            for (index, manifest) in manifests.iter().enumerate() {
                if let Manifest::File(file) = manifest
                    && !case.resolve(file).exists()
                {
                    let path = if self.document.value_at(path).is_array() {
                        path.index(index)
                    } else {
                        path.clone()
                    };
                    self.wrong(
                        &path,
                        format!("there is no file {}", case.resolve(file).display()),
                    );
                }
            }
            self.applied(&manifests);
            Action::Apply(manifests)
        } else if let Some(Several(deleted)) = step.delete {
            let deletions: Vec<Deletion> = deleted.iter().map(Into::into).collect();
            let is_list = self.document.value_at(path).is_array();
            for (index, deletion) in deletions.iter().enumerate() {
                let path = if is_list {
                    path.index(index)
                } else {
                    path.clone()
                };
                let path = if self.document.keys(&path).is_empty() {
                    path
                } else {
                    path.key("object")
                };
                self.kind(&path, &deletion.object.kind);
            }
            Action::Delete(deletions)
        } else if let Some(scale) = step.scale {
            self.kind(&path.key("object"), &scale.object.kind);
            Action::Scale(scale)
        } else if let Some(wait) = step.wait {
            Action::Wait(Wait {
                within: wait.within.map_or(WITHIN, |within| within.0),
                expect: self.expectations(&path.key("expect"), wait.expect),
                timing: wait.timing,
            })
        } else if let Some(expect) = step.expect {
            Action::Expect(self.expectations(path, expect))
        } else if let Some(run) = step.run {
            self.nodes = None;
            Action::Run(Box::new(self.run(path, run)?))
        } else if let Some(kill) = step.kill {
            self.process(&path.key("process"), &kill.process);
            Action::Kill(kill)
        } else if let Some(pause) = step.pause {
            self.process(&path.key("process"), &pause.process);
            Action::Pause(pause)
        } else if let Some(resume) = step.resume {
            self.process(&path.key("process"), &resume.process);
            Action::Resume(resume)
        } else if let Some(cut) = step.partition {
            self.cut(path, cut)?
        } else if let Some(heal) = step.heal {
            if let Some(node) = &heal.node {
                self.node(&path.key("node"), node);
            }
            if let Some(process) = &heal.process {
                self.process(&path.key("process"), process);
            }
            Action::Heal(heal)
        } else if let Some(node) = step.fill_disk {
            self.node(&path.key("node"), &node.node);
            if node.node.contains('*') {
                // Its disk is there before the cluster is.
                self.wrong(&path.key("node"), "which node? Say its whole name");
            }
            Action::FillDisk(node)
        } else if let Some(node) = step.free_disk {
            self.node(&path.key("node"), &node.node);
            Action::FreeDisk(node)
        } else if let Some(calls) = step.calls {
            self.calls(path, calls)?
        } else if let Some(restart) = step.restart {
            self.restart(path, restart)
        } else if let Some(add) = step.add_nodes {
            self.add_nodes(path, add)
        } else if let Some(node) = step.remove_node {
            self.node(&path.key("node"), &node.node);
            if let Some(nodes) = &mut self.nodes {
                nodes.remove(&node.node);
            }
            Action::RemoveNode(node)
        } else if let Some(node) = step.reboot_node {
            self.node(&path.key("node"), &node.node);
            Action::RebootNode(node)
        } else {
            Action::Check
        })
    }

    /// Node objects that are applied are nodes to the scenario, and files may hold any.
    fn applied(&mut self, manifests: &[Manifest]) {
        for manifest in manifests {
            match manifest {
                Manifest::File(_) => self.nodes = None,
                Manifest::Object(object)
                    if object.get("kind").is_some_and(|kind| kind == "Node") =>
                {
                    let name = object
                        .get("metadata")
                        .and_then(|metadata| metadata.get("name")?.as_str());
                    if let (Some(nodes), Some(name)) = (&mut self.nodes, name) {
                        nodes.insert(name.into());
                    }
                }
                Manifest::Object(_) => {}
            }
        }
    }

    fn run(&mut self, path: &Path, run: format::Run) -> Option<Run> {
        let format::Run {
            command,
            exit_code,
            stdout,
            stderr,
            stdin,
            env,
            within,
        } = run;
        let words = match command {
            Command::Line(line) => vec!["sh".into(), "-c".into(), line],
            Command::Words(words) => words,
        };
        if words.is_empty() {
            self.wrong(&path.key("command"), "want a program");
        }
        let text = |this: &mut Self, key: &str, text: Option<format::Text>| match text {
            None => Some(TextRule::default()),
            Some(text) => this.text(&path.key(key), &text),
        };
        let stdout = text(self, "stdout", stdout);
        let stderr = text(self, "stderr", stderr);
        Some(Run {
            words,
            exit_code,
            stdout: stdout?,
            stderr: stderr?,
            stdin,
            env,
            within: within.map_or(WITHIN, |within| within.0),
        })
    }

    fn text(&mut self, path: &Path, text: &format::Text) -> Option<TextRule> {
        let pattern = match text {
            format::Text::Rules(rules) => rules.matches.clone().unwrap_or_default(),
            format::Text::Part(_) => String::new(),
        };
        self.rule(&path.key("matches"), &pattern, TextRule::new(text))
    }

    fn cut(&mut self, path: &Path, cut: format::Cut) -> Option<Action> {
        match (&cut.node, &cut.process) {
            (Some(node), None) => {
                self.names_one_node = true;
                self.node(&path.key("node"), node);
            }
            (None, Some(process)) if cut.from == Side::Network => {
                self.wrong(
                    &path.key("process"),
                    format!(
                        "{process} is a process: only a node is cut off from the network of pods"
                    ),
                );
            }
            (None, Some(process)) => self.process(&path.key("process"), process),
            (Some(_), Some(_)) => self.wrong_key(
                &path.key("process"),
                "who is cut off, a node or a process? Name one of them",
            ),
            (None, None) => self.wrong(path, "who is cut off? Name a node or a process"),
        }
        if cut.from == Side::Network && self.network == Network::Ledger {
            self.wrong(
                &path.key("from"),
                "in ledger mode there is no network of pods: set cluster.network to kernel",
            );
        }
        if cut.process.as_deref() == Some("apiserver") {
            self.wrong(
                &path.key("process"),
                "the API server cannot be cut off from itself: pause it, or cut off the others",
            );
        }
        Some(Action::Partition(cut))
    }

    fn calls(&mut self, path: &Path, calls: format::Calls) -> Option<Action> {
        self.process(&path.key("of"), &calls.of);
        let does = calls.fail.is_some() || calls.delay.is_some() || calls.jitter.is_some();
        if calls.clear == does {
            self.wrong(
                path,
                "what becomes of the calls? Say fail, delay or jitter, or else clear: true",
            );
        }
        if calls.afterwards && calls.fail.is_none() {
            self.wrong_key(
                &path.key("afterwards"),
                "afterwards goes with fail: the call is carried out, and then its answer is lost",
            );
        }
        Some(Action::Calls(calls))
    }

    fn restart(&mut self, path: &Path, restart: format::Restart) -> Action {
        let service = restart.service.as_str();
        if !CONTROL_PLANE.contains(&service) {
            let hint = suggestion(service, CONTROL_PLANE);
            let message = format!(
                "{service:?} cannot be restarted with flags; {} can{hint}",
                listed(&CONTROL_PLANE)
            );
            self.wrong(&path.key("service"), message);
        }
        for flag in restart.flags.keys() {
            if !(RANGES.contains(&flag.as_str()) && service == "ipam-controller") {
                self.flag(&path.key("flags"), service, flag);
            }
        }
        Action::Restart(restart)
    }

    fn add_nodes(&mut self, path: &Path, add: format::AddNodes) -> Action {
        let names: Vec<_> = add.each().into_iter().map(|node| node.name).collect();
        if names.is_empty() {
            self.wrong(&path.key("names"), "want the names of the new nodes");
        }
        if add.pod_cidr.is_some() && names.len() > 1 {
            self.wrong(
                &path.key("podCIDR"),
                "one block is for one node: add each with a step of its own",
            );
        }
        if self.network == Network::Ledger && add.network == Some(Network::Kernel) {
            self.wrong(
                &path.key("network"),
                "a cluster in ledger mode has no nodes of the other: set cluster.network to kernel",
            );
        }
        for name in &names {
            if self
                .nodes
                .as_mut()
                .is_some_and(|nodes| !nodes.insert(name.clone()))
            {
                self.wrong(
                    &path.key("names"),
                    format!("there is a node {name:?} already"),
                );
            }
        }
        Action::AddNodes(add)
    }

    fn expectations(&mut self, path: &Path, each: Vec<Expect>) -> Vec<Expectation> {
        if each.is_empty() {
            self.wrong(path, "what must hold? Want at least one expectation");
        }
        let numbered = each.into_iter().enumerate();
        numbered
            .filter_map(|(index, expect)| self.expectation(&path.index(index), expect))
            .collect()
    }

    fn expectation(&mut self, path: &Path, expect: Expect) -> Option<Expectation> {
        let keys = self.document.keys(path);
        let subject_of = |key: &str| {
            Subject::ALL
                .into_iter()
                .find(|subject| subject.key() == key)
        };
        let subjects: Vec<_> = keys.iter().filter_map(|key| subject_of(key)).collect();
        let subject = match subjects.as_slice() {
            [subject] => *subject,
            [] => {
                let known = Subject::ALL.map(Subject::key);
                self.wrong(
                    path,
                    format!("what is this about? Say one of {}", known.join(", ")),
                );
                return None;
            }
            [first, second, ..] => {
                let message = format!(
                    "an expectation is about one thing, and this one is about {} before {}",
                    first.key(),
                    second.key()
                );
                self.wrong_key(&path.key(second.key()), message);
                return None;
            }
        };
        let stray = keys
            .iter()
            .find(|key| **key != subject.key() && !subject.companions().contains(key));
        if let Some(stray) = stray {
            let message = format!(
                "{stray} does not go with {}; what does is {}",
                subject.key(),
                listed(subject.companions())
            );
            self.wrong_key(&path.key(stray), message);
            return None;
        }
        let rule = match subject {
            Subject::Object => self.object(path, expect)?,
            Subject::Count => self.count(path, expect)?,
            Subject::Event => self.event(path, expect)?,
            Subject::Metric => self.metric(path, expect)?,
            Subject::Ping => self.ping(path, expect)?,
            Subject::Command => self.command(path, expect)?,
            Subject::Call => self.call(path, expect)?,
        };
        Some(Expectation {
            at: self.document.at(path),
            text: self.document.value_at(path).to_string(),
            rule,
        })
    }

    fn object(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let numbers = Numbers {
            equals: None,
            at_least: expect.at_least,
            at_most: expect.at_most,
        };
        let rule = ValueRule {
            exists: expect.exists,
            equals: expect.equals,
            not_equals: expect.not_equals,
            matches: self.pattern(&path.key("matches"), expect.matches.as_deref())?,
            numbers,
        };
        let has_rule = rule.equals.is_some()
            || rule.not_equals.is_some()
            || rule.matches.is_some()
            || !numbers.is_empty();
        let look = match (expect.jsonpath, expect.cel) {
            (Some(_), Some(_)) => {
                self.wrong_key(
                    &path.key("cel"),
                    "jsonpath or cel: make them two expectations",
                );
                return None;
            }
            (Some(text), None) => {
                let parsed = rule::Path::parse(&text);
                let parsed = self.rule(&path.key("jsonpath"), &text, parsed)?;
                Look::Path {
                    text,
                    path: parsed,
                    rule,
                }
            }
            (None, Some(text)) => {
                if has_rule || rule.exists.is_some() {
                    self.wrong(
                        &path.key("cel"),
                        "a CEL expression says all by itself: put the comparison into it",
                    );
                    return None;
                }
                Look::Cel(self.rule(&path.key("cel"), &text, Cel::parse(&text))?)
            }
            (None, None) if has_rule => {
                self.wrong(path, "which value of the object? Say it with jsonpath");
                return None;
            }
            (None, None) => Look::Exists(rule.exists.unwrap_or(true)),
        };
        let object = expect.object?;
        self.kind(&path.key("object"), &object.kind);
        Some(Rule::Object {
            object,
            namespace: expect.namespace.unwrap_or_else(|| "default".into()),
            look,
        })
    }

    /// The numbers of an expectation whose `equals` is one too.
    fn numbers(&mut self, path: &Path, expect: &Expect) -> Option<Numbers> {
        let equals = match &expect.equals {
            None => None,
            Some(value) => match value.as_f64() {
                Some(number) => Some(number),
                None => {
                    self.wrong(&path.key("equals"), format!("{value} is no number"));
                    return None;
                }
            },
        };
        Some(Numbers {
            equals,
            at_least: expect.at_least,
            at_most: expect.at_most,
        })
    }

    fn needed(&mut self, path: &Path, expect: &Expect) -> Option<Numbers> {
        let numbers = self.numbers(path, expect)?;
        if numbers.is_empty() {
            self.wrong(path, "how many? Say equals, atLeast or atMost");
            return None;
        }
        Some(numbers)
    }

    fn count(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let numbers = self.needed(path, &expect)?;
        let filter = match expect.filter {
            None => None,
            Some(text) => Some(self.rule(&path.key("where"), &text, Cel::parse(&text))?),
        };
        let kind = expect.count?;
        self.kind(&path.key("count"), &kind);
        Some(Rule::Count {
            kind,
            namespace: expect.namespace,
            selector: expect.selector,
            filter,
            numbers,
        })
    }

    fn event(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let mut numbers = self.numbers(path, &expect)?;
        if numbers.is_empty() {
            numbers.at_least = Some(1.0);
        }
        let message = match &expect.message {
            None => None,
            Some(text) => Some(self.text(&path.key("message"), text)?),
        };
        if let Some(on) = &expect.on {
            self.kind(&path.key("on"), &on.kind);
        }
        Some(Rule::Event {
            reason: expect.event?,
            on: expect.on,
            namespace: expect.namespace,
            message,
            event_type: expect.event_type,
            numbers,
        })
    }

    fn metric(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let numbers = self.needed(path, &expect)?;
        let Some(service) = expect.service else {
            self.wrong(
                path,
                "whose metric? Say service: scheduler, kubelet-node-0, …",
            );
            return None;
        };
        self.process(&path.key("service"), &service);
        Some(Rule::Metric {
            name: expect.metric?,
            service,
            labels: expect.labels,
            numbers,
        })
    }

    fn ping(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        if self.network == Network::Ledger {
            self.wrong_key(
                &path.key("ping"),
                "in ledger mode pods have no network to ping in: set cluster.network to kernel",
            );
            return None;
        }
        let answers = expect.answers.unwrap_or(true);
        if !answers && expect.answered_by.is_some() {
            self.wrong_key(
                &path.key("answeredBy"),
                "if nobody answers, who should it be? Leave out answers: false or this",
            );
            return None;
        }
        Some(Rule::Ping {
            ping: expect.ping?,
            answered_by: expect.answered_by,
            answers,
        })
    }

    fn command(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let run = format::Run {
            command: expect.command?,
            exit_code: expect.exit_code.unwrap_or_default(),
            stdout: expect.stdout,
            stderr: expect.stderr,
            stdin: None,
            env: BTreeMap::new(),
            within: None,
        };
        Some(Rule::Command(Box::new(self.run(path, run)?)))
    }

    fn call(&mut self, path: &Path, expect: Expect) -> Option<Rule> {
        let numbers = self.needed(path, &expect)?;
        let Some(of) = expect.of else {
            self.wrong(path, "whose calls? Say of: scheduler, kubelet-node-0, …");
            return None;
        };
        self.process(&path.key("of"), &of);
        Some(Rule::Call {
            method: expect.call?,
            of,
            numbers,
        })
    }

    #[expect(clippy::option_option, reason = "a wrong pattern, or none")]
    fn pattern(&mut self, path: &Path, text: Option<&str>) -> Option<Option<Regex>> {
        match text {
            None => Some(None),
            Some(text) => self.rule(path, text, rule::pattern(text)).map(Some),
        }
    }
}

/// Expectations in a few words.
fn brief(expect: &Value) -> String {
    const LENGTH: usize = 70;
    let each = expect.as_array().map(Vec::as_slice).unwrap_or_default();
    let plain = |(key, value): (&String, &Value)| match value {
        Value::String(text) => format!("{key} {text}"),
        other => format!("{key} {other}"),
    };
    let Some(Value::Object(first)) = each.first() else {
        return String::new();
    };
    let mut text = first.iter().map(plain).collect::<Vec<_>>().join(", ");
    if let Some((end, _)) = text.char_indices().nth(LENGTH) {
        text.truncate(end);
        text.push('…');
    }
    match each.len() {
        1 => text,
        more => format!("{text} and {} more", more - 1),
    }
}

fn numbered(number: u32) -> BTreeSet<String> {
    (0..number).map(|index| format!("node-{index}")).collect()
}
