//! The objects that the summary is made of, followed through the watch cache.

use std::sync::Arc;

use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use ipnet::IpNet;
use podplane_api::{
    core::{Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
    pod_ips::PodIpResource,
};
use podplane_proto::error::ApiError;
use podplane_store::{Item, KeyEvent, Prefix, Revision};
use tokio::sync::watch;

use crate::{
    admission::NodeBlockAdmission,
    cache::{Query, Sink, Sinks, WatchedChange},
    registry::{Registry, StreamEvent, WatchOptions, WatchStart},
    service::Records,
};

/// The most updates that are taken at once.
const BATCH: usize = 8192;

/// The registries, and what the flags say.
pub(crate) struct Sources {
    pub(crate) pods: Registry<Pod>,
    pub(crate) nodes: Registry<Node>,
    pub(crate) services: Registry<Service>,
    pub(crate) service_cidrs: Registry<ServiceCIDR>,
    pub(crate) cluster_cidrs: Registry<ClusterCIDR>,
    pub(crate) records: Records,
    pub(crate) sinks: Sinks,
    /// `--cluster-cidr`.
    pub(crate) ranges: Vec<IpNet>,
    pub(crate) resource: PodIpResource,
}

/// The kind of an object of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Pods,
    Nodes,
    Services,
    ServiceCidrs,
    ClusterCidrs,
}

impl Source {
    /// The number of kinds.
    pub(super) const COUNT: usize = 5;
}

/// Something that changes the summary.
#[derive(Debug)]
pub(super) enum Update {
    /// An object.
    Object(Source, WatchedChange),
    /// All objects of a kind that were present at the beginning have been sent.
    Present(Revision),
    /// Records of blocks.
    Blocks,
}

/// The updates from the present objects on, and the registration of the sink that reports changes
/// of blocks.
pub(super) struct Updates {
    pub(super) stream: BoxStream<'static, Vec<Result<Update, ApiError>>>,
    _blocks: RegisteredSink,
}

impl Sources {
    /// Follows all objects.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(super) async fn follow(&self) -> Result<Updates, ApiError> {
        let (blocks, registered) = self.blocks().await?;
        let streams = [
            follow(Source::Pods, &self.pods).await?,
            follow(Source::Nodes, &self.nodes).await?,
            follow(Source::Services, &self.services).await?,
            follow(Source::ServiceCidrs, &self.service_cidrs).await?,
            follow(Source::ClusterCidrs, &self.cluster_cidrs).await?,
            blocks.boxed(),
        ];
        Ok(Updates {
            stream: stream::select_all(streams).ready_chunks(BATCH).boxed(),
            _blocks: registered,
        })
    }

    /// An update for each group of changes of blocks, and one at the beginning.
    async fn blocks(
        &self,
    ) -> Result<
        (
            impl Stream<Item = Result<Update, ApiError>> + use<>,
            RegisteredSink,
        ),
        ApiError,
    > {
        let (changed, changes) = watch::channel(());
        let sink: Arc<dyn Sink> = Arc::new(BlockSink {
            prefix: NodeBlockAdmission::prefix(),
            changed,
        });
        self.sinks.add(Arc::clone(&sink)).await?;
        let registered = RegisteredSink {
            sinks: self.sinks.clone(),
            sink,
        };
        let updates = stream::unfold(changes, |mut changes| async move {
            // Fails when the sink is gone, together with this stream.
            changes.changed().await.ok()?;
            Some((Ok(Update::Blocks), changes))
        });
        Ok((updates, registered))
    }
}

/// The changes of a kind, beginning with the present objects.
async fn follow<K>(
    source: Source,
    registry: &Registry<K>,
) -> Result<BoxStream<'static, Result<Update, ApiError>>, ApiError> {
    let events = registry
        .watch(WatchOptions {
            query: Query::default(),
            start: WatchStart::Present(None),
            bookmarks: false,
            ends: None,
            announce_end: true,
        })
        .await?;
    let updates = events.filter_map(move |event| async move {
        match event {
            Ok(StreamEvent::Change(change)) => Some(Ok(Update::Object(source, change))),
            Ok(StreamEvent::InitialEnd(revision)) => Some(Ok(Update::Present(revision))),
            Ok(StreamEvent::Bookmark(_)) => None,
            Err(error) => Some(Err(error)),
        }
    });
    Ok(updates.boxed())
}

/// Tells that records of blocks changed.
struct BlockSink {
    prefix: Prefix,
    changed: watch::Sender<()>,
}

impl Sink for BlockSink {
    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn load(&self, _items: &[Arc<Item>], _at: Revision) {
        self.changed.send_replace(());
    }

    fn apply(&self, _revision: Revision, _events: &[KeyEvent]) {
        self.changed.send_replace(());
    }

    fn watches(&self) -> usize {
        0
    }

    fn wake(&self) {}
}

/// A sink that is fed until this is dropped.
struct RegisteredSink {
    sinks: Sinks,
    sink: Arc<dyn Sink>,
}

impl Drop for RegisteredSink {
    fn drop(&mut self) {
        self.sinks.remove(Arc::clone(&self.sink));
    }
}
