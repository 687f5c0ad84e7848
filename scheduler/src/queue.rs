//! The pods that wait for a node.
//!
//! A pod is *active* (ready to be tried), *backing off* (tried in vain not long ago), *unschedulable* (tried in vain, and
//! nothing has changed since that could help) or *in flight* (taken by the scheduler, which has yet to say how it went).
//! Active pods are taken by priority, then by how long they have waited.
//!
//! Time is an argument: how long it is since some fixed moment. Whoever owns the queue decides about a pod before it
//! tells the queue of the next event, so no event can pass by a pod that is being looked at.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{names::PodUid, pod::PodInfo};

#[cfg(test)]
mod tests;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// How long a pod waits for an event at most. If a change that helps should be missed, this repairs it.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(5 * 60);
/// How often pods are looked for that have waited that long.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// How long a pod that failed `count` times in a row backs off: 1 s, 2 s, 4 s, 8 s, then 10 s.
pub fn backoff(count: u32) -> Duration {
    let Some(doublings) = count.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    INITIAL_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
}

/// A pod that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The pod, as last heard of.
    pub pod: Arc<PodInfo>,
    /// How often it was tried.
    pub attempts: u32,
    /// Why the last try was in vain; empty before the first.
    pub message: String,
    /// Where it is.
    pub place: Place,
    /// The filters that refused a node at the last try.
    pub rejected_by: BTreeSet<&'static str>,
    /// When it was first heard of.
    arrived: Duration,
    /// Since when: its arrival, then the end of its last try.
    since: Duration,
    /// Tries in vain, and errors since the last of these.
    rejections: u32,
    errors: u32,
}

impl Waiting {
    /// How often it was tried, and since when it is known.
    pub fn history(&self) -> (u32, Duration) {
        (self.attempts, self.arrived)
    }

    /// Since when it waits: its arrival, then the end of its last try.
    pub fn since(&self) -> Duration {
        self.since
    }
}

/// How many pods there are in each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Ready to be tried.
    pub active: usize,
    /// Backing off, after a refusal or an error.
    pub backoff: usize,
    /// Waiting for a change.
    pub unschedulable: usize,
}

/// Where a waiting pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ready to be tried.
    Active,
    /// Not to be tried before this moment, unless there is nothing else to do.
    BackingOff(Duration),
    /// Not to be tried before this moment: something went wrong, and hurrying would make it worse.
    BackingOffError(Duration),
    /// To be tried when something changes that can help.
    Unschedulable,
    /// Being tried, or being bound.
    InFlight,
}

/// The order of the active pods.
type ActiveKey = (Reverse<i32>, Duration, PodUid);

/// See the module. It holds each waiting pod once, so the pods of the cluster bound it.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<PodUid, Waiting>,
    // Indexes over `waiting`, by `Place`.
    active: BTreeSet<ActiveKey>,
    backing_off: BTreeSet<(Duration, PodUid)>,
    backing_off_error: BTreeSet<(Duration, PodUid)>,
    unschedulable: BTreeSet<(Duration, PodUid)>,
    next_flush: Duration,
}

impl Queue {
    /// Adds a pod, or takes its new state. One that now asks for something else is tried again.
    pub fn upsert(&mut self, pod: Arc<PodInfo>, now: Duration) {
        let uid = pod.uid.clone();
        let Some(known) = self.waiting.get_mut(&uid) else {
            let waiting = Waiting {
                pod,
                attempts: 0,
                message: String::new(),
                place: Place::Active,
                rejected_by: BTreeSet::new(),
                arrived: now,
                since: now,
                rejections: 0,
                errors: 0,
            };
            self.waiting.insert(uid.clone(), waiting);
            self.move_to(&uid, Place::Active);
            return;
        };
        let place = known.place;
        let again = place == Place::Unschedulable && known.pod.asks_otherwise(&pod);
        // The priority is part of an index, so the pod leaves that before it changes.
        self.unindex(&uid);
        self.update(&uid, |known| known.pod = pod);
        match again {
            true => self.retry(&uid, now),
            false => self.move_to(&uid, place),
        }
    }

