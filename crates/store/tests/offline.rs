//! Checking, compacting, backing up and restoring.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{borrow::Cow, fs, io::Cursor, path::Path, sync::Arc, time::SystemTime};

use bytes::Bytes;
use futures::StreamExt as _;
use podplane_store::{
    BackupDamage, Damage, FIRST_REVISION, Guard, Item, Key, ListQuery, MAX_VALUE_BYTES, OpenError,
    Prefix, RestoreError, RestoreReport, Revision, SledStore, Snapshot, Store, StoreError,
    StoreStatus, Txn, back_up,
};
use tempfile::TempDir;

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

async fn put(store: &SledStore, at: &str, value: impl Into<Vec<u8>>) -> Revision {
    let txn = Txn::new().put(key(at), value.into());
    store.commit(txn).await.unwrap().revision
}

async fn all(store: &SledStore) -> Snapshot {
    store.list(ListQuery::default()).await.unwrap()
}

fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_micros()).unwrap()
}

/// Creates a store with items, earlier versions and deletions.
async fn fill(dir: &Path) -> Arc<SledStore> {
    let store = Arc::new(SledStore::open(dir).unwrap());
    for of_100 in 0..15 {
        let pods = (0..100).map(|n| of_100 * 100 + n);
        let txn = pods.fold(Txn::new(), |txn, n| {
            txn.put(key(&format!("pods/{n:04}")), format!("old {n}"))
        });
        store.commit(txn).await.unwrap();
    }
    for n in (0..1500).step_by(100) {
        put(&store, &format!("pods/{n:04}"), format!("new {n}")).await;
    }
    store
        .commit(Txn::new().delete(key("pods/0001")).put(key("empty"), ""))
        .await
        .unwrap();
    put(&store, "large", vec![7; MAX_VALUE_BYTES]).await;
    store
}

async fn backup_of(store: &Arc<impl Store>) -> Vec<u8> {
    let pieces = back_up(Arc::clone(store)).map(Result::unwrap);
    let pieces: Vec<Bytes> = pieces.collect().await;
    assert!(pieces.iter().all(|piece| piece.len() < 1024 * 1024));
    pieces.concat()
}

fn contents(snapshot: &Snapshot) -> Vec<(&Key, Cow<'_, [u8]>)> {
    let items = snapshot.items.iter();
    items.map(|item| (&item.key, item.value())).collect()
}

struct StoreDir(TempDir);

