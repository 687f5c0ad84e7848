//! The sources: lists and watches of the cluster, whose changes become messages.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use podplane_api::{
    Object, ObjectKey,
    core::{Event, Namespace, Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
    pod_ips::PodIpResource,
};
use podplane_client::{
    Api, ApiError, Client, ListParams, ObjectEvent, Reason, WatcherEvent, is_unserved_kind,
    transforming_watcher,
};
use podplane_host::{clock, task};
use podplane_map::{AddressSpace, PodRule};
use podplane_summary::{BlockListing, Cluster as Summary, ControlPlane};
use tokio::sync::{Notify, OnceCell, mpsc::UnboundedSender};

use crate::{
    app::Message,
    cluster::{BlockRecords, Change, Source, SourceFailure},
    facts::{EventFact, Fact, NodeFact, PodFact},
};

/// The time between two lists of the records of blocks, which have no watch.
const BLOCKS_INTERVAL: Duration = Duration::from_secs(3);
/// The time after which a refused list is tried again: rights may have been granted.
const REFUSED_INTERVAL: Duration = Duration::from_secs(10);

/// The time after which a server that has not answered is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two looks at where pods have their addresses.
const RULE_INTERVAL: Duration = Duration::from_secs(5);

/// The sources of a cluster. A clone has the same.
#[derive(Clone)]
pub(crate) struct Sources {
    client: Client,
    /// The only namespace whose pods and events are listed; empty for all.
    namespace: String,
    resource: PodIpResource,
    messages: UnboundedSender<Message>,
    /// Empty until the server has answered.
    control_plane: Arc<OnceCell<ControlPlane>>,
    /// The facts for the map.
    summary: Arc<Mutex<Summary>>,
    /// True if the user has stated the cluster CIDR: the server's is ignored then.
    has_stated_ranges: bool,
}

impl Sources {
    pub(crate) fn new(
        client: Client,
        namespace: Option<String>,
        resource: PodIpResource,
        cluster_cidrs: &[IpNet],
        messages: UnboundedSender<Message>,
    ) -> Self {
        let mut summary = Summary::unaudited(resource.clone());
        summary.set_cluster_cidrs(cluster_cidrs);
        Self {
            client,
            namespace: namespace.unwrap_or_default(),
            control_plane: Arc::default(),
            summary: Arc::new(Mutex::new(summary)),
            has_stated_ranges: !cluster_cidrs.is_empty(),
            resource,
            messages,
        }
    }

    /// Follows a source, for as long as the future is polled.
    pub(crate) async fn follow(self, source: Source) {
        match source {
            Source::Nodes => self.follow_nodes().await,
            Source::Pods => self.follow_pods().await,
            Source::Events => self.follow_events().await,
            Source::Blocks => self.follow_blocks().await,
            Source::Networks => self.follow_networks().await,
        }
    }

    /// Tells whether there is such a namespace: without it, its lists would be empty like those of
    /// any other. Without an answer, or the right to it, nothing is said.
    pub(crate) async fn check_namespace(self, name: String) {
        let found = self.client.all::<Namespace>().get(&name).await;
        let exists = match found {
            Ok(_) => true,
            Err(error) if error.is_not_found() => false,
            Err(_) => return,
        };
        self.send(Message::Namespace { name, exists });
    }

    /// Measures the address space of the map. Takes long for a large cluster, and blocks.
    pub(crate) fn measure_space(&self) {
        let mut parts = self.summary().space_parts();
        parts.only_namespace = Some(self.namespace.clone()).filter(|name| !name.is_empty());
        self.send(Message::Space(Arc::new(AddressSpace::new(parts))));
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: Message) {
        // Nobody listens any more when the program ends.
        let _ = self.messages.send(message);
    }

