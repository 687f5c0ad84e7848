//! The typed client of podplane's API, and what controllers are built from.
//!
//! [`Client`] reads and writes objects; [`reflector`](reflector::reflector) keeps a local copy of a kind up to date; [`WorkQueue`] hands out keys to reconcile;
//! [`EventRecorder`] tells people what happened; [`leader`] sees to it that one of several processes works, and that no other writes. There is one place where a channel is built, [`endpoint::channel`], so that access
//! control can come without touching callers.
//!
//! A cache is stale by nature: decide from it, and let the precondition of the write be the judge.

#![warn(missing_docs)]

pub mod api;
mod blocks;
mod deadline;
pub mod endpoint;
pub mod events;
mod faults;
pub mod leader;
pub mod queue;
mod queue_metrics;
pub mod reflector;
mod trace;

pub use api::{Api, Binding, Client, DeleteParams, ListParams, ObjectList, WatchEvent};
pub use blocks::{BlockList, Blocks};
pub use deadline::answered;
pub use endpoint::Endpoint;
pub use events::EventRecorder;
pub use faults::{InvalidFault, PatchFaults};
pub use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
    wire::Propagation,
};
pub use queue::{Backoff, QueueStats, WorkQueue};
pub use queue_metrics::QueueMetrics;
pub use reflector::{Cache, Change, Changes, Told, Watched, reflector, watcher};
pub use trace::{Traced, traced};
