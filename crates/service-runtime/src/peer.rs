//! The other end of a connection, which every request carries in its extensions.

use std::{net::SocketAddr, sync::Arc};

use podplane_host::net::{PeerCredentials, RemoteEnd};

use crate::tls::TlsPeer;

/// The other end of a request's connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// A client over TCP without TLS: its address proves nothing about who it is.
    Plain(SocketAddr),
    /// A client over TLS, which may have shown a certificate.
    Tls(Arc<TlsPeer>),
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
