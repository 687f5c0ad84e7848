//! A run as a person is told of it: the commands that one would type, their output, the claims.

use podplane_test_cluster::ProgramOutput;

use crate::{
    act,
    command::tail,
    format::{AddNodes, Deletion, Manifest, Node, Scale, Several, word},
    plan::{Action, PlannedCase, PlannedCommand, PlannedStep},
};

/// Returns true if a step says what must hold, false if it does something.
pub(crate) fn is_claim(step: &PlannedStep) -> bool {
    match &step.action {
        Action::Wait(_) | Action::Expect(_) | Action::Check => true,
        Action::Run(run) => run.exit_code != 0 || run.stdout.is_set() || run.stderr.is_set(),
        _ => false,
    }
}

/// Returns the command line that starts the cluster of a case.
pub(crate) fn up(case: &PlannedCase) -> String {
    let flags = case.cluster.flags().into_iter();
    let flags = flags.map(|flag| format!(" {} {}", flag.name, flag.value));
    let more = case
        .cluster
        .extra_config
        .iter()
        .flat_map(|(service, flags)| {
            let each = flags.iter();
            each.map(move |(flag, value)| format!(" --extra-config {service}.{flag}={value}"))
        });
    let flags: String = flags.chain(more).collect();
    format!("podplane up --detach{flags}")
}

/// Returns the command lines that carry out an action; none for faults, which no command injects.
pub(crate) fn commands(action: &Action) -> Vec<String> {
    let namespace = |namespace: &Option<String>| match namespace {
        Some(namespace) => format!(" --namespace {namespace}"),
        None => String::new(),
    };
    match action {
        Action::Run(run) => lines(run),
        Action::Apply(manifests) => {
            let each = manifests.iter().map(|manifest| match manifest {
                Manifest::File(file) => format!("podplane apply -f {}", file.display()),
                Manifest::Object(object) => {
                    let text = |value: Option<&serde_json::Value>| {
                        let text = value.and_then(serde_json::Value::as_str);
                        text.unwrap_or_default().to_owned()
                    };
                    let name = object.get("metadata").and_then(|of| of.get("name"));
                    let kind = text(object.get("kind")).to_lowercase();
                    format!("podplane apply -f -  # {kind}/{}", text(name))
                }
            });
            each.collect()
        }
        Action::Delete(deletions) => {
            let each = deletions.iter().map(|deletion| {
                let Deletion {
                    object,
                    namespace: of,
                    grace_period_seconds,
                    wait: _,
                } = deletion;
                let grace = grace_period_seconds
                    .map(|seconds| format!(" --grace-period {seconds}"))
                    .unwrap_or_default();
                format!("podplane delete {object}{}{grace}", namespace(of))
            });
            each.collect()
        }
        Action::Scale(Scale {
            object,
            namespace: of,
            replicas,
        }) => vec![format!(
            "kubectl scale {object}{} --replicas {replicas}",
            namespace(of)
        )],
        Action::Restart(restart) => {
            vec![format!("podplane {}", act::restart_args(restart).join(" "))]
        }
        Action::AddNodes(AddNodes {
            names: Several(names),
            labels,
            network,
            node_network_backend,
            pod_cidr: _,
        }) => {
            let mut words = vec!["podplane node add".to_owned()];
            words.extend(network.map(|network| format!("--network {}", word(network))));
            let backend = node_network_backend.map(word);
            words.extend(backend.map(|backend| format!("--node-network-backend {backend}")));
            let labels = labels.iter();
            words.extend(labels.map(|(key, value)| format!("--label {key}={value}")));
            words.extend(names.iter().cloned());
            vec![words.join(" ")]
        }
        Action::RemoveNode(Node { node }) => vec![format!("podplane node remove {node}")],
        _ => Vec::new(),
    }
}

/// Returns the lines of a command.
pub(crate) fn lines(run: &PlannedCommand) -> Vec<String> {
    match &run.words[..] {
        [sh, c, line] if sh == "sh" && c == "-c" => line.lines().map(Into::into).collect(),
        words => vec![words.join(" ")],
    }
}

/// Returns the output of a command, or its end if it is long.
pub(crate) fn output(finished: &ProgramOutput) -> String {
    let text = format!("{}{}", finished.stdout, finished.stderr);
    let lines: Vec<_> = tail(text.trim_end())
        .lines()
        .map(|line| format!("  {line}"))
        .collect();
    lines.join("\n")
}

/// Returns the output of a command and its exit code.
pub(crate) fn ended(finished: &ProgramOutput) -> String {
    let code = match finished.code {
        Some(code) => format!("exit code {code}"),
        None => "ended by a signal".into(),
    };
    match output(finished) {
        output if output.is_empty() => code,
        output => format!("{output}\n{code}"),
    }
}
