//! A queue of keys to reconcile.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_host::clock::{self, Instant};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::Notify;

/// The longest delay. Some delays come from objects, such as tolerationSeconds, whose largest value
/// is more than an [`Instant`] holds.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The delays of keys that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay of a key; doubled for each further failure.
    pub base: Duration,
    /// The longest delay that a key gets from its own failures.
    pub max: Duration,
    /// The limit on the retries of all keys together, if there is one.
    pub overall: Option<RetryRate>,
}

/// A token bucket; each retry takes a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRate {
    /// The time after which one token comes back.
    pub every: Duration,
    /// The number of tokens in a full bucket.
    pub burst: u32,
}

impl Default for Backoff {
    /// Kubernetes goes up to 1,000 s, which can prolong an outage by a quarter of an hour after the
    /// server is back.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(5),
            overall: None,
        }
    }
}

/// A queue of keys to reconcile. Equal keys merge, and one key is never processed twice at once: a
/// key that is added while it is being processed comes again after [`WorkQueue::done`].
///
/// Its size is bounded by the number of different keys, and so by the caller's objects. Share it in
/// an `Arc`.
#[derive(Debug)]
pub struct WorkQueue<Key> {
    backoff: Backoff,
    state: Mutex<QueueState<Key>>,
    changed: Notify,
}

#[derive(Debug)]
struct QueueState<Key> {
    is_open: bool,
    ready: VecDeque<Key>,
    /// The keys in `ready`, and those added again while being processed, with the time since when.
    dirty: BTreeMap<Key, Instant>,
    /// The keys being processed, with the time since when.
    out: BTreeMap<Key, Instant>,
    later: BTreeMap<(Instant, Key), ()>,
    failures: BTreeMap<Key, u32>,
    /// The time at which the last token taken from [`RetryRate`] comes back.
    paid: Option<Instant>,
    adds: u64,
    retries: u64,
    waited: Histogram,
    worked: Histogram,
}

/// The statistics of a queue, for metrics.
#[derive(Clone, Debug)]
pub struct QueueStats {
    /// Keys that are ready.
    pub depth: usize,
    /// Additions of keys, without those that merged.
    pub adds: u64,
    /// Retries after failures.
    pub retries: u64,
    /// The times that keys waited, in seconds.
    pub waited: Histogram,
    /// The times that keys were processed, in seconds.
    pub worked: Histogram,
    /// The sum of the times for which the present keys have been processed.
    pub unfinished: Duration,
    /// The longest time for which a present key has been processed.
    pub longest: Duration,
}

/// Kubernetes' buckets, from ten nanoseconds to ten seconds.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

impl<Key: Clone + Ord> Default for WorkQueue<Key> {
    fn default() -> Self {
        Self::new(Backoff::default())
    }
}

impl<Key: Clone + Ord> WorkQueue<Key> {
    /// An empty queue.
    pub fn new(backoff: Backoff) -> Self {
        let state = QueueState {
            is_open: true,
            ready: VecDeque::new(),
            dirty: BTreeMap::new(),
            out: BTreeMap::new(),
            later: BTreeMap::new(),
            failures: BTreeMap::new(),
            paid: None,
            adds: 0,
            retries: 0,
            waited: histogram(),
            worked: histogram(),
        };
        Self {
            backoff,
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// An empty queue that discards keys until [`WorkQueue::open`], for a standby. Otherwise it
    /// would hold the keys of all objects that were deleted since the start.
    pub fn closed() -> Self {
        let queue = Self::default();
        queue.lock().is_open = false;
        queue
    }

    /// Accepts keys from now on. The caller then adds those of all present objects.
    pub fn open(&self) {
        self.lock().is_open = true;
    }

    /// Adds `key`, so that it is reconciled.
    pub fn add(&self, key: Key) {
        let mut state = self.lock();
        if state.is_open {
            state.add(key);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Adds `key` after `delay`.
    pub fn add_after(&self, key: Key, delay: Duration) {
        let now = Instant::now();
        let due = now.checked_add(delay.min(LONGEST)).unwrap_or(now);
        self.lock().later.insert((due, key), ());
        self.changed.notify_one();
    }

    /// Adds `key` again after a failure, and returns the delay. It grows, as [`Backoff`] says, with
    /// each failure since [`WorkQueue::forget`].
    pub fn add_rate_limited(&self, key: Key) -> Duration {
        let Backoff { base, max, overall } = self.backoff;
        let delay = {
            let mut state = self.lock();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let own = base
                .saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX))
                .min(max);
            *failures = failures.saturating_add(1);
            state.retries += 1;
            let token = overall.map(|rate| state.take_token(rate, Instant::now()));
            token.map_or(own, |wait| own.max(wait))
        };
        self.add_after(key, delay);
        delay
    }

    /// The number of failures of `key` since [`WorkQueue::forget`].
    pub fn failures(&self, key: &Key) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Resets the failures of `key`, because it succeeded or its object is gone.
    pub fn forget(&self, key: &Key) {
        self.lock().failures.remove(key);
    }

    /// Waits for the next key, and marks it as being processed until [`WorkQueue::done`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a key is taken only when it is returned.
    pub async fn get(&self) -> Key {
        loop {
            let due = {
                let mut state = self.lock();
                let now = Instant::now();
                let due = state.promote(now);
                if let Some(key) = state.ready.pop_front() {
                    state.take(&key, now);
                    if !state.ready.is_empty() {
                        // `notify_one` keeps one permit: pass it on to another worker.
                        self.changed.notify_one();
                    }
                    return key;
                }
                due
            };
            // Cancelling either wait loses nothing: the next turn looks at the state again.
            match due {
                None => self.changed.notified().await,
                Some(due) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = clock::sleep_until(due) => {}
                },
            }
        }
    }

    /// Takes up to `limit` further keys, as [`WorkQueue::get`] would return them, for a worker that
    /// can process many at once. It stops at a key that has failed: such a key is processed alone.
    pub fn take_fresh(&self, limit: usize) -> Vec<Key> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let now = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(key) = state
                .ready
                .pop_front_if(|key| !state.failures.contains_key(key))
        {
            state.take(&key, now);
            taken.push(key);
        }
        taken
    }

