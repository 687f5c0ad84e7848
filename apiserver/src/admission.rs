//! What stands against a write that is valid in itself, because of what else there is. It comes after validation.

mod addresses;
mod blocks;
pub(crate) mod fences;

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use ipnet::IpNet;
use podplane_ipam::ServiceRanges;
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_store::{Guard, Write};

pub(crate) use addresses::Addresses;
pub(crate) use blocks::{Claimant, Hold, HoldMove, Move, NodeBlocks, RecordState, Stored, Which};
pub(crate) use fences::Fences;

/// What nodes are measured against.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// No node's block may touch these.
    pub(crate) service_ranges: ServiceRanges,
    /// Where free blocks are proposed from.
    pub(crate) cluster_cidrs: Vec<IpNet>,
    /// Whether everything is let through, as Kubernetes does.
    pub(crate) lenient: bool,
    /// How long after its last renewal the hold of a deleted node's block ends by itself; nothing:
    /// never.
    pub(crate) release_after: Option<Duration>,
}

impl Policy {
    /// Says at the start which parts are off.
    pub(crate) fn announce(&self) {
        if self.lenient {
            tracing::warn!("--compat: nodes may have overlapping podCIDRs");
        } else if self.service_ranges.as_slice().is_empty() {
            tracing::info!(
                "no --service-cluster-ip-range: podCIDRs of nodes are not compared with service addresses"
            );
        }
    }
}

/// What is committed together with an object.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) guards: Vec<Guard>,
    pub(crate) writes: Vec<Write>,
}

/// An object before and after a write; absent where it is created or removed.
#[derive(Debug)]
pub(crate) struct Change<'a, K> {
    pub(crate) old: Option<&'a K>,
    pub(crate) new: Option<&'a K>,
    /// What the writer leads by, if it says so.
    pub(crate) fence: Option<&'a Fence>,
}

impl<K> Clone for Change<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Change<'_, K> {}

/// The admission of a kind.
pub(crate) trait Admission<K>: fmt::Debug + Send + Sync {
    /// What has to hold for the change and is written with it, or why it may not be.
    fn beside<'a>(&'a self, change: Change<'a, K>) -> BoxFuture<'a, Result<Beside, ApiError>>;

    /// Why the change may not be, if one of its guards stands against it. Asked when a guard did not hold, and for dry runs.
    fn judge<'a>(&'a self, change: Change<'a, K>) -> BoxFuture<'a, Result<(), ApiError>>;
}
