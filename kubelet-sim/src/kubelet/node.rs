//! A node of this kubelet: what its parts share, and the loop that reports it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder, Retryable as _};
use podplane_api::{
    Object as _, ObjectKey,
    core::{Node as NodeObject, Pod, PodStatus},
    jiff::Timestamp,
    pod_ips::{
        self, IPAM, POD_IPS_ALLOCATED, POD_RANGES, holds_address, is_host_network, is_terminal,
    },
};
use podplane_client::{ApiError, Cache, Client, EventRecorder, events::EventType};
use podplane_cni::host_local::Lease;
use podplane_ipam::capacity::NodeCapacity;
use tokio::{
    sync::{Mutex, Notify, RwLock, watch},
    task,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    IpPolicy,
    admission::{self, Holdings, Verdict},
    in_use::Hold,
    instance::Instance,
    ipam_report::{FRESH, Reported, Reports},
    lease::{self, LeaseError},
    metrics::Metrics,
    node_status::{self, Machine, Network},
    plan::Sandbox,
    runtime::Runtime,
};
use crate::{
    NodeDir, PodCidrs,
    cri::sandboxes::chain,
    ipam::{Ipam, Usage},
};

/// Reports that follow each other are at least so far apart, so that a burst of pods is one report and not a hundred.
const REPORT_GAP: Duration = Duration::from_millis(50);
/// After a pod was refused its address, the scheduler takes the node for full until it reports again; this is when it does.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// Why pods have no network though the runtime could give them one.
const NO_POD_CIDR: &str = "container runtime network not ready: the node has no podCIDR";

/// A node, shared by all that work for it.
#[derive(Debug)]
pub struct Node {
    /// What does not change.
    pub machine: Machine,
    /// Its files.
    pub dir: NodeDir,
    /// Its runtime.
    pub runtime: Runtime,
    /// What is counted.
    pub metrics: Metrics,
    /// The reports of its IPAM plugin.
    pub(super) reports: Reports,
    /// The API server.
    pub client: Client,
    /// All nodes.
    pub nodes: Cache<NodeObject>,
    /// At least the pods of this node.
    pub pods: Cache<Pod>,
    /// Events, from this node.
    pub events: EventRecorder,
    /// Whether a free address is a condition of admission.
    pub ip_policy: IpPolicy,
    /// How often it looks without being told to.
    pub resync: Duration,
    /// How often it writes its status even if nothing changed.
    pub heartbeat: Duration,
    /// Whether pods can have a network, as last observed.
    pub network: watch::Sender<NetworkState>,
    /// Something changed that may be worth a report.
    pub changed: Notify,
    /// The next report is written even if it says the same as the last.
    must_report: AtomicBool,
    /// UIDs of pods that were admitted and may have no address yet. Held while deciding on another.
    pending: Mutex<BTreeSet<String>>,
    /// Which instance of the node this is.
    pub(super) instance: Instance,
    /// Whether it is the only node of this process, which ends with it.
    pub(super) is_alone: bool,
    /// Whether this instance has the node's lease. While it has not, it works for no pod.
    pub(super) tenure: watch::Sender<bool>,
    /// See [`announce`](Node::announce).
    pub(super) held: RwLock<Hold>,
    /// The blocks that the runtime was told.
    pub(super) configured: Mutex<Option<PodCidrs>>,
}

/// Whether pods can have a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// The runtime was not asked yet, or not told the node's blocks.
    Unknown,
    /// They can.
    Ready,
    /// They cannot: why, in the words of the node's condition.
    Fault(String),
}

/// What a [`Node`] is made of.
#[derive(Debug)]
pub struct Parts {
    /// See [`Node::machine`].
    pub machine: Machine,
    /// See [`Node::dir`].
    pub dir: NodeDir,
    /// See [`Node::runtime`].
    pub runtime: Runtime,
    /// See [`Node::metrics`].
    pub metrics: Metrics,
    /// What the IPAM plugin of the node says of its capacity.
    pub reports: Reports,
    /// See [`Node::client`].
    pub client: Client,
    /// See [`Node::nodes`].
    pub nodes: Cache<NodeObject>,
    /// See [`Node::pods`].
    pub pods: Cache<Pod>,
    /// See [`Node::events`].
    pub events: EventRecorder,
    /// See [`Node::ip_policy`].
    pub ip_policy: IpPolicy,
    /// See [`Node::resync`].
    pub resync: Duration,
    /// See [`Node::heartbeat`].
    pub heartbeat: Duration,
    /// Which instance of the node this is.
    pub instance: Instance,
    /// Whether it is the only node of this process, which ends with it.
    pub is_alone: bool,
}

