//! Pure address arithmetic and allocation: the blocks of nodes, their holders, the number of pods
//! that they serve, and the invariants of a whole cluster.
//!
//! This crate never reads a clock, does no input or output and draws no random number: its
//! decisions depend only on the arguments, so that the controller, the scheduler, the plugins, the
//! audit and the tests all get the same answer. Start with [`cluster`] (the flags), then [`blocks`]
//! (the holders of blocks), then [`invariants`] (the invariants of the system).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod addresses;
mod allocator_type;
pub mod blocks;
pub mod capacity;
pub mod cluster;
pub mod compat;
pub mod figures;
mod free;
pub mod invariants;
mod ip_policy;
mod nearest;
pub mod net;
mod number_set;
pub mod planning;
pub mod pool;
mod runs;
mod service;
mod service_range;
pub mod upstream;

pub use addresses::NodeAddresses;
pub use allocator_type::{AllocatorType, InvalidAllocatorType, NO_CLOUD};
pub use blocks::{
    Adoption, AllocateError, Block, BlockSet, Claim, InvalidSet, Misfit, NodeBlocks, Overlap,
    Owner, TooManySets, Usage,
};
pub use cluster::{ClusterRange, Notice, RangeConfig, RangeConfigError, RangeFlags};
pub use compat::{Compat, Generation};
pub use free::FreeBlocks;
pub use ip_policy::IpPolicy;
pub use nearest::nearest_free;
pub use net::{Family, InvalidCidr, cidr_of_flag, cidrs_of_flag, mask_size_of_flag, parse_cidr};
pub use number_set::{BandedRange, NumberSet};
pub use pool::AddressRange;
pub use runs::free_runs;
pub use service::{ServiceRangeError, ServiceRanges};
pub use service_range::{InvalidPortRange, NodePortRange, ServiceAddresses, ServiceRange};
