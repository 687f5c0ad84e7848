//! The memory of a store on disk: that of what it holds, and not of the copies that were made to
//! write it.

use peak_alloc::PeakAlloc;
use podplane_store::{Key, SledStore, Store, Txn};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: usize = 1024 * 1024;
const VALUE_BYTES: usize = 1024;
const PUTS: usize = 16;

#[tokio::test]
async fn memory_grows_with_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    let before = MEMORY.current_usage();
    let written = 32 * MIB;
    let mut keys = (0..written / VALUE_BYTES).peekable();
    while keys.peek().is_some() {
        let mut txn = Txn::new();
        for key in keys.by_ref().take(PUTS) {
            let random = std::iter::repeat_with(|| fastrand::u8(..));
            let value: Vec<u8> = random.take(VALUE_BYTES).collect();
            txn = txn.put(Key::try_from(format!("key/{key:06}")).unwrap(), value);
        }
        store.commit(txn).await.unwrap();
    }
    let more = MEMORY.current_usage().saturating_sub(before);
    // What it holds, as much again for its index and history, and sled's cache.
    assert!(more < 2 * written + 32 * MIB, "{} MiB", more / MIB);

    drop(store);
    let store = SledStore::open(dir.path()).unwrap();
    let loaded = MEMORY.current_usage().saturating_sub(before);
    assert!(loaded < more + 8 * MIB, "{} MiB", loaded / MIB);
    drop(store);
}
