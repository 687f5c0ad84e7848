//! `audit --history`: judges the cluster at every revision that its server still has.
//!
//! Changes are read in rounds: those of nodes and those of pods after the last revision, each up to
//! a bookmark of the server. The changes up to the lower of the two bookmarks are complete, and are
//! judged in the order of their revisions, since a store has one counter for objects of all kinds.

mod report;
mod source;
mod state;

use std::{process::ExitCode, time::Duration};

use podplane_api::{
    core::{Node, Pod},
    jiff::Timestamp,
    pod_ips::PodIpResource,
};
use podplane_audit::{HistoryJudge, StateChange};
use podplane_client::{ObjectEvent, Permission};
use podplane_service_runtime::shutdown::Requests;

use self::{
    report::{HistoryReport, ReportForm, UncoveredRange},
    source::{HistorySource, KindList, ReadError, revision},
    state::{HistoryObject, written_at},
};
use super::{AuditArgs, AuditFormat};
use crate::{
    any_cluster::follow,
    global::{GlobalOptions, block_on},
    report::{UnusableInput, UsageError},
};

/// The rights that it needs in a cluster of Kubernetes.
const NEEDED: &[Permission] = &[follow("", "nodes"), follow("", "pods")];
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// The time within which a second signal is the first one again: timeout(1) sends its signal to the
/// process, and then to the group of both.
const SAME_SIGNAL: Duration = Duration::from_millis(200);
/// The number of attempts to begin at an old revision. Each begins at a later one, since a busy
/// server drops the oldest revisions while they are read.
const ATTEMPTS: u64 = 8;
/// The number of rounds in which a server must reach the present.
const ROUNDS_TO_PRESENT: u32 = 60;

/// An audit that runs.
struct HistoryAudit {
    source: HistorySource,
    judge: HistoryJudge,
    resource: PodIpResource,
    report: HistoryReport,
    /// The revision up to which everything was judged.
    at: u64,
}

/// A change with its revision and the time that its object records.
struct RevisionChange {
    revision: u64,
    time: Option<Timestamp>,
    change: StateChange,
}

/// The state of the cluster at a revision.
struct ClusterState {
    nodes: KindList<Node>,
    pods: KindList<Pod>,
}

pub(super) fn run(args: &AuditArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let form = match args.output {
        AuditFormat::Table => ReportForm::Table,
        AuditFormat::Json => ReportForm::Json,
        AuditFormat::Sarif | AuditFormat::Junit => {
            let why = "--history prints a table or JSON: use -o table or -o json";
            return Err(UsageError(why.into()).into());
        }
    };
    let audited = async {
        match audit(args, form, global).await {
            Ok(code) => Ok(code),
            Err(error) => Err(args.cluster.name_missing_rules(error, NEEDED).await),
        }
    };
    block_on(audited).map_err(|error| {
        let error = match args.cluster.is_given() {
            false => global.locate(error),
            true => error,
        };
        UnusableInput(error).into()
    })
}

async fn audit(
    args: &AuditArgs,
    form: ReportForm,
    global: &GlobalOptions,
) -> anyhow::Result<ExitCode> {
    let source = match args.cluster.is_given() {
        true => HistorySource::Kubernetes(args.cluster.kube_client().await?.0),
        false => HistorySource::Podplane(global.client()?),
    };
    let mut stop = args.follow.then(Requests::listen).transpose()?;
    let mut audit = HistoryAudit::begin(source, form, args.follow).await?;
    if args.follow {
        anstream::eprintln!(
            "note: following from revision {}; Ctrl-C ends the audit and prints its summary",
            audit.at
        );
        audit.follow(stop.as_mut()).await?;
        let _same = tokio::time::timeout(SAME_SIGNAL, signal(stop.as_mut())).await;
    }
    // A second signal ends the command without the latest changes, but with the summary.
    tokio::select! {
        done = audit.read_to_present() => match done {
            Err(error) if args.follow => audit.end_early(&error),
            done => done?,
        },
        () = signal(stop.as_mut()) => audit.end_early(&anyhow::anyhow!("interrupted")),
    }
    let HistoryAudit { judge, report, .. } = audit;
    let code = report.exit_code(args.fail_on);
    report.finish(judge.counts())?;
    Ok(code)
}

