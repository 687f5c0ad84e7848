//! The API server: the one process that writes the store; all others use the store through it.
//!
//! A request goes through `service` (gRPC) or `rest` to the `registry` of its kind, which sets
//! defaults and validates by the kind's [`Strategy`](podplane_api::strategy::Strategy), asks the
//! kind's `admission`, and commits to the `engine` under guards of the revisions that it read.
//! Every commit comes back through the `cache`, which serves reads and watches. `upkeep` does the
//! background work: namespaces that end, events that expire, history that is compacted.
//!
//! It never acknowledges a write that is not durable, never serves a read older than a write that
//! was acknowledged before it, and never waits for a slow watch.
//!
//! Start reading at `server`.

#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

mod admission;
mod audit;
mod authentication;
mod authorization;
mod cache;
mod config;
mod custom;
mod engine;
mod error;
mod fatal;
mod flow;
mod journeys;
mod memory;
mod metrics;
mod parallel;
mod registry;
mod renderers;
mod rest;
mod runtime_config;
mod served;
mod server;
mod service;
mod sockets;
mod storage;
mod summary;
#[cfg(test)]
mod tests;
mod upkeep;
mod webhook;

pub use audit::{AuditFlags, AuditPolicyFileError};
pub use authentication::{
    AccountTokenFlags, AuthenticationFlags, AuthenticationMode, AuthenticationModeFlag,
    OwnCertificateFlags, TlsFlags, TokenFileError,
};
pub use authorization::{AuthorizationFlags, AuthorizationMode};
pub use config::{ApiserverConfig, ClusterFlags, HistoryBounds, HoldFlags, StoreKind};
pub use flow::LimitFlags;
pub use runtime_config::{ApiVersionSetting, ApiVersionSettingError, UnknownApiVersion};
pub use server::{ApiserverRunError, run};
pub use storage::check as check_item;
