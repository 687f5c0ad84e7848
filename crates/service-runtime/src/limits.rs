//! The limits of sockets: the connections of clients, and the time in which a client must go on
//! reading or writing.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicI64, atomic::AtomicU64},
    time::Duration,
};

use podplane_host::net::RemoteEnd;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use rustix::process::{Resource, getrlimit};

/// The limits of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// The most open connections.
    pub max_connections: usize,
    /// The most open connections of a client: of an IP address, of an IPv6 network of 64 bits, or
    /// of a user on a unix socket.
    pub max_connections_per_client: usize,
    /// The most open requests and watches of an HTTP/2 connection.
    pub max_streams: u32,
    /// The time after which a client that takes nothing of an answer is cut off.
    pub stall: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_connections_per_client: 5_000,
            max_streams: 2_000,
            stall: Duration::from_secs(30),
        }
    }
}

impl ServerLimits {
    /// The same limits, and no more connections than three quarters of the files that this process
    /// may open: the rest is for the store. One client gets at most three quarters of those.
    #[must_use]
    pub fn within_open_files(self) -> Self {
        match getrlimit(Resource::Nofile).current {
            Some(files) => self.within(usize::try_from(files).unwrap_or(usize::MAX)),
            None => self,
        }
    }

    fn within(self, files: usize) -> Self {
        let most = files / 4 * 3;
        if self.max_connections <= most {
            return self;
        }
        Self {
            max_connections: most,
            max_connections_per_client: self.max_connections_per_client.min(most / 4 * 3),
            ..self
        }
    }

    /// The most watches of an HTTP/2 connection. The other streams stay free, since a client whose
    /// watches use them all would wait for ever with its next request.
    pub fn max_watches_of_connection(&self) -> usize {
        let streams = self.max_streams;
        usize::try_from(streams - streams / 8).unwrap_or(usize::MAX)
    }
}

/// Counts of connections and of clients that were cut off. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LimitMetrics {
    connections: Gauge<i64, AtomicI64>,
    refused: Family<ReasonLabels, Counter<u64, AtomicU64>>,
    slow: Family<ReasonLabels, Counter<u64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The way in which a client is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slowness {
    /// The client sent nothing on its connection.
    Silent,
    /// The body of a request did not arrive.
    Body,
    /// The connection takes nothing of what is sent.
    Connection,
    /// An HTTP/2 stream takes nothing of its answer.
    Stream,
}

impl Slowness {
    const ALL: [Self; 4] = [Self::Silent, Self::Body, Self::Connection, Self::Stream];

    fn reason(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Body => "body",
            Self::Connection => "connection",
            Self::Stream => "stream",
        }
    }
}

impl LimitMetrics {
    /// Creates counts and registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "podplane_connections",
            "Open connections",
            metrics.connections.clone(),
        );
        registry.register(
            "podplane_connections_refused",
            "Connections refused because there are too many",
            metrics.refused.clone(),
        );
        registry.register(
            "podplane_slow_clients",
            "Clients that were cut off because they were too slow",
            metrics.slow.clone(),
        );
        for refusal in [ConnectionRefusal::Server, ConnectionRefusal::Client] {
            drop(metrics.refused.get_or_create(&refusal.labels()));
        }
        for slowness in Slowness::ALL {
            let reason = slowness.reason();
            drop(metrics.slow.get_or_create(&ReasonLabels { reason }));
        }
        metrics
    }

    /// Counts a client that is cut off.
    pub(crate) fn cut_off(&self, slowness: Slowness) {
        let reason = slowness.reason();
        self.slow.get_or_create(&ReasonLabels { reason }).inc();
    }
}

/// The client of a connection, before anything else is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientAddress {
    /// An IP address; of IPv6 the first 64 bits, since a client usually has all addresses of such
    /// a network.
    Ip(IpAddr),
    /// A user on a unix socket; `None` if the kernel does not say which.
    User(Option<u32>),
    /// Tasks of the same simulation.
    Simulated,
}

impl ClientAddress {
    /// The client at an IP address.
    pub fn of_ip(address: IpAddr) -> Self {
        Self::Ip(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        })
    }
}