    /// The statistics up to now.
    pub fn stats(&self) -> QueueStats {
        let state = self.lock();
        let now = Instant::now();
        let running = || state.out.values().map(|taken| now.duration_since(*taken));
        QueueStats {
            depth: state.ready.len(),
            adds: state.adds,
            retries: state.retries,
            waited: state.waited.clone(),
            worked: state.worked.clone(),
            unfinished: running().sum(),
            longest: running().max().unwrap_or_default(),
        }
    }

    /// Marks `key` as processed. If it was added meanwhile, it is ready again.
    pub fn done(&self, key: &Key) {
        let mut state = self.lock();
        if let Some(taken) = state.out.remove(key) {
            state.worked.observe(taken.elapsed().as_secs_f64());
        }
        if state.dirty.contains_key(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<Key>> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Clone + Ord> QueueState<Key> {
    fn add(&mut self, key: Key) {
        if !self.dirty.contains_key(&key) {
            self.dirty.insert(key.clone(), Instant::now());
            self.adds += 1;
            if !self.out.contains_key(&key) {
                self.ready.push_back(key);
            }
        }
    }

    /// Marks the key as being processed.
    fn take(&mut self, key: &Key, now: Instant) {
        if let Some(since) = self.dirty.remove(key) {
            self.waited.observe(now.duration_since(since).as_secs_f64());
        }
        self.out.insert(key.clone(), now);
    }

    /// Takes a token and returns the time to wait until it is available.
    fn take_token(&mut self, rate: RetryRate, now: Instant) -> Duration {
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + rate.every;
        self.paid = Some(paid);
        paid.duration_since(now)
            .saturating_sub(rate.every.saturating_mul(rate.burst))
    }

    /// Makes ready the keys that are due; returns the time of the next one.
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
    use std::collections::BTreeSet;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn equal_keys_merge_and_are_never_processed_twice_at_once() {
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

    #[tokio::test]
    async fn a_closed_queue_discards_keys_until_it_is_opened() {
        let queue = WorkQueue::closed();
        queue.add("a");
        assert_eq!(queue.stats().depth, 0);
        queue.open();
        queue.add("b");
        assert_eq!(queue.get().await, "b");
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
    async fn all_retries_share_the_rate_limit() {
        let queue = WorkQueue::new(Backoff {
            base: Duration::from_millis(1),
            max: Duration::from_secs(1),
            overall: Some(RetryRate {
                every: Duration::from_millis(100),
                burst: 2,
            }),
        });
        let start = Instant::now();
        for key in 0..4 {
            queue.add_rate_limited(key);
        }
        let mut came = Vec::new();
        for _ in 0..4 {
            queue.get().await;
            came.push(start.elapsed().as_millis());
        }
        // Two at once after their own delay, the others as tokens come back.
        assert!(came[1] < 10, "{came:?}");
        assert!(
            (100..110).contains(&came[2]) && (200..210).contains(&came[3]),
            "{came:?}"
        );
        assert_eq!((queue.failures(&0), queue.failures(&9)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn take_fresh_leaves_failed_keys_in_the_queue() {
        let queue = WorkQueue::default();
        queue.add_rate_limited("bad");
        assert_eq!(queue.get().await, "bad");
        for key in ["a", "b", "bad", "c"] {
            queue.add(key);
        }
        queue.done(&"bad");
        assert_eq!(queue.take_fresh(1), ["a"]);
        assert_eq!(queue.take_fresh(9), ["b", "c"], "bad is ready again last");
        assert_eq!(queue.take_fresh(9), [""; 0]);
        assert_eq!(queue.get().await, "bad");
        tokio::time::advance(Duration::from_secs(2)).await;
        queue.done(&"a");
        let QueueStats {
            depth,
            adds,
            retries,
            unfinished,
            longest,
            ..
        } = queue.stats();
        assert_eq!((depth, adds, retries), (0, 5, 1));
        let two_seconds = Duration::from_secs(2);
        assert_eq!((unfinished, longest), (3 * two_seconds, two_seconds));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_workers_get_different_keys() {
        let queue = WorkQueue::default();
        let both = async { tokio::join!(queue.get(), queue.get()) };
        let (got, ()) = tokio::join!(both, async {
            queue.add("a");
            queue.add("b");
        });
        assert_eq!(BTreeSet::from([got.0, got.1]), BTreeSet::from(["a", "b"]));
    }
}
