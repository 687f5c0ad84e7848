//! The typed client of podplane's API, and the building blocks of controllers.
//!
//! [`Client`] reads and writes objects, by podplane's gRPC or by Kubernetes' REST API
//! ([`ServerFlags`]); [`reflector`](reflector::reflector) keeps a local copy of a
//! kind up to date; [`WorkQueue`] hands out keys to reconcile; [`EventRecorder`] writes events;
//! [`leader`] elects one of several processes and fences off the writes of the others.
//!
//! [`Client`] never repeats a call by itself. A cache is stale by nature: decide from it, and rely
//! on the precondition of the write. Channels are built in one place, [`endpoint::channel`], so
//! that every caller has the same credentials.
//!
//! Start reading at [`api`] for calls, or at [`reflector`](mod@reflector) and [`queue`] for a
//! control loop.

#![warn(missing_docs)]

mod access;
pub mod api;
mod blocks;
mod channel;
mod credentials;
mod deadline;
pub mod endpoint;
pub mod events;
mod faults;
pub mod leader;
pub mod metadata;
pub mod objects;
pub mod queue;
mod queue_metrics;
pub mod reflector;
mod server;
mod start_check;
mod summary;
mod tokens;
mod trace;

pub use api::rest::{is_unserved_kind, refused};
pub use api::{
    Api, Binding, Client, DeleteParams, ListParams, ObjectEvent, ObjectList, PatchParams,
};
pub use blocks::{BlockList, BlocksClient, NodeBlocks, block_name};
pub use channel::Channel;
pub use credentials::CredentialFlags;
pub use deadline::answered;
pub use endpoint::Endpoint;
pub use events::EventRecorder;
pub use faults::{InvalidFault, PatchFaults};
pub use metadata::{ApiResource, MetadataApi, MetadataClient};
pub use objects::{JsonObject, ObjectsApi};
pub use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
    wire::{PatchType, Propagation},
};
pub use queue::{Backoff, QueueStats, WorkQueue};
pub use queue_metrics::QueueMetrics;
pub use reflector::{
    Cache, CacheChange, CacheItem, ChangeSource, Changes, ListWatch, WatcherEvent,
    indexed_reflector, reflector, source_reflector, transforming_reflector, transforming_watcher,
    watcher,
};
pub use server::{ServerError, ServerFlags, of_kubeconfig};
pub use start_check::{Permission, StartCheckError, start_check};
pub use trace::{TracedChannel, traced};
