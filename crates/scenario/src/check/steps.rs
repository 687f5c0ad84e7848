//! Checks of steps.

use super::{Checker, RANGES, title::SHORT};
use crate::{
    document::Path,
    format::{
        self, ACTIONS, Command, Deletion, MOST_NODES, Manifest, Network, Ranges, Several, Side,
    },
    plan::{Action, PlannedCase, PlannedCommand, PlannedStep, PlannedWait, SETTLE, WITHIN},
    rule::TextRule,
};

/// Services that run once for each node.
const KINDS: [&str; 2] = ["kubelet", "cri"];

impl Checker<'_> {
    pub(super) fn step(
        &mut self,
        path: &Path,
        step: format::Step,
        case: &PlannedCase,
    ) -> Option<PlannedStep> {
        if let Some(name) = &step.name {
            self.steps.push(name.clone());
        }
        let is_named = step.name.is_some();
        let present = self.document.keys(path);
        let actions: Vec<&str> = present
            .into_iter()
            .filter(|key| ACTIONS.contains(key))
            .collect();
        let is_about_nodes = |action: &&str| ["addNodes", "apply", "run"].contains(action);
        if self.document.is_damaged_inside(path)
            && (actions.is_empty() || actions.iter().any(is_about_nodes))
        {
            self.nodes = None;
        }
        if let [first, second, ..] = actions.as_slice() {
            let message = format!(
                "a step has one action, and this one has {first} before {second}: make {second} a step of its own"
            );
            self.wrong_key(&path.key(second), message);
            return None;
        }
        if actions.is_empty() && step.violations.is_empty() {
            if self.document.is_damaged(&path.key("violations")) {
                return None;
            }
            self.wrong(
                path,
                format!("a step needs an action: one of {}", ACTIONS.join(", ")),
            );
            return None;
        }
        let action = actions.first().copied().unwrap_or_default().to_owned();
        let titled = |most| {
            let name = step.name.clone();
            name.unwrap_or_else(|| self.title(path, &action, most))
        };
        let (title, full_title) = (titled(SHORT), titled(None));
        let violations = step.violations.iter().copied().collect();
        let settle = step.settle.map_or(SETTLE, |settle| settle.0);
        let action = self.action(&path.key(&action), step, case)?;
        Some(PlannedStep {
            at: self.document.at(path),
            title,
            full_title,
            is_named,
            action,
            violations,
            settle,
        })
    }

    fn action(&mut self, path: &Path, step: format::Step, case: &PlannedCase) -> Option<Action> {
        // At most one of them is set.
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
            Action::Wait(PlannedWait {
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
            if heal.node.is_some() && heal.process.is_some() {
                self.wrong_key(&path.key("process"), "set node or process, not both");
            }
            if let Some(node) = &heal.node {
                self.node(&path.key("node"), node);
            }
            if let Some(process) = &heal.process {
                self.process(&path.key("process"), process);
            }
            Action::Heal(heal)
        } else if let Some(disk) = step.fill_disk {
            let disk = self.disk(path, disk)?;
            if disk.node.contains('*') {
                // The disk is made before the cluster starts.
                self.wrong(
                    &path.key("node"),
                    "invalid pattern: must be the full name of one node",
                );
            }
            Action::FillDisk(disk)
        } else if let Some(disk) = step.free_disk {
            Action::FreeDisk(self.disk(path, disk)?)
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

    /// Adds applied Node objects to the nodes of the scenario. A file may hold any nodes, so after
    /// one they are unknown.
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

    pub(super) fn run(&mut self, path: &Path, run: format::Run) -> Option<PlannedCommand> {
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
        Some(PlannedCommand {
            words,
            exit_code,
            stdout: stdout?,
            stderr: stderr?,
            stdin,
            env,
            within: within.map_or(WITHIN, |within| within.0),
        })
    }

    pub(super) fn text(&mut self, path: &Path, text: &format::Text) -> Option<TextRule> {
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
            (None, Some(process)) => match cut.from {
                Side::Network => {
                    let message = format!(
                        "{process} is a process: only a node can be cut off from the pod network"
                    );
                    self.wrong(&path.key("process"), message);
                }
                Side::Cri
                    if !process.starts_with("kubelet-")
                        || process.starts_with("kubelet-nodes-") =>
                {
                    self.wrong(
                        &path.key("process"),
                        "only the kubelet of one node can be cut off from its runtime: set node",
                    );
                }
                Side::Cri | Side::Apiserver => self.caller(&path.key("process"), process),
            },
            (Some(_), Some(_)) => {
                self.wrong_key(&path.key("process"), "set node or process, not both")
            }
            (None, None) => self.wrong(path, "missing node or process: set one"),
        }
        if cut.from == Side::Network && self.network == Network::Ledger {
            self.wrong(
                &path.key("from"),
                "from: network requires kernel mode: set cluster.network to kernel",
            );
        }
        Some(Action::Partition(cut))
    }

    /// Returns the owner of a disk: a node, or `apiserver`.
    fn disk(&mut self, path: &Path, disk: format::Disk) -> Option<format::Node> {
        match (disk.node, disk.process) {
            (Some(node), None) => {
                self.node(&path.key("node"), &node);
                return Some(format::Node { node });
            }
            (None, Some(process)) if process == "apiserver" => {
                return Some(format::Node { node: process });
            }
            (None, Some(process)) => self.wrong(
                &path.key("process"),
                format!("{process} has no disk of its own: apiserver has, and each node for its kubelet and its CRI server"),
            ),
            (Some(_), Some(_)) => self.wrong_key(
                &path.key("process"),
                "set node or process, not both",
            ),
            (None, None) => self.wrong(path, "missing disk: set node, or process: apiserver"),
        }
        None
    }

    fn calls(&mut self, path: &Path, calls: format::Calls) -> Option<Action> {
        self.caller(&path.key("of"), &calls.of);
        self.method(&path.key("method"), calls.method.as_deref());
        let does = calls.fail.is_some() || calls.delay.is_some() || calls.jitter.is_some();
        if calls.clear == does {
            self.wrong(
                path,
                "calls needs either an effect (fail, delay or jitter) or clear: true",
            );
        }
        if calls.afterwards && calls.fail.is_none() {
            self.wrong_key(
                &path.key("afterwards"),
                "afterwards requires fail: the call is carried out, and then its answer is lost",
            );
        }
        Some(Action::Calls(calls))
    }

    fn restart(&mut self, path: &Path, restart: format::Restart) -> Action {
        let service = restart.service.as_str();
        // The name of a kind stands for all its processes.
        if !KINDS.contains(&service) {
            self.one_process(&path.key("service"), service);
        }
        let kind = KINDS
            .into_iter()
            .find(|kind| service.starts_with(&format!("{kind}-")));
        if let Some(kind) = kind
            && !restart.flags.is_empty()
        {
            let message = format!(
                "every {kind} has the same flags: restart {kind} with them, or {service} without"
            );
            self.wrong_key(&path.key("flags"), message);
            return Action::Restart(restart);
        }
        let flags = path.key("flags");
        for (flag, value) in &restart.flags {
            if !(RANGES.contains(&flag.as_str()) && service == "ipam-controller") {
                self.flag(&flags, service, flag, value);
            } else if flag.ends_with("-cidr") || flag.ends_with("-range") {
                if let Err(message) = value.to_string().parse::<Ranges>() {
                    self.wrong(&flags.key(flag), message);
                }
            } else if let Err(message) = (self.catalog.value)(service, flag, &value.to_string()) {
                self.wrong(&flags.key(flag), message);
            }
        }
        Action::Restart(restart)
    }

    fn add_nodes(&mut self, path: &Path, add: format::AddNodes) -> Action {
        let names: Vec<_> = add.each().into_iter().map(|node| node.name).collect();
        if names.is_empty() {
            self.wrong(&path.key("names"), "want the names of the new nodes");
        }
        if names.len() > MOST_NODES as usize {
            let message = format!("want {MOST_NODES} nodes at most");
            self.wrong(&path.key("names"), message);
        }
        if add.pod_cidr.is_some() && names.len() > 1 {
            self.wrong(
                &path.key("podCIDR"),
                "podCIDR requires a single name: add each node in a step of its own",
            );
        }
        if self.network == Network::Ledger && add.network == Some(Network::Kernel) {
            self.wrong(
                &path.key("network"),
                "a ledger-mode cluster cannot have kernel-mode nodes: set cluster.network to kernel",
            );
        }
        self.backend(path, add.network, add.node_network_backend);
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
}
