//! The rtnetlink socket: links, addresses, routes.

use std::{fmt, path::Path};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{
    NetlinkError,
    socket::{CHANGE, Connection, OutgoingMessage},
};
use crate::{limit::KernelLimit, netns};

/// A change, ready to be sent.
#[derive(Debug, Clone)]
pub struct Request(pub(super) OutgoingMessage<RouteNetlinkMessage>);

impl Request {
    pub(super) fn new(
        attempt: impl fmt::Display,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Self {
        let limited = match message {
            RouteNetlinkMessage::NewNeighbour(_) => KernelLimit::Neighbours,
            _ => KernelLimit::Links,
        };
        Self(OutgoingMessage {
            attempt: attempt.to_string(),
            limited,
            message,
            flags: CHANGE | flags,
        })
    }
}

/// An rtnetlink socket. It stays in the network namespace it was opened in, whichever thread uses
/// it.
#[derive(Debug)]
pub struct Netlink(pub(super) Connection<RouteNetlinkMessage>);

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        Connection::open(NETLINK_ROUTE).map(Self)
    }

    /// Opens a socket in another namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`] and [`NetlinkError::Netns`].
    pub fn open_in(netns: &Path) -> Result<Self, NetlinkError> {
        netns::in_netns(netns, Self::open)?
    }

    /// Sends changes, many at a time. The kernel makes them in order, and continues after one that
    /// fails.
    ///
    /// # Errors
    /// The first change that failed.
    pub fn execute(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<(), NetlinkError> {
        // Acknowledgements of more than a few hundred overflow the socket's receive buffer.
        const BATCH: usize = 100;
        let mut requests = requests.into_iter().map(|request| request.0);
        let mut outcome = Ok(());
        loop {
            let batch: Vec<_> = requests.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return outcome;
            }
            outcome = outcome.and(self.0.transact(batch));
        }
    }

    /// Asks for one object.
    pub(super) fn get(
        &mut self,
        attempt: &str,
        message: RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, NetlinkError> {
        self.0.get(attempt, message)
    }

    /// Asks for all objects of a kind.
    pub(super) fn dump(
        &mut self,
        attempt: &str,
        message: &RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.0.dump(attempt, message)
    }
}
