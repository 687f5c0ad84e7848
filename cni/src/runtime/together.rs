//! Operations on several networks of one container at once.

use std::{collections::BTreeSet, panic, thread};

use podplane_host::task;

use super::{Attachment, Runtime, RuntimeError};
use crate::types::{CniResult, NetworkConfigList};

impl Runtime {
    /// [`add`](Self::add) for several networks at once, each with an interface of its own, as
    /// containerd does it for a pod. Either all are attached or, if one fails, those that succeeded
    /// are detached in reverse order. Attachments that existed before this call stay.
    ///
    /// The specification wants the operations of one container in sequence. Plugins that share
    /// nothing but the container do not notice the difference; for others, call [`add`](Self::add)
    /// for each network.
    ///
    /// # Errors
    /// [`RuntimeError::SameInterface`] before any plugin is run. Otherwise all failures;
    /// [`RuntimeError::Rollback`] if something may be left behind.
    pub fn add_all(
        &self,
        networks: &[(NetworkConfigList, Attachment)],
    ) -> Result<Vec<CniResult>, RuntimeError> {
        distinct(networks)?;
        let was_there: Vec<_> = networks
            .iter()
            .map(|(list, attachment)| self.is_cached(list, attachment))
            .collect();
        let added = at_once(networks, |(list, attachment)| self.add(list, attachment));
        let undo = networks.iter().zip(&added).zip(&was_there);
        let undo: Vec<_> = undo
            .filter(|((_, added), was_there)| added.is_ok() && !**was_there)
            .map(|((network, _), _)| network)
            .collect();
        let (mut results, mut errors) = (Vec::new(), Vec::new());
        for added in added {
            match added {
                Ok(result) => results.push(result),
                Err(error) => errors.push(error),
            }
        }
        let Err(add) = RuntimeError::join(errors) else {
            return Ok(results);
        };
        let undone = undo.into_iter().rev();
        let undone = undone.filter_map(|(list, attachment)| self.del(list, attachment).err());
        match RuntimeError::join(undone.collect()) {
            Ok(()) => Err(add),
            Err(rollback) => Err(RuntimeError::Rollback {
                add: Box::new(add),
                rollback: Box::new(rollback),
            }),
        }
    }

    /// [`del`](Self::del) for several networks at once. Each is tried.
    ///
    /// # Errors
    /// All that failed.
    pub fn del_all(
        &self,
        networks: &[(NetworkConfigList, Attachment)],
    ) -> Result<(), RuntimeError> {
        let deleted = at_once(networks, |(list, attachment)| self.del(list, attachment));
        RuntimeError::join(deleted.into_iter().filter_map(Result::err).collect())
    }
}

fn distinct(networks: &[(NetworkConfigList, Attachment)]) -> Result<(), RuntimeError> {
    let mut seen = BTreeSet::new();
    for (_, attachment) in networks {
        let Attachment {
            container_id,
            ifname,
            ..
        } = attachment;
        if !seen.insert((container_id, ifname)) {
            return Err(RuntimeError::SameInterface {
                container_id: container_id.clone(),
                ifname: ifname.clone(),
            });
        }
    }
    Ok(())
}

/// Runs `work` for each item on a thread of its own. The results have the order of `items`.
fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items
            .iter()
            .map(|item| task::scoped_thread(scope, move || work(item)))
            .map(|started| started.expect("a thread can be started"))
            .collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|joined| joined.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
            .collect()
    })
}
