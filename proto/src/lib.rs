//! The wire of podplane: `.proto` files, generated code, and conversion between wire and domain.
//!
//! Kubernetes' objects have messages that are generated from the published API definitions (`cargo xtask proto`), and whose proto3
//! JSON is Kubernetes' JSON. In Rust there is one type for an object, that of `podplane-api`; [`codec`] converts. Requests and
//! answers of the object services have the same shape for every kind, so [`wire`] declares each once, with the object as bytes
//! (ADR 0002). What reflection serves is the full description, [`DESCRIPTORS`].

#![warn(missing_docs)]

pub mod codec;
pub mod error;
pub mod wire;

/// The encoded `FileDescriptorSet` of every service here, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// `podplane.cluster.v1`: the supervisor of a local cluster.
pub mod cluster {
    #![expect(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "generated; documented in the .proto file"
    )]
    tonic::include_proto!("podplane.cluster.v1");
}

/// `podplane.ipam.v1`: pools, blocks and owners.
pub mod ipam {
    #![expect(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "generated; documented in the .proto file"
    )]
    tonic::include_proto!("podplane.ipam.v1");
}

/// `podplane.node.v1`: what a node's network holds.
pub mod node {
    #![expect(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "generated; documented in the .proto file"
    )]
    tonic::include_proto!("podplane.node.v1");
}

/// `podplane.scheduler.v1`: why a pod is where it is.
pub mod scheduler {
    #![expect(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "generated; documented in the .proto file"
    )]
    tonic::include_proto!("podplane.scheduler.v1");
}

/// `runtime.v1`: Kubernetes' Container Runtime Interface, as published.
pub mod cri {
    #![expect(
        missing_docs,
        rustdoc::all,
        clippy::all,
        reason = "generated from the published CRI definition"
    )]
    tonic::include_proto!("runtime.v1");
}
