//! Online rewrites: the files of a store shrink while it is used, and nothing is lost when that is
//! interrupted.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

mod support;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use podplane_store::{Key, ListQuery, Prefix, Revision, SledStore, Store, Txn, Watch as _};
use support::{RewriteStage, current};

const MIB: u64 = 1024 * 1024;
/// Names the directory for the child that writes; see [`writer`].
const CHILD_DIR: &str = "STORE_TEST_CHILD_DIR";
const DEADLINE: Duration = Duration::from_secs(120);
const KEYS: u64 = 40;
const VALUE_BYTES: usize = 100 * 1024;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn key(step: u64) -> Key {
    Key::try_from(format!("key/{}", step % KEYS)).unwrap()
}

/// Bytes that belong to one step only, mostly large enough to be split.
fn value(step: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(step);
    let mut value = vec![0; VALUE_BYTES];
    random.fill(&mut value);
    value
}

async fn write(store: &SledStore, step: u64) -> Revision {
    let txn = Txn::new().put(key(step), value(step));
    store.commit(txn).await.unwrap().revision
}

async fn compact(store: &SledStore, current: Revision, keep: u64) {
    let oldest = Revision::new(current.number() - keep).unwrap_or(current);
    store.compact(oldest).await.unwrap();
}

async fn disk_bytes(store: &SledStore) -> u64 {
    store.status().await.unwrap().disk_bytes.unwrap()
}

/// Writes until the files have `until_bytes`.
async fn churn(store: &SledStore, from: u64, until_bytes: u64) -> u64 {
    let mut step = from;
    while disk_bytes(store).await < until_bytes {
        let current = write(store, step).await;
        step += 1;
        if step.is_multiple_of(2 * KEYS) {
            compact(store, current, KEYS).await;
        }
    }
    step
}

/// The upper bound of the size of the files.
async fn bound(store: &SledStore) -> u64 {
    let held = store.status().await.unwrap().memory_bytes;
    (32 * MIB).max(4 * held)
}

fn assert_content(store: &SledStore, steps: u64) {
    block_on(async {
        for step in steps.saturating_sub(KEYS)..steps {
            let found = store.get(&key(step), None).await.unwrap().unwrap();
            assert!(*found.value() == *value(step), "{step}");
        }
    });
}

#[test]
fn the_files_shrink_while_the_store_is_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    let steps = block_on(async {
        let mut step = churn(&store, 0, 80 * MIB).await;
        let mut watch = store
            .watch(Prefix::all(), store.status().await.unwrap().current)
            .await
            .unwrap();
        let current = write(&store, step).await;
        watch.next().await.unwrap();
        compact(&store, current, 1).await;
        let (before, began) = (step, Instant::now());
        let mut longest = Duration::ZERO;
        store.maintain().await.unwrap();
        while disk_bytes(&store).await > bound(&store).await {
            assert!(began.elapsed() < DEADLINE, "{}", disk_bytes(&store).await);
            step += 1;
            let one = Instant::now();
            let current = write(&store, step).await;
            longest = longest.max(one.elapsed());
            // At once: a watch that falls behind the history is ended.
            watch.next().await.unwrap();
            if step.is_multiple_of(10) {
                // History that is compacted during the copy must not come back.
                compact(&store, current, 5).await;
                store.maintain().await.unwrap();
            }
        }
        println!("longest write {longest:?}, {} writes", step - before);
        assert!(step > before + 1, "writes go on");
        step + 1
    });
    assert!(dir.path().join("current").exists());
    assert_content(&store, steps);
    let content = block_on(store.list(ListQuery::default())).unwrap();
    let status = block_on(store.status()).unwrap();
    drop(store);
    assert!(!dir.path().join("db").exists(), "the old file is gone");

    let checked = SledStore::check(dir.path(), |_| {}).unwrap();
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
    assert_eq!(checked.status.memory_bytes, status.memory_bytes);
    let store = SledStore::open(dir.path()).unwrap();
    let found = block_on(store.status()).unwrap();
    assert_eq!(
        (found.id, found.first, found.oldest, found.current),
        (status.id, status.first, status.oldest, status.current)
    );
    assert_eq!(block_on(store.list(ListQuery::default())).unwrap(), content);
    block_on(write(&store, steps));
    drop(store);
    SledStore::compact_offline(dir.path()).unwrap();
    assert_content(&SledStore::open(dir.path()).unwrap(), steps + 1);
}

