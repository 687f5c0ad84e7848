//! etcd's API, version 3, and a client of the members of a cluster.
//!
//! [`wire`] is generated from the published `.proto` files. [`EtcdClient`] connects to each member
//! when it is first needed, and goes on to the next one when a member does not answer.

mod client;
mod error;
mod flags;
mod transport;
mod version;

pub use client::{EtcdClient, Watching};
pub use error::EtcdError;
pub use flags::{EtcdConfigError, EtcdEndpoint, EtcdFlags};
pub use version::EtcdVersion;

/// The generated messages.
#[cfg_attr(
    feature = "server",
    expect(clippy::allow_attributes, reason = "generated, for each call")
)]
#[expect(
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    reason = "generated; documented in its .proto file"
)]
pub mod wire {
    /// Users and roles.
    pub mod authpb {
        tonic::include_proto!("authpb");
    }
    /// The services.
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
    /// Keys and their events.
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
}
