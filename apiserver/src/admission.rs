//! Admission: checks of a valid write against the other objects. It comes after validation.

mod accounts;
mod addresses;
mod blocks;
mod configured;
pub(crate) mod fences;
mod holders;
mod notes;
mod pods;
mod priority;
mod repair;
mod services;

use std::{any::Any, fmt, marker::PhantomData, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use ipnet::IpNet;
use podplane_api::{
    ObjectKey,
    any::{AnyKind, AnyObject, DynObject, KindNames},
};
use podplane_ipam::ServiceRanges;
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, Write};

use crate::registry::{Operation, WriteEffect};

pub(crate) use accounts::{DefaultAccounts, PodAccount};
pub(crate) use blocks::{
    BlockHold, BlockRecordId, Claimant, HoldMove, KeyedBlockRecord, NodeBlockAdmission,
    RecordState, RecordTransition,
};
pub(crate) use configured::{
    AdmissionMetrics, ConfiguredRules, ExpressionCheck, RULES_GROUP, Rounds,
};
pub(crate) use fences::Fences;
pub(crate) use notes::RequestNotes;
pub(crate) use pods::{PodAdmission, PodIpRules};
pub(crate) use priority::{PodPriority, SingleDefaultClass};
pub(crate) use services::{
    FINALIZER as SERVICE_CIDR_FINALIZER, HeldAddresses, ServiceAdmission, ServiceCidrAdmission,
    ServiceIndex, default_service_cidr, not_ready,
};

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
pub(crate) struct ProposedChange<'a, K: ?Sized> {
    pub(crate) old: Option<&'a K>,
    pub(crate) new: Option<&'a K>,
    pub(crate) operation: Operation,
    /// The user who asks for the change.
    pub(crate) by: &'a Identity,
    /// The fence of the writer, if it sent one.
    pub(crate) fence: Option<&'a Fence>,
}

impl<K: ?Sized> Clone for ProposedChange<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for ProposedChange<'_, K> {}

impl<'a> ProposedChange<'a, DynObject> {
    /// The same change of objects of that type.
    fn typed<K: Any>(self) -> ProposedChange<'a, K> {
        let typed = |object: &'a DynObject| {
            let typed = object.typed::<K>();
            typed.expect("a registry has objects of one kind")
        };
        ProposedChange {
            old: self.old.map(typed),
            new: self.new.map(typed),
            operation: self.operation,
            by: self.by,
            fence: self.fence,
        }
    }
}

/// A check of who makes which change. It comes before the admission of the kind.
pub(crate) trait WriteCheck<K: ?Sized>: fmt::Debug + Send + Sync {
    /// Judges a change, before each attempt to commit it.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The admission that completes new objects of a kind by other objects. It comes after the defaults
/// and before validation.
pub(crate) trait MutatingAdmission<K: ?Sized>: fmt::Debug + Send + Sync {
    /// Completes a new object.
    ///
    /// # Errors
    ///
    /// The reason why the object is refused.
    fn complete<'a>(&'a self, object: &'a mut K) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The admission that gives objects of a kind what no two may have, such as addresses. It comes
/// after validation, before each attempt to commit: what another object took in between is not
/// given again.
pub(crate) trait Allocation<K: ?Sized>: fmt::Debug + Send + Sync {
    /// Completes a valid object; `old` is its former state, if it has one.
    ///
    /// # Errors
    ///
    /// The reason why the object cannot have what it asks for.
    fn allocate<'a>(
        &'a self,
        old: Option<&'a K>,
        new: &'a mut K,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The admission of a kind.
pub(crate) trait Admission<K: ?Sized>: fmt::Debug + Send + Sync {
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

/// An admission of objects of one type, for the registry, which does not know their types.
pub(crate) struct OfType<A: ?Sized, K> {
    admission: Arc<A>,
    kind: PhantomData<fn() -> K>,
}

impl<A: ?Sized, K> OfType<A, K> {
    pub(crate) fn new(admission: Arc<A>) -> Arc<Self> {
        let kind = PhantomData;
        Arc::new(Self { admission, kind })
    }
}

impl<A: fmt::Debug + ?Sized, K> fmt::Debug for OfType<A, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.admission.fmt(f)
    }
}

impl<K: AnyObject> WriteCheck<DynObject> for OfType<dyn WriteCheck<K>, K> {
    fn check<'a>(
        &'a self,
        change: ProposedChange<'a, DynObject>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.admission.check(change.typed())
    }
}

impl<K: AnyObject> MutatingAdmission<DynObject> for OfType<dyn MutatingAdmission<K>, K> {
    fn complete<'a>(&'a self, object: &'a mut DynObject) -> BoxFuture<'a, Result<(), ApiError>> {
        let typed = object.typed_mut::<K>();
        let typed = typed.expect("a registry has objects of one kind");
        self.admission.complete(typed)
    }
}

impl<K: AnyObject> Allocation<DynObject> for OfType<dyn Allocation<K>, K> {
    fn allocate<'a>(
        &'a self,
        old: Option<&'a DynObject>,
        new: &'a mut DynObject,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let is_typed = "a registry has objects of one kind";
        let old = old.map(|old| old.typed::<K>().expect(is_typed));
        self.admission
            .allocate(old, new.typed_mut::<K>().expect(is_typed))
    }
}

impl<K: AnyObject> Admission<DynObject> for OfType<dyn Admission<K>, K> {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, DynObject>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        self.admission.additions(change.typed())
    }

    fn check_guards<'a>(
        &'a self,
        change: ProposedChange<'a, DynObject>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.admission.check_guards(change.typed())
    }
}

/// A write on its way to the store, as rules see it that are objects themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedWrite<'a> {
    pub(crate) kind: &'a dyn AnyKind,
    pub(crate) key: &'a ObjectKey,
    pub(crate) operation: Operation,
    /// The user who asks for the write.
    pub(crate) by: &'a Arc<Identity>,
    pub(crate) effect: WriteEffect,
    /// `None` for a creation.
    pub(crate) old: Option<&'a DynObject>,
    /// `None` for a deletion.
    pub(crate) new: Option<&'a DynObject>,
}

/// The admission of all kinds by rules that are objects themselves, such as webhooks and policies.
///
/// The registry asks it at each attempt of a write: [`mutate`](Self::mutate) after defaults and
/// managed fields are set, [`validate`](Self::validate) after the kind's own validation. Neither is
/// asked about writes of the server itself.
pub(crate) trait ConfiguredAdmission: fmt::Debug + Send + Sync {
    /// Returns false if no rule can concern writes of the kind.
    fn concerns(&self, kind: &KindNames, operation: Operation) -> bool;

    /// Returns the object, with its defaults, that replaces the new one; `None` leaves it. Acts and
    /// deletions can be refused, and not be changed.
    ///
    /// # Errors
    ///
    /// The reason why the write is refused.
    fn mutate<'a>(
        &'a self,
        write: RequestedWrite<'a>,
        rounds: &'a mut Rounds,
    ) -> BoxFuture<'a, Result<Option<Box<DynObject>>, ApiError>>;

    /// Judges the write as it will be stored.
    ///
    /// # Errors
    ///
    /// The reason why the write is refused.
    fn validate<'a>(&'a self, write: RequestedWrite<'a>) -> BoxFuture<'a, Result<(), ApiError>>;
}
