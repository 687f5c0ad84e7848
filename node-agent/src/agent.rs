//! The loop of the agent: observe the node's addresses and pods, and write the node's status.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use podplane_api::{
    ObjectKey,
    core::{Node, Pod},
    pod_ips,
};
use podplane_client::{Cache, CacheItem, Changes, Client};
use podplane_cni::NetworkConfigList;
use podplane_host::{
    clock::{self, Instant},
    task,
};
use podplane_service_runtime::tasks::TaskError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    account::{NodeAccount, PodUse, UnownedAddresses},
    block_report::BlockReporter,
    caches::ObjectCaches,
    config::NodeAgentConfig,
    metrics::NodeAgentMetrics,
    publish::{self, Publication},
    sources::{
        AllocatedAddress, IpamKind, NodeIpam, SourceError,
        calico::CalicoFamilies,
        detect::{DetectedIpam, detect, host_network_pods},
        host_local, max_pods, pod_cidr,
    },
};

/// The pause after a look, in which further changes are collected.
const PAUSE: Duration = Duration::from_millis(100);

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    config: NodeAgentConfig,
    client: Client,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    caches: ObjectCaches,
    metrics: NodeAgentMetrics,
    published: watch::Sender<bool>,
    unowned: UnownedAddresses,
    blocks: BlockReporter,
    reported: LoggedState,
}

/// What the log has said last, so that a state is logged when it begins.
#[derive(Debug, Default)]
struct LoggedState {
    ipam: Option<DetectedIpam>,
    fault: Option<String>,
    is_selector_ignored: bool,
    is_left_alone: bool,
    orphaned: u64,
}

/// The parts of a node's network that are read from its files.
#[derive(Debug, Default)]
struct NodeFiles {
    list: Option<NetworkConfigList>,
    /// host-local's addresses, if the network uses it.
    host_local: Option<Result<NodeIpam, SourceError>>,
    /// The allocation files of a plugin that calls host-local for the podCIDR.
    allocated: Option<Result<Vec<AllocatedAddress>, SourceError>>,
}

impl NodeFiles {
    /// The allocated addresses; `None` if the network has no files of them, or they cannot be read,
    /// which is reported elsewhere.
    fn allocated(&self) -> Option<Vec<IpAddr>> {
        let of_network = self.host_local.as_ref().and_then(|ipam| ipam.as_ref().ok());
        let of_network = of_network.and_then(|ipam| ipam.allocated.as_ref());
        let of_pod_cidr = self.allocated.as_ref().and_then(|all| all.as_ref().ok());
        let allocated = of_network.or(of_pod_cidr)?.iter();
        Some(allocated.map(|each| each.address).collect())
    }
}

impl Agent {
    /// The agent of the node in `nodes`, which has `pods`. `published` becomes true after the first
    /// look that succeeds.
    pub fn new(
        config: NodeAgentConfig,
        client: Client,
        nodes: Cache<Node>,
        pods: Cache<Pod>,
        metrics: NodeAgentMetrics,
        published: watch::Sender<bool>,
    ) -> Self {
        Self {
            caches: ObjectCaches::new(client.clone(), config.node_name.to_string()),
            unowned: UnownedAddresses::new(config.orphan_grace),
            blocks: BlockReporter::default(),
            reported: LoggedState::default(),
            config,
            client,
            nodes,
            pods,
            metrics,
            published,
        }
    }

