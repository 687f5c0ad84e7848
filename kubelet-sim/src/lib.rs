//! The node's services: the kubelet ([`kubelet`]), and a CRI server for sandboxes without
//! containers ([`cri`]).
//!
//! They meet at a unix socket (`runtime.v1`) and in the files of the node ([`node_dir`]): the
//! kubelet works with any CRI server, and the CRI server with any CRI client.
//!
//! This crate never runs a container itself. Where the runtime makes containers, the kubelet has it
//! run those of the pods; else a pod is Running when its sandbox, which is a network namespace and
//! an address, is ready. It never assigns an address itself: CNI plugins do, which
//! the CRI server executes.
//!
//! Start reading at [`kubelet::worker`] for the life of a pod, and at [`cri::sandboxes`] for that
//! of a sandbox.

#![warn(missing_docs)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

pub mod cri;
pub mod ipam;
pub mod kubelet;
pub mod node_dir;
pub mod pod_cidrs;

pub use node_dir::NodeDir;
pub use pod_cidrs::PodCidrs;
pub use podplane_api::node::NodeName;
