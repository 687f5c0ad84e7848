//! The loop that reports a node: it passes the node's blocks to the runtime, and writes the status.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backon::BackoffBuilder as _;
use podplane_api::{
    Object as _,
    core::Node as NodeObject,
    pod_ips::{
        IPAM, POD_IPS_ALLOCATED, POD_IPS_ORPHANED, POD_IPS_RESOURCE, POD_RANGES, PodIpResource,
    },
};
use podplane_client::events::EventType;
use podplane_error_chain::one_line;
use podplane_host::{
    clock::{self, Instant},
    task,
};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        in_use::HoldState,
        ipam_report::{FRESH, ReportState},
        node_status::{self, ObservedNetwork},
    },
    BeginError, NetworkState, NodeContext, NodeError, pod_cidrs, unlimited_backoff,
};
use crate::PodCidrs;

/// The least time between two reports, so that a burst of pods is one report and not a hundred.
pub(super) const REPORT_GAP: Duration = Duration::from_millis(50);

/// The time from the refusal of a pod for want of an address to the next report; until that, the
/// scheduler takes the node for full.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// The time that a new node waits for its blocks before it reports that it has none.
const AWAIT_BLOCK: Duration = Duration::from_secs(1);

/// The fault of pods' network on a node without blocks, though the runtime could give them one.
const NO_POD_CIDR: &str = "container runtime network not ready: the node has no podCIDR";

/// The state of a node's loop between reports.
#[derive(Debug)]
struct Reporter {
    /// The time of the registration.
    begun: Instant,
    /// The time of this process's last write of the status.
    written: Option<Instant>,
    /// The time of the first refusal that no report has followed.
    refused: Option<Instant>,
    /// True if the last status was computed from a report of the IPAM plugin that may be outdated
    /// by now.
    reused: bool,
    /// True if the last status left many addresses free.
    is_roomy: bool,
    /// The revision of the Node after the last write.
    revision: String,
}

impl Reporter {
    /// Returns true if the Node is as this reporter has written it.
    fn is_own_write(&self, node: Option<&NodeObject>) -> bool {
        node.is_some_and(|node| node.resource_version() == self.revision)
    }

    /// Returns true once [`AFTER_REFUSAL`] has passed since the first call with `must_report`,
    /// which is true while the refusal of a pod is not reported.
    fn owes_report(&mut self, must_report: bool) -> bool {
        if !must_report {
            self.refused = None;
            return false;
        }
        let since = self.refused.get_or_insert_with(Instant::now);
        since.elapsed() >= AFTER_REFUSAL
    }
}

