//! A node of this kubelet, and the state that its parts share.
//!
//! `registration` creates its object and takes its lease, `reporter` is the loop that reports it,
//! and `books` reads its addresses.

mod books;
mod registration;
mod reporter;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::Lease as NodeLease,
    core::{Node as NodeObject, Pod, PodStatus},
    pod_ips::{holds_address, is_host_network, is_terminal},
};
use podplane_client::{ApiError, Cache, Client, EventRecorder};
use podplane_ipam::IpPolicy;
use podplane_netlink::NetlinkError;
use tokio::{
    sync::{Mutex, Notify, RwLock, watch},
    task,
};
use tonic::Status;

use self::reporter::REPORT_GAP;
pub use self::{books::AddressBooks, registration::unlimited_backoff};
use super::{
    admission::{self, AdmissionVerdict, Applicant, Holdings},
    in_use::HoldState,
    instance::Instance,
    ipam_report::{FRESH, Reports},
    lease::LeaseError,
    metrics::KubeletMetrics,
    node_network::NodeFabric,
    node_status::NodeMachine,
    runtime::RuntimeClient,
};
use crate::{NodeDir, PodCidrs};

/// A node, shared by all tasks that work for it.
#[derive(Debug)]
pub struct NodeContext {
    /// The properties that do not change.
    pub machine: NodeMachine,
    /// Its files.
    pub dir: NodeDir,
    /// The absolute path of the directory of its pods' files: one directory for each UID.
    pub pod_files: PathBuf,
    /// Its runtime.
    pub runtime: RuntimeClient,
    /// The kubelet's metrics.
    pub metrics: KubeletMetrics,
    /// The reports of its IPAM plugin.
    pub(super) reports: Reports,
    /// The client of the API server.
    pub client: Client,
    /// The Node objects of all nodes.
    pub nodes: Cache<NodeObject>,
    /// At least the pods of this node, by node.
    pub pods: Cache<Pod>,
    /// The recorder of events from this node.
    pub events: EventRecorder,
    /// The role of free addresses in the admission of a pod.
    pub ip_policy: IpPolicy,
    /// The interval at which it looks for changes without a notification.
    pub resync: Duration,
    /// The interval at which the status is written even if it has not changed.
    pub heartbeat: Duration,
    /// The least time from a report to the next one that is only about addresses in use, while the
    /// node has plenty.
    pub count_gap: Duration,
    /// The state of the pods' network, as last observed.
    pub network: watch::Sender<NetworkState>,
    /// Notified when something changed that the node's status may show.
    pub status_changed: Notify,
    /// Notified when other addresses may be in use than before.
    pub(super) addresses_changed: Notify,
    /// Notified when the Node object changed, perhaps by this kubelet's own report.
    pub(super) object_changed: Notify,
    /// True if the next report is written even if it equals the last.
    must_report: AtomicBool,
    /// Pods that were admitted and may have no address yet: the addresses that each needs, by UID.
    /// Locked during the decision on another pod.
    pending: Mutex<BTreeMap<String, u64>>,
    /// The instance of the node that this is.
    pub(super) instance: Instance,
    /// True if it is the only node of this process, which ends with it.
    pub(super) is_alone: bool,
    /// The network to the pods of other nodes; absent if others provide it.
    pub(super) node_network: Option<Arc<NodeFabric>>,
    /// True while this instance has the node's lease. Otherwise it works for no pod.
    pub(super) tenure: watch::Sender<bool>,
    /// The lease as this instance last wrote it.
    pub(super) lease: Mutex<Option<NodeLease>>,
    /// The hold of the node's blocks; see [`hold_blocks`](NodeContext::hold_blocks).
    pub(super) hold: RwLock<HoldState>,
    /// The blocks with which the runtime was last configured.
    pub(super) configured: Mutex<Option<PodCidrs>>,
}

/// The state of the pods' network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// Not known: the runtime was not asked yet, or not configured with the node's blocks.
    Unknown,
    /// Pods can have a network.
    Ready,
    /// Pods cannot have a network, for this reason, in the words of the node's condition.
    Fault(String),
}

