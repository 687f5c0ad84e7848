//! The choice of the allocator that assigns nodes their blocks; nothing else depends on it.

use std::sync::Arc;

use futures::future::BoxFuture;
use podplane_api::{
    core::{Node, Pod},
    networking::ClusterCIDR,
};
use podplane_client::{Cache, Client, EventRecorder};
use podplane_ipam::{
    AllocatorType, ClusterRange, Compat, Generation, InvalidAllocatorType, Notice, RangeConfig,
};
use podplane_service_runtime::tasks::TaskError;
use tokio_util::sync::CancellationToken;

use crate::{
    IpamControllerConfig, IpamControllerRunError,
    cloud::{CloudConfig, CloudController},
    controller::{AllocatorHandle, ControllerOptions, RangeController, RangeSource},
    metrics::AllocatorMetrics,
    upstream::UpstreamController,
};

/// The smallest `perNodeHostBits` that the API server accepts in a ClusterCIDR.
const MIN_PER_NODE_HOST_BITS: u8 = 4;

/// The dependencies that all allocators share.
#[derive(Clone, Debug)]
pub(crate) struct AllocatorContext {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    /// Synced only if the allocator uses ClusterCIDRs.
    pub(crate) cluster_cidrs: Cache<ClusterCIDR>,
    pub(crate) events: EventRecorder,
    pub(crate) known: Arc<AllocatorHandle>,
    pub(crate) metrics: AllocatorMetrics,
}

/// The configured allocator, with its flags validated.
#[derive(Debug)]
pub(crate) enum ChosenAllocator {
    /// Also used without `--allocate-node-cidrs`: then it has no range, and only records the blocks
    /// of nodes.
    Range(RangeConfig, ControllerOptions),
    /// Ranges are from ClusterCIDR objects.
    MultiCidr(RangeConfig, ControllerOptions),
    /// Runs beside a range controller that only records.
    Cloud(CloudConfig, ControllerOptions),
    /// An imitation of the reference's allocator, for `--compat`.
    Upstream(UpstreamController),
}

impl ChosenAllocator {
    pub(crate) fn new(config: &IpamControllerConfig) -> Result<Self, IpamControllerRunError> {
        let options = ControllerOptions {
            release_delay: config.cluster.release_delay,
            batch: config.assign_batch_size.into(),
            writes: true,
        };
        if !config.allocate_node_cidrs {
            match config.compat {
                Compat::Gcp => return Err(IpamControllerRunError::NotAllocating),
                Compat::None => {}
                compat => {
                    tracing::warn!(%compat, "without --allocate-node-cidrs no allocator is started, as in that system; blocks are only recorded");
                }
            }
            return Ok(Self::Range(config.ranges()?, options));
        }
        if let Some(generation) = config.compat.generation() {
            imitated(config.compat, config.cidr_allocator_type)?;
            return Ok(Self::Upstream(UpstreamController::new(generation, config)?));
        }
        match config.cidr_allocator_type {
            AllocatorType::RangeAllocator => Ok(Self::Range(config.ranges()?, options)),
            AllocatorType::MultiCidrRangeAllocator => {
                let config = config.range_flags().validate_optional()?;
                large_enough(&config)?;
                Ok(Self::MultiCidr(config, options))
            }
            AllocatorType::CloudAllocator => {
                let endpoint = config.cluster.endpoint(&config.server.credentials)?;
                let config = CloudConfig::new(endpoint, &config.range_flags())?;
                Ok(Self::Cloud(config, options))
            }
        }
    }

    /// Returns whether the allocator needs ClusterCIDRs.
    pub(crate) fn wants_cluster_cidrs(&self) -> bool {
        matches!(self, Self::MultiCidr(..))
    }

    /// Logs the meaning of the flags, where it may surprise.
    pub(crate) fn announce(&self) {
        match self {
            Self::Range(ranges, _) | Self::MultiCidr(ranges, _) => {
                for notice in &ranges.notices {
                    tracing::warn!(%notice, "unexpected in the flags");
                }
                for range in &ranges.ranges {
                    tracing::info!(%range, nodes = ranges.max_nodes(), "allocating node blocks");
                }
            }
            Self::Cloud(config, _) => config.announce(),
            Self::Upstream(upstream) => {
                for notice in upstream.notices() {
                    tracing::warn!(%notice, "unexpected in the flags");
                }
            }
        }
    }

    /// Runs until `stop`.
    pub(crate) fn run(
        self,
        parts: AllocatorContext,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<(), TaskError>> {
        match self {
            Self::Range(config, options) => {
                let controller = RangeController {
                    config,
                    ranges: RangeSource::Flags,
                    options,
                    parts,
                };
                Box::pin(controller.run(stop))
            }
            Self::MultiCidr(config, options) => {
                let controller = RangeController {
                    config,
                    ranges: RangeSource::Objects,
                    options,
                    parts,
                };
                Box::pin(controller.run(stop))
            }
            Self::Cloud(config, options) => Box::pin(async move {
                let cloud = CloudController::new(&config, &parts);
                // Blocks of deleted nodes drain as with any allocator.
                let knowing = RangeController::knowing(options, parts);
                let cloud = async {
                    cloud.run(stop.clone()).await;
                    Ok(())
                };
                tokio::try_join!(knowing.run(stop.clone()), cloud).map(drop)
            }),
            Self::Upstream(upstream) => Box::pin(async move {
                let knowing =
                    RangeController::knowing(ControllerOptions::observing(), parts.clone());
                let upstream = upstream.run(parts, stop.clone());
                tokio::try_join!(knowing.run(stop.clone()), upstream).map(drop)
            }),
        }
    }
}

/// Rejects `--compat` with an allocator that is only ours: the API server accepts the faults of the
/// imitated one.
fn imitated(compat: Compat, kind: AllocatorType) -> Result<(), IpamControllerRunError> {
    match (kind, compat.generation()) {
        (AllocatorType::RangeAllocator, _) | (_, None) => Ok(()),
        // These systems have only the RangeAllocator.
        (kind, Some(Generation::G2 | Generation::G3)) => {
            Err(InvalidAllocatorType(kind.to_string()).into())
        }
        (kind, Some(Generation::G1 | Generation::Gcp)) => {
            Err(IpamControllerRunError::NotImitated { compat, kind })
        }
    }
}

/// Rejects blocks smaller than a ClusterCIDR allows, since the flags become one.
fn large_enough(config: &RangeConfig) -> Result<(), IpamControllerRunError> {
    let least = MIN_PER_NODE_HOST_BITS;
    let too_small = |range: &&ClusterRange| range.family().bits() - range.node_mask() < least;
    match config.ranges.iter().find(too_small) {
        Some(range) => Err(IpamControllerRunError::BlocksTooSmall {
            range: *range,
            longest: range.family().bits() - least,
        }),
        None => Ok(()),
    }
}

impl IpamControllerConfig {
    /// The ranges that the flags describe; empty if node CIDRs are not to be allocated.
    ///
    /// # Errors
    ///
    /// [`IpamControllerRunError::Ranges`] with the reference's text;
    /// [`IpamControllerRunError::NoBlockLeft`] if no node could ever be assigned a block.
    pub fn ranges(&self) -> Result<RangeConfig, IpamControllerRunError> {
        if !self.allocate_node_cidrs {
            return Ok(RangeConfig::none());
        }
        let config = self.range_flags().validate()?;
        match config
            .notices
            .iter()
            .find(|notice| matches!(notice, Notice::NoBlockLeft { .. }))
        {
            Some(notice) => Err(IpamControllerRunError::NoBlockLeft(notice.clone())),
            None => Ok(config),
        }
    }
}