impl StoreDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> std::path::PathBuf {
        self.0.path().join("store")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn a_restored_store_has_the_items_and_none_of_the_revisions() {
    let (from, to) = (StoreDir::new(), StoreDir::new());
    let store = fill(&from.store()).await;
    let before = all(&store).await;
    let old = store.status().await.unwrap();
    let file = backup_of(&store).await;
    // The original store goes on.
    let later = put(&store, "pods/0000", "later").await;

    let restored = SledStore::restore(to.store(), Cursor::new(&file), now_micros()).unwrap();
    let RestoreReport { backup, id, first } = restored;
    assert_eq!(
        (backup.id, backup.revision, backup.items),
        (old.id, old.current, 1501)
    );
    assert_eq!(to.names(), ["store"]);
    let store = SledStore::open(to.store()).unwrap();
    let status = store.status().await.unwrap();
    assert_ne!(status.id, old.id);
    assert_eq!(
        (status.id, status.first, status.oldest, status.current),
        (id, first, first, first)
    );
    let after = all(&store).await;
    assert_eq!(contents(&after), contents(&before));
    assert!(
        after
            .items
            .iter()
            .all(|item| item.modified == first && item.created == first)
    );

    // Any revision that a client can remember of the old store is too old for the new one.
    for old in [FIRST_REVISION, old.current, later] {
        let compacted = |err: StoreError| assert!(err.is_compacted(), "{old}: {err}");
        compacted(store.watch(Prefix::all(), old).await.unwrap_err());
        compacted(store.get(&key("empty"), Some(old)).await.unwrap_err());
        let guard = Guard::At {
            key: key("pods/0000"),
            revision: old,
        };
        let stale = Txn::new().guard(guard).put(key("pods/0000"), "stale");
        assert!(store.commit(stale).await.unwrap_err().is_conflict());
    }
    let next = put(&store, "pods/0000", "next").await;
    assert_eq!(next.number(), first.number() + 1);
    drop(store);
    let status = SledStore::open(to.store()).unwrap().status().await.unwrap();
    assert_eq!((status.first, status.current, status.id), (first, next, id));
}

#[tokio::test]
async fn a_second_restore_of_a_backup_begins_at_a_later_revision() {
    let (from, first, second) = (StoreDir::new(), StoreDir::new(), StoreDir::new());
    let store = fill(&from.store()).await;
    let file = backup_of(&store).await;
    let begun = now_micros();
    SledStore::restore(first.store(), Cursor::new(&file), begun).unwrap();
    let store = SledStore::open(first.store()).unwrap();
    let reached = put(&store, "a", "").await;
    // A store commits less often than once per microsecond.
    let later = begun + 1_000;
    let restored = SledStore::restore(second.store(), Cursor::new(&file), later).unwrap();
    assert!(restored.first > reached);
}

#[tokio::test]
async fn a_restore_without_a_clock_begins_far_above_the_backup() {
    let (from, to) = (StoreDir::new(), StoreDir::new());
    let store = fill(&from.store()).await;
    let current = store.status().await.unwrap().current;
    let file = backup_of(&store).await;
    let restored = SledStore::restore(to.store(), Cursor::new(&file), 0).unwrap();
    assert!(restored.first.number() > current.number() + 1_000_000_000_000);
}

#[tokio::test]
async fn restores_an_empty_store() {
    let (from, to) = (StoreDir::new(), StoreDir::new());
    let file = backup_of(&Arc::new(SledStore::open(from.store()).unwrap())).await;
    fs::create_dir(to.store()).unwrap();
    let restored = SledStore::restore(to.store(), Cursor::new(&file), now_micros()).unwrap();
    let store = SledStore::open(to.store()).unwrap();
    assert_eq!(store.status().await.unwrap().current, restored.first);
    assert!(put(&store, "a", "").await > restored.first);
}

#[tokio::test]
async fn refuses_an_incomplete_or_damaged_backup_and_leaves_nothing() {
    let (from, to) = (StoreDir::new(), StoreDir::new());
    let store = Arc::new(SledStore::open(from.store()).unwrap());
    for n in 0..20 {
        put(&store, &format!("{n}"), vec![7; n]).await;
    }
    let file = backup_of(&store).await;
    let refused = |file: &[u8]| match SledStore::restore(to.store(), Cursor::new(file), 0) {
        Err(RestoreError::Backup(damage)) => {
            assert!(to.names().is_empty(), "{:?}", to.names());
            damage
        }
        other => panic!("{other:?}"),
    };
    for len in 0..file.len() {
        match refused(&file[..len]) {
            BackupDamage::Foreign => assert!(len < 16),
            BackupDamage::Cut { found, of } => {
                assert!(len >= 16 && (found <= of) && (of == 20 || of == 0))
            }
            other => panic!("{len}: {other}"),
        }
    }
    for at in 0..file.len() {
        let mut file = file.clone();
        file[at] ^= 1;
        match refused(&file) {
            BackupDamage::Foreign => assert!(at < 16),
            BackupDamage::Version { found } => assert!((16..20).contains(&at) && found != 1),
            BackupDamage::Checksum | BackupDamage::Cut { .. } => assert!(at >= 20),
            other => panic!("{at}: {other}"),
        }
    }
    let longer = [file.as_slice(), b"x"].concat();
    assert!(matches!(refused(&longer), BackupDamage::Checksum));
    assert_eq!(
        refused(&file[..file.len() / 2]).to_string(),
        "it is truncated: it ends after 8 of 20 items; name another file"
    );
    SledStore::restore(to.store(), Cursor::new(&file), 0).unwrap();
}

#[tokio::test]
async fn a_store_is_never_restored_over_another() {
    let place = StoreDir::new();
    let store = fill(&place.store()).await;
    let before = all(&store).await;
    let file = backup_of(&store).await;
    let refused =
        |place: &StoreDir| SledStore::restore(place.store(), Cursor::new(&file), 0).unwrap_err();
    assert!(matches!(refused(&place), RestoreError::NotEmpty { .. }));
    drop(store);
    assert!(
        refused(&place)
            .to_string()
            .ends_with("store is not empty; name another directory, or move its content away")
    );
    assert_eq!(all(&SledStore::open(place.store()).unwrap()).await, before);
}

#[tokio::test]
async fn a_compacted_store_has_its_items_and_revisions_in_less_space() {
    let place = StoreDir::new();
    let store = fill(&place.store()).await;
    for _ in 0..30 {
        put(&store, "large", vec![7; MAX_VALUE_BYTES]).await;
    }
    let before = all(&store).await;
    let status = store.status().await.unwrap();
    assert!(matches!(
        SledStore::compact_offline(place.store()),
        Err(OpenError::Locked { .. })
    ));
    drop(store);
    // A crash left this directory.
    fs::create_dir(place.0.path().join("store.new")).unwrap();
    let (was, is) = SledStore::compact_offline(place.store()).unwrap();
    assert_eq!(was.current, status.current);
    assert!(is.disk_bytes < was.disk_bytes, "{was:?} {is:?}");
    assert_eq!(place.names(), ["store"]);

    let store = SledStore::open(place.store()).unwrap();
    assert_eq!(all(&store).await, before);
    let StoreStatus {
        id,
        first,
        oldest,
        current,
        keys,
        ..
    } = store.status().await.unwrap();
    assert_eq!(
        (id, first, oldest, current, keys),
        (
            status.id,
            status.first,
            status.current,
            status.current,
            status.keys
        )
    );
    assert!(put(&store, "a", "").await > current);
}

#[tokio::test]
async fn checking_a_sound_store_visits_every_value() {
    let place = StoreDir::new();
    let store = fill(&place.store()).await;
    let status = store.status().await.unwrap();
    assert!(matches!(
        SledStore::check(place.store(), |_: &Item| {}),
        Err(OpenError::Locked { .. })
    ));
    drop(store);
    let mut shown = 0;
    let checked = SledStore::check(place.store(), |_: &Item| shown += 1).unwrap();
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
    assert_eq!(
        (checked.status.id, checked.status.current),
        (status.id, status.current)
    );
    assert_eq!(shown, 1500 + 15 + 2);
    SledStore::compact_offline(place.store()).unwrap();
    let checked = SledStore::check(place.store(), |_: &Item| {}).unwrap();
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
}

#[tokio::test]
async fn checking_reports_all_damage_and_repairs_nothing() {
    let place = StoreDir::new();
    let store = SledStore::open(place.store()).unwrap();
    for n in 0..20 {
        put(&store, &format!("pods/{}", n % 10), "value").await;
    }
    drop(store);
    let change = |revision: u64| [b"E|".as_slice(), &revision.to_be_bytes(), &[0; 4]].concat();
    {
        let config = sled::Config::new()
            .path(place.store())
            .segment_size(8 * 1024 * 1024);
        let db = config.open().unwrap();
        db.remove(change(5)).unwrap();
        db.insert(change(10), b"rubbish").unwrap();
        db.insert(b"X|what", b"").unwrap();
        // A record that claims creation at revision 7, which is wrong.
        let mut record = db.get(change(14)).unwrap().unwrap().to_vec();
        let created = record.len() - "value".len() - 8;
        record[created..created + 8].copy_from_slice(&7u64.to_be_bytes());
        db.insert(change(14), record).unwrap();
        db.flush().unwrap();
        drop(db);
        fs::File::open(place.store().join("db"))
            .unwrap()
            .lock()
            .unwrap();
    }
    for _ in 0..2 {
        let damage = SledStore::check(place.store(), |_: &Item| {})
            .unwrap()
            .damage;
        let messages: Vec<String> = damage.iter().map(ToString::to_string).collect();
        assert!(
            matches!(
                damage.as_slice(),
                [
                    Damage::Missing { .. },
                    Damage::Record(_),
                    Damage::Missing { .. },
                    // These include the next versions of the two that were lost.
                    Damage::Created { .. },
                    Damage::Created { .. },
                    Damage::Created { .. },
                    Damage::Record(_),
                ]
            ),
            "{messages:#?}"
        );
        assert_eq!(messages[0], "the commit before revision 6 is missing");
        assert_eq!(messages[1], "invalid record of place 0 in revision 10");
        assert_eq!(
            messages[3],
            "the record of pods/2 at revision 14 does not say when it was created"
        );
    }
}

#[test]
fn tools_create_no_store() {
    let place = StoreDir::new();
    let missing = |err| assert!(matches!(err, OpenError::Missing { .. }), "{err}");
    missing(SledStore::open_existing(place.store()).unwrap_err());
    missing(SledStore::check(place.store(), |_: &Item| {}).unwrap_err());
    missing(SledStore::compact_offline(place.store()).unwrap_err());
    assert!(place.names().is_empty());
}
