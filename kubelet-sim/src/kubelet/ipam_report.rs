//! The reports of a node's IPAM plugin, for networks whose configuration names a source of them.
//!
//! The last good report stands until there is another, also across restarts of the kubelet: it is
//! kept in the node's directory.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podplane_api::jiff::{Timestamp, Unit};
use podplane_cni::ipam_report::{IpamReport, ReportError, ReportNode, ReportSource};
use podplane_host::{
    clock::{self, Instant},
    fs, task,
};
use podplane_service_runtime::files::write_atomically;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::NodeDir;

/// The age up to which a report serves for the node's status and for an admission. A burst of pods
/// costs one run of the command in each such time, not one for each pod.
pub(super) const FRESH: Duration = Duration::from_millis(500);
/// The shortest duration of a failed attempt that is not repeated at once, since pods wait for
/// each.
const SLOW: Duration = Duration::from_secs(1);
/// The pause after such an attempt, as a multiple of the time that it took.
const PAUSE: u32 = 3;
/// The age in seconds at which an unchanged report is written to disk again.
const REWRITE_SECONDS: i64 = 60;

/// The last report of a node's IPAM plugin, or its absence.
#[derive(Clone, Debug, Default)]
pub enum ReportState {
    /// The network's configuration names no source of reports.
    #[default]
    NoSource,
    /// There was never a good report, for this reason.
    Failed(String),
    /// A report.
    Good(GoodReport),
}

/// A report that could be read.
#[derive(Clone, Debug)]
pub struct GoodReport {
    /// The report.
    pub report: Arc<IpamReport>,
    /// The time at which the report was read.
    pub at: Timestamp,
    /// The reason why there is no newer one.
    pub fault: Option<String>,
    /// True if it was read for an earlier call, not longer than [`FRESH`] ago.
    pub is_reused: bool,
}

impl ReportState {
    /// The failure of the last attempt to get a report.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::NoSource => None,
            Self::Failed(fault) => Some(fault),
            Self::Good(good) => good.fault.as_deref(),
        }
    }

    /// Returns true if a newer report may differ.
    pub fn is_reused(&self) -> bool {
        matches!(self, Self::Good(good) if good.is_reused)
    }
}

/// The reports of one node. One command runs at a time.
#[derive(Debug)]
pub struct Reports {
    node: String,
    dir: NodeDir,
    bin_dirs: Vec<PathBuf>,
    last: Mutex<LastAttempt>,
}

#[derive(Debug, Default)]
struct LastAttempt {
    /// The beginning of the attempt that `known` comes from.
    began: Option<Instant>,
    /// The earliest time of the next attempt, after one that failed and was slow.
    paused_until: Option<Instant>,
    source: Option<ReportSource>,
    known: ReportState,
}

/// The report as kept in the node's directory.
#[derive(Deserialize, Serialize)]
struct KeptReport<R> {
    network: String,
    at: Timestamp,
    report: R,
}

impl Reports {
    /// Reports for the node of this name.
    pub fn new(node: &str, dir: NodeDir, bin_dirs: Vec<PathBuf>) -> Self {
        Self {
            node: node.to_owned(),
            dir,
            bin_dirs,
            last: Mutex::default(),
        }
    }

