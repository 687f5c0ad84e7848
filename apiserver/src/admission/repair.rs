//! Repairs of what follows from objects, such as indexes, when a server starts. Other servers may
//! write to the same store meanwhile.

use futures::future::BoxFuture;
use podplane_store::{Guard, Item, MAX_WRITES, StoreError, Txn, Write};

use crate::engine::Engine;

/// The most attempts. Each that is in vain means that another server wrote what was to be repaired.
const ATTEMPTS: usize = 50;
/// Writes of one commit: each has two guards at most.
const AT_ONCE: usize = MAX_WRITES / 2;

/// A write, and the guards of what it follows from.
#[derive(Debug)]
pub(super) struct RepairWrite {
    write: Write,
    guards: Vec<Guard>,
}

impl RepairWrite {
    /// A write without guards.
    pub(super) fn new(write: Write) -> Self {
        Self {
            write,
            guards: Vec::new(),
        }
    }

    /// A write over what was found at its key, or nothing.
    pub(super) fn over(found: Option<&Item>, write: Write) -> Self {
        let key = write.key().clone();
        Self::new(write).while_holds(match found {
            None => Guard::Absent(key),
            Some(item) => Guard::At {
                key,
                revision: item.modified,
            },
        })
    }

    /// The same, as long as the object from which it follows has not changed.
    pub(super) fn from(self, source: &Item) -> Self {
        self.while_holds(Guard::At {
            key: source.key.clone(),
            revision: source.modified,
        })
    }

    /// The same, as long as this is so.
    pub(super) fn while_holds(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }
}

/// Commits what `plan` finds to repair; plans again what another server has changed meanwhile.
///
/// # Errors
///
/// Those of the store and of the plan.
pub(super) async fn repair<'a, E: From<StoreError>>(
    engine: &Engine,
    plan: impl Fn() -> BoxFuture<'a, Result<Vec<RepairWrite>, E>>,
) -> Result<(), E> {
    let mut attempts = 0;
    loop {
        let mut planned = plan().await?.into_iter().peekable();
        let mut overtaken = None;
        while planned.peek().is_some() {
            let mut txn = Txn::new();
            for RepairWrite { write, guards } in planned.by_ref().take(AT_ONCE) {
                txn.writes.push(write);
                txn.guards.extend(guards);
            }
            match engine.commit(txn).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() => overtaken = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        attempts += 1;
        match overtaken {
            None => return Ok(()),
            Some(error) if attempts == ATTEMPTS => return Err(error.into()),
            Some(_) => {}
        }
    }
}
