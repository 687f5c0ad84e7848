//! An audit of a cluster's node blocks and pod addresses, from the output of `kubectl get
//! nodes,pods -A`, and a repair of the findings.
//!
//! Nothing here writes to a cluster or opens a connection.
//!
//! Start reading at [`DumpCollector`], which reads objects leniently: unknown, missing or odd
//! fields never fail it, and of each object only what the rules need is kept, of other networks'
//! objects their blocks and addresses. When it finishes, the cluster's [`NetworkKind`] is detected,
//! and so which rules apply. [`audit`] compares the dump with the flags of its cluster; for
//! invariants of every cluster it calls [`podplane_ipam::invariants::check`]. [`Repair`] chooses
//! blocks for the nodes that need another one. [`HistoryJudge`] judges a cluster at every revision.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod dump;
mod expected;
mod facts;
mod finding;
mod history;
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

pub use dump::{
    Dump, DumpCollector, DumpScope, DumpedNode, DumpedService, NodeItem, ServiceRange, WholeObject,
    lacks_addresses,
};
pub use expected::{ControllerFlags, ExpectationSource, ExpectedBlocks, FlagsError};
pub use facts::{NamedRange, SharedBlock};
pub use finding::{Code, Finding, Severity};
pub use history::{
    AddressCount, BindCounts, HistoryCounts, HistoryFinding, HistoryJudge, HistoryRule, NodeState,
    PodState, StateChange,
};
pub use input::InputError;
pub use network::{IpamChoice, NetworkKind};
pub use ranges::{LiveRange, LiveRanges};
pub use repair::{NodeMove, Repair, RepairError};
pub use rules::{AuditReport, audit};
pub use summary::{AddressSummary, BlockSummary, PodSummary, Summary};
pub use unread::UnreadResource;
