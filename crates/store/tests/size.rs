//! The size on disk under constant updates: bounded by what the store holds, not by what was ever written.
//!
//! `PODPLANE_SOAK=1` writes a hundred times as much and shows the sizes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "the figures of a soak")]

use std::env;

use podplane_store::{Key, Revision, SledStore, Store, Txn};

const MIB: u64 = 1024 * 1024;
/// Revisions that are kept.
const KEEP: u64 = 20;
const COMMIT_BYTES: usize = 64 * 1024;

/// What the file may have: sled reuses an 8 MiB segment when enough of it is stale, and needs some in hand.
fn bound(held: u64) -> u64 {
    48 * MIB + 8 * held
}

struct Updates {
    store: SledStore,
    dir: tempfile::TempDir,
    value_bytes: usize,
    written: u64,
    /// The most that the store held.
    held: u64,
}

impl Updates {
    fn new(value_bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
            value_bytes,
            written: 0,
            held: 0,
        }
    }

    async fn put(&mut self, keys: impl IntoIterator<Item = usize>) {
        let puts = COMMIT_BYTES / self.value_bytes;
        let mut keys = keys.into_iter().peekable();
        while keys.peek().is_some() {
            let mut txn = Txn::new();
            for key in keys.by_ref().take(puts) {
                let value = vec![fastrand::u8(..); self.value_bytes];
                txn = txn.put(Key::try_from(format!("key/{key:06}")).unwrap(), value);
                self.written += self.value_bytes as u64;
            }
            let current = self.store.commit(txn).await.unwrap().revision;
            if current.number().is_multiple_of(KEEP) {
                let oldest = Revision::new(current.number() - KEEP).unwrap_or(current);
                self.store.compact(oldest).await.unwrap();
            }
        }
    }

    async fn measure(&mut self) {
        let status = self.store.status().await.unwrap();
        let disk = status.disk_bytes.unwrap();
        self.held = self.held.max(status.memory_bytes);
        println!(
            "values of {} bytes: {} MiB written, {} MiB held, {} MiB on disk",
            self.value_bytes,
            self.written / MIB,
            self.held / MIB,
            disk / MIB
        );
        let bound = bound(self.held);
        assert!(disk <= bound, "more than {} MiB", bound / MIB);
    }

    /// Without reuse the file would be larger than it may.
    fn assert_enough_was_written(&self) {
        assert!(self.written > 3 * bound(self.held) / 2);
    }
}

/// So many bytes.
fn to_write() -> u64 {
    let short = 160 * MIB;
    if env::var_os("PODPLANE_SOAK").is_some() {
        20 * short
    } else {
        short
    }
}

#[tokio::test]
async fn updates_of_the_same_keys_reuse_the_space() {
    for (keys, value_bytes) in [(2_000, 1024), (400, 8 * 1024), (40, 64 * 1024)] {
        let mut updates = Updates::new(value_bytes);
        let each = to_write();
        while updates.written < each {
            let next = updates.written + each / 10;
            while updates.written < next {
                updates.put(0..keys).await;
            }
            updates.measure().await;
        }
        updates.assert_enough_was_written();
    }
}

/// What stays lies scattered among what goes.
#[tokio::test]
async fn a_few_busy_keys_among_many_quiet_ones_reuse_the_space() {
    let mut updates = Updates::new(2 * 1024);
    let (quiet, busy) = (2_000, 50);
    for from in (0..quiet).step_by(busy) {
        updates.put(from..from + busy).await;
        updates.put(quiet..quiet + busy).await;
    }
    while updates.written < to_write() {
        let next = updates.written + to_write() / 10;
        while updates.written < next {
            updates.put(quiet..quiet + busy).await;
        }
        updates.measure().await;
    }
    updates.assert_enough_was_written();
    let Updates { store, dir, .. } = updates;
    drop(store);
    let (before, after) = SledStore::compact_offline(dir.path()).unwrap();
    println!("compacted: {before:?} {after:?}");
    assert!(after.disk_bytes <= before.disk_bytes);
}
