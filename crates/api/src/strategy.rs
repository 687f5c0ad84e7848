//! The behaviour of a kind in the API server: defaults, the fields that a client may set, the verbs
//! that are served, and the conditions of its end.
//!
//! Everything here is a function of the object. A kind implements [`Strategy`] in its module of
//! [`crate::kinds`], and writes only what differs from the defaults.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    Object,
    selector::FieldSelectable,
    table::TableRow,
    validation::{ErrorList, Validate},
};

/// A part of an object, or an act on it, that has its own path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The status, written apart from the rest.
    Status,
    /// The assignment of a pod to a node.
    Binding,
    /// The deletion of a pod that may be refused.
    Eviction,
    /// The output of a container.
    Log,
    /// A connection to a running container.
    Attach,
    /// A command in a container.
    Exec,
    /// A connection to a port of a pod.
    PortForward,
    /// The number of replicas, in a form that all workloads share.
    Scale,
    /// The decision on a request for a certificate.
    Approval,
    /// A new token of an account.
    Token,
}

impl Subresource {
    /// The name in a path: `portforward`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::Attach => "attach",
            Self::Exec => "exec",
            Self::PortForward => "portforward",
            Self::Scale => "scale",
            Self::Approval => "approval",
            Self::Token => "token",
        }
    }
}

/// The user who asks for a new object.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    /// The user name.
    pub user: &'a str,
    /// The UID; may be empty.
    pub uid: &'a str,
    /// The groups.
    pub groups: &'a [String],
    /// Further facts of the authenticator.
    pub extra: &'a BTreeMap<String, Vec<String>>,
}

/// The state of an object's journey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JourneyState {
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
    /// The node; empty before binding.
    pub node: String,
    /// The phase.
    pub phase: String,
    /// The reason of the phase, if it has one.
    pub message: String,
    /// The addresses, separated by commas.
    pub ips: String,
    /// True if deletion has begun.
    pub deleting: bool,
}

/// The behaviour of a kind. The defaults are those of a kind without status, without generation and
/// without grace period.
pub trait Strategy: Object + FieldSelectable + Validate + TableRow {
    /// The name of the kind's gRPC service: `podplane.core.v1.PodService`.
    const SERVICE: &'static str;

    /// The verbs of the REST API, in alphabetical order.
    const VERBS: &'static [&'static str] = &[
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];

    /// The subresources of the REST API, in alphabetical order.
    const SUBRESOURCES: &'static [Subresource] = &[];

    /// True if a deletion answers with the object instead of a `Status` (`ReturnDeletedObject` of
    /// the reference's storage).
    const RETURNS_DELETED: bool = false;

    /// True if the garbage collector follows the owner references of the kind's objects.
    const IS_COLLECTED: bool = true;

    /// True if an update may leave out the revision that it replaces.
    const UNCONDITIONAL_UPDATE: bool = true;

    /// True if an update may create an object that does not exist (`AllowCreateOnUpdate` of
    /// Kubernetes' strategy).
    const CREATE_ON_UPDATE: bool = false;

    /// True if a write of the status also writes labels and annotations. Kubernetes' strategy for
    /// the status of nodes keeps only the spec.
    const STATUS_HAS_METADATA: bool = false;

    /// Sets defaults, on each write; idempotent.
    fn set_defaults(&mut self) {}

    /// Sets the fields of a new object that only the server sets, except the metadata.
    fn prepare_for_create(&mut self) {}

    /// Records who asks for a new object, for kinds whose specs say so. Comes after
    /// [`prepare_for_create`](Self::prepare_for_create).
    fn set_requester(&mut self, _by: Requester<'_>) {}

    /// Restores from `old` the fields that an update may not change, except the metadata: the
    /// status.
    fn prepare_for_update(&mut self, _old: &Self) {}

    /// Takes the status of `update`, and its labels and annotations if
    /// [`STATUS_HAS_METADATA`](Self::STATUS_HAS_METADATA).
    fn set_status(&mut self, _update: &Self) {}

    /// Takes the decision of `update`, for kinds that have the subresource `approval`.
    fn set_approval(&mut self, _update: &Self, _now: Timestamp) {}

    /// Checks an object whose decision has been taken from an update.
    fn validate_approval(&self, old: &Self) -> ErrorList {
        self.validate_update(old)
    }

    /// `metadata.generation` of a new object, for kinds that have one.
    fn first_generation() -> Option<i64> {
        None
    }

    /// Returns true if the specs differ, for kinds that have a generation.
    fn spec_differs(&self, _old: &Self) -> bool {
        false
    }

    /// The reason why the object may not be deleted at all, if there is one.
    fn delete_refusal(&self) -> Option<&'static str> {
        None
    }

    /// The seconds between the request to delete the object and its end, for kinds that have a
    /// grace period.
    fn grace_period(&self, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Returns true if finalizers keep the object.
    fn has_finalizers(&self) -> bool {
        self.metadata().finalizers.iter().flatten().next().is_some()
    }

    /// Records in the status that deletion has begun.
    fn begin_deletion(&mut self) {}

    /// The state of the object's journey, for kinds whose journeys are traced.
    fn journey_state(&self) -> Option<JourneyState> {
        None
    }

    /// The last occurrence, for kinds whose objects expire, oldest first when there are too many.
    fn last_happened(&self) -> Option<Timestamp> {
        None
    }
}

/// The methods of [`Strategy`] for a kind with the subresource `status`: a new object's is empty,
/// and it is written there alone.
macro_rules! separate_status {
    () => {
        fn prepare_for_create(&mut self) {
            self.status = Some(Default::default());
        }

        fn prepare_for_update(&mut self, old: &Self) {
            self.status.clone_from(&old.status);
        }

        fn set_status(&mut self, update: &Self) {
            self.status.clone_from(&update.status);
        }
    };
}

/// The methods of [`Strategy`] for a kind whose generation counts the changes of a field: `spec`.
macro_rules! generation_of {
    ($($field:ident),+) => {
        fn first_generation() -> Option<i64> {
            Some(1)
        }

        fn spec_differs(&self, old: &Self) -> bool {
            $(self.$field != old.$field)||+
        }
    };
}
pub(crate) use {generation_of, separate_status};
