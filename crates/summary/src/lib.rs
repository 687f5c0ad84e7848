//! A compact summary of a cluster's addresses: the facts for a map, and what a page or a screen
//! shows beside it.
//!
//! [`Cluster`] takes the objects of an API, one change at a time, and gives the facts of
//! [`podplane_map`] and a [`ClusterSummary`]. The answers of `/summary/v1alpha1` are made of these:
//! [`MapScene`], [`AddressPage`] and the documents of the streams ([`StreamDocument`]).
//!
//! Nothing here does I/O, reads a clock or has an async runtime: the API server feeds it from its
//! watch cache, the command line from lists, and a recording from what it recorded.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
mod blocks;
mod cluster;
mod details;
mod documents;
mod findings;
mod listing;
mod networks;
mod node;
mod pod;
mod query;
mod scene;
mod trace;
mod waiting;

pub use addresses::{AddressPage, AddressRow, HolderRow};
pub use blocks::node_block;
pub use cluster::Cluster;
pub use details::{LeaseFileRow, NodeDetails, NodeLocal, SandboxRow};
pub use documents::{
    BlockRow, ClusterChanges, ClusterSummary, NetworkRow, NodeRow, PodCounts, StreamDocument,
};
pub use findings::{CheckRow, Finding, FindingPlace, FindingReport, MOST_FINDINGS};
pub use listing::{BlockListing, HeldAddress, ListedBlock};
pub use networks::{infer_nodes, infer_services, node_addresses};
pub use node::addresses_used;
pub use pod::{ControlPlane, PodFacts};
pub use query::{AddressQuery, AddressesRequest, MapQuery, MapRequest, QueryError};
pub use scene::{BlockRef, CellChanges, MapChange, MapScene};
pub use trace::{SpanRow, TraceRow};
pub use waiting::{MOST_PODS, WaitingGroup, WaitingPod, WaitingReason};
