//! Carrying out what a step says.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result, bail};
use podplane_proto::cluster::{RebootNodeRequest, SetNodeNetworkRequest};
use podplane_testkit::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    command,
    format::{self, AddNodes, Cut, Deletion, Heal, Kill, Manifest, Pause, Restart, Scale, Side},
    look::{Unmet, unmet},
    plan::{Action, Expectation, Run, WITHIN, Wait},
    stage::{Stage, plain},
};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Why a step has failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Something that was expected does not hold.
    Unmet {
        within: Option<Duration>,
        unmet: Vec<Unmet>,
    },
    /// A command ended otherwise than expected: what was expected, and what was there.
    Command { expected: String, was: String },
    /// What was to be done could not be done.
    Refused(anyhow::Error),
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Refused(error)
    }
}

impl From<podplane_testkit::ClusterError> for Fault {
    fn from(error: podplane_testkit::ClusterError) -> Self {
        Self::Refused(error.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmet { within, unmet } => {
                match within {
                    Some(within) => write!(f, "not within {within:?}:")?,
                    None => f.write_str("this does not hold:")?,
                }
                for Unmet {
                    at,
                    text,
                    expected,
                    was,
                } in unmet
                {
                    write!(
                        f,
                        "\nline {at}: {text}\n  expected: {}\n  was:      {}",
                        indented(expected),
                        indented(was)
                    )?;
                }
                Ok(())
            }
            Self::Command { expected, was } => {
                write!(
                    f,
                    "the command did not do as expected:\n  expected: {}\n  was:      {}",
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

/// What a step found out that is worth telling.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Who was chosen by chance.
    pub(crate) note: Option<String>,
    /// A time to report, and what it is the time of.
    pub(crate) timing: Option<(String, Duration)>,
}

impl Done {
    fn chosen(pattern: &str, name: String) -> Self {
        let note = (pattern != name).then_some(name);
        Self { note, timing: None }
    }
}

/// Carries out an action. `doing` is told what it waits for.
pub(crate) async fn act(
    stage: &mut Stage<'_>,
    action: &Action,
    doing: &(dyn Fn(&str) + Sync),
) -> Result<Done, Fault> {
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
        Action::Wait(Wait {
            within,
            expect,
            timing,
        }) => {
            let took = wait(stage, expect, *within, doing).await?;
            let timing = timing.clone().map(|name| (name, took));
            return Ok(Done { note: None, timing });
        }
        Action::Expect(expect) => {
            let unmet = unmet(stage, expect).await;
            if !unmet.is_empty() {
                return Err(Fault::Unmet {
                    within: None,
                    unmet,
                });
            }
        }
        Action::Run(run) => execute(stage, run).await?,
        Action::Kill(Kill { process, signal }) => {
            let name = stage.one_process(process).await?;
            let victim = stage.process(&name).await?;
            victim.signal(number(*signal))?;
            if *signal == format::Signal::Kill {
                victim.ended().await?;
                stage.paused.remove(&name);
            }
            return Ok(Done::chosen(process, name));
        }
        Action::Pause(Pause { process, period }) => {
            let name = stage.one_process(process).await?;
            let victim = stage.process(&name).await?;
            victim.pause()?;
            match period {
                Some(period) => {
                    sleep(period.0).await;
                    victim.resume()?;
                }
                None => _ = stage.paused.insert(name.clone(), victim),
            }
            return Ok(Done::chosen(process, name));
        }
        Action::Resume(format::Process { process }) => {
            let paused = stage.paused.remove(process);
            let paused = paused.with_context(|| format!("{process} is not paused"))?;
            paused.resume()?;
        }
        Action::Restart(restart) => self::restart(stage, restart).await?,
        Action::AddNodes(add) => add_nodes(stage, add).await?,
        Action::RemoveNode(format::Node { node }) => {
            let name = stage.one_node(node).await?;
            stage.cluster.remove_node(name.as_str()).await?;
            return Ok(Done::chosen(node, name));
        }
        Action::RebootNode(format::Node { node }) => {
            let name = stage.one_node(node).await?;
            let request = RebootNodeRequest { name: name.clone() };
            let rebooted = stage.cluster.supervisor()?.reboot_node(request).await;
            rebooted.map_err(refused)?;
            return Ok(Done::chosen(node, name));
        }
        Action::Partition(Cut {
            node: Some(node),
            from: Side::Network,
            ..
        }) => {
            let name = stage.one_node(node).await?;
            connect(stage, &name, false).await?;
            stage.cut.insert(name.clone());
            return Ok(Done::chosen(node, name));
        }
        Action::Heal(Heal {
            node,
            process: None,
        }) => {
            let is_meant = |name: &String| node.as_ref().is_none_or(|node| node == name);
            let healed: Vec<_> = stage
                .cut
                .iter()
                .filter(|name| is_meant(name))
                .cloned()
                .collect();
            for name in healed {
                connect(stage, &name, true).await?;
                stage.cut.remove(&name);
            }
        }
        Action::Partition(Cut { from, .. }) => return Err(unavailable(from)),
        Action::Heal(heal) => return Err(unavailable(heal)),
        Action::FillDisk(node) | Action::FreeDisk(node) => return Err(unavailable(node)),
        Action::Calls(calls) => return Err(unavailable(calls)),
    }
    Ok(Done::default())
}

fn unavailable(what: impl fmt::Debug) -> Fault {
    anyhow::anyhow!("this version cannot do that yet: {what:?}").into()
}

fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}

/// Cuts a node's uplink to the others, or mends it.
async fn connect(stage: &Stage<'_>, name: &str, connected: bool) -> Result<()> {
    let name = name.to_owned();
    let request = SetNodeNetworkRequest { name, connected };
    let done = stage.cluster.supervisor()?.set_node_network(request).await;
    done.map_err(refused)?;
    Ok(())
}

async fn apply(stage: &Stage<'_>, manifests: &[Manifest]) -> Result<()> {
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

async fn delete(stage: &Stage<'_>, deletions: &[Deletion]) -> Result<()> {
    for deletion in deletions {
        stage.objects.delete(deletion).await?;
    }
    let end = Instant::now() + WITHIN;
    for deletion in deletions
        .iter()
        .filter(|deletion| deletion.wait != Some(false))
    {
        let namespace = deletion.namespace.as_deref().unwrap_or("default");
        // The API server may be away for a while.
        while !matches!(
            stage.objects.get(namespace, &deletion.object).await,
            Ok(None)
        ) {
            if Instant::now() > end {
                bail!("{} is still there after {WITHIN:?}", deletion.object);
            }
            sleep(LOOK).await;
        }
    }
    Ok(())
}

async fn wait(
    stage: &Stage<'_>,
    expect: &[Expectation],
    within: Duration,
    doing: &(dyn Fn(&str) + Sync),
) -> Result<Duration, Fault> {
    let begun = Instant::now();
    loop {
        let before = Instant::now();
        let unmet = unmet(stage, expect).await;
        let Some(first) = unmet.first() else {
            return Ok(begun.elapsed());
        };
        if begun.elapsed() >= within {
            let within = Some(within);
            return Err(Fault::Unmet { within, unmet });
        }
        let was = first.was.lines().next().unwrap_or_default();
        doing(&format!("{} (is {was})", first.text));
        // A look at a large cluster takes its time, and others need theirs.
        sleep(LOOK.max(before.elapsed())).await;
    }
}

async fn execute(stage: &Stage<'_>, run: &Run) -> Result<(), Fault> {
    let finished = command::execute(stage, run).await?;
    let judged = command::judge(run, finished.as_ref());
    judged.map_err(|(expected, was)| Fault::Command { expected, was })
}

async fn restart(stage: &Stage<'_>, restart: &Restart) -> Result<()> {
    let Restart { service, flags } = restart;
    let mut args = vec!["restart".to_owned(), service.clone()];
    for (flag, value) in flags {
        let value = plain(value);
        // Ranges are the cluster's: other services have to know them too.
        if crate::check::RANGES.contains(&flag.as_str()) {
            args.extend([format!("--{flag}"), value]);
        } else {
            args.extend(["--extra-config".into(), format!("{service}.{flag}={value}")]);
        }
    }
    stage.cluster.podplane(args).await?;
    Ok(())
}

async fn add_nodes(stage: &Stage<'_>, add: &AddNodes) -> Result<()> {
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