    /// The control plane, on which the meaning of nodes and pods depends. `fail` gets the reason
    /// for which it is not known yet.
    async fn control_plane(&self, fail: impl Fn(SourceFailure)) -> ControlPlane {
        loop {
            let asked = self
                .control_plane
                .get_or_try_init(|| self.ask_control_plane());
            match asked.await {
                Ok(known) => return *known,
                Err(error) => fail(failure(&error)),
            }
            clock::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn ask_control_plane(&self) -> Result<ControlPlane, ApiError> {
        let control_plane = match self.client.channel() {
            // Others have no gRPC.
            Some(_) => ControlPlane::Podplane,
            None => match self.client.summary::<BlockListing>("blocks").await {
                Ok(Some(_)) => ControlPlane::Podplane,
                Ok(None) => ControlPlane::Other,
                Err(error) => match error.reason {
                    Reason::ServiceUnavailable | Reason::Unauthorized => return Err(error),
                    // The client has found out by itself whose server refuses it or lacks it.
                    Reason::Forbidden | Reason::NotFound => ControlPlane::Podplane,
                    _ => ControlPlane::Other,
                },
            },
        };
        self.summary().set_control_plane(control_plane);
        Ok(control_plane)
    }

    /// Sends the rule about the addresses of pods each time that it has changed.
    async fn follow_rule(&self) {
        let mut known = PodRule::default();
        loop {
            clock::sleep(RULE_INTERVAL).await;
            let sources = self.clone();
            let rule = task::spawn_blocking(move || sources.summary().pod_rule());
            // It fails when the runtime shuts down.
            let Ok(rule) = rule.await else { return };
            if rule != known {
                known = rule;
                self.send(Message::Rule(rule));
            }
        }
    }

    async fn follow_nodes(self) {
        let fail = |failure| self.send(Message::Nodes(Change::Failed(failure)));
        self.control_plane(fail).await;
        let keep = |node: Node| {
            self.summary().apply_node(&node);
            NodeFact::from(&node)
        };
        let forget = |key: &ObjectKey| self.summary().delete_node(&key.name);
        let on_change = |change| self.send(Message::Nodes(change));
        follow(self.client.all(), keep, forget, on_change).await;
    }

    async fn follow_pods(self) {
        let fail = |failure| self.send(Message::Pods(Change::Failed(failure)));
        let control_plane = self.control_plane(fail).await;
        let keep = |pod: Pod| {
            self.summary().apply_pod(&pod);
            PodFact::new(&pod, &self.resource, control_plane)
        };
        let forget = |key: &ObjectKey| self.summary().delete_pod(&key.namespace, &key.name);
        let on_change = |change| self.send(Message::Pods(change));
        let pods = self.client.namespaced(&*self.namespace);
        let pods = follow(pods, keep, forget, on_change);
        match control_plane {
            ControlPlane::Podplane => pods.await,
            ControlPlane::Other => {
                futures::join!(pods, self.follow_rule());
            }
        }
    }

    async fn follow_events(self) {
        let keep = |event: Event| EventFact::from(&event);
        let on_change = |change| self.send(Message::Events(change));
        follow(
            self.client.namespaced(&*self.namespace),
            keep,
            |_| {},
            on_change,
        )
        .await;
    }

    async fn follow_blocks(self) {
        // Another server than podplane's has no listing.
        let mut is_podplane = true;
        loop {
            let blocks = match self.client.blocks().list().await {
                Ok(list) => {
                    self.summary().set_blocks(&list.blocks);
                    self.set_server_ranges(&list.cluster_cidrs);
                    Ok(Some(BlockRecords::of(&list)))
                }
                // Kubernetes without the definition of NodeBlocks, or podplane over REST.
                Err(error) if is_unserved_kind(&error) && is_podplane => {
                    let listed = self.listed_blocks().await;
                    is_podplane = !matches!(listed, Ok(None));
                    listed.map_err(|error| failure(&error))
                }
                Err(error) if is_unserved_kind(&error) => Ok(None),
                Err(error) => Err(failure(&error)),
            };
            let is_denied = blocks
                .as_ref()
                .is_err_and(|failure: &SourceFailure| failure.is_denied);
            self.send(Message::Blocks(blocks));
            clock::sleep(match is_denied {
                true => REFUSED_INTERVAL,
                false => BLOCKS_INTERVAL,
            })
            .await;
        }
    }

    /// The blocks of the summary of podplane's server; `None` if the server is another one.
    async fn listed_blocks(&self) -> Result<Option<BlockRecords>, ApiError> {
        let listed = self.client.summary::<BlockListing>("blocks").await;
        let listing = match listed {
            Ok(Some(listing)) => listing,
            // An older server does not have it.
            Err(error) if error.is_not_found() => return Ok(None),
            Ok(None) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.summary().set_block_listing(&listing);
        self.set_server_ranges(&listing.cluster_cidrs);
        Ok(Some(BlockRecords::of_listing(&listing)))
    }

    fn set_server_ranges(&self, ranges: &[IpNet]) {
        if !self.has_stated_ranges {
            self.summary().set_cluster_cidrs(ranges);
        }
    }

    /// The Services decide about the state of the source: a cluster need not have the other kinds.
    async fn follow_networks(self) {
        let on_services = |change| {
            self.send(Message::Networks(match change {
                Change::Failed(failure) => Err(failure),
                _ => Ok(()),
            }));
        };
        let services = follow(
            self.client.all(),
            |service: Service| {
                self.summary().apply_service(&service);
                service.key()
            },
            |key| self.summary().delete_service(&key.namespace, &key.name),
            on_services,
        );
        let on_ranges = |change| {
            if !matches!(change, Change::Failed(_)) {
                self.send(Message::Networks(Ok(())));
            }
        };
        let service_ranges = follow(
            self.client.all(),
            |range: ServiceCIDR| {
                self.summary().apply_service_cidr(&range);
                range.key()
            },
            |key| self.summary().delete_service_cidr(&key.name),
            on_ranges,
        );
        let pod_ranges = follow(
            self.client.all(),
            |range: ClusterCIDR| {
                self.summary().apply_cluster_cidr(&range);
                range.key()
            },
            |key| self.summary().delete_cluster_cidr(&key.name),
            on_ranges,
        );
        futures::join!(services, service_ranges, pod_ranges);
    }
}

impl Fact for ObjectKey {
    fn key(&self) -> &ObjectKey {
        self
    }
}

/// Follows the objects of one kind: keeps what `keep` makes of them, and lets `forget` know of
/// those that are gone.
async fn follow<K: Object, T: Fact + Send>(
    api: Api<K>,
    keep: impl Fn(K) -> T + Send + Sync,
    forget: impl Fn(&ObjectKey) + Send + Sync,
    on_change: impl Fn(Change<T>) + Send + Sync,
) {
    // A new list does not say which objects are gone.
    let known = Mutex::new(BTreeSet::<ObjectKey>::new());
    loop {
        let refused = Notify::new();
        let on_event = |event: WatcherEvent<T>| {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            let change = match event {
                WatcherEvent::Listed(list) => {
                    let listed = list.items.iter().map(|item| item.key().clone()).collect();
                    known.difference(&listed).for_each(&forget);
                    *known = listed;
                    Change::Listed(list.items)
                }
                WatcherEvent::Event(ObjectEvent::Added(item) | ObjectEvent::Modified(item)) => {
                    known.insert(item.key().clone());
                    Change::Applied(item)
                }
                WatcherEvent::Event(ObjectEvent::Deleted(item)) => {
                    known.remove(item.key());
                    forget(item.key());
                    Change::Deleted(item.key().clone())
                }
                WatcherEvent::Watching => Change::Resumed,
                WatcherEvent::Event(ObjectEvent::Bookmark(_)) | WatcherEvent::Interrupted(None) => {
                    return;
                }
                WatcherEvent::Interrupted(Some(error)) if error.is_expired() => return,
                WatcherEvent::Interrupted(Some(error)) => {
                    let failure = failure(&error);
                    if failure.is_denied || is_unserved_kind(&error) {
                        refused.notify_one();
                    }
                    Change::Failed(failure)
                }
            };
            on_change(change);
        };
        let watched = transforming_watcher(api.clone(), ListParams::default(), &keep, on_event);
        // The watcher would try again at once; giving it up loses nothing.
        tokio::select! {
            () = watched => return,
            () = refused.notified() => {}
        }
        clock::sleep(REFUSED_INTERVAL).await;
    }
}

fn failure(error: &ApiError) -> SourceFailure {
    SourceFailure {
        message: podplane_error_chain::one_line(error),
        is_denied: matches!(error.reason, Reason::Forbidden | Reason::Unauthorized),
    }
}