/// Why a step for a node failed. All are tried again.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The API server refused, or cannot be reached.
    #[error("{step}")]
    Api {
        /// What was asked.
        step: &'static str,
        /// Its answer.
        source: ApiError,
    },
    /// The runtime refused, or cannot be reached.
    #[error("{step}")]
    Runtime {
        /// What was asked.
        step: &'static str,
        /// Its answer.
        source: Box<Status>,
    },
    /// The allocation files cannot be read.
    #[error("read the allocation files")]
    Leases(#[from] std::io::Error),
    /// A sandbox would be nobody's.
    #[error("the Node object of {0} was deleted")]
    Gone(String),
    /// A sandbox would have an address of somebody else's block.
    #[error("the runtime was not told the blocks of node {0} yet")]
    Renumbered(String),
    /// Two sandboxes could have one address.
    #[error("the node's block cannot be used: {0}")]
    HeldByAnother(String),
    /// The thread that read them died.
    #[error("read the allocation files")]
    Panicked(#[from] task::JoinError),
}

/// Why a node does not begin to work.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The Node cannot be registered.
    #[error("register the node")]
    Invalid(#[source] ApiError),
    /// The lease is not ours.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl NodeError {
    /// Of the API server.
    pub fn api(step: &'static str) -> impl FnOnce(ApiError) -> Self {
        move |source| Self::Api { step, source }
    }

    /// Of the runtime.
    pub fn runtime(step: &'static str) -> impl FnOnce(Status) -> Self {
        move |source| Self::Runtime {
            step,
            source: Box::new(source),
        }
    }
}

/// The addresses of a node at one time.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// The configured ranges, or what the IPAM plugin reports; `None` without a configuration or where another plugin than host-local reports nothing.
    pub ipam: Option<Ipam>,
    /// host-local's reason to refuse the configuration: it gives no address then.
    pub refused: Option<String>,
    /// The state of the IPAM plugin's reports.
    pub reported: Reported,
    /// The IPAM plugin; empty without a configuration.
    pub plugin: String,
    /// Whether they are the node's blocks.
    pub uses_pod_cidr: bool,
    /// Every allocation file.
    pub leases: Vec<Lease>,
    /// Every sandbox, listed after the files were read: a lease that is of none of them is leaked, or just being released.
    pub sandboxes: Vec<Sandbox>,
    /// UIDs of pods whose sandboxes have an address or may have one, where host-local's files do not say it.
    pub presumed: BTreeSet<String>,
}

impl Books {
    /// The sandbox that has a lease.
    pub fn owner(&self, lease: &Lease) -> Option<&Sandbox> {
        self.sandbox(&lease.container_id)
    }

    fn sandbox(&self, id: &str) -> Option<&Sandbox> {
        let found = self
            .sandboxes
            .binary_search_by(|sandbox| sandbox.id.as_str().cmp(id));
        found.ok().and_then(|at| self.sandboxes.get(at))
    }

    /// The allocation files of the ranges as they are configured now.
    pub fn current(&self) -> impl Iterator<Item = &Lease> {
        let ipam = self.ipam.as_ref();
        let leases = self.leases.iter();
        leases.filter(move |lease| ipam.is_some_and(|ipam| ipam.gives(lease.ip)))
    }

    /// Returns true if host-local's files have the given addresses.
    pub fn has_files(&self) -> bool {
        self.ipam.as_ref().is_some_and(Ipam::has_files)
    }

    /// Returns true if the given addresses are known.
    pub fn knows_leases(&self) -> bool {
        self.ipam.as_ref().is_some_and(Ipam::knows_leases)
    }

    /// UIDs of pods that have an address, or may have one.
    pub fn holders(&self) -> BTreeSet<String> {
        let owners = self.current().filter_map(|lease| self.owner(lease));
        let owners = owners.map(|sandbox| sandbox.uid.clone());
        owners.chain(self.presumed.iter().cloned()).collect()
    }