    /// The plugin's report. A report is used again if it was begun at most `max_age` before this
    /// call.
    ///
    /// # Cancel safety
    ///
    /// A command that was started is not stopped; its report is lost.
    pub async fn get(&self, pod_cidrs: Vec<String>, max_age: Duration) -> ReportState {
        let called_at = Instant::now();
        let mut last = self.last.lock().await;
        let net_d = self.dir.net_d();
        let found = task::spawn_blocking(move || ReportSource::of_first(&net_d)).await;
        let source = match found {
            Ok(Ok(source)) => source,
            // Without a configuration there is no network; the node's condition says so.
            Ok(Err(ReportError::Config(_))) => None,
            Ok(Err(error)) => {
                *last = LastAttempt {
                    known: ReportState::Failed(error.message()),
                    ..LastAttempt::default()
                };
                return last.known.clone();
            }
            Err(panic) => return ReportState::Failed(panic.to_string()),
        };
        let Some(source) = source else {
            *last = LastAttempt::default();
            return ReportState::NoSource;
        };
        let is_same = last.source.as_ref() == Some(&source);
        let is_fresh = last.began.is_some_and(|began| began + max_age >= called_at);
        if is_same && is_fresh {
            return last.as_reused();
        }
        if is_same && last.paused_until.is_some_and(|until| called_at < until) {
            return last.known.clone();
        }
        if !is_same {
            last.known = self.load_kept(source.network().to_owned()).await;
            last.source = Some(source.clone());
        }
        let began = Instant::now();
        last.began = Some(began);
        last.paused_until = None;
        let attempt = self.read(source, pod_cidrs).await;
        let took = began.elapsed();
        let report = match attempt {
            Err(fault) => {
                last.paused_until =
                    (took >= SLOW).then(|| Instant::now() + took.saturating_mul(PAUSE));
                self.note_fault(&mut last.known, fault);
                return last.known.clone();
            }
            Ok(report) => report,
        };
        let now = clock::timestamp().round(Unit::Second).unwrap_or_default();
        if last.known.fault().is_some() {
            tracing::info!(node = self.node, "the IPAM plugin reports again");
        }
        self.keep(&last, &report, now).await;
        last.known = ReportState::Good(GoodReport {
            report: Arc::new(report),
            at: now,
            fault: None,
            is_reused: false,
        });
        last.known.clone()
    }

