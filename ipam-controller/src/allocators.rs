//! Which allocator gives nodes their blocks: the one place where that is chosen.

use std::{fmt, str::FromStr, sync::Arc};

use futures::future::BoxFuture;
use podplane_api::core::{Node, Pod};
use podplane_api::networking::ClusterCIDR;
use podplane_client::{Cache, Client, EventRecorder};
use podplane_ipam::{ClusterRange, Compat, Generation, Notice, RangeConfig};
use podplane_telemetry::tasks::TaskError;
use tokio_util::sync::CancellationToken;

use crate::cloud::{CloudConfig, CloudController};
use crate::controller::{Known, Options, RangeController, Ranges};
use crate::metrics::Metrics;
use crate::upstream::Upstream;
use crate::{Config, RunError};

/// The API server takes no ClusterCIDR with less.
const MIN_PER_NODE_HOST_BITS: u8 = 4;

/// `--cidr-allocator-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocatorType {
    /// One range for each family, cut into blocks of one size.
    #[default]
    RangeAllocator,
    /// ClusterCIDR objects, chosen by the labels of nodes.
    MultiCidrRangeAllocator,
    /// The cloud has assigned the ranges.
    CloudAllocator,
}

/// Not an allocator; the text is the reference's.
#[derive(Debug, thiserror::Error)]
#[error("invalid CIDR allocator type: {0}")]
pub struct InvalidAllocatorType(String);

impl AllocatorType {
    const ALL: [Self; 3] = [
        Self::RangeAllocator,
        Self::MultiCidrRangeAllocator,
        Self::CloudAllocator,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::RangeAllocator => "RangeAllocator",
            Self::MultiCidrRangeAllocator => "MultiCIDRRangeAllocator",
            Self::CloudAllocator => "CloudAllocator",
        }
    }
}

impl fmt::Display for AllocatorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AllocatorType {
    type Err = InvalidAllocatorType;

    fn from_str(text: &str) -> Result<Self, InvalidAllocatorType> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| InvalidAllocatorType(text.to_owned()))
    }
}

/// What an allocator works with.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) client: Client,
    pub(crate) nodes: Cache<Node>,
    pub(crate) pods: Cache<Pod>,
    /// Never synced unless they are the allocator's.
    pub(crate) cluster_cidrs: Cache<ClusterCIDR>,
    pub(crate) events: EventRecorder,
    pub(crate) known: Arc<Known>,
    pub(crate) metrics: Metrics,
}

/// The allocator that the flags ask for, its own flags understood.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// Also without `--allocate-node-cidrs`: then it has no range, and only knows which node has what.
    Range(RangeConfig, Options),
    /// From ClusterCIDRs.
    MultiCidr(RangeConfig, Options),
    /// Beside one that only knows.
    Cloud(CloudConfig, Options),
    /// The reference's own, for `--compat`.
    Upstream(Upstream),
}

impl Chosen {
    pub(crate) fn new(config: &Config) -> Result<Self, RunError> {
        let options = Options {
            release_delay: config.release_delay,
            batch: config.assign_batch_size.into(),
            writes: true,
        };
        if !config.allocate_node_cidrs {
            match config.compat {
                Compat::Gcp => return Err(RunError::NotAllocating),
                Compat::None => {}
                compat => {
                    tracing::warn!(%compat, "without --allocate-node-cidrs no allocator is started, as with that system; blocks are only known");
                }
            }
            return Ok(Self::Range(config.ranges()?, options));
        }
        if let Some(generation) = config.compat.generation() {
            imitated(config.compat, config.cidr_allocator_type)?;
            return Ok(Self::Upstream(Upstream::new(generation, config)?));
        }
        match config.cidr_allocator_type {
            AllocatorType::RangeAllocator => Ok(Self::Range(config.ranges()?, options)),
            AllocatorType::MultiCidrRangeAllocator => {
                let config = config.range_flags().validate_optional()?;
                large_enough(&config)?;
                Ok(Self::MultiCidr(config, options))
            }
            AllocatorType::CloudAllocator => {
                let endpoint = config.cloud_endpoint.clone().ok_or(RunError::NoCloud)?;
                let config = CloudConfig::new(endpoint, &config.range_flags())?;
                Ok(Self::Cloud(config, options))
            }
        }
    }