/// The parts of a [`NodeContext`].
#[derive(Debug)]
pub struct NodeParts {
    /// See [`NodeContext::machine`].
    pub machine: NodeMachine,
    /// See [`NodeContext::dir`].
    pub dir: NodeDir,
    /// See [`NodeContext::pod_files`].
    pub pod_files: PathBuf,
    /// See [`NodeContext::runtime`].
    pub runtime: RuntimeClient,
    /// See [`NodeContext::metrics`].
    pub metrics: KubeletMetrics,
    /// The reports of its IPAM plugin.
    pub reports: Reports,
    /// See [`NodeContext::client`].
    pub client: Client,
    /// See [`NodeContext::nodes`].
    pub nodes: Cache<NodeObject>,
    /// See [`NodeContext::pods`].
    pub pods: Cache<Pod>,
    /// See [`NodeContext::events`].
    pub events: EventRecorder,
    /// See [`NodeContext::ip_policy`].
    pub ip_policy: IpPolicy,
    /// See [`NodeContext::resync`].
    pub resync: Duration,
    /// See [`NodeContext::heartbeat`].
    pub heartbeat: Duration,
    /// See [`NodeContext::count_gap`]; it is never shorter than `REPORT_GAP`.
    pub count_gap: Duration,
    /// The instance of the node that this is.
    pub instance: Instance,
    /// True if it is the only node of this process, which ends with it.
    pub is_alone: bool,
    /// The network to the pods of other nodes; absent if others provide it.
    pub node_network: Option<Arc<NodeFabric>>,
}