impl From<RemoteEnd> for ClientAddress {
    fn from(remote: RemoteEnd) -> Self {
        match remote {
            RemoteEnd::Tcp(address) => Self::of_ip(address.ip()),
            RemoteEnd::Unix(credentials) => Self::User(credentials.map(|of| of.uid)),
            RemoteEnd::Pipe => Self::Simulated,
        }
    }
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConnectionRefusal {
    /// The server has too many.
    #[error("the server has too many connections; try again later")]
    Server,
    /// The client has too many.
    #[error(
        "too many connections from this address: close some, or use one connection for several requests"
    )]
    Client,
}

impl ConnectionRefusal {
    fn labels(self) -> ReasonLabels {
        ReasonLabels {
            reason: match self {
                Self::Server => "server",
                Self::Client => "client",
            },
        }
    }
}

/// The open connections of a socket, by their clients. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionCounts {
    limits: ServerLimits,
    metrics: LimitMetrics,
    open: Arc<Mutex<OpenConnections>>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    of_clients: HashMap<ClientAddress, usize>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    counts: ConnectionCounts,
    client: ClientAddress,
}

impl ConnectionCounts {
    pub(crate) fn new(limits: ServerLimits, metrics: LimitMetrics) -> Self {
        Self {
            limits,
            metrics,
            open: Arc::default(),
        }
    }

    /// Counts a connection of `client`.
    ///
    /// # Errors
    ///
    /// The limit that it would exceed.
    pub(crate) fn admit(
        &self,
        client: ClientAddress,
    ) -> Result<CountedConnection, ConnectionRefusal> {
        let admitted = self.count(client);
        match admitted {
            Ok(()) => {
                self.metrics.connections.inc();
                Ok(CountedConnection {
                    counts: self.clone(),
                    client,
                })
            }
            Err(refusal) => {
                self.metrics.refused.get_or_create(&refusal.labels()).inc();
                Err(refusal)
            }
        }
    }

    fn count(&self, client: ClientAddress) -> Result<(), ConnectionRefusal> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.of_clients.get(&client).copied().unwrap_or_default();
        if own >= self.limits.max_connections_per_client {
            return Err(ConnectionRefusal::Client);
        }
        if open.all >= self.limits.max_connections {
            return Err(ConnectionRefusal::Server);
        }
        open.all += 1;
        open.of_clients.insert(client, own + 1);
        Ok(())
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let counts = &self.counts;
        let mut open = counts.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all = open.all.saturating_sub(1);
        if let Some(own) = open.of_clients.get_mut(&self.client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                open.of_clients.remove(&self.client);
            }
        }
        counts.metrics.connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> ClientAddress {
        ClientAddress::of_ip(text.parse().unwrap())
    }

    #[test]
    fn counts_connections_of_each_client_and_of_all() {
        let limits = ServerLimits {
            max_connections: 3,
            max_connections_per_client: 2,
            ..ServerLimits::default()
        };
        let counts = ConnectionCounts::new(limits, LimitMetrics::default());
        let admit = |text| counts.admit(client(text));
        let first = admit("10.0.0.1").unwrap();
        let _second = admit("10.0.0.1").unwrap();
        assert_eq!(admit("10.0.0.1").unwrap_err(), ConnectionRefusal::Client);
        let _other = admit("10.0.0.2").unwrap();
        assert_eq!(admit("10.0.0.3").unwrap_err(), ConnectionRefusal::Server);
        drop(first);
        let again = admit("10.0.0.1").unwrap();
        assert_eq!(counts.metrics.connections.get(), 3);
        drop((again, _second, _other));
        assert_eq!(counts.metrics.connections.get(), 0);
        assert!(counts.open.lock().unwrap().of_clients.is_empty());
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:10.0.0.1"), client("10.0.0.1"));
        assert_ne!(client("::1"), client("::2"));
    }

    #[test]
    fn few_open_files_mean_few_connections() {
        let limits = ServerLimits::default();
        assert_eq!(limits.within(1 << 20), limits);
        let few = limits.within(1024);
        assert_eq!(
            (few.max_connections, few.max_connections_per_client),
            (768, 576)
        );
    }
}