/// Completes at the next signal to stop; never if none is listened for.
async fn signal(stop: Option<&mut Requests>) {
    match stop {
        Some(stop) => {
            stop.next().await;
        }
        None => std::future::pending().await,
    }
}

impl HistoryAudit {
    /// Reads the state at the oldest revision that the server has.
    async fn begin(source: HistorySource, form: ReportForm, follows: bool) -> anyhow::Result<Self> {
        let (state, oldest) = match oldest_state(&source).await? {
            Ok(state) => (state, "the server no longer has them"),
            Err(refusal) if follows => {
                anstream::eprintln!("note: {refusal}: the audit begins at the present revision");
                (
                    present_state(&source).await?,
                    "the server did not list them",
                )
            }
            Err(refusal) => {
                anyhow::bail!("{refusal}: --follow audits the revisions from now on")
            }
        };
        let first = state.nodes.revision;
        let mut audit = Self {
            source,
            judge: HistoryJudge::default(),
            resource: PodIpResource::default(),
            report: HistoryReport::new(form, first),
            at: first,
        };
        if let Some(before) = first.checked_sub(1).filter(|before| *before > 0) {
            audit.report.miss(UncoveredRange {
                from: None,
                to: Some(before),
                reason: oldest.into(),
                is_gap: false,
            });
        }
        audit.list(state)?;
        Ok(audit)
    }

    /// Takes in the state at a revision.
    fn list(&mut self, state: ClusterState) -> anyhow::Result<()> {
        let ClusterState { nodes, pods } = state;
        self.at = nodes.revision;
        if let Some(named) = nodes.items.iter().find_map(HistoryObject::named_resource) {
            self.resource = named;
        }
        let pods = pods.items.iter();
        let pods = pods.map(|pod| state::pod(pod, &self.resource)).collect();
        let nodes = nodes.items.iter().map(state::node).collect();
        let found = self.judge.list(self.at, pods, nodes);
        self.report.judged(self.at, None, found)
    }

    /// Judges new revisions until a signal.
    async fn follow(&mut self, mut stop: Option<&mut Requests>) -> anyhow::Result<()> {
        let mut fails = false;
        loop {
            // Dropping a round loses nothing: what it has read is read again.
            let round = tokio::select! {
                round = self.round() => round,
                () = signal(stop.as_deref_mut()) => return Ok(()),
            };
            match round {
                Ok(()) => fails = false,
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    if error.is::<crate::report::OutputClosed>() {
                        return Err(error);
                    }
                    if !fails {
                        anstream::eprintln!(
                            "warning: failed to read new revisions: {error:#}; trying again"
                        );
                    }
                    fails = true;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = signal(stop.as_deref_mut()) => return Ok(()),
            }
        }
    }

