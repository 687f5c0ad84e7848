//! Checks with random sequences of calls: one call at a time against a model, and many at a time.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use podplane_cni::types::Version;
use rand::{RngExt as _, rngs::StdRng, seq::IndexedRandom as _};

use super::{CheckVerdict, kill::moment, lease::nothing_leaked, uncountable};
use crate::{
    Halt, Severity,
    exchange::{Interruption, PluginEnd},
    network::{AddOutcome, AttachmentKey, Network},
    session::Session,
};

/// One sequence at a time; after each call the plugin must agree with the model.
pub(super) fn sequence(session: &Session) -> Result<CheckVerdict, Halt> {
    let mut random = session.random("random-sequence", 0);
    for round in session.rounds(1) {
        if round % 10 != 0 {
            continue; // A sequence is worth ten rounds of other checks.
        }
        let network = session.network();
        let Some(capacity) = network.capacity()? else {
            return uncountable(session);
        };
        let mut model = AllocationModel {
            network: &network,
            capacity,
            unknown: BTreeMap::new(),
            time: session.time_of_add(&network)?,
            random: &mut random,
        };
        for _ in 0..session.sequence() {
            model.step()?;
        }
        network.clear()?;
        nothing_leaked(
            &network,
            ("random-sequence", Severity::Weakness),
            capacity,
            &[],
        )?;
    }
    Ok(CheckVerdict::Done)
}

struct AllocationModel<'a, 'b> {
    network: &'a Network<'b>,
    capacity: usize,
    /// The number of addresses that attachments may hold beside those of the ledger, after an ADD
    /// or DEL that was killed, or a GC that need not have freed them. A DEL frees them all.
    unknown: BTreeMap<AttachmentKey, usize>,
    time: std::time::Duration,
    random: &'a mut StdRng,
}

impl AllocationModel<'_, '_> {
    fn step(&mut self) -> Result<(), Halt> {
        // A few more containers than addresses, so that full and empty are both common.
        let number = self.random.random_range(0..self.capacity + 3);
        let key = AttachmentKey::new(format!("c{number}"));
        match self.random.random_range(0..100) {
            0..45 => self.add(&key),
            45..75 => self.del(&key),
            75..85 => self.check(&key),
            85..93 => self.kill(&key),
            _ => self.gc(),
        }
    }

    fn may_hold(&mut self, key: AttachmentKey) {
        *self.unknown.entry(key).or_default() += 1;
    }