    /// Removes a pod that needs no node any more, wherever it is.
    pub fn remove(&mut self, uid: &PodUid) {
        self.unindex(uid);
        self.waiting.remove(uid);
    }

    /// Takes the next pod to try. Its end must be told: [`Queue::reject`], [`Queue::fail`] or [`Queue::remove`].
    ///
    /// If none is active, a pod whose back-off is not over is taken rather than nothing, as the reference does since
    /// 1.33: it backs off in favour of others, and there are none. After an error it is not.
    pub fn pop(&mut self, now: Duration) -> Option<Arc<PodInfo>> {
        self.end_backoffs(now);
        let active = self.active.first().map(|(_, _, uid)| uid);
        let uid = active.or_else(|| self.backing_off.first().map(|(_, uid)| uid))?;
        let uid = uid.clone();
        self.move_to(&uid, Place::InFlight);
        let waiting = self.waiting.get_mut(&uid)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        Some(waiting.pod.clone())
    }

    /// The pod in flight fits nowhere: it waits until [`Queue::wake`] finds that one of these filters may think otherwise.
    pub fn reject(
        &mut self,
        uid: &PodUid,
        rejected_by: BTreeSet<&'static str>,
        message: String,
        now: Duration,
    ) {
        let landed = self.land(uid, message, now, |waiting| {
            waiting.rejected_by = rejected_by;
            waiting.rejections = waiting.rejections.saturating_add(1);
            waiting.errors = 0;
        });
        if landed {
            self.move_to(uid, Place::Unschedulable);
        }
    }

    /// The try failed for a reason that is not the pod's: it is tried again after a back-off.
    pub fn fail(&mut self, uid: &PodUid, message: String, now: Duration) {
        let landed = self.land(uid, message, now, |waiting| {
            waiting.rejected_by.clear();
            waiting.errors = waiting.errors.saturating_add(1);
        });
        if landed {
            self.retry(uid, now);
        }
    }

    /// Something changed: tries again the unschedulable pods that `helped` says it can help.
    pub fn wake(
        &mut self,
        now: Duration,
        helped: impl Fn(&PodInfo, &BTreeSet<&'static str>) -> bool,
    ) {
        let waits = self.unschedulable.iter().map(|(_, uid)| uid);
        let woken = waits.filter(|uid| {
            let waiting = self.waiting.get(uid);
            waiting.is_some_and(|w| helped(&w.pod, &w.rejected_by))
        });
        for uid in woken.cloned().collect::<Vec<_>>() {
            self.retry(&uid, now);
        }
    }

    /// Does what has become due: ends back-offs, and every 30 s tries pods again that have been unschedulable for 5 min.
    pub fn tick(&mut self, now: Duration) {
        self.end_backoffs(now);
        if now < self.next_flush {
            return;
        }
        self.next_flush = now + FLUSH_INTERVAL;
        while let Some((since, uid)) = self.unschedulable.first().cloned() {
            if since + MAX_UNSCHEDULABLE > now {
                break;
            }
            self.retry(&uid, now);
        }
    }

    /// Whether [`Queue::pop`] would find a pod.
    pub fn is_ready(&self, now: Duration) -> bool {
        let due = self.backing_off_error.first();
        !self.active.is_empty()
            || !self.backing_off.is_empty()
            || due.is_some_and(|(until, _)| *until <= now)
    }

    /// When [`Queue::tick`] will have something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        let backoffs = [&self.backing_off, &self.backing_off_error];
        let ends = backoffs
            .into_iter()
            .filter_map(|pods| pods.first().map(|(until, _)| *until));
        let oldest = self.unschedulable.first();
        let flush = oldest.map(|(since, _)| (*since + MAX_UNSCHEDULABLE).max(self.next_flush));
        ends.chain(flush).min()
    }