    /// Publishes the node's addresses until `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// None: a failure is logged, and the look is repeated.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), TaskError> {
        let synced = futures::future::join(self.nodes.synced(), self.pods.synced());
        tokio::select! {
            // Cancel safe: the process ends.
            () = stop.cancelled() => return Ok(()),
            ((), ()) = synced => {}
        }
        let (mut nodes, mut pods) = (self.nodes.subscribe(), self.pods.subscribe());
        loop {
            drain(&mut nodes);
            drain(&mut pods);
            match self.look().await {
                Ok(()) => {
                    self.reported.fault = None;
                    self.published.send_replace(true);
                }
                Err(fault) => self.note_fault(fault),
            }
            let due = self.unowned.next(Instant::now());
            let due = due.map_or(self.config.interval, |due| due.min(self.config.interval));
            let next = Instant::now() + due.max(PAUSE);
            let pause = clock::sleep(PAUSE);
            tokio::select! {
                // Cancel safe: the process ends.
                () = stop.cancelled() => return Ok(()),
                // Cancel safe, by its documentation.
                () = self.caches.follow() => {}
                () = pause => {}
            }
            tokio::select! {
                // Cancel safe: the process ends.
                () = stop.cancelled() => return Ok(()),
                // Cancel safe, by its documentation.
                () = self.caches.follow() => {}
                // A change that is lost is looked at below, and the pods are read from the cache.
                _ = nodes.next() => {}
                _ = pods.next() => {}
                () = clock::sleep_until(next) => {}
            }
        }
    }

    /// Observes once, and writes the status if it differs.
    async fn look(&mut self) -> Result<(), String> {
        let name = self.config.node_name.to_string();
        let node = self.nodes.get(&key_of(&name));
        if node.as_ref().is_some_and(|node| self.is_left_alone(node)) {
            return Ok(());
        }
        // Pods first: a pod that is deleted in order has freed its address before, so that its
        // address is not seen without the pod.
        let pods: Vec<_> = self.pods.list();
        let resource = self.config.pod_ip_resource.clone();
        let pods: Vec<_> = pods
            .iter()
            .filter_map(|pod| PodUse::of(pod, &resource))
            .collect();
        let dir = self.config.cni_conf_dir.clone();
        let files = Self::read_files(dir, self.config.ipam).await?;
        if let Some(allocated) = files.allocated() {
            let now = Instant::now();
            self.blocks
                .report(&self.client, &name, node.as_deref(), &allocated, now)
                .await;
        }
        let Some(node) = node else {
            return Err(format!("node {name:?} does not exist"));
        };
        let kind = self.kind(files.list.as_ref(), &node);
        let ipam = self
            .observe(&kind, files, &node)
            .map_err(|error| error.to_string())?;
        let account = NodeAccount::of(&ipam, &pods, &mut self.unowned, Instant::now());
        self.metrics.observe(&name, kind.kind, &ipam, &account);
        self.note_orphaned(&account);
        let publication = Publication::of(&account, &resource, &kind.plugin);
        let Some(patch) = publication.patch(&node, &resource) else {
            return Ok(());
        };
        let nodes = self.client.all::<Node>();
        let written = publish::apply(&nodes, &name, &patch).await;
        written.map_err(|error| format!("failed to write the node's status: {}", error.message))?;
        self.metrics.written();
        let NodeAccount {
            total,
            held,
            orphaned,
            ending,
            unrequested,
            requested,
        } = account;
        let amount = publication.amount();
        tracing::info!(
            node = name,
            amount,
            total,
            held,
            requested,
            unrequested,
            orphaned,
            ending,
            "published pod addresses"
        );
        Ok(())
    }

    /// Reads the CNI configuration and, where the addresses are in files, those.
    async fn read_files(dir: PathBuf, wanted: IpamKind) -> Result<NodeFiles, String> {
        let read = move || {
            let list = match NetworkConfigList::load_first(&dir) {
                Ok(list) => Some(list),
                // Without a file there is no network yet, or its rule needs none.
                Err(error) if wanted == IpamKind::HostLocal => {
                    return Err(SourceError::Config(error.to_string()));
                }
                Err(error) => {
                    tracing::debug!(%error, "no CNI configuration");
                    None
                }
            };
            let kind = match wanted {
                IpamKind::Auto => detect(list.as_ref(), true).kind,
                kind => kind,
            };
            let of_kind = list.as_ref().filter(|_| kind == IpamKind::HostLocal);
            let of_pod_cidr = list.as_ref().filter(|_| kind == IpamKind::PodCidr);
            let dir = of_pod_cidr.and_then(host_local::directory);
            Ok(NodeFiles {
                host_local: of_kind.map(host_local::of_network),
                allocated: dir.map(|dir| host_local::allocated(&dir)),
                list,
            })
        };
        let read = task::spawn_blocking(read).await;
        let read = read.map_err(|panic| panic.to_string())?;
        read.map_err(|error| error.to_string())
    }

    /// The rule of the node, which is logged when it changes.
    fn kind(&mut self, list: Option<&NetworkConfigList>, node: &Node) -> DetectedIpam {
        let has_pod_cidrs = !pod_ips::pod_cidrs(node).is_empty();
        let mut kind = detect(list, has_pod_cidrs);
        if self.config.ipam != IpamKind::Auto {
            kind.kind = self.config.ipam;
            kind.reason = "--ipam";
            kind.is_guess = false;
        }
        if self.reported.ipam.as_ref() != Some(&kind) {
            let DetectedIpam {
                kind: found,
                plugin,
                reason,
                is_guess,
            } = &kind;
            let (node, ipam) = (self.config.node_name.as_str(), found.name());
            if *is_guess {
                tracing::warn!(
                    node,
                    ipam,
                    plugin,
                    reason,
                    "guessed how the node's addresses are counted; set --ipam"
                );
            } else {
                tracing::info!(node, ipam, plugin, reason, "counting the node's addresses");
            }
            self.reported.ipam = Some(kind.clone());
        }
        kind
    }

    /// The node's addresses by its rule.
    fn observe(
        &mut self,
        kind: &DetectedIpam,
        files: NodeFiles,
        node: &Node,
    ) -> Result<NodeIpam, SourceError> {
        let NodeFiles {
            list,
            host_local,
            allocated,
        } = files;
        match kind.kind {
            IpamKind::HostLocal => host_local.unwrap_or_else(|| {
                let missing = "the network of the CNI configuration is not of host-local";
                Err(SourceError::Missing(missing.into()))
            }),
            IpamKind::Auto | IpamKind::PodCidr => {
                let mut ipam = pod_cidr::of_node(node)?;
                ipam.allocated = allocated.transpose()?;
                Ok(ipam)
            }
            IpamKind::Cilium => self.caches.cilium(&self.config.cilium_pool),
            IpamKind::Calico => {
                let plugin = list.as_ref().and_then(|list| list.plugins.first());
                let (ipam, is_ignored) = self.caches.calico(CalicoFamilies::of(plugin))?;
                if is_ignored && !self.reported.is_selector_ignored {
                    let node = self.config.node_name.as_str();
                    tracing::warn!(
                        node,
                        "the nodeSelector of an IPPool is not evaluated; the pool is counted for the node"
                    );
                }
                self.reported.is_selector_ignored = is_ignored;
                Ok(ipam)
            }
            IpamKind::MaxPods => {
                let host_network = self.config.host_network_pods;
                let host_network = host_network.unwrap_or_else(|| host_network_pods(&kind.plugin));
                max_pods::of_node(node, host_network)
            }
        }
    }

    /// Returns true if the node's kubelet reports the addresses itself, as ours does.
    fn is_left_alone(&mut self, node: &Node) -> bool {
        let is_left_alone = publish::is_reported_by_kubelet(node);
        if is_left_alone && !self.reported.is_left_alone {
            let node = self.config.node_name.as_str();
            tracing::warn!(
                node,
                "the node's kubelet reports its pod addresses; publishing none"
            );
        }
        self.reported.is_left_alone = is_left_alone;
        is_left_alone
    }

    fn note_orphaned(&mut self, account: &NodeAccount) {
        let (node, orphaned) = (self.config.node_name.as_str(), account.orphaned);
        if orphaned > self.reported.orphaned {
            tracing::warn!(
                node,
                orphaned,
                "addresses are allocated to no pod of the node"
            );
        }
        self.reported.orphaned = orphaned;
    }

    fn note_fault(&mut self, error: String) {
        self.metrics.failed();
        if self.reported.fault.as_ref() != Some(&error) {
            let (node, retry_in) = (self.config.node_name.as_str(), self.config.interval);
            tracing::warn!(
                node,
                error,
                ?retry_in,
                "failed to publish pod addresses; what the node has stands"
            );
            self.reported.fault = Some(error);
        }
    }
}

fn key_of(node: &str) -> ObjectKey {
    ObjectKey {
        namespace: String::new(),
        name: node.to_owned(),
    }
}

/// Takes all changes that are there: one look is for all of them.
fn drain<K: CacheItem>(changes: &mut Changes<K>) {
    while changes.try_next().is_some() {}
}
