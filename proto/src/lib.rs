//! The wire formats of podplane: `.proto` files, generated code, and conversion between wire and
//! domain types.
//!
//! The messages of Kubernetes' objects are generated from the published API definitions
//! (`cargo xtask proto`), and their proto3 JSON is Kubernetes' JSON. In Rust there is one type for
//! an object, that of `podplane-api`; [`codec`] converts. Requests and responses of the object
//! services have the same shape for every kind, so [`wire`] declares each once, with the object as
//! bytes (ADR 0002). Reflection serves the full description, [`DESCRIPTORS`].
//!
//! This crate opens no connections and knows no rules of validation: see `podplane-client` and
//! `podplane-api`. Start reading at [`codec`].

#![warn(missing_docs)]

pub mod blocks;
pub mod calls;
pub mod codec;
mod dropped;
pub mod error;
pub mod fence;
pub mod kubernetes;
pub mod transport;
mod values;
pub mod wire;

pub use values::MAX_VALUES;

/// The encoded `FileDescriptorSet` of every service here, for reflection.
pub static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A module of generated code, which keeps its own style.
macro_rules! generated {
    ($(#[$attribute:meta])* $name:ident, $package:literal) => {
        $(#[$attribute])*
        #[expect(
            missing_docs,
            clippy::allow_attributes,
            clippy::allow_attributes_without_reason,
            clippy::missing_errors_doc,
            reason = "generated; documented in its .proto file"
        )]
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

/// `openapi.v2`: OpenAPI v2 documents, as the messages of gnostic.
#[expect(
    missing_docs,
    clippy::large_enum_variant,
    reason = "generated; documented in its .proto file"
)]
pub mod openapi {
    tonic::include_proto!("openapi.v2");
}
generated! {
    /// `podplane.authentication.v1`: the identity of a caller, and tokens.
    authentication, "podplane.authentication.v1"
}
generated! {
    /// `podplane.authorization.v1`: reviews of permissions.
    authorization, "podplane.authorization.v1"
}
generated! {
    /// `podplane.cloud.v1`: the address ranges that a cloud has assigned to its instances.
    cloud, "podplane.cloud.v1"
}
generated! {
    /// `podplane.cluster.v1`: the supervisor of a local cluster.
    cluster, "podplane.cluster.v1"
}
generated! {
    /// `podplane.ipam.v1`: pools, blocks and owners.
    #[expect(
        clippy::large_enum_variant,
        reason = "a result is nearly always a block, which boxing would only make slower"
    )]
    ipam, "podplane.ipam.v1"
}
generated! {
    /// `podplane.node.v1`: the state of a node's network.
    node, "podplane.node.v1"
}
generated! {
    /// `podplane.scheduler.v1`: explanations of scheduling decisions.
    scheduler, "podplane.scheduler.v1"
}
generated! {
    /// `podplane.store.v1`: the store as a whole.
    store, "podplane.store.v1"
}
generated! {
    /// `podplane.trace.v1`: the journeys of pods.
    trace, "podplane.trace.v1"
}
generated! {
    /// `runtime.v1`: Kubernetes' Container Runtime Interface, as published.
    #[expect(
        rustdoc::invalid_html_tags,
        clippy::doc_lazy_continuation,
        clippy::doc_overindented_list_items,
        reason = "the published comments are kept"
    )]
    cri, "runtime.v1"
}