    /// How many pods wait, and in which way.
    pub fn pending(&self) -> Pending {
        Pending {
            active: self.active.len(),
            backoff: self.backing_off.len() + self.backing_off_error.len(),
            unschedulable: self.unschedulable.len(),
        }
    }

    /// When a pod is tried again if nothing happens; at once if it is ready, never if it is being tried.
    pub fn next_try(&self, uid: &PodUid) -> Option<Duration> {
        let waiting = self.waiting.get(uid)?;
        match waiting.place {
            Place::Active => Some(Duration::ZERO),
            Place::BackingOff(until) | Place::BackingOffError(until) => Some(until),
            Place::Unschedulable => Some((waiting.since + MAX_UNSCHEDULABLE).max(self.next_flush)),
            Place::InFlight => None,
        }
    }

    /// What is known of a pod that waits.
    pub fn get(&self, uid: &PodUid) -> Option<&Waiting> {
        self.waiting.get(uid)
    }

    /// Records how a flight ended. `false` if the pod is not in flight: it was removed meanwhile, and perhaps added again.
    fn land(
        &mut self,
        uid: &PodUid,
        message: String,
        now: Duration,
        record: impl FnOnce(&mut Waiting),
    ) -> bool {
        let in_flight = |waiting: &&mut Waiting| waiting.place == Place::InFlight;
        let Some(waiting) = self.waiting.get_mut(uid).filter(in_flight) else {
            return false;
        };
        waiting.message = message;
        waiting.since = now;
        record(waiting);
        true
    }

    /// To the active pods, by way of what is left of the back-off.
    fn retry(&mut self, uid: &PodUid, now: Duration) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let place = match waiting.errors {
            0 => Place::BackingOff(waiting.since + backoff(waiting.rejections)),
            errors => Place::BackingOffError(waiting.since + backoff(errors)),
        };
        match place {
            Place::BackingOff(until) | Place::BackingOffError(until) if until > now => {
                self.move_to(uid, place);
            }
            _ => self.move_to(uid, Place::Active),
        }
    }

    fn end_backoffs(&mut self, now: Duration) {
        loop {
            let due = [&self.backing_off, &self.backing_off_error]
                .into_iter()
                .filter_map(|pods| pods.first())
                .find(|(until, _)| *until <= now);
            let Some(uid) = due.map(|(_, uid)| uid.clone()) else {
                return;
            };
            self.move_to(&uid, Place::Active);
        }
    }

    fn update(&mut self, uid: &PodUid, change: impl FnOnce(&mut Waiting)) {
        if let Some(waiting) = self.waiting.get_mut(uid) {
            change(waiting);
        }
    }

    /// Puts the pod into `place` and nowhere else.
    fn move_to(&mut self, uid: &PodUid, place: Place) {
        self.unindex(uid);
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return;
        };
        waiting.place = place;
        let uid = uid.clone();
        match place {
            Place::Active => {
                let priority = Reverse(waiting.pod.priority());
                self.active.insert((priority, waiting.since, uid));
            }
            Place::BackingOff(until) => {
                self.backing_off.insert((until, uid));
            }
            Place::BackingOffError(until) => {
                self.backing_off_error.insert((until, uid));
            }
            Place::Unschedulable => {
                self.unschedulable.insert((waiting.since, uid));
            }
            Place::InFlight => {}
        }
    }

    /// Takes the pod out of the index of its place; whoever calls this gives it another.
    fn unindex(&mut self, uid: &PodUid) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let uid = uid.clone();
        match waiting.place {
            Place::Active => {
                let priority = Reverse(waiting.pod.priority());
                self.active.remove(&(priority, waiting.since, uid));
            }
            Place::BackingOff(until) => {
                self.backing_off.remove(&(until, uid));
            }
            Place::BackingOffError(until) => {
                self.backing_off_error.remove(&(until, uid));
            }
            Place::Unschedulable => {
                self.unschedulable.remove(&(waiting.since, uid));
            }
            Place::InFlight => {}
        }
    }
}
