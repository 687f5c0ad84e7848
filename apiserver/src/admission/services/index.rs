//! The addresses and node ports that are taken, in memory, kept by the feeder of the watch cache.

use std::sync::{Arc, PoisonError, RwLock};

use podplane_api::networking::{IPAddress, ServiceCIDR};
use podplane_ipam::{NumberSet, ServiceAddresses};
use podplane_store::{Item, Key, KeyEvent, Prefix, Revision};
use tokio::sync::watch;

use super::{NODE_PORTS, address_of, node_port_of};
use crate::{
    cache::{Feeder, Sink},
    fatal::or_abort,
    storage,
};

/// The state that a panic would leave half-changed, for the log.
const STATE: &str = "index of service addresses";

/// The addresses and ports of Services, and the addresses of whoever else has an IPAddress.
#[derive(Debug, Default)]
pub(crate) struct AllocatedNumbers {
    pub(super) addresses: ServiceAddresses,
    pub(super) node_ports: NumberSet,
}

/// The index. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ServiceIndex {
    taken: Arc<RwLock<AllocatedNumbers>>,
    /// Counts the changes that may complete the deletion of a ServiceCIDR.
    changes: watch::Sender<u64>,
}

impl ServiceIndex {
    /// An index that `feeder` keeps.
    pub(crate) fn follow(feeder: &mut Feeder) -> Self {
        let index = Self {
            taken: Arc::default(),
            changes: watch::Sender::new(0),
        };
        let mut follow = |part, prefix| {
            let index = index.clone();
            feeder.add(Arc::new(IndexSink {
                prefix,
                part,
                index,
            }));
        };
        follow(IndexedKeys::Addresses, storage::prefix::<IPAddress>());
        follow(IndexedKeys::NodePorts, Prefix::from(NODE_PORTS));
        follow(IndexedKeys::Ranges, storage::prefix::<ServiceCIDR>());
        index
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&AllocatedNumbers) -> T) -> T {
        // A panic while the index changes ends the process.
        look(&self.taken.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announces each change of a ServiceCIDR, and each address that is freed.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexedKeys {
    Addresses,
    NodePorts,
    Ranges,
}

struct IndexSink {
    prefix: Prefix,
    part: IndexedKeys,
    index: ServiceIndex,
}

impl IndexSink {
    fn set(&self, taken: &mut AllocatedNumbers, key: &Key, is_taken: bool) {
        match self.part {
            IndexedKeys::Addresses => {
                if let Some(address) = address_of(key) {
                    match is_taken {
                        true => taken.addresses.insert(address),
                        false => taken.addresses.remove(address),
                    };
                }
            }
            IndexedKeys::NodePorts => {
                if let Some(port) = node_port_of(key).map(u128::from) {
                    match is_taken {
                        true => taken.node_ports.insert(port),
                        false => taken.node_ports.remove(port),
                    };
                }
            }
            IndexedKeys::Ranges => {}
        }
    }

    fn change(&self, change: impl FnOnce(&mut AllocatedNumbers)) {
        or_abort(STATE, || {
            let taken = self.index.taken.write();
            change(&mut taken.unwrap_or_else(PoisonError::into_inner));
        });
    }
}

impl Sink for IndexSink {
    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn load(&self, items: &[Arc<Item>], _at: Revision) {
        self.change(|taken| {
            for item in items {
                self.set(taken, &item.key, true);
            }
        });
    }

    fn apply(&self, _revision: Revision, events: &[KeyEvent]) {
        let is_put = |event: &KeyEvent| matches!(event, KeyEvent::Put { .. });
        self.change(|taken| {
            for event in events {
                self.set(taken, event.key(), is_put(event));
            }
        });
        if self.part == IndexedKeys::Ranges || !events.iter().all(is_put) {
            self.index.changes.send_modify(|count| *count += 1);
        }
    }

    fn watches(&self) -> usize {
        0
    }

    fn wake(&self) {}
}