    fn add(&mut self, key: &AttachmentKey) -> Result<(), Halt> {
        let held = self.network.held(key);
        let live = self.network.live().len();
        let (added, exchange) = self.network.add_exchange(key, Interruption::None)?;
        let session = self.network.session;
        let find = |seen: String, expected: &str| {
            let steps = held.iter().map(|held| held.add.clone());
            let steps = steps.chain([session.step(&exchange)]).collect();
            session.find(
                "random-sequence",
                Severity::Violation,
                seen,
                expected,
                steps,
            );
        };
        match (&added, &held) {
            (AddOutcome::Given(given), Some(held)) if *given != held.addresses => {
                find(
                    format!("a repeated ADD gives {given:?} after {:?}", held.addresses),
                    "an error, or the same addresses",
                );
                self.may_hold(key.clone());
            }
            // An ADD may be refused if the container may hold addresses already.
            (AddOutcome::Refused, None) if !self.unknown.contains_key(key) => {
                let may_be_taken = live + self.unknown.values().sum::<usize>();
                if may_be_taken < self.capacity {
                    find(
                        format!(
                            "ADD with at most {may_be_taken} of {} addresses taken: {}",
                            self.capacity,
                            exchange.summary()
                        ),
                        "an address, because one is free",
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn del(&mut self, key: &AttachmentKey) -> Result<(), Halt> {
        self.network.del(key)?;
        self.unknown.remove(key);
        Ok(())
    }

    fn check(&mut self, key: &AttachmentKey) -> Result<(), Halt> {
        let session = self.network.session;
        if session.version < Version::V0_4_0 {
            return Ok(());
        }
        let held = self.network.held(key);
        let exchange = self.network.check(key)?;
        if let Some(held) = held
            && !exchange.succeeded()
        {
            session.find(
                "random-sequence",
                Severity::Violation,
                format!("CHECK of a live attachment: {}", exchange.summary()),
                "success",
                vec![held.add, session.step(&exchange)],
            );
        }
        Ok(())
    }

    fn kill(&mut self, key: &AttachmentKey) -> Result<(), Halt> {
        let interruption = moment(self.random, self.network, self.time);
        if self.network.held(key).is_some() {
            let exchange = self.network.del_exchange(key, interruption)?;
            match exchange.end {
                PluginEnd::Interrupted => self.may_hold(key.clone()),
                _ => drop(self.unknown.remove(key)),
            }
        } else {
            let (added, _) = self.network.add_exchange(key, interruption)?;
            if matches!(added, AddOutcome::Unknown) {
                self.may_hold(key.clone());
            }
        }
        Ok(())
    }

    fn gc(&mut self) -> Result<(), Halt> {
        if self.network.session.version < Version::V1_1_0 {
            return Ok(());
        }
        let mut valid = self.network.live();
        let stale = valid.extract_if(.., |_| !self.random.random_bool(0.8));
        for key in stale.collect::<Vec<_>>() {
            // GC should free it, like what a killed call has left, but only a DEL is sure to.
            self.may_hold(key);
        }
        let exchange = self.network.gc(Some(&valid))?;
        if exchange.succeeded() {
            return Ok(());
        }
        let session = self.network.session;
        session.find(
            "random-sequence",
            Severity::Violation,
            format!("GC: {}", exchange.summary()),
            "success",
            vec![session.step(&exchange)],
        );
        Ok(())
    }
}

/// Runs `work` on as many threads as may run the plugin at a time, and returns the first error.
fn at_once(session: &Session, work: impl Fn(u64) -> Result<(), Halt> + Sync) -> Result<(), Halt> {
    let first = Mutex::new(None);
    thread::scope(|scope| {
        for worker in 0..u64::from(session.options.concurrency) {
            let (work, first) = (&work, &first);
            scope.spawn(move || {
                if let Err(error) = work(worker) {
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error);
                }
            });
        }
    });
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), Err)
}

/// More ADDs than there are addresses, all at once.
pub(super) fn concurrent_fill(session: &Session) -> Result<CheckVerdict, Halt> {
    for round in session.rounds(1) {
        if round % 20 != 0 {
            continue; // Each round is a lot of calls.
        }
        let network = session.network();
        let Some(capacity) = network.capacity()? else {
            return uncountable(session);
        };
        let wanted = capacity + session.more_than_addresses();
        let (next, given) = (AtomicUsize::new(0), AtomicUsize::new(0));
        at_once(session, |_| {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= wanted {
                    return Ok(());
                }
                let added = network.add(&AttachmentKey::new(format!("many-{number}")))?;
                if let AddOutcome::Given(_) = added {
                    given.fetch_add(1, Ordering::Relaxed);
                }
            }
        })?;
        let given = given.into_inner();
        if given != capacity {
            session.find_in(
                &network,
                "concurrent-fill",
                Severity::Violation,
                format!("{given} of {wanted} concurrent ADDs succeeded"),
                format!("{capacity}, as many as one after the other"),
            );
        }
        network.clear()?;
        nothing_leaked(
            &network,
            ("concurrent-fill", Severity::Violation),
            capacity,
            &[],
        )?;
    }
    Ok(CheckVerdict::Done)
}

pub(super) fn concurrent(session: &Session) -> Result<CheckVerdict, Halt> {
    concurrently(session, "concurrent-sequence", 0.0, Severity::Violation)
}

pub(super) fn concurrent_kill(session: &Session) -> Result<CheckVerdict, Halt> {
    // What a kill leaves behind is a leak; an address given twice is a finding of `add-unique`.
    concurrently(session, "concurrent-kill", 0.4, Severity::Weakness)
}

/// Threads that add and delete containers of their own. Together they have no more containers than
/// there are addresses, so no ADD may be refused.
fn concurrently(
    session: &Session,
    check: &'static str,
    killed: f64,
    severity: Severity,
) -> Result<CheckVerdict, Halt> {
    let network = session.network();
    let Some(capacity) = network.capacity()? else {
        return uncountable(session);
    };
    let workers = u64::from(session.options.concurrency);
    let time = session.time_of_add(&network)?;
    at_once(session, |worker| {
        let own: Vec<_> = (worker..)
            .step_by(usize::try_from(workers).unwrap_or(1))
            .take_while(|number| usize::try_from(*number).is_ok_and(|number| number < capacity))
            .map(|number| AttachmentKey::new(format!("w{number}")))
            .collect();
        let mut random = session.random(check, worker + 1);
        for _ in session.rounds(1) {
            let Some(key) = own.choose(&mut random) else {
                break; // More workers than addresses.
            };
            let kill = random.random_bool(killed);
            let moment = moment(&mut random, &network, time);
            let interruption = if kill { moment } else { Interruption::None };
            if network.held(key).is_some() {
                let del = network.del_exchange(key, interruption)?;
                if del.end == PluginEnd::Interrupted {
                    network.del(key)?;
                }
                continue;
            }
            let (added, exchange) = network.add_exchange(key, interruption)?;
            match added {
                AddOutcome::Given(_) => {}
                AddOutcome::Unknown => {
                    network.del(key)?;
                }
                AddOutcome::Refused => session.find(
                    check,
                    severity,
                    format!(
                        "ADD while fewer than {capacity} containers have an address: {}",
                        exchange.summary()
                    ),
                    "an address, because one is free",
                    vec![session.step(&exchange)],
                ),
            }
        }
        Ok(())
    })?;
    network.clear()?;
    nothing_leaked(&network, (check, severity), capacity, &[])?;
    Ok(CheckVerdict::Done)
}
