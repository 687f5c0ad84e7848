//! Address arithmetic and allocation, pure: what a node's block is, who holds it, how many pods it serves, and
//! what must hold of a whole cluster.
//!
//! This crate never reads a clock, does no input or output and draws no random number: everything that it decides
//! follows from its arguments, so that the controller, the scheduler, the plugins, the audit and the tests all get
//! the same answer. Start with [`cluster`] (what the flags mean), then [`blocks`] (who holds which block), then
//! [`audit`] (the invariants of the system).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod audit;
pub mod blocks;
pub mod capacity;
pub mod cluster;
pub mod compat;
pub mod figures;
mod free;
mod nearest;
pub mod net;
pub mod planning;
pub mod pool;
mod runs;
mod service;
pub mod upstream;

pub use blocks::{
    Adoption, AllocateError, Block, BlockSet, Claim, InvalidSet, Misfit, NodeBlocks, Overlap,
    Owner, TooManySets, Usage,
};
pub use cluster::{ClusterRange, Notice, RangeConfig, RangeConfigError, RangeFlags};
pub use compat::{Compat, Generation};
pub use free::FreeBlocks;
pub use nearest::nearest_free;
pub use net::{Family, InvalidCidr, parse_cidr};
pub use pool::AddressRange;
pub use runs::free_runs;
pub use service::{ServiceRangeError, ServiceRanges};
