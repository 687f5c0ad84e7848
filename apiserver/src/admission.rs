//! Admission: checks of a valid write against the other objects. It comes after validation.

mod accounts;
mod addresses;
mod blocks;
pub(crate) mod fences;
mod holders;
mod pods;
mod priority;

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use ipnet::IpNet;
use podplane_ipam::ServiceRanges;
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, Write};

use crate::registry::Operation;

pub(crate) use accounts::{DefaultAccounts, PodAccount};
pub(crate) use blocks::{
    BlockHold, BlockRecordId, Claimant, HoldMove, KeyedBlockRecord, NodeBlockAdmission,
    RecordState, RecordTransition,
};
pub(crate) use fences::Fences;
pub(crate) use pods::{PodAdmission, PodIpRules};
pub(crate) use priority::{PodPriority, SingleDefaultClass};

/// The rules for the blocks of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPolicy {
    /// The service ranges, which no node's block may overlap.
    pub(crate) service_ranges: ServiceRanges,
    /// The ranges from which free blocks are proposed.
    pub(crate) cluster_cidrs: Vec<IpNet>,
    /// True to admit every block, as Kubernetes does.
    pub(crate) lenient: bool,
    /// The time after its last renewal at which the hold of a deleted node's block ends by itself;
    /// `None`: never.
    pub(crate) release_after: Option<Duration>,
}

impl BlockPolicy {
    /// Logs at the start which checks are off.
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

/// The guards and writes that are committed together with an object.
#[derive(Debug, Default)]
pub(crate) struct CommitAdditions {
    pub(crate) guards: Vec<Guard>,
    pub(crate) writes: Vec<Write>,
}

/// An object before and after a write; `None` before a creation and after a removal.
#[derive(Debug)]
pub(crate) struct ProposedChange<'a, K> {
    pub(crate) old: Option<&'a K>,
    pub(crate) new: Option<&'a K>,
    pub(crate) operation: Operation,
    /// The user who asks for the change.
    pub(crate) by: &'a Identity,
    /// The fence of the writer, if it sent one.
    pub(crate) fence: Option<&'a Fence>,
}

impl<K> Clone for ProposedChange<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for ProposedChange<'_, K> {}

/// A check of who makes which change. It comes before the admission of the kind.
pub(crate) trait WriteCheck<K>: fmt::Debug + Send + Sync {
    /// Judges a change, before each attempt to commit it.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The admission that completes new objects of a kind by other objects. It comes after the defaults
/// and before validation.
pub(crate) trait MutatingAdmission<K>: fmt::Debug + Send + Sync {
    /// Completes a new object.
    ///
    /// # Errors
    ///
    /// The reason why the object is refused.
    fn complete<'a>(&'a self, object: &'a mut K) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The admission of a kind.
pub(crate) trait Admission<K>: fmt::Debug + Send + Sync {
    /// Returns the guards and further writes of the commit.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, K>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>>;

    /// Reads the state that the guards of [`additions`](Self::additions) protect, and refuses the
    /// change if one of them would fail now. Called after a guard failed, to say why, and for dry
    /// runs, which commit nothing.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    fn check_guards<'a>(
        &'a self,
        change: ProposedChange<'a, K>,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}
