//! The API server: the one process that writes the store, and through which all others see it.
//!
//! A request goes through `service` (gRPC) to the `registry` of its kind, which sets defaults, validates by
//! the kind's `strategy`, asks the kind's `admission`, and commits to the `engine` guarded by what it read. Every commit comes back through the `cache`, from
//! which reads and watches are served. What nobody asks for, the `upkeep` does: namespaces that end, events that
//! expire, history that is old.
//!
//! It never acknowledges a write that is not durable, never serves a read older than a write that was acknowledged
//! before it, and never waits for a slow watch. Start reading at `server`.

mod admission;
mod cache;
mod config;
mod engine;
mod error;
mod fatal;
mod journeys;
mod memory;
mod metrics;
mod registry;
mod rest;
mod server;
mod service;
mod storage;
mod strategy;
#[cfg(test)]
mod tests;
mod upkeep;

pub use config::{Bounds, Config, StoreKind, release_after};
pub use server::{RunError, run};
pub use storage::check as check_item;
