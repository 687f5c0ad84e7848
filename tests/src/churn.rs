//! Pods that come and go on a cluster whose processes all die again and again, and the check that
//! no two pods ever have the same address.
//!
//! [`ChurnPlan`] has the steps, which follow from a seed. Meanwhile a [`RevisionMonitor`] checks
//! every revision of pods and nodes, and each second the sandboxes that nodes really have are
//! compared ([`live`](podplane_test_cluster::live)). In the end nothing may be left.

mod journal;
mod other_ipam;
pub mod plan;
mod settle;
mod steps;
mod watch;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_test_cluster::{Network, fault, live::NodesObserver, monitor::RevisionMonitor};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{Cluster, builder};
pub use journal::Journal;
use other_ipam::OtherIpam;
use plan::ChurnPlan;

/// The plugin that gives addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChurnIpam {
    /// `host-local`, from the blocks of nodes.
    HostLocal,
    /// A plugin that podplane does not know, with ranges and files of its own.
    Other,
}

/// The settings of a churn.
#[derive(Clone, Debug)]
pub struct ChurnTest {
    /// The mode of pods' network.
    pub network: Network,
    /// The plugin that gives addresses.
    pub ipam: ChurnIpam,
    /// The seed, from which the plan follows.
    pub seed: u64,
    /// The time in which pods come and go.
    pub length: Duration,
    /// The directory in which the journal is written, and stays.
    pub dir: PathBuf,
}

impl fmt::Display for ChurnTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ipam = match self.ipam {
            ChurnIpam::HostLocal => "host-local",
            ChurnIpam::Other => "other-ipam",
        };
        write!(f, "{}-{ipam}", self.network.as_str())
    }
}

/// A cluster, and the state of the churn on it.
#[derive(Debug)]
struct ChurnCluster {
    cluster: Cluster,
    ipam: ChurnIpam,
    journal: Arc<Journal>,
    observer: NodesObserver,
    monitor: RevisionMonitor,
    /// The created pods by number, with their UIDs if their creation was acknowledged.
    created: Mutex<BTreeMap<usize, Option<String>>>,
    /// The paused kubelets.
    paused: Mutex<Vec<(usize, fault::Fault)>>,
}

impl ChurnTest {
    /// Runs the churn. Returns all findings as text; `None` if this needs something that the
    /// machine lacks and `PODPLANE_SKIP` names.
    ///
    /// # Errors
    ///
    /// If the cluster does not start, or a step fails.
    pub async fn run(&self) -> Result<Option<String>> {
        let file = self.dir.join(format!("churn-{self}-{}.log", self.seed));
        let journal = Arc::new(Journal::create(&file)?);
        journal.note(format!(
            "PODPLANE_SEED={} {self}, {:?}",
            self.seed, self.length
        ));
        let other = match self.ipam {
            ChurnIpam::HostLocal => None,
            ChurnIpam::Other => Some(OtherIpam::new()?),
        };
        let Some(cluster) = Cluster::up(self.cluster(other.as_ref())).await? else {
            return Ok(None);
        };
        let data_dir = cluster.data_dir().to_owned();
        journal.note(format!(
            "the cluster's data directory is {}",
            data_dir.display()
        ));
        let ended = self.on(cluster, &data_dir, &journal).await;
        let findings = match ended {
            Ok(()) => journal.findings(),
            Err(error) => {
                journal.find(format!("{error:#}"));
                journal.findings()
            }
        };
        Ok(Some(findings)
            .filter(|findings| !findings.is_empty())
            .map(|findings| {
                format!(
                    "{self}, PODPLANE_SEED={}, journal in {}:\n{findings}",
                    self.seed,
                    file.display()
                )
            }))
    }

    fn cluster(&self, other: Option<&OtherIpam>) -> podplane_test_cluster::ClusterBuilder {
        // Three blocks of five addresses, for three nodes and one that waits: a freed address is
        // given again at once.
        let cluster = builder(self.network)
            .nodes(u32::try_from(plan::NODES).unwrap_or(u32::MAX))
            .cluster_cidr("10.20.0.0/27")
            .node_cidr_mask_size(29)
            .service_cluster_ip_range("10.20.0.24/29")
            .flags("--nodes-per-process 1");
        match other {
            None => cluster,
            Some(other) => cluster.cni_bin_dir(other.bin_dir()),
        }
    }

    async fn on(&self, cluster: Cluster, data_dir: &Path, journal: &Arc<Journal>) -> Result<()> {
        let notes = journal.clone();
        let monitor = RevisionMonitor::start(cluster.client(), move |line| notes.revision(line));
        let mut observer = NodesObserver::of(&cluster).await?;
        if self.ipam == ChurnIpam::Other {
            observer = observer.lease_dir(other_ipam::LEASES);
        }
        let stage = Arc::new(ChurnCluster {
            cluster,
            ipam: self.ipam,
            journal: journal.clone(),
            observer,
            monitor,
            created: Mutex::default(),
            paused: Mutex::default(),
        });
        let mut background = JoinSet::new();
        if self.ipam == ChurnIpam::Other {
            background.spawn(other_ipam::install(data_dir.to_owned()));
        }
        background.spawn(watch::look_each_second(stage.clone()));
        let done = self.carry_out(&stage).await;
        journal.note("the plan is carried out");
        let settled = match done {
            Ok(()) => settle::settle(&stage).await,
            Err(error) => Err(error),
        };
        background.shutdown().await;
        watch::conclude(&stage, self.length);
        let stage = Arc::into_inner(stage).context("a task still has the cluster")?;
        let finished = stage.cluster.finish().await;
        settled.and(finished)
    }

    async fn carry_out(&self, stage: &Arc<ChurnCluster>) -> Result<()> {
        let begin = Instant::now();
        let mut steps = JoinSet::new();
        // By node, the end of the last step that is about its object. A step waits for the one
        // before it, which may be late: a node that is deleted after it was created again is gone
        // for ever.
        let mut last = BTreeMap::new();
        for (at, step) in ChurnPlan::new(self.seed, self.length).0 {
            sleep_until(begin + at).await;
            while let Some(ended) = steps.try_join_next() {
                let () = ended??;
            }
            let (ends, end) = oneshot::channel::<()>();
            let before = step.node().and_then(|node| last.insert(node, end));
            let stage = stage.clone();
            steps.spawn(async move {
                if let Some(before) = before {
                    // Nothing is sent: the step drops its end.
                    _ = before.await;
                }
                let performed = steps::perform(&stage, &step).await;
                drop(ends);
                performed
            });
        }
        while let Some(ended) = steps.join_next().await {
            let () = ended??;
        }
        Ok(())
    }
}

/// Locks a mutex. The values are consistent between any two statements, so a panic elsewhere does
/// no harm.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
