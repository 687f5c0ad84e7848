//! The pods that wait for a node.
//!
//! A pod is *active* (ready for an attempt), *backing off* (its last attempt failed recently),
//! *unschedulable* (its last attempt failed, and no change since could help) or *in flight* (taken
//! by the scheduler, which has not reported the result yet). Active pods are taken by priority,
//! then by the time of their wait.
//!
//! Time is an argument: the duration since some fixed moment. The queue's owner decides about a pod
//! before it reports the next event to the queue, so no event can pass by a pod in flight.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    names::{NodeName, PodUid},
    pod::PodInfo,
};

mod refusals;
#[cfg(test)]
mod tests;

pub use refusals::RefusalCounts;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The interval between attempts that only renew the reason why a pod waits.
const RENEWAL_INTERVAL: Duration = Duration::from_millis(10);
/// Back-offs end together at the end of such a window, and are taken by priority within it.
const BACKOFF_WINDOW: Duration = Duration::from_secs(1);
/// The longest wait of a pod for an event, in case a change that helps was missed.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(5 * 60);
/// The interval at which pods that have waited that long are retried.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);

/// The back-off after `count` failed attempts in a row: 1 s, 2 s, 4 s, 8 s, then 10 s.
pub fn backoff(count: u32) -> Duration {
    let Some(doublings) = count.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    INITIAL_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
}

/// The end of a back-off: that of the window in which it elapses, as in the reference since 1.33.
fn backoff_end(elapses: Duration) -> Duration {
    Duration::from_secs(elapses.as_secs()) + BACKOFF_WINDOW
}

/// A pod in the queue.
#[derive(Clone, Debug)]
pub struct WaitingPod {
    /// The pod in its latest known state.
    pub pod: Arc<PodInfo>,
    /// The number of attempts.
    pub attempts: u32,
    /// The reason why the last attempt failed; empty before the first.
    pub message: String,
    /// Its place in the queue.
    pub place: QueuePlace,
    /// The filters that refused a node at the last attempt.
    pub rejected_by: BTreeSet<&'static str>,
    /// The room that the pod was woken for, until its next attempt.
    room: Option<Room>,
    /// The last event that woke the pod.
    woken_by: EventId,
    /// The time at which it was first observed.
    arrived: Duration,
    /// The start of its present wait: its arrival, then the end of its last attempt.
    since: Duration,
    /// Failed attempts, and errors since the last of these.
    rejections: u32,
    errors: u32,
}

impl WaitingPod {
    /// The number of attempts, and the time at which the pod was first observed.
    pub fn history(&self) -> (u32, Duration) {
        (self.attempts, self.arrived)
    }

    /// The start of its present wait: its arrival, then the end of its last attempt.
    pub fn since(&self) -> Duration {
        self.since
    }

    fn key(&self) -> TakeKey {
        (
            Reverse(self.pod.priority()),
            self.since,
            self.pod.uid.clone(),
        )
    }
}

/// The number of an event, in the order in which they happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId(pub u64);

/// The room on a node that an event made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The node.
    pub node: NodeName,
    /// The event.
    pub event: EventId,
}

/// The number of pods in each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// Ready for an attempt.
    pub active: usize,
    /// Backing off, after a refusal or an error.
    pub backoff: usize,
    /// Waiting for a change.
    pub unschedulable: usize,
}

/// The place of a waiting pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePlace {
    /// Ready for an attempt.
    Active,
    /// Not before this time, unless no pod is active.
    BackingOff(Duration),
    /// Not before this time, even if the queue is idle: after an error, haste would make it worse.
    BackingOffError(Duration),
    /// Until a change that can help.
    Unschedulable,
    /// In an attempt, or being bound.
    InFlight,
}

/// The order in which pods are taken: by priority, then by the time of their wait.
type TakeKey = (Reverse<i32>, Duration, PodUid);

/// The order of pods that back off: by the end of the window, then as they are taken.
type BackoffKey = (Duration, TakeKey);

