//! CloudAllocator: copies the ranges that the cloud has assigned into the nodes, like
//! cloud-provider-gcp's cloudCIDRAllocator.
//!
//! It releases nothing, since the ranges are the cloud's; a range that the cloud assigns to another
//! node while pods still have addresses of it is refused by the API server until they are gone.
//! Decisions are in [`ranges`] and [`status`], which are pure.

mod ranges;
mod status;

use std::time::Duration;

use futures::future::join_all;
use podplane_api::{Object as _, ObjectKey, core::Node, pod_ips};
use podplane_client::{
    Api, ApiError, Backoff, Cache, CacheChange, Channel, Client, Endpoint, EventRecorder, Reason,
    WorkQueue, answered, endpoint, events::EventType, queue::RetryRate,
};
use podplane_host::clock;
use podplane_ipam::{Notice, RangeFlags};
use podplane_proto::cloud::{
    GetInstanceRequest, Instance, cloud_service_client::CloudServiceClient,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::ranges::{NoRanges, Ranges, StackType};
use crate::{IpamControllerRunError, allocators::AllocatorContext, metrics::AllocatorMetrics};

/// Nodes reconciled at once.
const WORKERS: usize = 30;
/// Retries of a failing node before it is dropped until it changes.
const MAX_RETRIES: u32 = 20;
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(250),
    max: Duration::from_secs(15),
    overall: Some(RetryRate {
        every: Duration::from_millis(100),
        burst: 100,
    }),
};
/// The timeout of a call to the cloud.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(10);
/// Immediate retries of a write that met a change of the node; a kubelet writes to a new node
/// often.
const CONFLICTS: u32 = 5;

/// The validated flags.
#[derive(Debug)]
pub(crate) struct CloudConfig {
    endpoint: Endpoint,
    channel: Channel,
    stack: StackType,
    notices: Vec<Notice>,
}

impl CloudConfig {
    /// Validates the flags. As in the reference, only the cloud's address and the ranges of
    /// services matter.
    pub(crate) fn new(
        endpoint: Endpoint,
        flags: &RangeFlags,
    ) -> Result<Self, IpamControllerRunError> {
        let (services, notices) = flags.service_ranges()?;
        Ok(Self {
            channel: endpoint::channel(&endpoint).map_err(IpamControllerRunError::Cloud)?,
            endpoint,
            stack: StackType::of(&services),
            notices,
        })
    }

    pub(crate) fn announce(&self) {
        for notice in &self.notices {
            tracing::warn!(%notice, "unexpected in the flags");
        }
        let Self {
            endpoint, stack, ..
        } = self;
        tracing::info!(%endpoint, %stack, "using cloud CIDR allocator");
    }
}

/// The reasons why a node does not have its ranges. The texts are the reference's.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("node {0} doesn't have providerID")]
    NoProviderId(String),
    #[error("failed to get instance from provider: {}", .0.message())]
    Instance(Box<Status>),
    #[error(transparent)]
    NoRanges(#[from] NoRanges),
    #[error("node {node} has {present}, but the cloud has assigned {assigned}")]
    Other {
        node: String,
        present: String,
        assigned: String,
    },
    #[error("failed to patch node CIDR: {0}")]
    Assign(#[source] ApiError),
    #[error("error setting route status for the node: {0}")]
    Status(#[source] ApiError),
}

impl SyncError {
    /// The reason of the event that reports the error, if one does.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::NoProviderId(_) | Self::Instance(_) | Self::NoRanges(_) => {
                Some("CIDRNotAvailable")
            }
            // The new leader reports it.
            Self::Assign(error) if error.reason == Reason::FenceLost => None,
            Self::Other { .. } | Self::Assign(_) => Some("CIDRAssignmentFailed"),
            Self::Status(_) => None,
        }
    }
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct CloudController {
    stack: StackType,
    cloud: CloudServiceClient<Channel>,
    client: Client,
    nodes: Cache<Node>,
    events: EventRecorder,
    metrics: AllocatorMetrics,
    queue: WorkQueue<String>,
}

impl CloudController {
    pub(crate) fn new(config: &CloudConfig, parts: &AllocatorContext) -> Self {
        Self {
            stack: config.stack,
            cloud: CloudServiceClient::new(config.channel.clone()),
            client: parts.client.clone(),
            nodes: parts.nodes.clone(),
            events: parts.events.clone(),
            metrics: parts.metrics.clone(),
            queue: WorkQueue::new(BACKOFF),
        }
    }

