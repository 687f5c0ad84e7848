//! The open watches of users and of connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use podplane_service_runtime::{
    limits::ClientAddress,
    peer::{ConnectionState, ConnectionWatch},
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::Flow;

/// The limits of watches, and those that are open.
#[derive(Clone, Debug)]
pub(super) struct OpenWatches {
    /// 0 for no limit.
    most_of_user: usize,
    most_of_connection: usize,
    of_users: Arc<Mutex<HashMap<Flow, usize>>>,
    refused: Family<[(&'static str, &'static str); 1], Counter<u64, AtomicU64>>,
}

/// An open watch, counted until this is dropped.
#[derive(Debug)]
pub(super) struct UserWatch {
    user: Flow,
    of_users: Arc<Mutex<HashMap<Flow, usize>>>,
    _of_connection: Option<ConnectionWatch>,
}

/// The limit that a watch would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WatchRefusal {
    #[error("too many watches: this user has {0} open, and --max-watches-per-user allows no more")]
    User(usize),
    #[error(
        "too many watches: this connection has {0} open, and the rest of its streams is kept for other requests; use another connection"
    )]
    Connection(usize),
}

impl OpenWatches {
    pub(super) fn new(
        most_of_user: usize,
        most_of_connection: usize,
        registry: &mut Registry,
    ) -> Self {
        let refused = Family::default();
        registry.register(
            "podplane_watches_refused",
            "Watches refused because their user or connection has too many",
            refused.clone(),
        );
        for reason in ["user", "connection"] {
            drop(refused.get_or_create(&[("reason", reason)]));
        }
        Self {
            most_of_user,
            most_of_connection,
            of_users: Arc::default(),
            refused,
        }
    }

    /// Counts a watch of a user over a connection.
    pub(super) fn open(
        &self,
        user: &Flow,
        connection: Option<&ConnectionState>,
    ) -> Result<UserWatch, WatchRefusal> {
        let opened = self.count(user, connection);
        if let Err(refusal) = &opened {
            let reason = match refusal {
                WatchRefusal::User(_) => "user",
                WatchRefusal::Connection(_) => "connection",
            };
            self.refused.get_or_create(&[("reason", reason)]).inc();
        }
        opened
    }

    fn count(
        &self,
        user: &Flow,
        connection: Option<&ConnectionState>,
    ) -> Result<UserWatch, WatchRefusal> {
        let most = self.most_of_connection;
        let of_connection = match connection.map(|connection| connection.watch(most)) {
            Some(None) => return Err(WatchRefusal::Connection(most)),
            found => found.flatten(),
        };
        // All connections of a client without a name count together.
        let user = match user {
            Flow::Connection(address) => Flow::Client(ClientAddress::of_ip(address.ip())),
            user => user.clone(),
        };
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        let open = of_users.entry(user.clone()).or_default();
        if self.most_of_user > 0 && *open >= self.most_of_user {
            return Err(WatchRefusal::User(*open));
        }
        *open += 1;
        Ok(UserWatch {
            user,
            of_users: Arc::clone(&self.of_users),
            _of_connection: of_connection,
        })
    }
}

impl Drop for UserWatch {
    fn drop(&mut self) {
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = of_users.get_mut(&self.user) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                of_users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_watches_of_users_and_connections() {
        let watches = OpenWatches::new(2, 1, &mut Registry::default());
        let user = |name: &str| Flow::User(name.to_owned());
        let connections = [(); 4].map(|()| ConnectionState::default());
        let open = |name, at: usize| watches.open(&user(name), Some(&connections[at]));
        let first = open("ada", 0).unwrap();
        assert_eq!(open("ada", 0).unwrap_err(), WatchRefusal::Connection(1));
        let _second = open("ada", 1).unwrap();
        assert_eq!(open("ada", 2).unwrap_err(), WatchRefusal::User(2));
        let _other = open("eve", 2).unwrap();
        drop(first);
        let again = open("ada", 3).unwrap();
        assert_eq!(open("ada", 0).unwrap_err(), WatchRefusal::User(2));
        drop((again, _second, _other));
        assert!(watches.of_users.lock().unwrap().is_empty());
        // A refused watch of a user leaves the connection as it was.
        open("eve", 0).unwrap();
    }
}