    /// The counts; `None` without a configuration. Where the leases are not known, each pod with a sandbox counts as one.
    pub fn usage(&self) -> Option<Usage> {
        let is_known = |id: &str| self.sandbox(id).is_some();
        match &self.ipam {
            Some(ipam) if ipam.knows_leases() => {
                Some(Usage::count(ipam.capacity, self.current(), is_known))
            }
            _ if self.plugin.is_empty() => None,
            ipam => {
                let reported = ipam.as_ref().map(|ipam| ipam.capacity.pods());
                let refused = self.refused.as_ref().map(|_| 0);
                Some(Usage {
                    capacity: reported
                        .or(refused)
                        .map(|pods| i64::try_from(pods).unwrap_or(i64::MAX)),
                    allocated: i64::try_from(self.presumed.len()).unwrap_or(i64::MAX),
                    leaked: 0,
                })
            }
        }
    }
}

impl Node {
    /// A node of these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            machine,
            dir,
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
            instance,
            is_alone,
        } = parts;
        Self {
            machine,
            dir,
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
            network: watch::Sender::new(NetworkState::Unknown),
            changed: Notify::new(),
            must_report: AtomicBool::new(false),
            pending: Mutex::default(),
            instance,
            is_alone,
            tenure: watch::Sender::new(false),
            held: RwLock::default(),
            configured: Mutex::default(),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        self.machine.name.as_str()
    }

    /// Reads the allocation files or the IPAM plugin's report, then lists the sandboxes.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub async fn books(&self) -> Result<Books, NodeError> {
        self.books_within(Duration::ZERO).await
    }

    /// As [`Node::books`], but with a report that is not older than `max_age` if there is one.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(super) async fn books_within(&self, max_age: Duration) -> Result<Books, NodeError> {
        let object = self.object();
        let blocks = object.map(|node| pod_ips::pod_cidrs(&node).to_vec());
        let reported = self.reports.get(blocks.unwrap_or_default(), max_age).await;
        let dir = self.dir.clone();
        let read = move || read_books(&dir, reported);
        let mut books = task::spawn_blocking(read).await??;
        let listed = self.runtime.list().await;
        books.sandboxes = listed.map_err(NodeError::runtime("list sandboxes"))?;
        if !books.has_files() && !books.plugin.is_empty() {
            books.presumed = self.presumed(&books.sandboxes);
        }
        Ok(books)
    }

    /// UIDs of the pods of these sandboxes, but for those that share the node's network.
    fn presumed(&self, sandboxes: &[Sandbox]) -> BTreeSet<String> {
        let shares = |sandbox: &Sandbox| {
            let pod = self.pods.get(&sandbox.pod);
            pod.is_some_and(|pod| pod.uid() == sandbox.uid && is_host_network(&pod))
        };
        let own = sandboxes.iter().filter(|sandbox| !shares(sandbox));
        own.map(|sandbox| sandbox.uid.clone()).collect()
    }

    /// The number of pods that the node has addresses for; `None` while it waits for its block.
    fn capacity(&self, usage: Option<&Usage>) -> Option<i64> {
        if let Some(reported) = usage.and_then(|usage| usage.capacity) {
            return Some(reported);
        }
        match pod_ips::capacity(self.object()?.as_ref()) {
            NodeCapacity::AwaitsBlock => None,
            NodeCapacity::Pods { count, .. } => Some(i64::try_from(count).unwrap_or(i64::MAX)),
        }
    }

    /// Decides whether the pod can have an address, and keeps one for it until [`Node::settled`]. One decision at a time.
    ///
    /// # Errors
    ///
    /// [`NodeError`]: not decided.
    pub async fn admit(&self, pod: &Pod) -> Result<Verdict, NodeError> {
        if self.ip_policy == IpPolicy::Off || is_host_network(pod) {
            return Ok(Verdict::Admit);
        }
        let mut pending = self.pending.lock().await;
        if pending.contains(pod.uid()) {
            return Ok(Verdict::Admit);
        }
        let mut max_age = FRESH;
        let verdict = loop {
            let books = self.books_within(max_age).await?;
            let verdict = self.decide(pod, &books, &pending);
            if verdict == Verdict::Admit || !books.reported.is_reused() {
                break verdict;
            }
            // An address may have been freed since the plugin reported.
            max_age = Duration::ZERO;
        };
        match verdict {
            Verdict::Admit => {
                pending.insert(pod.uid().to_owned());
            }
            Verdict::Wait => {}
            Verdict::Reject(_) => self.must_report.store(true, Ordering::Relaxed),
        }
        Ok(verdict)
    }

    fn decide(&self, pod: &Pod, books: &Books, pending: &BTreeSet<String>) -> Verdict {
        let usage = books.usage();
        let holdings = Holdings {
            capacity: self.capacity(usage.as_ref()),
            holders: books.holders(),
            leaked: usage.map_or(0, |usage| usage.leaked),
        };
        // Stale, but only for a moment: a pod that is not in the cache yet is not among the holders either.
        let alive: BTreeSet<_> = self
            .pods
            .list()
            .iter()
            .filter(|pod| !pod.is_deleting() && !is_terminal(pod))
            .map(|pod| pod.uid().to_owned())
            .collect();
        admission::decide(pod.uid(), &holdings, pending, |uid| !alive.contains(uid))
    }

    /// Another pod of this node that is still reported with an address that `status` gives the pod. Its sandbox is gone, or the address would not
    /// have been given again; its worker is about to write so.
    ///
    /// The cache may be behind, but never about this: a pod's sandbox is stopped only after the cache has brought the pod that is reported with it.
    pub fn other_holder(&self, pod: &Pod, status: &PodStatus) -> Option<String> {
        let present = pod.status.as_ref().and_then(|old| old.pod_ips.as_ref());
        let ips = status.pod_ips.as_deref().unwrap_or_default();
        if is_host_network(pod) || present == status.pod_ips.as_ref() {
            return None;
        }
        let claims = |other: &&Arc<Pod>| {
            let node = other.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            let listed = other.status.as_ref().and_then(|s| s.pod_ips.as_deref());
            node.is_some_and(|node| node == self.name())
                && other.uid() != pod.uid()
                && holds_address(other)
                && listed.is_some_and(|listed| listed.iter().any(|ip| ips.contains(ip)))
        };
        let pods = self.pods.list();
        pods.iter()
            .find(claims)
            .map(|other| other.key().to_string())
    }

    /// The pod has its address now, or needs none any more.
    pub async fn settled(&self, uid: &str) {
        self.pending.lock().await.remove(uid);
        self.changed.notify_one();
    }

    pub(super) fn object(&self) -> Option<Arc<NodeObject>> {
        self.nodes.get(&ObjectKey::new("", self.name()))
    }

    /// Whether this instance has the node's lease, and may work for its pods.
    pub fn is_ours(&self) -> bool {
        *self.tenure.borrow()
    }

    /// Waits until this instance has the node's lease.
    pub(super) async fn ours(&self) {
        let mut tenure = self.tenure.subscribe();
        // The sender is in this node.
        _ = tenure.wait_for(|is_ours| *is_ours).await;
    }

    /// Another instance has the lease.
    pub(super) fn lost(&self) {
        self.tenure.send_replace(false);
        let fault = "another kubelet has taken the node over".to_owned();
        self.network.send_replace(NetworkState::Fault(fault));
        self.changed.notify_one();
    }

    /// Registers the node and takes its lease, once no other instance of the node has it. Tries
    /// until it succeeds.
    ///
    /// # Errors
    ///
    /// [`BeginError`]: the API server says that the Node is invalid; or another instance has the
    /// lease, and this is the only node of the process.
    async fn begin(&self) -> Result<(), BeginError> {
        let mut waits = patiently().build();
        let mut told = None;
        loop {
            let error = match self.try_to_begin().await {
                Ok(()) => return Ok(()),
                Err(BeginError::Lease(error)) => error,
                Err(error) => return Err(error),
            };
            let wait = match error {
                LeaseError::Taken(taken) if self.is_alone => {
                    return Err(LeaseError::Taken(taken).into());
                }
                LeaseError::Taken(taken) => {
                    let wait = taken.wait();
                    if told.is_none() {
                        tracing::error!(node = self.name(), error = %taken, "node not taken; waiting");
                    }
                    told = Some(taken);
                    wait
                }
                LeaseError::Api(error) => {
                    tracing::warn!(node = self.name(), %error, "lease not taken; trying again");
                    waits.next().unwrap_or(self.resync)
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn try_to_begin(&self) -> Result<(), BeginError> {
        // Before anything is written.
        lease::check(self).await?;
        let registered = self.register().await.map_err(BeginError::Invalid)?;
        lease::take(self, &registered).await?;
        self.tenure.send_replace(true);
        Ok(())
    }

    /// Creates the Node, or takes over the one that is there: its labels become ours, its block is used. Tries until it succeeds.
    ///
    /// # Errors
    ///
    /// The API server's, if it says that the Node is invalid.
    pub async fn register(&self) -> Result<NodeObject, ApiError> {
        let register = async || {
            let nodes = self.client.all::<NodeObject>();
            let mut node = node_status::object(&self.machine);
            let network = Network {
                fault: Some("kubelet is starting".to_owned()),
                ..Network::default()
            };
            node.status = Some(node_status::status(
                &self.machine,
                &network,
                None,
                Timestamp::now(),
            ));
            match nodes.create(&node).await {
                Ok(made) => {
                    tracing::info!(node = self.name(), "registered");
                    Ok(made)
                }
                Err(error) if error.is_already_exists() => self.adopt().await,
                Err(error) => Err(error),
            }
        };
        let invalid = |error: &ApiError| error.reason == podplane_client::Reason::Invalid;
        register
            .retry(patiently())
            .when(|error| !invalid(error))
            .notify(|error, wait| {
                tracing::warn!(node = self.name(), %error, ?wait, "not registered; trying again");
            })
            .await
    }

    async fn adopt(&self) -> Result<NodeObject, ApiError> {
        let nodes = self.client.all::<NodeObject>();
        let mut node = nodes.get(self.name()).await?;
        let found = node.clone();
        let labels = node.metadata.labels.get_or_insert_default();
        labels.extend(node_status::labels(&self.machine));
        if let Some(id) = &self.machine.provider_id {
            let present = &mut node.spec.get_or_insert_default().provider_id;
            if present.as_deref().is_none_or(str::is_empty) {
                *present = Some(id.clone());
            }
        }
        if node != found {
            node = nodes.update(&node).await?;
        }
        tracing::info!(node = self.name(), "adopted");
        Ok(node)
    }

    /// Reports the node until `stop`: configures its runtime with the blocks it is given, and writes what changed. A Node that was deleted is not
    /// created again; one that appears again is taken up.
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
        let mut reporter = Reporter::default();
        let mut ticks = tokio::time::interval(self.resync);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waits = patiently().build();
        loop {
            match self.report(&mut reporter).await {
                Ok(()) => waits = patiently().build(),
                Err(error) => {
                    tracing::debug!(node = self.name(), error = %chain(&error), "node not reported; trying again");
                    ticks.reset_after(waits.next().unwrap_or(self.resync));
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
                () = tokio::time::sleep(REPORT_GAP) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.changed.notified() => {}
                _ = ticks.tick() => {}
            }
            if !self.is_ours() {
                // One of several nodes of this process: it waits until the other instance is
                // silent.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    begun = self.begin() => begun?,
                }
                *self.held.write().await = Hold::Unknown;
                *self.configured.lock().await = None;
                self.network.send_replace(NetworkState::Unknown);
            }
        }
    }

    async fn report(&self, reporter: &mut Reporter) -> Result<(), NodeError> {
        let Some(node) = self.object() else {
            // Not seen yet, or deleted: then its block may be somebody else's by now, and no sandbox may be made in it.
            if self.configured.lock().await.take().is_some() {
                let fault = "the Node object was deleted".to_owned();
                self.network.send_replace(NetworkState::Fault(fault));
            }
            return Ok(());
        };
        let cidrs = pod_cidrs(&node);
        if let Some(cidrs) = &cidrs {
            self.configure(cidrs).await?;
        }
        let fault = self.runtime.network_fault().await;
        let mut fault = fault.map_err(NodeError::runtime("ask for the runtime's status"))?;
        if fault.is_some() {
            // It may have lost its configuration, so it is told again.
            *self.configured.lock().await = None;
        }
        let books = match self.settled_books(&node).await {
            Err(NodeError::HeldByAnother(why)) => {
                // It may be ended by an operator, which nothing tells but the next look.
                tracing::warn!(node = self.name(), why, "the node's block cannot be used");
                fault.get_or_insert_with(|| format!("the node's block cannot be used: {why}"));
                self.books_within(FRESH).await?
            }
            settled => settled?,
        };
        self.metrics.addresses(self.name(), books.usage().as_ref());
        reporter.reused = books.reported.is_reused();
        if cidrs.is_none() && books.uses_pod_cidr {
            // The runtime may still have the block of an earlier Node of this name, which is somebody else's by now.
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
            Reported::Good(good) => Some(good.at),
            Reported::NoSource | Reported::Failed(_) => None,
        };
        let network = Network {
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

    /// Tells the runtime the node's blocks, unless it was told.
    async fn configure(&self, cidrs: &PodCidrs) -> Result<(), NodeError> {
        let mut configured = self.configured.lock().await;
        if configured.as_ref() != Some(cidrs) {
            let told = self.runtime.configure(cidrs).await;
            told.map_err(NodeError::runtime("configure the runtime"))?;
            *configured = Some(cidrs.clone());
        }
        Ok(())
    }

    async fn write(
        &self,
        node: Arc<NodeObject>,
        network: &Network,
        reporter: &mut Reporter,
    ) -> Result<(), NodeError> {
        let nodes = self.client.all::<NodeObject>();
        let mut node = Arc::unwrap_or_clone(node);
        let annotations = node.metadata.annotations.get_or_insert_default();
        let wanted = [
            (POD_IPS_ALLOCATED, node_status::allocated(network)),
            (POD_RANGES, node_status::ranges(network)),
            (
                IPAM,
                Some(network.ipam.clone()).filter(|name| !name.is_empty()),
            ),
        ];
        if wanted
            .iter()
            .any(|(key, value)| annotations.get(*key) != value.as_ref())
        {
            for (key, value) in wanted {
                match value {
                    Some(value) => annotations.insert(key.into(), value),
                    None => annotations.remove(key),
                };
            }
            let updated = nodes.update(&node).await;
            node = updated.map_err(NodeError::api("annotate the node"))?;
        }
        let status = node_status::status(
            &self.machine,
            network,
            node.status.as_ref(),
            Timestamp::now(),
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
        // The refusal's own report waits until the refusal can have been seen.
        let is_owed = reporter.owes(self.must_report.load(Ordering::Relaxed));
        if is_due || is_news || is_owed {
            node.status = Some(status);
            if is_owed {
                // Taken before the write, so that a refusal during it is owed a report of its own.
                self.must_report.store(false, Ordering::Relaxed);
                reporter.refused = None;
            }
            let updated = nodes.update_status(&node).await;
            if updated.is_err() && is_owed {
                self.must_report.store(true, Ordering::Relaxed);
            }
            let updated = updated.map_err(NodeError::api("write the node's status"))?;
            reporter.written = Some(Instant::now());
            if let Some(turn) = turn {
                let message = format!("Node {} status is now: {turn}", self.name());
                self.events
                    .record(&updated, EventType::Normal, turn, "", message);
            }
            if let Some((kind, reason, message)) = report_turn {
                self.events.record(&updated, kind, reason, "", message);
            }
        }
        Ok(())
    }
}

/// What a node's loop remembers between reports.
#[derive(Debug, Default)]
struct Reporter {
    /// When the status was last written by this process.
    written: Option<Instant>,
    /// When a refusal was first seen that no report has followed.
    refused: Option<Instant>,
    /// The last status was computed from a report of the IPAM plugin that may be outdated by now.
    reused: bool,
}

/// The books but for the sandboxes. It blocks.
fn read_books(dir: &NodeDir, reported: Reported) -> std::io::Result<Books> {
    // Without a configuration that can be read there is no network, and no address.
    let list = dir.network().ok();
    let plugin = list.as_ref().and_then(Ipam::plugin);
    let mut books = Books {
        plugin: plugin.unwrap_or_default().to_owned(),
        uses_pod_cidr: dir.uses_pod_cidr(),
        ..Books::default()
    };
    books.ipam = match (&reported, list.as_ref().map(Ipam::of)) {
        (Reported::Good(good), _) => Some(Ipam::reported(&good.report)),
        (_, Some(Ok(ipam))) => ipam,
        (_, Some(Err(error))) => {
            books.refused = Some(error.to_string());
            None
        }
        (_, None) => None,
    };
    books.leases = match &books.ipam {
        Some(ipam) => ipam.leases()?,
        None => Vec::new(),
    };
    books.reported = reported;
    Ok(books)
}

impl Reporter {
    fn owes(&mut self, must_report: bool) -> bool {
        if !must_report {
            self.refused = None;
            return false;
        }
        let since = self.refused.get_or_insert_with(Instant::now);
        since.elapsed() >= AFTER_REFUSAL
    }
}

/// The blocks of a node. Blocks that it cannot have were refused by the API server.
pub fn pod_cidrs(node: &NodeObject) -> Option<PodCidrs> {
    let spec = node.spec.as_ref()?;
    let several = spec.pod_cidrs.iter().flatten().map(String::as_str);
    let texts: Vec<_> = several.collect();
    if texts.is_empty() {
        return spec.pod_cidr.as_deref()?.parse().ok();
    }
    PodCidrs::new(texts).ok()
}

/// Between failures: from 50 ms, doubled up to 5 s, with jitter, for ever.
pub fn patiently() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .without_max_times()
}