/// Writing fails because a directory has the name of the file.
#[test]
fn a_rewrite_whose_last_file_cannot_be_written_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let obstacle = dir.path().join("current.new");
    fs::create_dir(&obstacle).unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    let next = dir.path().join("data-1");
    let reaches = async |is_there: bool| {
        let begun = Instant::now();
        while next.exists() != is_there {
            assert!(begun.elapsed() < DEADLINE, "{is_there}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let steps = block_on(async {
        let steps = churn(&store, 0, 80 * MIB).await;
        store.maintain().await.unwrap();
        reaches(true).await;
        reaches(false).await;
        write(&store, steps).await;
        steps + 1
    });
    assert_eq!(current(dir.path()), 0);
    assert_content(&store, steps);
    drop(store);
    fs::remove_dir(&obstacle).unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    block_on(async {
        store.maintain().await.unwrap();
        let begun = Instant::now();
        while current(dir.path()) == 0 {
            assert!(begun.elapsed() < DEADLINE, "no rewrite");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_content(&store, steps);
}

/// A small store is not rewritten over and over.
#[test]
fn small_files_are_left_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    block_on(async {
        for step in 0..5 {
            write(&store, step).await;
            store.maintain().await.unwrap();
        }
    });
    assert!(block_on(disk_bytes(&store)) <= 32 * MIB);
    drop(store);
    assert!(!dir.path().join("current").exists() && !dir.path().join("data-1").exists());
}

/// Each state that a rewrite passes through, as a crash leaves it.
#[test]
fn every_step_of_a_rewrite_that_was_cut_short_leaves_a_store_that_opens() {
    let before = tempfile::tempdir().unwrap();
    let store = SledStore::open(before.path()).unwrap();
    let steps = block_on(churn(&store, 0, 45 * MIB));
    drop(store);
    let after = copy_of(before.path());
    let store = SledStore::open(after.path()).unwrap();
    block_on(async {
        compact(&store, store.status().await.unwrap().current, 1).await;
        store.maintain().await.unwrap();
        let began = Instant::now();
        while after.path().join("db").exists() {
            assert!(began.elapsed() < DEADLINE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    drop(store);

    // Half copied; completely copied; `current` written but not renamed.
    for (part, is_written) in [(2, false), (1, false), (1, true)] {
        let dir = copy_of(before.path());
        copy_into(&after.path().join("data-1"), &dir.path().join("data-1"));
        let db = fs::File::options()
            .write(true)
            .open(dir.path().join("data-1/db"))
            .unwrap();
        db.set_len(db.metadata().unwrap().len() / part).unwrap();
        if is_written {
            fs::write(dir.path().join("current.new"), "1\n").unwrap();
        }
        let store = SledStore::open(dir.path()).unwrap();
        assert_content(&store, steps);
        assert!(!dir.path().join("data-1").exists());
    }
    // Switched, with all of the old files, some of them, and none.
    for left in [&["db", "conf", "blobs"][..], &["conf"], &[]] {
        let dir = copy_of(after.path());
        for name in left {
            let (from, to) = (before.path().join(name), dir.path().join(name));
            match from.is_dir() {
                true => fs::create_dir(to).unwrap(),
                false => _ = fs::copy(from, to).unwrap(),
            }
        }
        let store = SledStore::open(dir.path()).unwrap();
        assert_content(&store, steps);
        for name in ["db", "conf", "blobs"] {
            assert!(!dir.path().join(name).exists(), "{name} is removed");
        }
    }
    // Without its databases the directory is not taken for a new store.
    let dir = copy_of(after.path());
    fs::remove_dir_all(dir.path().join("data-1")).unwrap();
    assert!(SledStore::open(dir.path()).is_err());
    let dir = copy_of(after.path());
    fs::remove_file(dir.path().join("current")).unwrap();
    assert!(SledStore::open(dir.path()).is_err());
    assert!(
        dir.path().join("data-1").exists(),
        "refusing removes nothing"
    );
}

#[test]
fn a_process_that_is_killed_while_it_rewrites_loses_no_acknowledged_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    let moments = [
        RewriteStage::Copying,
        RewriteStage::Switched,
        RewriteStage::Cleaned,
    ];
    let rounds = if env::var_os("PODPLANE_SOAK").is_some() {
        30
    } else {
        6
    };
    for round in 0..rounds {
        let moment = moments[round % moments.len()];
        let before = current(dir.path());
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["writer", "--exact", "--ignored", "--nocapture"])
            .env(CHILD_DIR, dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (found, acks) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let ack = line.strip_prefix("ack ");
                let ack = ack.and_then(|step| step.strip_suffix('.')?.parse::<u64>().ok());
                if let Some(step) = ack
                    && found.send(step).is_err()
                {
                    return;
                }
            }
        });
        let began = Instant::now();
        while !moment.is_reached(dir.path(), before) {
            assert!(began.elapsed() < DEADLINE, "no rewrite: {moment:?}");
            assert!(child.try_wait().unwrap().is_none(), "the child goes on");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(fastrand::u64(0..40)));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged = acks.iter().last().unwrap_or(acknowledged);

        let store = SledStore::open(dir.path()).unwrap();
        let next = assert_acknowledged(&store, acknowledged);
        drop(store);
        println!("round {round}, {moment:?}: {acknowledged} acknowledged, {next} next");
    }
}

/// Checks that every key has the value of its last acknowledged step or a later one. Returns the
/// next step.
fn assert_acknowledged(store: &SledStore, acknowledged: u64) -> u64 {
    let items = block_on(store.list(ListQuery::default())).unwrap().items;
    let values: BTreeMap<_, _> = items
        .into_iter()
        .map(|item| (item.key.clone(), item.value().into_owned()))
        .collect();
    let newest = (acknowledged..=acknowledged + 1)
        .rev()
        .find(|step| values[&key(*step)] == value(*step))
        .expect("the last acknowledged commit is there");
    for step in newest.saturating_sub(KEYS - 1)..=newest {
        assert!(values[&key(step)] == value(step), "{step} of {newest}");
    }
    newest + 1
}

#[test]
#[ignore = "not a test: another test runs it as a child process and kills it"]
fn writer() {
    let Some(dir) = env::var_os(CHILD_DIR) else {
        return;
    };
    let store = SledStore::open(dir).unwrap();
    block_on(async {
        // A step takes one revision.
        let begun = store.status().await.unwrap().current.number() - 1;
        for step in begun.. {
            let current = write(&store, step).await;
            println!("ack {step}.");
            if step > KEYS && step.is_multiple_of(20) {
                compact(&store, current, 10).await;
                store.maintain().await.unwrap();
            }
        }
    });
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(dir, copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_into(&entry.path(), &to.join(entry.file_name())),
            false => _ = fs::copy(entry.path(), to.join(entry.file_name())).unwrap(),
        }
    }
}
