//! The other end of a connection, which every request carries in its extensions.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

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

impl Peer {
    /// The TCP address of the other end, if it has one.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(address) => Some(*address),
            Self::Tls(peer) => match peer.remote() {
                RemoteEnd::Tcp(address) => Some(address),
                RemoteEnd::Unix(_) | RemoteEnd::Pipe => None,
            },
            Self::Local(_) | Self::Simulated => None,
        }
    }
}

/// The state that all requests of a connection share, in the extensions of each.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState {
    watches: Arc<AtomicUsize>,
}

/// An open watch of a connection, which is counted until this is dropped.
#[derive(Debug)]
pub struct ConnectionWatch(Arc<AtomicUsize>);

impl ConnectionState {
    /// Counts a watch, if the connection has fewer than `most`.
    pub fn watch(&self, most: usize) -> Option<ConnectionWatch> {
        let before = self.watches.fetch_add(1, Ordering::Relaxed);
        let watch = ConnectionWatch(Arc::clone(&self.watches));
        (before < most).then_some(watch)
    }
}

impl Drop for ConnectionWatch {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
