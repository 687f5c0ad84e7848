//! Carries out the actions of steps.

use std::{collections::BTreeMap, fmt, time::Duration};

use anyhow::{Context as _, Result, bail};
use podplane_test_cluster::{
    Signal,
    link::{self, CallFault},
};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    command,
    format::{
        self, AddNodes, Calls, Cut, Deletion, Heal, Kill, Manifest, Pause, Reboot, Restart, Scale,
        Side,
    },
    look::{self, CheckedExpectation, ExpectationOutcome, SeenObject, StateDifference},
    narration,
    plan::{Action, Expectation, PlannedCommand, PlannedWait, glob},
    problem::listed,
    stage::{FaultKind, ScenarioCluster},
};

/// The time between two looks at the cluster.
const LOOK: Duration = Duration::from_millis(50);

/// The failure of a step.
#[derive(Debug)]
pub(crate) enum ActionError {
    /// At least one expectation does not hold.
    Unmet {
        within: Option<Duration>,
        checked: Vec<CheckedExpectation>,
    },
    /// A command ended otherwise than expected; both ends as texts, and its whole end.
    Command {
        expected: String,
        was: String,
        ended: String,
    },
    /// The action could not be carried out.
    Refused(anyhow::Error),
}

impl From<anyhow::Error> for ActionError {
    fn from(error: anyhow::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<podplane_test_cluster::ClusterError> for ActionError {
    fn from(error: podplane_test_cluster::ClusterError) -> Self {
        Self::Refused(error.into())
    }
}

impl fmt::Display for ActionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmet { within, checked } => {
                match within {
                    Some(within) => write!(f, "not within {within:?}:")?,
                    None => f.write_str("this does not hold:")?,
                }
                for CheckedExpectation { at, text, outcome } in checked {
                    if let ExpectationOutcome::Unmet(StateDifference { expected, was, .. }) =
                        outcome
                    {
                        write!(
                            f,
                            "\nline {at}: {text}\n  expected: {}\n  was:      {}",
                            indented(expected),
                            indented(was)
                        )?;
                    }
                }
                Ok(())
            }
            Self::Command { expected, was, .. } => {
                write!(
                    f,
                    "unexpected result of the command:\n  expected: {}\n  was:      {}",
                    indented(expected),
                    indented(was)
                )
            }
            Self::Refused(error) => write!(f, "{error:#}"),
        }
    }
}

fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n            ")
}

/// The findings of a step, for its report.
#[derive(Debug, Default)]
pub(crate) struct StepFindings {
    /// The output and the exit code of its command.
    pub(crate) ended: Option<String>,
    /// The time after which they should have held, if there was one.
    pub(crate) within: Option<Duration>,
    /// Its expectations at the last look.
    pub(crate) checked: Vec<CheckedExpectation>,
    /// The reason of a failure, if nothing of the above is it.
    pub(crate) reason: Option<String>,
}

impl StepFindings {
    /// The differences from its expectations, with these.
    pub(crate) fn unmet(&self) -> impl Iterator<Item = (&CheckedExpectation, &StateDifference)> {
        self.checked.iter().filter_map(|each| match &each.outcome {
            ExpectationOutcome::Met { .. } => None,
            ExpectationOutcome::Unmet(difference) => Some((each, difference)),
        })
    }

    /// The objects that tell the reason of a failure.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &SeenObject> {
        self.unmet().flat_map(|(_, difference)| &difference.objects)
    }
}

impl ActionError {
    /// Returns the findings of the failed step.
    pub(crate) fn findings(self) -> StepFindings {
        match self {
            Self::Unmet { within, checked } => StepFindings {
                within,
                checked,
                ..StepFindings::default()
            },
            Self::Command {
                expected, ended, ..
            } => StepFindings {
                ended: Some(ended),
                reason: Some(format!("expected: {}", indented(&expected))),
                ..StepFindings::default()
            },
            Self::Refused(error) => StepFindings {
                reason: Some(format!("{error:#}")),
                ..StepFindings::default()
            },
        }
    }
}

/// Details of a step that succeeded, for its report.
#[derive(Debug, Default)]
pub(crate) struct ActionDetails {
    /// The process or node that was chosen for a pattern.
    pub(crate) note: Option<String>,
    /// The name of a measured time, and the time.
    pub(crate) timing: Option<(String, Duration)>,
    /// The output of its commands, and what its expectations found, for a narration.
    pub(crate) said: Vec<String>,
    pub(crate) findings: StepFindings,
}

impl ActionDetails {
    fn chosen(pattern: &str, name: String) -> Self {
        let note = (pattern != name).then_some(name);
        Self {
            note,
            ..Self::default()
        }
    }