    /// Runs until `stop`. Calls in flight then are in doubt, and the next process asks again.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let workers = join_all((0..WORKERS).map(|_| self.work()));
        let all = async {
            self.nodes.synced().await;
            tokio::join!(self.follow(), workers)
        };
        stop.run_until_cancelled(all).await;
    }

    async fn follow(&self) {
        let mut changes = self.nodes.subscribe();
        loop {
            match changes.next().await {
                CacheChange::Applied { old, new } => {
                    if status::is_due(old.as_deref(), &new) {
                        self.queue.add(new.name().to_owned());
                    }
                }
                CacheChange::Deleted(old) => self.queue.forget(&old.name().to_owned()),
            }
        }
    }

    async fn work(&self) {
        loop {
            let name = self.queue.get().await;
            match self.sync(&name).await {
                Ok(()) => self.queue.forget(&name),
                Err(error) if self.queue.failures(&name) < MAX_RETRIES => {
                    let wait = self.queue.add_rate_limited(name.clone());
                    tracing::warn!(node = name, %error, retry_in = ?wait, "failed to assign the cloud's ranges to node; trying again");
                }
                Err(error) => {
                    tracing::error!(node = name, %error, "exceeded retry count, dropping from queue");
                    self.queue.forget(&name);
                    self.metrics.dropped();
                }
            }
            self.queue.done(&name);
        }
    }

    /// Writes the instance's ranges into the node, and reports failures.
    async fn sync(&self, name: &str) -> Result<(), SyncError> {
        let Some(node) = self.nodes.get(&ObjectKey::new("", name)) else {
            return Ok(());
        };
        let synced = self.give(&node).await;
        if let Err(error) = &synced
            && let Some(reason) = error.reason()
        {
            let message = format!("Node {name} status is now: {reason}");
            self.event(&node, reason, message);
            // The reference's event does not give the cause; here it is often another node, which
            // operators should know.
            if let SyncError::Assign(refusal) = error {
                self.event(&node, "CloudRangeRefused", refusal.message.clone());
            }
        }
        synced
    }

    async fn give(&self, node: &Node) -> Result<(), SyncError> {
        let instance = self.instance(node).await?;
        let ranges = ranges::ranges(node.name(), &instance, self.stack)?;
        let Some(node) = self.assign(node.clone(), &ranges).await? else {
            return Ok(());
        };
        self.report(node, &ranges).await
    }

    async fn instance(&self, node: &Node) -> Result<Instance, SyncError> {
        let spec = node.spec.as_ref();
        let provider_id = spec.and_then(|spec| spec.provider_id.clone());
        let provider_id = provider_id
            .filter(|id| !id.is_empty())
            .ok_or_else(|| SyncError::NoProviderId(node.name().to_owned()))?;
        let mut cloud = self.cloud.clone();
        let asked = cloud.get_instance(GetInstanceRequest { provider_id });
        let failed = |status| SyncError::Instance(Box::new(status));
        let late = |_| Status::deadline_exceeded(format!("no answer within {CLOUD_TIMEOUT:?}"));
        let answer = clock::timeout(CLOUD_TIMEOUT, asked).await;
        let answer = answer.map_err(late).flatten().map_err(failed)?;
        let instance = answer.into_inner().instance;
        instance.ok_or_else(|| failed(Status::internal("an answer without an instance")))
    }

    /// Returns the node with its blocks; `None` if it is deleted.
    async fn assign(&self, mut node: Node, ranges: &Ranges) -> Result<Option<Node>, SyncError> {
        let mut conflicts = 0..CONFLICTS;
        loop {
            let present = pod_ips::pod_cidrs(&node);
            if present == ranges.pod_cidrs {
                return Ok(Some(node));
            }
            if !present.is_empty() {
                return Err(SyncError::Other {
                    node: node.name().to_owned(),
                    present: present.join(","),
                    assigned: ranges.pod_cidrs.join(","),
                });
            }
            let api = self.api();
            let (name, uid) = (node.name(), node.uid());
            let assigned =
                api.assign_pod_cidrs(name, uid, node.resource_version(), &ranges.pod_cidrs);
            let error = match answered(assigned).await {
                Ok(node) => {
                    let pod_cidrs = ranges.pod_cidrs.join(",");
                    tracing::info!(node = node.name(), pod_cidrs, "set the node PodCIDRs");
                    return Ok(Some(node));
                }
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => error,
            };
            match self.read_again(&node, error, &mut conflicts).await {
                Ok(Some(found)) => node = found,
                Ok(None) => return Ok(None),
                Err(error) => return Err(SyncError::Assign(error)),
            }
        }
    }

    /// Reports the node's network as available.
    async fn report(&self, mut node: Node, ranges: &Ranges) -> Result<(), SyncError> {
        let mut conflicts = 0..CONFLICTS;
        loop {
            let now = clock::timestamp();
            let old = node.status.as_ref();
            let Some(new) = status::with_ranges(old, &ranges.capacity, now) else {
                return Ok(());
            };
            node.status = Some(new);
            let error = match answered(self.api().update_status(&node)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => error,
            };
            match self.read_again(&node, error, &mut conflicts).await {
                Ok(Some(found)) => node = found,
                Ok(None) => return Ok(()),
                Err(error) => return Err(SyncError::Status(error)),
            }
        }
    }

    /// The current node after a write met a change of it; `None` if that is another node of the
    /// same name, which is queued by its own change.
    async fn read_again(
        &self,
        node: &Node,
        error: ApiError,
        conflicts: &mut std::ops::Range<u32>,
    ) -> Result<Option<Node>, ApiError> {
        if !error.is_conflict() || conflicts.next().is_none() {
            return Err(error);
        }
        match answered(self.api().get(node.name())).await {
            Ok(found) => Ok(Some(found).filter(|found| found.uid() == node.uid())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn api(&self) -> Api<Node> {
        self.client.all()
    }

    fn event(&self, node: &Node, reason: &'static str, message: String) {
        self.events
            .record(node, EventType::Warning, reason, "", message);
    }
}