/// The queue of pods. It holds each waiting pod once, so the number of the cluster's pods bounds
/// it.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<PodUid, WaitingPod>,
    // Indexes over `waiting`, by `QueuePlace`.
    active: BTreeSet<TakeKey>,
    backing_off: BTreeSet<BackoffKey>,
    backing_off_error: BTreeSet<BackoffKey>,
    unschedulable: BTreeSet<TakeKey>,
    /// The unschedulable pods again, by the start of their wait.
    unschedulable_since: BTreeSet<(Duration, PodUid)>,
    /// The unschedulable pods whose reason may be outdated.
    outdated: BTreeSet<TakeKey>,
    next_renewal: Duration,
    /// The pods that were woken for room on a node, and were not attempted since.
    rooms: BTreeMap<NodeName, BTreeSet<PodUid>>,
    next_flush: Duration,
    /// The sum over `rejected_by` of all waiting pods.
    refusals: RefusalCounts,
}

impl Queue {
    /// Adds or updates a pod. One with new needs is retried.
    pub fn upsert(&mut self, pod: Arc<PodInfo>, now: Duration) {
        let uid = pod.uid.clone();
        let Some(known) = self.waiting.get_mut(&uid) else {
            let waiting = WaitingPod {
                pod,
                attempts: 0,
                message: String::new(),
                place: QueuePlace::Active,
                rejected_by: BTreeSet::new(),
                room: None,
                woken_by: EventId::default(),
                arrived: now,
                since: now,
                rejections: 0,
                errors: 0,
            };
            self.waiting.insert(uid.clone(), waiting);
            self.move_to(&uid, QueuePlace::Active);
            return;
        };
        let place = known.place;
        let again = place == QueuePlace::Unschedulable && known.pod.has_other_needs_than(&pod);
        // The priority is part of an index, so the pod leaves that before it changes.
        self.unindex(&uid);
        self.update(&uid, |known| known.pod = pod);
        match again {
            true => self.retry(&uid, now),
            false => self.move_to(&uid, place),
        }
    }

