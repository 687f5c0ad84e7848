//! The reports of a node's IPAM plugin, for networks whose configuration names a source of them.
//!
//! The last good report stands until there is another, also across restarts of the kubelet: it is kept
//! in the node's directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podplane_api::jiff::{Timestamp, Unit};
use podplane_cni::ipam_report::{Report, ReportError, ReportNode, ReportSource};
use serde::{Deserialize, Serialize};
use tokio::{sync::Mutex, task, time::Instant};

use crate::{NodeDir, node_dir::write_atomically};

/// The age up to which a report serves for the node's status and for an admission. A burst of pods
/// costs one run of the command for each of these, not one for each pod.
pub(super) const FRESH: Duration = Duration::from_millis(500);
/// An attempt that failed and took so long is not repeated at once: pods wait for each.
const SLOW: Duration = Duration::from_secs(1);
/// The pause after such an attempt, as a multiple of the time that it took.
const PAUSE: u32 = 3;
/// A report that says the same as the last is written to the disk again when that one is so old.
const REWRITE_SECONDS: i64 = 60;

/// The knowledge from the reports of a node's IPAM plugin.
#[derive(Clone, Debug, Default)]
pub enum Reported {
    /// The network's configuration names no source of reports.
    #[default]
    NoSource,
    /// There was never a good report: why.
    Failed(String),
    /// A report.
    Good(GoodReport),
}

/// A report that could be read.
#[derive(Clone, Debug)]
pub struct GoodReport {
    /// The report.
    pub report: Arc<Report>,
    /// The time at which it was read.
    pub at: Timestamp,
    /// The reason that there is no newer one.
    pub fault: Option<String>,
    /// It was not read for this question, which took one that is not older than [`FRESH`].
    pub is_reused: bool,
}

impl Reported {
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
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The beginning of the attempt that `known` comes from.
    began: Option<Instant>,
    /// The earliest time of the next attempt, after one that failed and was slow.
    paused_until: Option<Instant>,
    source: Option<ReportSource>,
    known: Reported,
}

/// The file in the node's directory.
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

    /// The plugin's report. One that was begun `max_age` before this call, or later, is not
    /// asked for again.
    ///
    /// # Cancel safety
    ///
    /// A command that was started goes on; what it reports is lost.
    pub async fn get(&self, pod_cidrs: Vec<String>, max_age: Duration) -> Reported {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        let net_d = self.dir.net_d();
        let found = task::spawn_blocking(move || ReportSource::of_first(&net_d)).await;
        let source = match found {
            Ok(Ok(source)) => source,
            // Without a configuration there is no network; the node's condition says so.
            Ok(Err(ReportError::Config(_))) => None,
            Ok(Err(error)) => {
                *last = Last {
                    known: Reported::Failed(error.message()),
                    ..Last::default()
                };
                return last.known.clone();
            }
            Err(panic) => return Reported::Failed(panic.to_string()),
        };
        let Some(source) = source else {
            *last = Last::default();
            return Reported::NoSource;
        };
        let is_same = last.source.as_ref() == Some(&source);
        let is_fresh = last.began.is_some_and(|began| began + max_age >= asked);
        if is_same && is_fresh {
            return last.reused();
        }
        if is_same && last.paused_until.is_some_and(|until| asked < until) {
            return last.known.clone();
        }
        if !is_same {
            last.known = self.restored(source.network().to_owned()).await;
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
        let now = Timestamp::now().round(Unit::Second).unwrap_or_default();
        if last.known.fault().is_some() {
            tracing::info!(node = self.node, "the IPAM plugin reports again");
        }
        self.keep(&last, &report, now).await;
        last.known = Reported::Good(GoodReport {
            report: Arc::new(report),
            at: now,
            fault: None,
            is_reused: false,
        });
        last.known.clone()
    }

    async fn read(&self, source: ReportSource, pod_cidrs: Vec<String>) -> Result<Report, String> {
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
    fn note_fault(&self, known: &mut Reported, fault: String) {
        if known.fault() != Some(&fault) {
            let node = &self.node;
            match known {
                Reported::Good(good) => {
                    let last_good = good.at;
                    tracing::warn!(node, fault, %last_good, "no report of the IPAM plugin; the last good one stands");
                }
                Reported::NoSource | Reported::Failed(_) => {
                    tracing::warn!(
                        node,
                        fault,
                        "no report of the IPAM plugin; its capacity is not known"
                    );
                }
            }
        }
        match known {
            Reported::Good(good) => {
                good.fault = Some(fault);
                good.is_reused = false;
            }
            Reported::NoSource | Reported::Failed(_) => *known = Reported::Failed(fault),
        }
    }

    /// The report that an earlier kubelet kept for the network.
    async fn restored(&self, network: String) -> Reported {
        let path = self.dir.ipam_report();
        let read = task::spawn_blocking(move || restore(&path, &network)).await;
        match read {
            Ok(Ok(Some(good))) => Reported::Good(good),
            Ok(Ok(None)) | Err(_) => Reported::NoSource,
            Ok(Err(error)) => {
                tracing::warn!(node = self.node, %error, "the kept IPAM report cannot be read; it is not used");
                Reported::NoSource
            }
        }
    }

    /// Keeps a report for a later kubelet. That it cannot be kept is no fault of the node.
    async fn keep(&self, last: &Last, report: &Report, at: Timestamp) {
        let is_kept = matches!(&last.known, Reported::Good(old) if *old.report == *report
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
            tracing::debug!(node = self.node, %error, "IPAM report not kept");
        }
    }
}

impl Last {
    fn reused(&self) -> Reported {
        match &self.known {
            Reported::Good(good) => Reported::Good(GoodReport {
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
    let kept: KeptReport<Report> = serde_json::from_slice(&text)?;
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
            Reported::Good(good) => (good.report.capacity.ipv4, good.fault.is_some()),
            Reported::NoSource | Reported::Failed(_) => (None, true),
        }
    }

    #[tokio::test]
    async fn the_last_good_report_stands_also_across_a_restart() {
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
    async fn a_report_is_reused_while_it_is_young_enough() {
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
