//! The size on disk after constant updates: bounded by what the store holds, not by what was ever
//! written.
//!
//! `PODPLANE_SOAK=1` writes ten times as much.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures of a soak run")]
#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{
    env, fs,
    ops::Range,
    os::unix::fs::MetadataExt as _,
    time::{Duration, Instant},
};

use podplane_store::{Key, Revision, SledStore, Store, Txn};

const MIB: u64 = 1024 * 1024;
/// The revisions that are kept.
const KEEP: u64 = 20;
const COMMIT_BYTES: usize = 64 * 1024;
/// The time in which the files must shrink after the last write.
const DEADLINE: Duration = Duration::from_secs(5 * 60);
/// More often than the API server maintains its store, so that the test ends sooner.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The bound of the files' size for `held` bytes of objects and history.
fn bound(held: u64) -> u64 {
    (32 * MIB).max(4 * held)
}

struct Updates {
    store: SledStore,
    dir: tempfile::TempDir,
    value_bytes: usize,
    written: u64,
}

/// The sizes of a store.
struct Sizes {
    /// Bytes of objects and history.
    held: u64,
    /// Bytes of the files except the reserve for a full disk, whose size is constant.
    files: u64,
}

impl Updates {
    fn new(value_bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: SledStore::open(dir.path()).unwrap(),
            dir,
            value_bytes,
            written: 0,
        }
    }

    async fn put(&mut self, keys: impl IntoIterator<Item = usize>) {
        let puts = (COMMIT_BYTES / self.value_bytes).max(1);
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

    async fn sizes(&self) -> Sizes {
        let status = self.store.status().await.unwrap();
        let reserve = fs::metadata(self.dir.path().join("reserve"));
        let reserve = reserve.map_or(0, |file| file.blocks() * 512);
        Sizes {
            held: status.memory_bytes,
            files: status.disk_bytes.unwrap().saturating_sub(reserve),
        }
    }

    /// Writes more than the bound of the files.
    async fn overwrite(&mut self, keys: Range<usize>) {
        let times = if env::var_os("PODPLANE_SOAK").is_some() {
            20
        } else {
            2
        };
        let held = (keys.end * self.value_bytes) as u64;
        while self.written < times * bound(held) {
            self.put(keys.clone()).await;
        }
    }

    /// Fails unless the files shrink to their bound.
    async fn assert_shrinks(&self) {
        let began = Instant::now();
        let before = self.sizes().await;
        loop {
            let Sizes { held, files } = self.sizes().await;
            if files <= bound(held) {
                println!(
                    "values of {} bytes: {} MiB written, {} MiB held, files of {} MiB became {} MiB \
                     in {:?}",
                    self.value_bytes,
                    self.written / MIB,
                    held / MIB,
                    before.files / MIB,
                    files / MIB,
                    began.elapsed(),
                );
                return;
            }
            let bound = bound(held);
            assert!(began.elapsed() < DEADLINE, "{files} bytes of {bound}");
            self.store.maintain().await.unwrap();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

#[tokio::test]
async fn files_are_at_most_four_times_what_they_hold_or_32_mib() {
    for (keys, value_bytes) in [
        (2_000, 1024),
        (400, 8 * 1024),
        (40, 64 * 1024),
        // Just below and above 8 MiB, where four times the content becomes the bound.
        (120, 64 * 1024),
        (1_000, 16 * 1024),
    ] {
        let mut updates = Updates::new(value_bytes);
        updates.overwrite(0..keys).await;
        updates.assert_shrinks().await;
    }
}

/// The remaining values are scattered among the removed ones.
#[tokio::test]
async fn files_with_a_few_busy_keys_among_many_quiet_ones_shrink() {
    let mut updates = Updates::new(2 * 1024);
    let (quiet, busy) = (2_000, 50);
    for from in (0..quiet).step_by(busy) {
        updates.put(from..from + busy).await;
        updates.put(quiet..quiet + busy).await;
    }
    while updates.written < 2 * bound(0) {
        updates.put(quiet..quiet + busy).await;
    }
    updates.assert_shrinks().await;
    let Updates { store, dir, .. } = updates;
    drop(store);
    let (before, after) = SledStore::compact_offline(dir.path()).unwrap();
    println!("compacted: {before:?} {after:?}");
    assert!(after.disk_bytes <= before.disk_bytes);
}