    /// Removes a pod that needs no node any more, wherever it is. Returns the room that it was woken
    /// for, which others may use now.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Room> {
        self.unindex(uid);
        let room = self.take_room(uid);
        self.set_rejected_by(uid, BTreeSet::new());
        self.waiting.remove(uid);
        room
    }

    /// Takes the next pod. The result of its attempt must be reported: [`Queue::reject`],
    /// [`Queue::fail`] or [`Queue::remove`].
    ///
    /// If none is active, a pod that still backs off is taken, as the reference does since 1.33: it
    /// backs off in favour of others, and there are none. A pod that backs off after an error is
    /// not. If there is none of these either, a pod whose reason is outdated gets another attempt,
    /// a hundred each second.
    pub fn pop(&mut self, now: Duration) -> Option<Arc<PodInfo>> {
        self.end_backoffs(now);
        let backing_off = || self.backing_off.first().map(|(_, key)| key);
        let mut next = self.active.first().or_else(backing_off);
        if next.is_none() && now >= self.next_renewal {
            self.next_renewal = now + RENEWAL_INTERVAL;
            next = self.outdated.first();
        }
        let (_, _, uid) = next?;
        let uid = uid.clone();
        self.move_to(&uid, QueuePlace::InFlight);
        let waiting = self.waiting.get_mut(&uid)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        Some(waiting.pod.clone())
    }

    /// Records that no node fits the pod in flight: it waits until [`Queue::wake`] finds that one
    /// of these filters may change its result.
    pub fn reject(
        &mut self,
        uid: &PodUid,
        rejected_by: BTreeSet<&'static str>,
        message: String,
        now: Duration,
    ) {
        let landed = self.land(uid, message, now, |waiting| {
            waiting.rejections = waiting.rejections.saturating_add(1);
            waiting.errors = 0;
        });
        if landed {
            self.set_rejected_by(uid, rejected_by);
            self.move_to(uid, QueuePlace::Unschedulable);
        }
    }

    /// Records that the attempt failed for a reason other than the pod: it is retried after a
    /// back-off.
    pub fn fail(&mut self, uid: &PodUid, message: String, now: Duration) {
        let landed = self.land(uid, message, now, |waiting| {
            waiting.errors = waiting.errors.saturating_add(1);
        });
        if landed {
            self.set_rejected_by(uid, BTreeSet::new());
            self.retry(uid, now);
        }
    }

    /// Records that the attempt was in vain for a reason that the next one knows of: the pod is
    /// retried at once.
    pub fn retry_now(&mut self, uid: &PodUid, message: String, now: Duration) {
        if self.land(uid, message, now, |_| {}) {
            self.move_to(uid, QueuePlace::Active);
        }
    }

    /// The unschedulable pods that the event has not woken, in the order in which pods are taken.
    pub fn unschedulable(&self, event: EventId) -> impl Iterator<Item = &WaitingPod> {
        let pods = self.unschedulable.iter();
        let pods = pods.filter_map(|(_, _, uid)| self.waiting.get(uid));
        pods.filter(move |waiting| waiting.woken_by < event)
    }

    /// The pods that were woken for room on the node, and were not attempted since.
    pub fn woken_for(&self, node: &NodeName) -> impl Iterator<Item = &Arc<PodInfo>> {
        let pods = self.rooms.get(node).into_iter().flatten();
        pods.filter_map(|uid| Some(&self.waiting.get(uid)?.pod))
    }

    /// Retries an unschedulable pod after an event that can help it; `node` is the node on which the
    /// event made room for it, if it is about one node.
    pub fn wake(&mut self, uid: &PodUid, event: EventId, node: Option<NodeName>, now: Duration) {
        let room = node.map(|node| Room { node, event });
        if let Some(Room { node, .. }) = &room {
            let pods = self.rooms.entry(node.clone()).or_default();
            pods.insert(uid.clone());
        }
        self.update(uid, |waiting| {
            waiting.woken_by = event;
            waiting.room = room;
        });
        self.retry(uid, now);
    }

    /// Retries the pod after its back-off, if it is unschedulable.
    pub fn retry_unschedulable(&mut self, uid: &PodUid, now: Duration) {
        let place = self.waiting.get(uid).map(|waiting| waiting.place);
        if place == Some(QueuePlace::Unschedulable) {
            self.retry(uid, now);
        }
    }

    /// Records that the reason why an unschedulable pod waits may be outdated.
    pub fn set_outdated(&mut self, uid: &PodUid) {
        if let Some(waiting) = self.waiting.get(uid)
            && waiting.place == QueuePlace::Unschedulable
        {
            self.outdated.insert(waiting.key());
        }
    }

    /// Returns the room that the pod was woken for, when its attempt has come.
    pub fn take_room(&mut self, uid: &PodUid) -> Option<Room> {
        let room = self.waiting.get_mut(uid)?.room.take()?;
        if let Some(pods) = self.rooms.get_mut(&room.node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.rooms.remove(&room.node);
            }
        }
        Some(room)
    }

    /// Handles the passing of time: ends back-offs, and every 30 s retries pods that have been
    /// unschedulable for 5 min.
    pub fn tick(&mut self, now: Duration) {
        self.end_backoffs(now);
        if now < self.next_flush {
            return;
        }
        self.next_flush = now + FLUSH_INTERVAL;
        while let Some((since, uid)) = self.unschedulable_since.first().cloned() {
            if since + MAX_UNSCHEDULABLE > now {
                break;
            }
            self.retry(&uid, now);
        }
    }

    /// Returns whether [`Queue::pop`] would return a pod.
    pub fn is_ready(&self, now: Duration) -> bool {
        let due = self.backing_off_error.first();
        !self.active.is_empty()
            || !self.backing_off.is_empty()
            || (!self.outdated.is_empty() && self.next_renewal <= now)
            || due.is_some_and(|(until, _)| *until <= now)
    }

    /// The next time at which [`Queue::tick`] has work, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Duration> {
        let backoffs = [&self.backing_off, &self.backing_off_error];
        let ends = backoffs
            .into_iter()
            .filter_map(|pods| pods.first().map(|(until, _)| *until));
        let oldest = self.unschedulable_since.first();
        let flush = oldest.map(|(since, _)| (*since + MAX_UNSCHEDULABLE).max(self.next_flush));
        let renewal = (!self.outdated.is_empty()).then_some(self.next_renewal);
        ends.chain(flush).chain(renewal).min()
    }

    /// The numbers of waiting pods, by place.
    pub fn pending(&self) -> QueueLengths {
        QueueLengths {
            active: self.active.len(),
            backoff: self.backing_off.len() + self.backing_off_error.len(),
            unschedulable: self.unschedulable.len(),
        }
    }

    /// The numbers of waiting pods that each filter refused a node at the pod's last attempt.
    pub fn refusals(&self) -> &RefusalCounts {
        &self.refusals
    }

    /// The time of the pod's next attempt if nothing happens: now if it is ready, `None` if it is
    /// in flight.
    pub fn next_attempt_at(&self, uid: &PodUid) -> Option<Duration> {
        let waiting = self.waiting.get(uid)?;
        match waiting.place {
            QueuePlace::Active => Some(Duration::ZERO),
            QueuePlace::BackingOff(until) | QueuePlace::BackingOffError(until) => Some(until),
            QueuePlace::Unschedulable => {
                Some((waiting.since + MAX_UNSCHEDULABLE).max(self.next_flush))
            }
            QueuePlace::InFlight => None,
        }
    }

    /// The state of a waiting pod.
    pub fn get(&self, uid: &PodUid) -> Option<&WaitingPod> {
        self.waiting.get(uid)
    }

    /// Ends a flight. Returns `false` if the pod is not in flight: it was removed meanwhile, and
    /// perhaps added again.
    fn land(
        &mut self,
        uid: &PodUid,
        message: String,
        now: Duration,
        record: impl FnOnce(&mut WaitingPod),
    ) -> bool {
        let in_flight = |waiting: &&mut WaitingPod| waiting.place == QueuePlace::InFlight;
        let Some(waiting) = self.waiting.get_mut(uid).filter(in_flight) else {
            return false;
        };
        waiting.message = message;
        waiting.since = now;
        record(waiting);
        true
    }

    /// Makes the pod active, after the rest of its back-off.
    fn retry(&mut self, uid: &PodUid, now: Duration) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let end = |failures| backoff_end(waiting.since + backoff(failures));
        let place = match waiting.errors {
            0 => QueuePlace::BackingOff(end(waiting.rejections)),
            errors => QueuePlace::BackingOffError(end(errors)),
        };
        match place {
            QueuePlace::BackingOff(until) | QueuePlace::BackingOffError(until) if until > now => {
                self.move_to(uid, place);
            }
            _ => self.move_to(uid, QueuePlace::Active),
        }
    }

    fn end_backoffs(&mut self, now: Duration) {
        loop {
            let due = [&self.backing_off, &self.backing_off_error]
                .into_iter()
                .filter_map(|pods| pods.first())
                .find(|(until, _)| *until <= now);
            let Some(uid) = due.map(|(_, (_, _, uid))| uid.clone()) else {
                return;
            };
            self.move_to(&uid, QueuePlace::Active);
        }
    }

    /// Records the filters that refused the pod a node at its last attempt.
    fn set_rejected_by(&mut self, uid: &PodUid, rejected_by: BTreeSet<&'static str>) {
        if let Some(waiting) = self.waiting.get_mut(uid) {
            self.refusals.remove(&waiting.rejected_by);
            self.refusals.add(&rejected_by);
            waiting.rejected_by = rejected_by;
        }
    }

    fn update(&mut self, uid: &PodUid, change: impl FnOnce(&mut WaitingPod)) {
        if let Some(waiting) = self.waiting.get_mut(uid) {
            change(waiting);
        }
    }

    /// Moves the pod to `place`.
    fn move_to(&mut self, uid: &PodUid, place: QueuePlace) {
        self.unindex(uid);
        let Some(waiting) = self.waiting.get_mut(uid) else {
            return;
        };
        waiting.place = place;
        let key = waiting.key();
        match place {
            QueuePlace::Active => {
                self.active.insert(key);
            }
            QueuePlace::BackingOff(until) => {
                self.backing_off.insert((until, key));
            }
            QueuePlace::BackingOffError(until) => {
                self.backing_off_error.insert((until, key));
            }
            QueuePlace::Unschedulable => {
                self.unschedulable_since
                    .insert((waiting.since, uid.clone()));
                self.unschedulable.insert(key);
            }
            QueuePlace::InFlight => {}
        }
    }

    /// Removes the pod from the index of its place; the caller moves it to another.
    fn unindex(&mut self, uid: &PodUid) {
        let Some(waiting) = self.waiting.get(uid) else {
            return;
        };
        let key = waiting.key();
        match waiting.place {
            QueuePlace::Active => {
                self.active.remove(&key);
            }
            QueuePlace::BackingOff(until) => {
                self.backing_off.remove(&(until, key));
            }
            QueuePlace::BackingOffError(until) => {
                self.backing_off_error.remove(&(until, key));
            }
            QueuePlace::Unschedulable => {
                self.unschedulable_since
                    .remove(&(waiting.since, uid.clone()));
                self.outdated.remove(&key);
                self.unschedulable.remove(&key);
            }
            QueuePlace::InFlight => {}
        }
    }
}