    fn checked(stage: &ScenarioCluster, checked: Vec<CheckedExpectation>) -> Self {
        Self {
            said: stage.take_said(),
            findings: StepFindings {
                checked,
                ..StepFindings::default()
            },
            ..Self::default()
        }
    }
}

/// Carries out an action. Calls `doing` with descriptions of what the action waits for.
pub(crate) async fn act(
    stage: &mut ScenarioCluster,
    action: &Action,
    doing: &(dyn Fn(&str) + Sync),
) -> Result<ActionDetails, ActionError> {
    match action {
        Action::Check => {}
        Action::Apply(manifests) => apply(stage, manifests).await?,
        Action::Delete(deletions) => delete(stage, deletions).await?,
        Action::Scale(Scale {
            object,
            namespace,
            replicas,
        }) => {
            let namespace = namespace.as_deref().unwrap_or("default");
            let patch = json!({"spec": {"replicas": replicas}});
            stage.objects.patch(namespace, object, &patch).await?;
        }
        Action::Wait(PlannedWait {
            within,
            expect,
            timing,
        }) => {
            let (took, checked) = wait(stage, expect, *within, doing).await?;
            return Ok(ActionDetails {
                timing: timing.clone().map(|name| (name, took)),
                ..ActionDetails::checked(stage, checked)
            });
        }
        Action::Expect(expect) => {
            let checked = look::check(stage, expect).await;
            if checked.iter().any(|each| each.unmet().is_some()) {
                return Err(ActionError::Unmet {
                    within: None,
                    checked,
                });
            }
            return Ok(ActionDetails::checked(stage, checked));
        }
        Action::Run(run) => {
            return execute(stage, run).await;
        }
        Action::Kill(Kill { process, signal }) => {
            let name = stage.one_process(process).await?;
            let victim = stage.process(&name).await?;
            stage.cluster.signal(&name, number(*signal)).await?;
            if *signal == format::Signal::Kill {
                victim.ended().await?;
                stage.heal(FaultKind::Paused, |paused| paused == name);
            }
            return Ok(ActionDetails::chosen(process, name));
        }
        Action::Pause(Pause { process, period }) => {
            let name = stage.one_process(process).await?;
            // The supervisor may be restarting it: this waits until it runs.
            stage.process(&name).await?;
            let fault = stage.cluster.pause(&name).await?;
            match period {
                Some(period) => {
                    sleep(period.0).await;
                    fault.heal();
                }
                None => stage.hold(FaultKind::Paused, &name, fault),
            }
            return Ok(ActionDetails::chosen(process, name));
        }
        Action::Resume(format::Process { process }) => {
            undo(stage, FaultKind::Paused, Some(process))?;
        }
        Action::Restart(restart) => {
            stage.cluster.podplane(restart_args(restart)).await?;
        }
        Action::AddNodes(add) => add_nodes(stage, add).await?,
        Action::RemoveNode(format::Node { node }) => {
            let name = stage.one_node(node).await?;
            stage.cluster.remove_node(name.as_str()).await?;
            return Ok(ActionDetails::chosen(node, name));
        }
        Action::RebootNode(Reboot { node, wait }) => {
            let name = stage.one_node(node).await?;
            match wait {
                Some(false) => stage.cluster.reboot_node(name.as_str()).await?,
                _ => reboot(stage, &name, doing).await?,
            }
            return Ok(ActionDetails::chosen(node, name));
        }
        Action::Partition(cut) => return partition(stage, cut).await,
        Action::Heal(Heal { node, process }) => {
            undo(
                stage,
                FaultKind::Cut,
                node.as_deref().or(process.as_deref()),
            )?;
        }
        Action::FillDisk(format::Node { node }) => {
            let fault = stage.cluster.fill_disk(node)?;
            stage.hold(FaultKind::FullDisk, node, fault);
        }
        Action::FreeDisk(format::Node { node }) => {
            undo(stage, FaultKind::FullDisk, Some(node))?;
        }
        Action::Calls(calls) => return disturb(stage, calls).await,
    }
    Ok(ActionDetails::default())
}

/// Returns true if `name` is `pattern` or matches it.
fn is_called(name: &str, pattern: &str) -> bool {
    glob(pattern).map_or(name == pattern, |glob| glob.is_match(name))
}

