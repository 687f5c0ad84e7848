//! What is particular to a kind: defaults, what a client may set, when it is finally gone. Adding a kind is an
//! implementation of [`Strategy`] and a line in [`crate::server`].

mod cluster_cidr;
mod controller_revision;
mod deployment;
mod event;
mod lease;
mod namespace;
mod node;
mod pod;
mod replica_set;
mod service;

use podplane_api::{Object, jiff::Timestamp, selector::Selectable, validation::Validate};
use podplane_proto::error::ApiError;

pub(crate) use namespace::SYSTEM_NAMESPACES;
pub(crate) use pod::bind;

use crate::registry::Station;

/// What is particular to a kind. The defaults are those of a kind without status and without grace.
pub(crate) trait Strategy: Object + Selectable + Validate {
    /// The name of the kind's gRPC service.
    const SERVICE: &'static str;

    /// Whether an update may leave out the revision that it replaces.
    const UNCONDITIONAL_UPDATE: bool = true;

    /// Lets an update create an object that is not there (`AllowCreateOnUpdate` of the
    /// reference's strategy).
    const CREATE_ON_UPDATE: bool = false;

    /// Fills in what was left out, on each write; idempotent.
    fn set_defaults(&mut self) {}

    /// Sets what only the server sets on a new object, its metadata aside.
    fn prepare_for_create(&mut self) {}

    /// Takes back from `old` what an update may not touch, its metadata aside: the status.
    fn prepare_for_update(&mut self, _old: &Self) {}

    /// Takes the status of `update`.
    fn set_status(&mut self, _update: &Self) {}

    /// `metadata.generation` of a new object, for kinds that have one.
    fn first_generation() -> Option<i64> {
        None
    }

    /// Whether the specs differ, for kinds that have a generation.
    fn spec_differs(&self, _old: &Self) -> bool {
        false
    }

    /// Whether the object may be deleted at all.
    fn admit_delete(&self) -> Result<(), ApiError> {
        Ok(())
    }

    /// How many seconds pass between the request and the end, for kinds that have a grace period.
    fn grace_period(&self, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether somebody has to be done with the object before it may go.
    fn has_finalizers(&self) -> bool {
        self.metadata().finalizers.iter().flatten().next().is_some()
    }

    /// Says in the status that deletion has begun.
    fn begin_deletion(&mut self) {}

    /// How far the object is on its journey, for kinds whose journeys are traced.
    fn station(&self) -> Option<Station> {
        None
    }

    /// When the object last mattered, for kinds whose objects go after some time, and the oldest first when there are too many.
    fn last_happened(&self) -> Option<Timestamp> {
        None
    }
}
