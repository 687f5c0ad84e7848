//! What is wrong with the addresses of a cluster, from what `kubectl get nodes,pods -A` printed, and how to repair it.
//!
//! Reading ([`Collector`]) takes objects as they stand: fields that are unknown, missing or odd never fail it, and of each object only what
//! the rules need is kept, of the objects of other networks their blocks and addresses. At its end the
//! [`Network`] of the cluster is known, and so which rules apply. [`audit`] compares the dump with the flags of its cluster; what must hold of every cluster it asks
//! [`podplane_ipam::audit::check`]. [`Repair`] chooses blocks for the nodes that need another one.
//!
//! Nothing here writes to a cluster or opens a connection.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dump;
mod expected;
mod finding;
mod input;
mod item;
mod network;
mod prefixes;
mod ranges;
mod records;
mod repair;
mod rules;
mod summary;
mod unread;

pub use dump::{Collector, Dump, Keep, Node};
pub use expected::{Expected, Flags, FlagsError, Known};
pub use finding::{Code, Finding, Severity};
pub use input::InputError;
pub use network::{IpamChoice, Network};
pub use ranges::{LiveRange, LiveRanges};
pub use repair::{Move, Repair, RepairError};
pub use rules::{Report, audit};
pub use summary::{Addresses, Blocks, Pods, Summary};
pub use unread::Unread;