    /// Whether ClusterCIDRs must be known.
    pub(crate) fn wants_cluster_cidrs(&self) -> bool {
        matches!(self, Self::MultiCidr(..))
    }

    /// Tells what the flags mean, where that may surprise.
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
        parts: Parts,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<(), TaskError>> {
        match self {
            Self::Range(config, options) => {
                let controller = RangeController {
                    config,
                    ranges: Ranges::Flags,
                    options,
                    parts,
                };
                Box::pin(controller.run(stop))
            }
            Self::MultiCidr(config, options) => {
                let controller = RangeController {
                    config,
                    ranges: Ranges::Objects,
                    options,
                    parts,
                };
                Box::pin(controller.run(stop))
            }
            Self::Cloud(config, options) => Box::pin(async move {
                let cloud = CloudController::new(&config, &parts)?;
                // Blocks drain as with any allocator.
                let knowing = RangeController::knowing(options, parts);
                let cloud = async {
                    cloud.run(stop.clone()).await;
                    Ok(())
                };
                tokio::try_join!(knowing.run(stop.clone()), cloud).map(drop)
            }),
            Self::Upstream(upstream) => Box::pin(async move {
                let knowing = RangeController::knowing(Options::observing(), parts.clone());
                let upstream = upstream.run(parts, stop.clone());
                tokio::try_join!(knowing.run(stop.clone()), upstream).map(drop)
            }),
        }
    }
}

/// The other allocators are ours alone; the API server would let their mistakes through.
fn imitated(compat: Compat, kind: AllocatorType) -> Result<(), RunError> {
    match (kind, compat.generation()) {
        (AllocatorType::RangeAllocator, _) | (_, None) => Ok(()),
        // These know no other.
        (kind, Some(Generation::G2 | Generation::G3)) => {
            Err(InvalidAllocatorType(kind.to_string()).into())
        }
        (kind, Some(Generation::G1 | Generation::Gcp)) => {
            Err(RunError::NotImitated { compat, kind })
        }
    }
}

/// The flags become a ClusterCIDR, which has no smaller blocks.
fn large_enough(config: &RangeConfig) -> Result<(), RunError> {
    let least = MIN_PER_NODE_HOST_BITS;
    let too_small = |range: &&ClusterRange| range.family().bits() - range.node_mask() < least;
    match config.ranges.iter().find(too_small) {
        Some(range) => Err(RunError::BlocksTooSmall {
            range: *range,
            longest: range.family().bits() - least,
        }),
        None => Ok(()),
    }
}

impl Config {
    /// The ranges that the flags describe; none if node CIDRs are not to be allocated.
    ///
    /// # Errors
    ///
    /// [`RunError::Ranges`] with the reference's text; [`RunError::NoBlockLeft`] if no node could ever be given a block.
    pub fn ranges(&self) -> Result<RangeConfig, RunError> {
        if !self.allocate_node_cidrs {
            return Ok(RangeConfig::none());
        }
        let config = self.range_flags().validate()?;
        match config
            .notices
            .iter()
            .find(|notice| matches!(notice, Notice::NoBlockLeft { .. }))
        {
            Some(notice) => Err(RunError::NoBlockLeft(notice.clone())),
            None => Ok(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_have_the_references_names() {
        for kind in AllocatorType::ALL {
            assert_eq!(kind.to_string().parse::<AllocatorType>().unwrap(), kind);
        }
        let error = "IPAMFromCloud".parse::<AllocatorType>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid CIDR allocator type: IPAMFromCloud"
        );
    }
}