/// Heals the faults of a kind: all of them, or those on processes or nodes that match `of`. Fails
/// if there are none, because then the scenario has a mistake.
fn undo(stage: &mut ScenarioCluster, kind: FaultKind, of: Option<&str>) -> Result<()> {
    let is_meant = |held: &str| of.is_none_or(|of| is_called(held, of));
    if stage.heal(kind, is_meant) > 0 {
        return Ok(());
    }
    let held = match stage.held(kind) {
        none if none.is_empty() => String::new(),
        each => format!("; {} is", listed(&each)),
    };
    match of {
        Some(of) => bail!("{of} is not {kind}{held}"),
        None => bail!("nothing is {kind}"),
    }
}

async fn partition(stage: &mut ScenarioCluster, cut: &Cut) -> Result<ActionDetails, ActionError> {
    let Cut {
        node,
        process,
        from,
    } = cut;
    let (pattern, name) = match (node, process) {
        (Some(node), _) => (node, stage.one_node(node).await?),
        (None, Some(process)) => (process, stage.one_process(process).await?),
        (None, None) => return Ok(ActionDetails::default()),
    };
    let fault = match (from, node) {
        (Side::Network, _) => stage.cluster.disconnect_node(&name).await?,
        (Side::Apiserver, Some(_)) => {
            let kubelet = format!("kubelet-{name}");
            stage.cluster.cut_off(&kubelet, link::Cut::Silent)?
        }
        (Side::Apiserver, None) => stage.cluster.cut_off(&name, link::Cut::Silent)?,
        (Side::Cri, _) => {
            let node = name.strip_prefix("kubelet-").unwrap_or(&name);
            let runtime = format!("cri-{node}");
            stage.cluster.cut_off(&runtime, link::Cut::Silent)?
        }
    };
    stage.hold(FaultKind::Cut, &name, fault);
    Ok(ActionDetails::chosen(pattern, name))
}

async fn disturb(stage: &mut ScenarioCluster, calls: &Calls) -> Result<ActionDetails, ActionError> {
    let Calls {
        of,
        method,
        fail,
        delay,
        jitter,
        times,
        afterwards,
        clear,
    } = calls;
    if *clear {
        undo(stage, FaultKind::Calls, Some(of))?;
        return Ok(ActionDetails::default());
    }
    let name = stage.one_process(of).await?;
    let mut faults = Vec::new();
    if let Some(code) = fail {
        let code = (*code).into();
        faults.push(match afterwards {
            true => CallFault::lose_answer(code),
            false => CallFault::fail(code),
        });
    }
    if delay.is_some() || jitter.is_some() {
        let delay = delay.map_or(Duration::ZERO, |delay| delay.0);
        let more = jitter.map_or(Duration::ZERO, |jitter| jitter.0);
        let seed = stage.random.random();
        faults.push(CallFault::delay_between(delay..=delay + more, seed));
    }
    for mut fault in faults {
        if let Some(method) = method {
            fault = fault.of(method);
        }
        if let Some(times) = times {
            fault = fault.times(*times);
        }
        let fault = stage.cluster.disturb(&name, &fault).await?;
        stage.hold(FaultKind::Calls, &name, fault);
    }
    Ok(ActionDetails::chosen(of, name))
}

async fn apply(stage: &ScenarioCluster, manifests: &[Manifest]) -> Result<()> {
    for manifest in manifests {
        match manifest {
            Manifest::File(file) => {
                let file = stage.case.resolve(file);
                stage
                    .cluster
                    .podplane(["apply".as_ref(), "-f".as_ref(), file.as_os_str()])
                    .await?;
            }
            Manifest::Object(object) => {
                stage
                    .cluster
                    .apply(&Value::Object(object.clone()).to_string())
                    .await?;
            }
        }
    }
    Ok(())
}

async fn delete(stage: &ScenarioCluster, deletions: &[Deletion]) -> Result<()> {
    for deletion in deletions {
        stage.objects.delete(deletion).await?;
    }
    let within = stage.case.within;
    let begun = Instant::now();
    for deletion in deletions
        .iter()
        .filter(|deletion| deletion.wait != Some(false))
    {
        let namespace = deletion.namespace.as_deref().unwrap_or("default");
        // The API server may be unreachable for a while.
        while !matches!(
            stage.objects.get(namespace, &deletion.object).await,
            Ok(None)
        ) {
            if begun.elapsed() > within {
                bail!("{} is still there after {within:?}", deletion.object);
            }
            sleep(LOOK).await;
        }
    }
    Ok(())
}

