//! A queue of keys to reconcile.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// The first delay of a key that failed; doubled for each further failure up to [`MAX_DELAY`]. Kubernetes goes up to 1,000 s, which is an
/// outage of a quarter of an hour after the server is back.
const BASE_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Keys that need a look. Equal keys merge, and one key is never out twice at once: if it is added while it is out, it comes
/// again after [`WorkQueue::done`].
///
/// Its size is bounded by the number of different keys, which the caller's objects bound. Share it in an `Arc`.
#[derive(Debug)]
pub struct WorkQueue<Key> {
    state: Mutex<State<Key>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<Key> {
    ready: VecDeque<Key>,
    /// In `ready`, or added again while out.
    dirty: BTreeSet<Key>,
    out: BTreeSet<Key>,
    later: BTreeMap<(Instant, Key), ()>,
    failures: BTreeMap<Key, u32>,
}

impl<Key: Clone + Ord> Default for WorkQueue<Key> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: BTreeSet::new(),
            out: BTreeSet::new(),
            later: BTreeMap::new(),
            failures: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }
}

impl<Key: Clone + Ord> WorkQueue<Key> {
    /// Asks for a look at `key`.
    pub fn add(&self, key: Key) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Asks for a look after `delay`.
    pub fn add_after(&self, key: Key, delay: Duration) {
        self.lock().later.insert((Instant::now() + delay, key), ());
        self.changed.notify_one();
    }

    /// Asks for another look after a failure: after 5 ms, then twice as long each time up to 5 s, until [`WorkQueue::forget`].
    pub fn add_rate_limited(&self, key: Key) {
        let delay = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let delay = BASE_DELAY
                .saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX))
                .min(MAX_DELAY);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay);
    }

    /// Forgets the failures of `key`: it succeeded, or is gone.
    pub fn forget(&self, key: &Key) {
        self.lock().failures.remove(key);
    }

    /// The next key, which is out until [`WorkQueue::done`]. Waits for one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a key is taken only when it is returned.
    pub async fn get(&self) -> Key {
        loop {
            let due = {
                let mut state = self.lock();
                let due = state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.out.insert(key.clone());
                    if !state.ready.is_empty() {
                        // `notify_one` keeps one permit: pass it on to another worker.
                        self.changed.notify_one();
                    }
                    return key;
                }
                due
            };
            // Losing either wait loses nothing: the next turn looks at the state again.
            match due {
                None => self.changed.notified().await,
                Some(due) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
            }
        }
    }

    /// The look at `key` is over. If it was added meanwhile, it is ready again.
    pub fn done(&self, key: &Key) {
        let mut state = self.lock();
        state.out.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<Key>> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Clone + Ord> State<Key> {
    fn add(&mut self, key: Key) {
        if self.dirty.insert(key.clone()) && !self.out.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Makes ready what is due, and says when the next one will be.
    fn promote(&mut self, now: Instant) -> Option<Instant> {
        while let Some(((due, _), ())) = self.later.first_key_value() {
            if *due > now {
                return Some(*due);
            }
            if let Some(((_, key), ())) = self.later.pop_first() {
                self.add(key);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn equal_keys_merge_and_are_never_out_twice() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.get().await, "a");
        queue.add("a");
        assert_eq!(queue.get().await, "b");
        assert_eq!(queue.get().now_or_never(), None, "a is out");
        queue.done(&"a");
        assert_eq!(queue.get().await, "a");
        queue.done(&"a");
        queue.done(&"b");
        assert_eq!(queue.get().now_or_never(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_until_forgotten() {
        let queue = WorkQueue::default();
        for want in [5, 10, 20, 40] {
            let start = Instant::now();
            queue.add_rate_limited("a");
            queue.get().await;
            queue.done(&"a");
            assert!(
                start.elapsed() >= Duration::from_millis(want)
                    && start.elapsed() < Duration::from_millis(want + 5)
            );
        }
        queue.forget(&"a");
        let start = Instant::now();
        queue.add_rate_limited("a");
        queue.get().await;
        assert!(start.elapsed() < Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn two_workers_share_the_keys() {
        let queue = WorkQueue::default();
        let both = async { tokio::join!(queue.get(), queue.get()) };
        let (got, ()) = tokio::join!(both, async {
            queue.add("a");
            queue.add("b");
        });
        assert_eq!(BTreeSet::from([got.0, got.1]), BTreeSet::from(["a", "b"]));
    }
}