    async fn read(
        &self,
        source: ReportSource,
        pod_cidrs: Vec<String>,
    ) -> Result<IpamReport, String> {
        let (node, bin_dirs) = (self.node.clone(), self.bin_dirs.clone());
        let dir = self.dir.cni_cache().to_owned();
        let read = move || {
            let node = ReportNode {
                name: &node,
                dir: &dir,
                pod_cidrs: &pod_cidrs,
                bin_dirs: &bin_dirs,
            };
            source.read(&node).map_err(|error| error.message())
        };
        let read = task::spawn_blocking(read).await;
        read.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    /// Logs a fault once, not at each attempt.
    fn note_fault(&self, known: &mut ReportState, fault: String) {
        if known.fault() != Some(&fault) {
            let node = &self.node;
            match known {
                ReportState::Good(good) => {
                    let last_good = good.at;
                    tracing::warn!(node, fault, %last_good, "failed to read the IPAM report; using the last good one");
                }
                ReportState::NoSource | ReportState::Failed(_) => {
                    tracing::warn!(
                        node,
                        fault,
                        "failed to read the IPAM report; the capacity is unknown"
                    );
                }
            }
        }
        match known {
            ReportState::Good(good) => {
                good.fault = Some(fault);
                good.is_reused = false;
            }
            ReportState::NoSource | ReportState::Failed(_) => *known = ReportState::Failed(fault),
        }
    }

    /// The report that an earlier kubelet kept for the network.
    async fn load_kept(&self, network: String) -> ReportState {
        let path = self.dir.ipam_report();
        let read = task::spawn_blocking(move || restore(&path, &network)).await;
        match read {
            Ok(Ok(Some(good))) => ReportState::Good(good),
            Ok(Ok(None)) | Err(_) => ReportState::NoSource,
            Ok(Err(error)) => {
                tracing::warn!(node = self.node, %error, "failed to read the saved IPAM report; ignoring it");
                ReportState::NoSource
            }
        }
    }

    /// Keeps a report for a later kubelet. A failure to do so is not a fault of the node.
    async fn keep(&self, last: &LastAttempt, report: &IpamReport, at: Timestamp) {
        let is_kept = matches!(&last.known, ReportState::Good(old) if *old.report == *report
            && at.as_second().saturating_sub(old.at.as_second()) < REWRITE_SECONDS);
        let Some(source) = &last.source else { return };
        if is_kept {
            return;
        }
        let kept = KeptReport {
            network: source.network().to_owned(),
            at,
            report,
        };
        let text = serde_json::to_vec(&kept).unwrap_or_default();
        let path = self.dir.ipam_report();
        let written = task::spawn_blocking(move || write_atomically(&path, &text)).await;
        if let Ok(Err(error)) = written {
            tracing::debug!(node = self.node, %error, "failed to save the IPAM report");
        }
    }
}

impl LastAttempt {
    /// The last state, marked as used again.
    fn as_reused(&self) -> ReportState {
        match &self.known {
            ReportState::Good(good) => ReportState::Good(GoodReport {
                is_reused: true,
                ..good.clone()
            }),
            other => other.clone(),
        }
    }
}

fn restore(path: &Path, network: &str) -> io::Result<Option<GoodReport>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let kept: KeptReport<IpamReport> = serde_json::from_slice(&text)?;
    Ok((kept.network == network).then(|| GoodReport {
        report: Arc::new(kept.report),
        at: kept.at,
        fault: None,
        is_reused: false,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct TestNode {
        dir: tempfile::TempDir,
    }

    impl TestNode {
        fn new() -> Self {
            let node = Self {
                dir: tempfile::tempdir().unwrap(),
            };
            let list = json!({"cniVersion": "1.0.0", "name": "net",
                "podplane.io/ipam-report": {"file": "../report"},
                "plugins": [{"type": "bridge", "ipam": {"type": "my-ipam"}}]});
            fs::create_dir_all(node.node_dir().net_d()).unwrap();
            let path = node.node_dir().net_d().join("05-net.conflist");
            fs::write(path, list.to_string()).unwrap();
            node
        }

        fn node_dir(&self) -> NodeDir {
            NodeDir::new(self.dir.path(), &"n".parse().unwrap())
        }

        fn report(&self, text: &str) {
            fs::write(self.dir.path().join("n/report"), text).unwrap();
        }

        fn reports(&self) -> Reports {
            Reports::new("n", self.node_dir(), Vec::new())
        }
    }

    async fn ipv4(reports: &Reports, max_age: Duration) -> (Option<u64>, bool) {
        match reports.get(Vec::new(), max_age).await {
            ReportState::Good(good) => (good.report.capacity.ipv4, good.fault.is_some()),
            ReportState::NoSource | ReportState::Failed(_) => (None, true),
        }
    }

    #[tokio::test]
    async fn the_last_good_report_survives_failures_and_restarts() {
        let node = TestNode::new();
        let reports = node.reports();
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (None, true));
        node.report(r#"{"capacity": {"ipv4": 3}}"#);
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (Some(3), false));
        node.report("{");
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (Some(3), true));
        assert_eq!(ipv4(&node.reports(), Duration::ZERO).await, (Some(3), true));
        node.report(r#"{"capacity": {"ipv4": 4}}"#);
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (Some(4), false));
    }

    #[tokio::test]
    async fn reuses_a_report_up_to_its_maximum_age() {
        let node = TestNode::new();
        let reports = node.reports();
        node.report(r#"{"capacity": {"ipv4": 3}}"#);
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (Some(3), false));
        node.report(r#"{"capacity": {"ipv4": 4}}"#);
        let hour = Duration::from_secs(3600);
        assert!(reports.get(Vec::new(), hour).await.is_reused());
        assert_eq!(ipv4(&reports, Duration::ZERO).await, (Some(4), false));
    }

    #[tokio::test]
    async fn a_report_of_another_network_is_not_restored() {
        let node = TestNode::new();
        node.report(r#"{"capacity": {"ipv4": 3}}"#);
        assert_eq!(
            ipv4(&node.reports(), Duration::ZERO).await,
            (Some(3), false)
        );
        let path = node.node_dir().net_d().join("05-net.conflist");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"net\"", "\"other\"")).unwrap();
        node.report("{");
        assert_eq!(ipv4(&node.reports(), Duration::ZERO).await, (None, true));
    }
}