impl NodeContext {
    /// Reports the node until `stop`: configures its runtime with the blocks that it is given, and
    /// writes changes. A Node that was deleted is not created again; one that appears again is
    /// reported again.
    ///
    /// A report follows a change of the status, of the addresses in use or of the Node, or a timer:
    /// `resync`, or less after a failure or the refusal of a pod. It comes at least `REPORT_GAP`
    /// after the last one. While the node has plenty of free addresses, a change of the addresses
    /// alone waits for `count_gap`. If the lease was lost, the node is registered again first.
    ///
    /// # Errors
    ///
    /// [`BeginError`] if the Node cannot be registered at all, or another instance of it runs.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BeginError> {
        // Losing the wait loses nothing: registering again is harmless.
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            begun = self.begin() => begun?,
        }
        let mut reporter = Reporter {
            begun: Instant::now(),
            written: None,
            refused: None,
            reused: false,
            is_roomy: false,
            revision: String::new(),
        };
        let mut ticks = clock::interval(self.resync);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waits = unlimited_backoff().build();
        loop {
            match self.report(&mut reporter).await {
                Ok(()) => {
                    waits = unlimited_backoff().build();
                    if reporter.written.is_none() {
                        ticks.reset_after(AWAIT_BLOCK);
                    }
                }
                Err(error) => {
                    let wait = waits.next().unwrap_or(self.resync);
                    tracing::debug!(node = self.name(), error = %one_line(&error), retry_in = ?wait, "failed to report the node; trying again");
                    ticks.reset_after(wait);
                }
            }
            if self.must_report.load(Ordering::Relaxed) {
                ticks.reset_after(AFTER_REFUSAL);
            }
            if reporter.reused {
                ticks.reset_after(FRESH);
            }
            // A change during the gap is kept by `Notify`; losing any of these waits loses nothing.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = clock::sleep(REPORT_GAP) => {}
            }
            let gap = match reporter.is_roomy {
                true => self.count_gap.saturating_sub(REPORT_GAP),
                false => Duration::ZERO,
            };
            let addresses_changed = async {
                clock::sleep(gap).await;
                self.addresses_changed.notified().await;
            };
            tokio::pin!(addresses_changed);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = self.status_changed.notified() => break,
                    () = &mut addresses_changed => break,
                    () = self.object_changed.notified() => {
                        if !reporter.is_own_write(self.object().as_deref()) {
                            break;
                        }
                    }
                    _ = ticks.tick() => break,
                }
            }
            if !self.has_lease() {
                // One of several nodes of this process: it waits until the other instance is
                // silent.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    begun = self.begin() => begun?,
                }
                *self.hold.write().await = HoldState::Unknown;
                *self.configured.lock().await = None;
                self.network.send_replace(NetworkState::Unknown);
            }
        }
    }

    async fn report(&self, reporter: &mut Reporter) -> Result<(), NodeError> {
        let Some(node) = self.object() else {
            // Not seen yet, or deleted: then its block may be another node's by now, and no sandbox
            // may be made in it.
            if self.configured.lock().await.take().is_some() {
                let fault = "the Node object was deleted".to_owned();
                self.network.send_replace(NetworkState::Fault(fault));
            }
            return Ok(());
        };
        let cidrs = pod_cidrs(&node);
        match &cidrs {
            Some(cidrs) => self.configure(cidrs).await?,
            // The registration has reported that the kubelet is starting.
            None if self.dir.uses_pod_cidr() && reporter.begun.elapsed() < AWAIT_BLOCK => {
                return Ok(());
            }
            None => {}
        }
        let fault = self.runtime.network_fault().await;
        let mut fault = fault.map_err(NodeError::runtime("ask for the runtime's status"))?;
        if fault.is_some() {
            // It may have lost its configuration, so it is configured again.
            *self.configured.lock().await = None;
        }
        let of_node = self.node_network.as_ref();
        fault = fault.or_else(|| of_node.and_then(|network| network.fault()));
        let books = match self.reconcile_hold(&node).await {
            Err(NodeError::HeldByAnother(why)) => {
                // An operator may end the hold, and only the next report shows that.
                tracing::warn!(node = self.name(), why, "the node's block cannot be used");
                fault.get_or_insert_with(|| format!("the node's block cannot be used: {why}"));
                self.books_within(FRESH).await?
            }
            reconciled => reconciled?,
        };
        let usage = books.usage();
        reporter.is_roomy = usage.as_ref().is_some_and(|usage| self.is_roomy(usage));
        let addresses = usage.as_ref().map(|usage| self.addresses(usage));
        self.metrics
            .addresses(self.name(), usage.as_ref().zip(addresses.as_ref()));
        reporter.reused = books.reported.is_reused();
        if cidrs.is_none() && books.uses_pod_cidr {
            // The runtime may still have the block of an earlier Node of this name, which is
            // another node's by now.
            fault.get_or_insert_with(|| NO_POD_CIDR.to_owned());
        }
        let state = match &fault {
            None => NetworkState::Ready,
            Some(fault) => NetworkState::Fault(fault.clone()),
        };
        self.network.send_if_modified(|old| {
            let is_new = *old != state;
            *old = state;
            is_new
        });
        let ranges = || Some(books.ipam.as_ref()?.subnets.clone()).filter(|all| !all.is_empty());
        let has_network = cidrs.is_some() || !books.uses_pod_cidr;
        let last_good = match &books.reported {
            ReportState::Good(good) => Some(good.at),
            ReportState::NoSource | ReportState::Failed(_) => None,
        };
        let network = ObservedNetwork {
            fault,
            has_pod_cidrs: cidrs.is_some(),
            needs_no_pod_cidr: !books.uses_pod_cidr,
            ranges: (!books.uses_pod_cidr).then(ranges).flatten(),
            usage: has_network.then(|| books.usage()).flatten(),
            ipam: books.plugin.clone(),
            report_fault: books
                .reported
                .fault()
                .or(books.refused.as_deref())
                .map(str::to_owned),
            reported_at: last_good,
        };
        self.write(node, &network, reporter).await
    }

    /// Configures the runtime with the node's blocks, unless it has them.
    async fn configure(&self, cidrs: &PodCidrs) -> Result<(), NodeError> {
        let mut configured = self.configured.lock().await;
        if configured.as_ref() != Some(cidrs) {
            self.write_pod_mtu(cidrs).await?;
            let answer = self.runtime.configure(cidrs).await;
            answer.map_err(NodeError::runtime("configure the runtime"))?;
            *configured = Some(cidrs.clone());
        }
        Ok(())
    }

    /// Writes the MTU of pods' interfaces to the file that the runtime reads when it is configured.
    async fn write_pod_mtu(&self, cidrs: &PodCidrs) -> Result<(), NodeError> {
        let (dir, network, cidrs) = (self.dir.clone(), self.node_network.clone(), cidrs.clone());
        let write = move || -> Result<(), NodeError> {
            let mtu = network.map(|network| network.pod_mtu(&cidrs)).transpose()?;
            Ok(dir.write_pod_mtu(mtu.flatten())?)
        };
        task::spawn_blocking(write).await?
    }

    async fn write(
        &self,
        node: Arc<NodeObject>,
        network: &ObservedNetwork,
        reporter: &mut Reporter,
    ) -> Result<(), NodeError> {
        let nodes = self.client.all::<NodeObject>();
        let mut node = Arc::unwrap_or_clone(node);
        let annotations = node.metadata.annotations.get_or_insert_default();
        let renamed = Some(&self.machine.pod_ips).filter(|name| **name != PodIpResource::default());
        let of_pods = [
            (POD_IPS_ALLOCATED, node_status::allocated(network)),
            (POD_IPS_ORPHANED, node_status::orphaned(network)),
            (POD_IPS_RESOURCE, renamed.map(ToString::to_string)),
            (POD_RANGES, node_status::ranges(network)),
            (
                IPAM,
                Some(network.ipam.clone()).filter(|name| !name.is_empty()),
            ),
        ];
        let of_node = self.node_network.iter();
        let of_node = of_node.flat_map(|network| network.annotations());
        let wanted: Vec<_> = of_pods.into_iter().chain(of_node).collect();
        let is_annotated = wanted
            .iter()
            .all(|(key, value)| annotations.get(*key) == value.as_ref());
        for (key, value) in wanted {
            match value {
                Some(value) => annotations.insert(key.into(), value),
                None => annotations.remove(key),
            };
        }
        let status = node_status::status(
            &self.machine,
            network,
            node.status.as_ref(),
            clock::timestamp(),
        );
        let turn = node_status::turn(node.status.as_ref(), &status);
        let report_turn = node_status::report_turn(node.status.as_ref(), &status);
        let is_due = reporter
            .written
            .is_none_or(|at| at.elapsed() >= self.heartbeat);
        let is_news = node
            .status
            .as_ref()
            .is_none_or(|old| !node_status::is_same(old, &status));
        // The report of a refusal waits until the refusal can have been seen.
        let is_owed = reporter.owes_report(self.must_report.load(Ordering::Relaxed));
        if is_due || is_news || is_owed {
            node.status = Some(status);
            if is_owed {
                // Cleared before the write, so that a refusal during it is owed a report of its
                // own.
                self.must_report.store(false, Ordering::Relaxed);
                reporter.refused = None;
            }
            // Written together with the annotations, so that none is seen without the other.
            let updated = nodes.update_status(&node).await;
            if updated.is_err() && is_owed {
                self.must_report.store(true, Ordering::Relaxed);
            }
            let updated = updated.map_err(NodeError::api("write the node's status"))?;
            reporter.written = Some(Instant::now());
            updated
                .resource_version()
                .clone_into(&mut reporter.revision);
            if let Some(turn) = turn {
                match (network.fault.as_deref(), turn) {
                    (_, node_status::NODE_READY) => {
                        tracing::info!(node = self.name(), uid = updated.uid(), "node is ready");
                    }
                    (fault, _) => {
                        tracing::warn!(
                            node = self.name(),
                            uid = updated.uid(),
                            fault,
                            "node is not ready"
                        );
                    }
                }
                let message = format!("Node {} status is now: {turn}", self.name());
                self.events
                    .record(&updated, EventType::Normal, turn, "", message);
            }
            if let Some((kind, reason, message)) = report_turn {
                self.events.record(&updated, kind, reason, "", message);
            }
        } else if !is_annotated {
            let updated = nodes.update(&node).await;
            let updated = updated.map_err(NodeError::api("annotate the node"))?;
            updated
                .resource_version()
                .clone_into(&mut reporter.revision);
        }
        Ok(())
    }
}