/// The reason why a step for a node failed. Every step is tried again.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The API server refused, or cannot be reached.
    #[error("failed to {step}")]
    Api {
        /// The failed step.
        step: &'static str,
        /// The server's answer.
        source: ApiError,
    },
    /// The runtime refused, or cannot be reached.
    #[error("failed to {step}")]
    Runtime {
        /// The failed step.
        step: &'static str,
        /// The runtime's answer.
        source: Box<Status>,
    },
    /// The node's files cannot be read or written.
    #[error("failed to access the node's files")]
    Files(#[from] std::io::Error),
    /// The MTU of the node's network cannot be read from the kernel.
    #[error("failed to look up the MTU of the node's network")]
    Mtu(#[from] NetlinkError),
    /// The Node was deleted, so that a sandbox would belong to nobody.
    #[error("the Node object of {0} was deleted")]
    Gone(String),
    /// The runtime has other blocks than the Node: a sandbox would have an address of somebody
    /// else's block.
    #[error("the runtime is not configured with the blocks of node {0} yet")]
    Renumbered(String),
    /// Another instance holds the block: two sandboxes could have one address.
    #[error("the node's block cannot be used: {0}")]
    HeldByAnother(String),
    /// The thread that read or wrote files died.
    #[error("failed to read the allocation files")]
    Panicked(#[from] task::JoinError),
}

/// The reason why a node does not begin to work.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The Node cannot be registered.
    #[error("failed to register the node")]
    Invalid(#[source] ApiError),
    /// This instance does not have the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl NodeError {
    /// An error of the API server in this step.
    pub fn api(step: &'static str) -> impl FnOnce(ApiError) -> Self {
        move |source| Self::Api { step, source }
    }

    /// An error of the runtime in this step.
    pub fn runtime(step: &'static str) -> impl FnOnce(Status) -> Self {
        move |source| Self::Runtime {
            step,
            source: Box::new(source),
        }
    }
}

impl NodeContext {
    /// Creates a node of these parts.
    pub fn new(parts: NodeParts) -> Self {
        let NodeParts {
            machine,
            dir,
            pod_files,
            runtime,
            metrics,
            reports,
            client,
            nodes,
            pods,
            events,
            ip_policy,
            resync,
            heartbeat,
            count_gap,
            instance,
            is_alone,
            node_network,
        } = parts;
        Self {
            machine,
            dir,
            pod_files,
            runtime,
            metrics,
            reports,
            client,
            nodes,
            pods,
            events,
            ip_policy,
            resync,
            heartbeat,
            count_gap: count_gap.max(REPORT_GAP),
            network: watch::Sender::new(NetworkState::Unknown),
            status_changed: Notify::new(),
            addresses_changed: Notify::new(),
            object_changed: Notify::new(),
            must_report: AtomicBool::new(false),
            pending: Mutex::default(),
            instance,
            is_alone,
            node_network,
            tenure: watch::Sender::new(false),
            lease: Mutex::default(),
            hold: RwLock::default(),
            configured: Mutex::default(),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        self.machine.name.as_str()
    }

    /// Decides whether the pod can have an address, and reserves one for it until
    /// [`NodeContext::release_reservation`]. Makes one decision at a time.
    ///
    /// # Errors
    ///
    /// [`NodeError`] if it could not decide.
    pub async fn admit(&self, pod: &Pod) -> Result<AdmissionVerdict, NodeError> {
        if self.ip_policy == IpPolicy::Off || is_host_network(pod) {
            return Ok(AdmissionVerdict::Admit);
        }
        let mut pending = self.pending.lock().await;
        if pending.contains_key(pod.uid()) {
            return Ok(AdmissionVerdict::Admit);
        }
        let mut max_age = FRESH;
        let verdict = loop {
            let books = self.books_within(max_age).await?;
            let verdict = self.decide(pod, &books, &pending);
            if verdict == AdmissionVerdict::Admit || !books.reported.is_reused() {
                break verdict;
            }
            // An address may have been freed since the plugin reported.
            max_age = Duration::ZERO;
        };
        match verdict {
            AdmissionVerdict::Admit => {
                let needed = self.machine.pod_ips.addresses_needed(pod);
                pending.insert(pod.uid().to_owned(), needed);
            }
            AdmissionVerdict::Wait => {}
            AdmissionVerdict::Reject(_) => self.must_report.store(true, Ordering::Relaxed),
        }
        Ok(verdict)
    }

    fn decide(
        &self,
        pod: &Pod,
        books: &AddressBooks,
        pending: &BTreeMap<String, u64>,
    ) -> AdmissionVerdict {
        let usage = books.usage();
        let count = |amount: i64| u64::try_from(amount).unwrap_or(0);
        let of_usage = usage.unwrap_or_default();
        let holdings = Holdings {
            capacity: self.capacity(usage.as_ref()),
            holders: books.holders(),
            orphaned: count(of_usage.orphaned),
            ending: count(of_usage.orphaned.saturating_sub(of_usage.leaked)),
        };
        let applicant = Applicant {
            uid: pod.uid(),
            needed: self.machine.pod_ips.addresses_needed(pod),
        };
        // Stale, but only for a moment: a pod that is not in the cache yet is not among the holders
        // either.
        let alive: BTreeSet<_> = self
            .own_pods()
            .iter()
            .filter(|pod| !pod.is_deleting() && !is_terminal(pod))
            .map(|pod| pod.uid().to_owned())
            .collect();
        admission::decide(applicant, &holdings, pending, |uid| !alive.contains(uid))
    }

    /// The key of another pod of this node that is still reported with an address that `status`
    /// gives the pod. Its sandbox is gone, or the address would not have been given again; its
    /// worker is about to report that.
    ///
    /// The cache may be stale, but never in this: a pod's sandbox is stopped only after the cache
    /// has received the pod that is reported with it.
    pub fn other_holder(&self, pod: &Pod, status: &PodStatus) -> Option<String> {
        let present = pod.status.as_ref().and_then(|old| old.pod_ips.as_ref());
        let ips = status.pod_ips.as_deref().unwrap_or_default();
        if is_host_network(pod) || present == status.pod_ips.as_ref() {
            return None;
        }
        let claims = |other: &&Arc<Pod>| {
            let listed = other.status.as_ref().and_then(|s| s.pod_ips.as_deref());
            other.uid() != pod.uid()
                && holds_address(other)
                && listed.is_some_and(|listed| listed.iter().any(|ip| ips.contains(ip)))
        };
        let pods = self.own_pods();
        let other = pods.iter().find(claims)?;
        Some(other.key().to_string())
    }

    /// The pods that are bound to this node.
    pub(super) fn own_pods(&self) -> Vec<Arc<Pod>> {
        self.pods.list_of(self.name())
    }

    /// Ends the reservation of [`NodeContext::admit`], if there is one: the pod has its address
    /// now, or needs none any more.
    pub async fn release_reservation(&self, uid: &str) {
        self.pending.lock().await.remove(uid);
        self.addresses_changed.notify_one();
    }

    pub(super) fn object(&self) -> Option<Arc<NodeObject>> {
        self.nodes.get(&ObjectKey::new("", self.name()))
    }

    /// Returns true if this instance has the node's lease, and may work for its pods.
    pub fn has_lease(&self) -> bool {
        *self.tenure.borrow()
    }

    /// Waits until this instance has the node's lease.
    pub(super) async fn wait_for_lease(&self) {
        let mut tenure = self.tenure.subscribe();
        // Cannot fail: the sender is in this node.
        _ = tenure.wait_for(|has_lease| *has_lease).await;
    }

    /// Notes that another instance has taken the lease.
    pub(super) fn lose_lease(&self) {
        self.tenure.send_replace(false);
        let fault = "another kubelet has taken the node over".to_owned();
        self.network.send_replace(NetworkState::Fault(fault));
        self.status_changed.notify_one();
    }
}

/// The blocks of a node. The API server has refused blocks that a node cannot have.
pub fn pod_cidrs(node: &NodeObject) -> Option<PodCidrs> {
    let spec = node.spec.as_ref()?;
    let several = spec.pod_cidrs.iter().flatten().map(String::as_str);
    let texts: Vec<_> = several.collect();
    if texts.is_empty() {
        return spec.pod_cidr.as_deref()?.parse().ok();
    }
    PodCidrs::new(texts).ok()
}
