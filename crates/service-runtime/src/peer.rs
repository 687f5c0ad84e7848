//! The other end of a connection, which every request carries in its extensions.

use std::net::SocketAddr;

use podplane_host::net::{PeerCredentials, RemoteEnd};

/// The other end of a request's connection.
///
/// A TLS connection will be a variant of its own, with the verified certificate of the client or
/// the reason why it is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client over TCP without TLS: its address proves nothing about who it is.
    Plain(SocketAddr),
    /// A process on this machine, over a unix socket; `None` if the kernel does not say which.
    Local(Option<PeerCredentials>),
    /// A task of the same simulation.
    Simulated,
}

impl From<RemoteEnd> for Peer {
    fn from(remote: RemoteEnd) -> Self {
        match remote {
            RemoteEnd::Tcp(address) => Self::Plain(address),
            RemoteEnd::Unix(credentials) => Self::Local(credentials),
            RemoteEnd::Pipe => Self::Simulated,
        }
    }
}
