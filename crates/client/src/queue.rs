//! A queue of keys to reconcile.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::{sync::Notify, time::Instant};

/// The longest delay. Some come from objects, as tolerationSeconds does, whose largest value is more than an [`Instant`] holds.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How soon keys that failed come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay of a key; doubled for each further failure.
    pub base: Duration,
    /// No key is delayed longer than this by its own failures.
    pub max: Duration,
    /// The retries of all keys together, if they are limited.
    pub overall: Option<Rate>,
}

/// A bucket of tokens, one for each retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How long a token takes to come back.
    pub every: Duration,
    /// How many there are.
    pub burst: u32,
}

impl Default for Backoff {
    /// Kubernetes goes up to 1,000 s, which is an outage of a quarter of an hour after the server is back.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(5),
            max: Duration::from_secs(5),
            overall: None,
        }
    }
}

/// Keys that need a look. Equal keys merge, and one key is never out twice at once: if it is added while it is out, it comes
/// again after [`WorkQueue::done`].
///
/// Its size is bounded by the number of different keys, which the caller's objects bound. Share it in an `Arc`.
#[derive(Debug)]
pub struct WorkQueue<Key> {
    backoff: Backoff,
    state: Mutex<State<Key>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<Key> {
    ready: VecDeque<Key>,
    /// In `ready`, or added again while out; since when.
    dirty: BTreeMap<Key, Instant>,
    /// Since when.
    out: BTreeMap<Key, Instant>,
    later: BTreeMap<(Instant, Key), ()>,
    failures: BTreeMap<Key, u32>,
    /// When the last token of [`Rate`] that was taken is back.
    paid: Option<Instant>,
    adds: u64,
    retries: u64,
    waited: Histogram,
    worked: Histogram,
}

/// What a queue has done so far, for metrics.
#[derive(Clone, Debug)]
pub struct QueueStats {
    /// Keys that are ready.
    pub depth: usize,
    /// Keys that became ready, or would have had they not been out.
    pub adds: u64,
    /// Looks that were asked for after failures.
    pub retries: u64,
    /// How long keys waited, in seconds.
    pub waited: Histogram,
    /// How long they were out, in seconds.
    pub worked: Histogram,
    /// How long all those together have been out that are.
    pub unfinished: Duration,
    /// How long the one has been out that was taken first.
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
        let state = State {
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

    /// Asks for a look at `key`.
    pub fn add(&self, key: Key) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Asks for a look after `delay`.
    pub fn add_after(&self, key: Key, delay: Duration) {
        let now = Instant::now();
        let due = now.checked_add(delay.min(LONGEST)).unwrap_or(now);
        self.lock().later.insert((due, key), ());
        self.changed.notify_one();
    }

    /// Asks for another look after a failure: as late as [`Backoff`] says for as many failures since [`WorkQueue::forget`].
    pub fn add_rate_limited(&self, key: Key) {
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
    }

    /// How often `key` failed since [`WorkQueue::forget`].
    pub fn failures(&self, key: &Key) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
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

    /// Up to `limit` further keys, as [`WorkQueue::get`] would return them, for a worker that can serve many at once. None that has failed:
    /// one that makes trouble is served alone.
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

    /// What it has done so far.
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

    /// The look at `key` is over. If it was added meanwhile, it is ready again.
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

    fn lock(&self) -> MutexGuard<'_, State<Key>> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Clone + Ord> State<Key> {
    fn add(&mut self, key: Key) {
        if !self.dirty.contains_key(&key) {
            self.dirty.insert(key.clone(), Instant::now());
            self.adds += 1;
            if !self.out.contains_key(&key) {
                self.ready.push_back(key);
            }
        }
    }

    /// The key goes out.
    fn take(&mut self, key: &Key, now: Instant) {
        if let Some(since) = self.dirty.remove(key) {
            self.waited.observe(now.duration_since(since).as_secs_f64());
        }
        self.out.insert(key.clone(), now);
    }

    /// Takes a token, and says how long it is until there is one.
    fn take_token(&mut self, rate: Rate, now: Instant) -> Duration {
        let paid = self.paid.map_or(now, |paid| paid.max(now)) + rate.every;
        self.paid = Some(paid);
        paid.duration_since(now)
            .saturating_sub(rate.every.saturating_mul(rate.burst))
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
    use std::collections::BTreeSet;

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
    async fn retries_of_all_keys_share_the_tokens() {
        let queue = WorkQueue::new(Backoff {
            base: Duration::from_millis(1),
            max: Duration::from_secs(1),
            overall: Some(Rate {
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
    async fn many_are_taken_at_once_up_to_one_that_failed() {
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