/// Reboots a node, and waits until its kubelet has written a status of each pod that ran there:
/// until then their last status is Running. Only the kubelet writes to a running pod, so any later
/// revision of it will do.
async fn reboot(stage: &ScenarioCluster, node: &str, doing: &(dyn Fn(&str) + Sync)) -> Result<()> {
    let before = running_on(stage, node).await;
    let before = before.context(
        "failed to read the pods' status before the reboot; set wait: false to skip the wait",
    )?;
    stage.cluster.reboot_node(node).await?;
    let within = stage.case.within;
    let begun = Instant::now();
    loop {
        // The API server may be unreachable for a while.
        let stale = running_on(stage, node).await.map(|now| {
            let mut stale = before.clone();
            stale.retain(|pod, revision| now.get(pod) == Some(revision));
            stale
        });
        let why = match stale {
            Ok(stale) if stale.is_empty() => return Ok(()),
            Ok(stale) => listed(&stale.into_keys().collect::<Vec<_>>()),
            Err(error) => format!("{error:#}"),
        };
        if begun.elapsed() > within {
            bail!(
                "pods on {node} have the status of before the reboot after {within:?}: {why}; set wait: false if its kubelet cannot write another"
            );
        }
        doing(&format!("waiting for the status of {why}"));
        sleep(LOOK).await;
    }
}

/// The revisions of the pods that run on a node, by namespace and name.
async fn running_on(stage: &ScenarioCluster, node: &str) -> Result<BTreeMap<String, String>> {
    let pods = stage.objects.list("pods", None, None).await?;
    let is_meant =
        |pod: &&Value| pod["spec"]["nodeName"] == node && pod["status"]["phase"] == "Running";
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let each = pods.iter().filter(is_meant).map(|pod| {
        let metadata = &pod["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        (
            format!("{namespace}/{name}"),
            text(&metadata["resourceVersion"]),
        )
    });
    Ok(each.collect())
}

async fn wait(
    stage: &ScenarioCluster,
    expect: &[Expectation],
    within: Duration,
    doing: &(dyn Fn(&str) + Sync),
) -> Result<(Duration, Vec<CheckedExpectation>), ActionError> {
    let begun = Instant::now();
    loop {
        let before = Instant::now();
        let checked = look::check(stage, expect).await;
        let Some(was) = checked.iter().find_map(CheckedExpectation::unmet) else {
            return Ok((begun.elapsed(), checked));
        };
        if begun.elapsed() >= within {
            let within = Some(within);
            return Err(ActionError::Unmet { within, checked });
        }
        doing(&brief(was));
        // A look at a large cluster is expensive: the pause is as long, so that others get their
        // turn.
        sleep(LOOK.max(before.elapsed())).await;
    }
}

/// Abbreviates an actual state for a line that changes: no objects, and no second line.
fn brief(was: &str) -> String {
    let line = was.lines().next().unwrap_or_default();
    let line = line
        .split(['{', '[', ';'])
        .next()
        .unwrap_or_default()
        .trim();
    match line.trim_end_matches(':') {
        "" => "not yet".into(),
        line => format!("now {line}"),
    }
}

/// Runs a command.
async fn execute(
    stage: &ScenarioCluster,
    run: &PlannedCommand,
) -> Result<ActionDetails, ActionError> {
    let end = command::execute(stage, run).await?;
    let finished = end.finished.as_ref();
    let ended = finished.map_or_else(|| "did not end".into(), narration::ended);
    if let Err((expected, was)) = command::judge(run, &end) {
        return Err(ActionError::Command {
            expected,
            was,
            ended,
        });
    }
    Ok(ActionDetails {
        said: finished.map(narration::output).into_iter().collect(),
        findings: StepFindings {
            ended: Some(ended),
            ..StepFindings::default()
        },
        ..ActionDetails::default()
    })
}

/// Returns the arguments of `podplane` that restart a service.
pub(crate) fn restart_args(restart: &Restart) -> Vec<String> {
    let Restart { service, flags } = restart;
    let mut args = vec!["restart".to_owned(), service.clone()];
    for (flag, value) in flags {
        let value = value.to_string();
        // Ranges belong to the cluster: other services have to know them too.
        if crate::check::RANGES.contains(&flag.as_str()) {
            args.extend([format!("--{flag}"), value]);
        } else {
            args.extend(["--extra-config".into(), format!("{service}.{flag}={value}")]);
        }
    }
    args
}

async fn add_nodes(stage: &ScenarioCluster, add: &AddNodes) -> Result<()> {
    stage.add_nodes(&add.each()).await
}

fn number(signal: format::Signal) -> Signal {
    match signal {
        format::Signal::Kill => Signal::KILL,
        format::Signal::Term => Signal::TERM,
        format::Signal::Int => Signal::INT,
        format::Signal::Hup => Signal::HUP,
        format::Signal::Quit => Signal::QUIT,
        format::Signal::Abrt => Signal::ABORT,
        format::Signal::Usr1 => Signal::USR1,
        format::Signal::Usr2 => Signal::USR2,
    }
}