    /// Judges the revisions up to the present one.
    async fn read_to_present(&mut self) -> anyhow::Result<()> {
        let present = self.source.list::<Node>(None).await?.revision;
        for _ in 0..ROUNDS_TO_PRESENT {
            let before = self.at;
            self.round().await?;
            if self.at >= present {
                return Ok(());
            }
            if self.at == before {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let reason = format!("the bookmarks of the server do not reach revision {present}");
        self.end_early(&anyhow::anyhow!(reason));
        Ok(())
    }

    /// Notes that the latest revisions were not read.
    fn end_early(&mut self, reason: &anyhow::Error) {
        self.report.miss(UncoveredRange {
            from: Some(self.at.saturating_add(1)),
            to: None,
            reason: format!("{reason:#}"),
            is_gap: true,
        });
    }

    /// Reads and judges the changes after the last revision. If the server no longer has them,
    /// lists the present state, and notes the gap.
    async fn round(&mut self) -> Result<(), ReadError> {
        match self.read_changes().await {
            Err(ReadError::Expired(message)) => {
                let state = present_state(&self.source).await?;
                self.report.miss(UncoveredRange {
                    from: Some(self.at.saturating_add(1)),
                    to: Some(state.nodes.revision),
                    reason: format!("the watch fell behind the history ({message})"),
                    is_gap: true,
                });
                self.list(state).map_err(ReadError::Failed)
            }
            done => done,
        }
    }

    async fn read_changes(&mut self) -> Result<(), ReadError> {
        let mut changes = Vec::new();
        let (of_nodes, ended) = self.read_kind::<Node>(&mut changes).await;
        ended?;
        let (of_pods, ended) = self.read_kind::<Pod>(&mut changes).await;
        let complete = of_nodes.min(of_pods);
        self.judge(changes, complete).map_err(ReadError::Failed)?;
        ended
    }

    /// Reads the changes of a kind after the last revision. Returns the revision up to which they
    /// are complete, also if reading them failed.
    async fn read_kind<K: HistoryObject>(
        &mut self,
        changes: &mut Vec<RevisionChange>,
    ) -> (u64, Result<(), ReadError>) {
        let mut last = self.at;
        let resource = &mut self.resource;
        let on_event = |event: ObjectEvent<K>| {
            let (object, is_gone) = match event {
                ObjectEvent::Added(object) | ObjectEvent::Modified(object) => (object, false),
                ObjectEvent::Deleted(object) => (object, true),
                ObjectEvent::Bookmark(_) => return Ok(()),
            };
            last = revision(object.resource_version())?;
            if let Some(named) = object.named_resource() {
                *resource = named;
            }
            changes.push(RevisionChange {
                revision: last,
                time: written_at(&object),
                change: match is_gone {
                    true => object.gone(),
                    false => object.state(resource),
                },
            });
            Ok(())
        };
        let read = self.source.changes::<K>(self.at, on_event).await;
        // More changes of the last revision may follow.
        let certain = last.saturating_sub(1).max(self.at);
        match read {
            Ok(Some(reached)) => (reached.max(self.at), Ok(())),
            Ok(None) => (certain, Ok(())),
            Err(error) => (certain, Err(error)),
        }
    }

    /// Judges the changes up to a revision, and drops the later ones, which are read again.
    fn judge(&mut self, mut changes: Vec<RevisionChange>, up_to: u64) -> anyhow::Result<()> {
        changes.sort_by_key(|change| change.revision);
        let mut changes = changes
            .into_iter()
            .take_while(|change| change.revision <= up_to)
            .peekable();
        while let Some(first) = changes.next() {
            let RevisionChange {
                revision,
                mut time,
                change,
            } = first;
            let mut of_revision = vec![change];
            while let Some(next) = changes.next_if(|next| next.revision == revision) {
                time = time.max(next.time);
                of_revision.push(next.change);
            }
            let found = self.judge.apply(revision, of_revision);
            self.report.judged(revision, time, found)?;
        }
        self.at = up_to;
        self.report.reached(up_to);
        Ok(())
    }
}

/// Reads the state at the oldest revision from which pods and nodes can be watched, or nearly so.
/// The inner error is the reason why the server has no such state.
async fn oldest_state(source: &HistorySource) -> anyhow::Result<Result<ClusterState, String>> {
    let present = source.list::<Node>(None).await?.revision;
    let mut refusal = "the server does not name its oldest revision".to_owned();
    for attempt in 0..ATTEMPTS {
        let oldest = (
            source.oldest::<Node>().await?,
            source.oldest::<Pod>().await?,
        );
        let (Some(of_nodes), Some(of_pods)) = oldest else {
            break;
        };
        let oldest = of_nodes.max(of_pods);
        let at = oldest.saturating_add(present.saturating_sub(oldest) / ATTEMPTS * attempt);
        match state_at(source, at).await {
            Ok(state) => return Ok(Ok(state)),
            Err(ReadError::Expired(message)) => refusal = message,
            Err(ReadError::Failed(error)) => match error.downcast::<kube::Error>() {
                Ok(kube::Error::Api(status)) => {
                    refusal = format!("the server does not list revision {at}: {}", status.message);
                    break;
                }
                Ok(error) => return Err(error.into()),
                Err(error) => return Err(error),
            },
        }
    }
    Ok(Err(refusal))
}

async fn state_at(source: &HistorySource, at: u64) -> Result<ClusterState, ReadError> {
    Ok(ClusterState {
        nodes: source.list(Some(at)).await?,
        pods: source.list(Some(at)).await?,
    })
}

async fn present_state(source: &HistorySource) -> Result<ClusterState, ReadError> {
    let nodes: KindList<Node> = source.list(None).await?;
    let pods = source.list(Some(nodes.revision)).await?;
    Ok(ClusterState { nodes, pods })
}
