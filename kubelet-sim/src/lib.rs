//! What runs on a node: the kubelet ([`kubelet`]), and a CRI server for sandboxes without containers ([`cri`]).
//!
//! They are two services that meet at a unix socket (`runtime.v1`) and in the files of the node ([`node_dir`]): the kubelet works with any
//! CRI server, and the CRI server with any CRI client. No container ever runs: a pod is Running when its sandbox, which is a
//! network namespace and an address, is ready.
//!
//! This crate never assigns an address itself: CNI plugins do, which the CRI server executes.

#![warn(missing_docs)]

pub mod cri;
pub mod ipam;
pub mod kubelet;
pub mod node_dir;
pub mod pod_cidrs;

pub use node_dir::{NodeDir, NodeName};
pub use pod_cidrs::PodCidrs;
