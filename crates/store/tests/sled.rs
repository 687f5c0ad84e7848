//! Guarantees of the sled engine only: the directory when the process, the disk or the operator
//! does its worst.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

#[path = "support/store.rs"]
mod support;

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use podplane_store::{
    Damage, FORMAT_VERSION, Guard, ListQuery, MAX_VALUE_BYTES, OpenError, Revision, SledStore,
    Store, Txn,
};
use tempfile::TempDir;
use tokio::task::JoinSet;

use support::{CHILD_DIR, DEADLINE, block_on, child, key, open};

/// A directory with a closed store that has `commits` commits of `value_bytes` each.
fn store_of(commits: usize, value_bytes: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(dir.path()).unwrap();
    block_on(async {
        for n in 0..commits {
            store
                .commit(Txn::new().put(key(&format!("{n}")), vec![7; value_bytes]))
                .await
                .unwrap();
        }
    });
    drop(store);
    dir
}

#[test]
fn a_store_that_is_open_is_refused() {
    let dir = store_of(1, 1);
    let store = open(dir.path()).unwrap();
    let refused = open(dir.path()).unwrap_err();
    assert!(matches!(&refused, OpenError::Locked { dir: at } if at == dir.path()));
    assert!(
        refused
            .to_string()
            .ends_with("is in use by another process; stop that one, or choose another directory")
    );
    drop(store);
    open(dir.path()).unwrap();
}

#[test]
fn another_format_version_is_refused_naming_both_versions() {
    let dir = store_of(1, 1);
    with_sled(dir.path(), |db| {
        db.insert(b"M|format", &7u32.to_be_bytes()).unwrap();
    });
    let refused = open(dir.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Format { found: 7, .. }));
    let words =
        format!("has format version 7, and this program reads versions up to {FORMAT_VERSION};");
    assert!(refused.to_string().contains(&words), "{refused}");
}

#[test]
fn a_foreign_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    with_sled(dir.path(), |db| {
        db.insert(b"somebody", b"else's").unwrap();
    });
    assert!(matches!(damage(dir.path()), Damage::NoMeta("format")));
}

#[test]
fn values_outside_the_synced_file_are_refused() {
    let dir = store_of(1, 1);
    fs::write(dir.path().join("blobs/1"), "").unwrap();
    assert!(matches!(damage(dir.path()), Damage::Blobs));
}

#[test]
fn the_largest_values_stay_inside_the_synced_file() {
    // The largest value that is split, and the largest that is not.
    for (commits, value_bytes) in [(30, MAX_VALUE_BYTES), (200, 64 * 1024)] {
        let dir = store_of(commits, value_bytes);
        assert_eq!(fs::read_dir(dir.path().join("blobs")).unwrap().count(), 0);
        let store = open(dir.path()).unwrap();
        assert_eq!(block_on(store.status()).unwrap().keys, commits);
    }
}

#[test]
fn a_store_of_format_version_1_is_raised_when_it_is_opened() {
    let dir = store_of(3, 64 * 1024);
    let version = |db: &sled::Db| db.get(b"M|format").unwrap().unwrap().to_vec();
    with_sled(dir.path(), |db| {
        db.insert(b"M|format", &1u32.to_be_bytes()).unwrap();
    });
    assert!(
        SledStore::check(dir.path(), |_| {})
            .unwrap()
            .damage
            .is_empty()
    );
    with_sled(dir.path(), |db| {
        assert_eq!(version(db), 1u32.to_be_bytes(), "checking changes nothing");
    });
    let store = open(dir.path()).unwrap();
    block_on(store.commit(Txn::new().put(key("large"), vec![7; MAX_VALUE_BYTES]))).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 4);
    drop(store);
    with_sled(dir.path(), |db| {
        assert_eq!(version(db), FORMAT_VERSION.to_be_bytes());
    });
    assert_eq!(
        block_on(open(dir.path()).unwrap().status()).unwrap().keys,
        4
    );
}

#[test]
fn a_split_value_without_one_of_its_parts_is_damage() {
    let part = |number: u16| {
        let (revision, place) = (3_u64.to_be_bytes(), 0_u32.to_be_bytes());
        [b"E|".as_slice(), &revision, &place, &number.to_be_bytes()].concat()
    };
    let whole = store_of(3, 200 * 1024);
    // Three parts of 64 KiB and the rest.
    for missing in 0..4 {
        let dir = copy_of(whole.path());
        with_sled(dir.path(), |db| {
            assert!(db.remove(part(missing)).unwrap().is_some());
        });
        let found = damage(dir.path());
        match (&found, missing) {
            (Damage::Value { found, of, .. }, 3) => {
                assert_eq!((*found, *of), (3 * 64 * 1024, 200 * 1024));
            }
            (Damage::Record(name), 0..3) => {
                let next = format!("part {} of place 0 in revision 3", missing + 1);
                assert_eq!(*name, next);
            }
            _ => panic!("{missing}: {found}"),
        }
    }
    for (number, value) in [(2, vec![7; 10]), (4, vec![7; 10])] {
        let dir = copy_of(whole.path());
        with_sled(dir.path(), |db| {
            db.insert(part(number), value).unwrap();
        });
        assert!(matches!(damage(dir.path()), Damage::Record(_)), "{number}");
    }
}

#[test]
fn detects_missing_changes() {
    let change = |revision: u64, place: u32| {
        [
            b"E|".as_slice(),
            &revision.to_be_bytes(),
            &place.to_be_bytes(),
        ]
        .concat()
    };
    let dir = store_of(5, 1);
    with_sled(dir.path(), |db| {
        assert!(db.remove(change(4, 0)).unwrap().is_some())
    });
    assert!(matches!(damage(dir.path()), Damage::Missing { before } if before.number() == 5));

    let dir = store_of(0, 0);
    let store = open(dir.path()).unwrap();
    block_on(store.commit(Txn::new().put(key("a"), "").put(key("b"), ""))).unwrap();
    drop(store);
    with_sled(dir.path(), |db| {
        assert!(db.remove(change(2, 1)).unwrap().is_some())
    });
    assert!(matches!(
        damage(dir.path()),
        Damage::Torn {
            found: 1,
            of: 2,
            ..
        }
    ));

    let dir = store_of(5, 1);
    with_sled(dir.path(), |db| {
        assert!(db.insert(change(4, 0), b"rubbish").unwrap().is_some())
    });
    assert!(matches!(damage(dir.path()), Damage::Record(_)));
}

#[test]
fn a_truncated_data_file_is_reported_as_damage() {
    let whole = store_of(300, 4000);
    let len = fs::metadata(whole.path().join("db")).unwrap().len();
    for part in [0, 1, 17, 500, 900, 990, 999] {
        let dir = copy_of(whole.path());
        OpenOptions::new()
            .write(true)
            .open(dir.path().join("db"))
            .unwrap()
            .set_len(len * part / 1000)
            .unwrap();
        let refused = open(dir.path())
            .map(|store| block_on(store.status()))
            .unwrap_err();
        assert!(
            matches!(refused, OpenError::Corrupt { .. }),
            "at {part}: {refused}"
        );
        let words =
            "restore the directory from a backup, or remove it to begin with an empty store";
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(
            refused
                .to_string()
                .contains(&dir.path().display().to_string()),
            "{refused}"
        );
    }
    assert_eq!(
        block_on(open(copy_of(whole.path()).path()).unwrap().status())
            .unwrap()
            .keys,
        300
    );
}

#[test]
fn a_data_file_with_flipped_bytes_never_panics_or_serves_them() {
    let whole = store_of(300, 4000);
    let len = fs::metadata(whole.path().join("db")).unwrap().len();
    let expected = block_on(
        open(copy_of(whole.path()).path())
            .unwrap()
            .list(ListQuery::default()),
    )
    .unwrap();
    for part in 0..20 {
        let dir = copy_of(whole.path());
        flip(&dir.path().join("db"), len * part / 20 + 100);
        match open(dir.path()) {
            // The byte was unused, for example in an older version of a page.
            Ok(store) => assert_eq!(
                block_on(store.list(ListQuery::default())).unwrap(),
                expected
            ),
            Err(refused) => {
                assert!(
                    matches!(refused, OpenError::Corrupt { .. }),
                    "at {part}: {refused}"
                );
                // After the byte is repaired everything is there again: refusing changed nothing.
                flip(&dir.path().join("db"), len * part / 20 + 100);
                assert_eq!(
                    block_on(open(dir.path()).unwrap().list(ListQuery::default())).unwrap(),
                    expected,
                    "at {part}"
                );
            }
        }
    }
}

#[test]
fn a_lost_data_file_is_not_taken_for_a_new_store() {
    let dir = store_of(3, 1);
    for file in ["db", "conf"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("snap.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(
        matches!(damage(dir.path()), Damage::Truncated { reached, .. } if reached.number() == 4)
    );
}

#[test]
fn a_directory_without_permission_is_named_with_the_cause() {
    // Root may do everything, so the child runs as another user.
    let root = rustix::process::geteuid().is_root();
    let dir = store_of(1, 1);
    fs::set_permissions(dir.path().join("db"), fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(dir.path().join("lock"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("child");
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    let mut child = child(Command::new(copy), "opener", dir.path());
    if root {
        child.uid(65534).gid(65534);
    }
    let output = child.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let expected = format!(
        "failed to open the data file for the store in {}; run as the user that owns the store: Permission denied",
        dir.path().display()
    );
    assert!(stdout.contains(&expected), "{stdout}");
}

#[test]
#[ignore = "not a test: another test runs it as a child process"]
fn opener() {
    let Some(dir) = env::var_os(CHILD_DIR) else {
        return;
    };
    match SledStore::open(dir) {
        Ok(store) => println!("opened {store:?}"),
        Err(err) => println!(
            "{err}: {}",
            std::error::Error::source(&err)
                .map(ToString::to_string)
                .unwrap_or_default()
        ),
    }
}

#[test]
fn a_killed_process_loses_no_acknowledged_commit() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: Vec<Ack> = Vec::new();
    for round in 0..8 {
        let mut child = child(
            Command::new(env::current_exe().unwrap()),
            "writer",
            dir.path(),
        )
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
        let acks = acks_of(&mut child);
        let mut burst: Vec<Ack> = Vec::new();
        while burst.len() < 100 + 173 * round {
            burst.push(acks.recv_timeout(DEADLINE).expect("the child writes on"));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        burst.extend(acks.iter());
        acknowledged.extend(burst);
        assert_all_there(dir.path(), &acknowledged);
    }
}

struct Ack {
    revision: Revision,
    key: String,
}

fn acks_of(child: &mut Child) -> mpsc::Receiver<Ack> {
    let (found, acks) = mpsc::channel();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            // The kill may have cut the last line; only a whole line proves the acknowledgement.
            let Some((revision, key)) = line
                .strip_prefix("ack ")
                .and_then(|line| line.strip_suffix('.')?.split_once(' '))
            else {
                continue;
            };
            let ack = Ack {
                revision: revision.parse().unwrap(),
                key: key.to_owned(),
            };
            if found.send(ack).is_err() {
                return;
            }
        }
    });
    acks
}

fn assert_all_there(dir: &Path, acknowledged: &[Ack]) {
    let store = open(dir).unwrap();
    block_on(async {
        for Ack { revision, key: at } in acknowledged {
            let item = store.get(&key(at), None).await.unwrap();
            let item = item.unwrap_or_else(|| panic!("{at}, acknowledged at {revision}, is gone"));
            assert_eq!(item.modified, *revision);
        }
        let status = store.status().await.unwrap();
        assert!(
            acknowledged
                .iter()
                .all(|ack| ack.revision <= status.current)
        );
    });
}

#[test]
#[ignore = "not a test: another test runs it as a child process and kills it"]
fn writer() {
    let Some(dir) = env::var_os(CHILD_DIR) else {
        return;
    };
    let store = Arc::new(SledStore::open(dir).unwrap());
    let begun = block_on(store.status()).unwrap().current;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut writers = JoinSet::new();
        for writer in 0..16 {
            let store = Arc::clone(&store);
            writers.spawn(async move {
                for n in 0.. {
                    let at = format!("{begun}/{writer}/{n}");
                    let txn = Txn::new()
                        .guard(Guard::Absent(key(&at)))
                        .put(key(&at), vec![7; 1024]);
                    match store.commit(txn).await {
                        Ok(committed) => println!("ack {} {at}.", committed.revision),
                        Err(err) => return err,
                    }
                }
                unreachable!("0.. does not end")
            });
        }
        for err in writers.join_all().await {
            println!("stopped {err:?}");
        }
    });
    // Reads go on after a failure.
    println!(
        "keys {}",
        block_on(store.list(ListQuery::default()))
            .unwrap()
            .items
            .len()
    );
}

/// A write that fails half-way, as on a broken or full disk: here, at the limit of the size of a
/// file.
#[test]
fn a_failed_write_poisons_the_store_and_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    // The kernel's signal would kill the child; ignored, the write fails with EFBIG. 24 MiB, in
    // blocks of 512 bytes.
    shell
        .args(["-c", r#"trap "" XFSZ; ulimit -f 49152; exec "$0" "$@""#])
        .arg(env::current_exe().unwrap());
    let mut child = child(shell, "writer", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(stdout.lines().map_while(Result::ok).collect::<Vec<_>>()));
    let lines = ended.recv_timeout(DEADLINE);
    child.kill().unwrap();
    child.wait().unwrap();
    let lines = lines.expect("the child ends by itself");

    let stopped: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("stopped "))
        .collect();
    assert_eq!(stopped.len(), 16, "{stopped:?}");
    assert!(
        stopped.iter().all(|err| err.starts_with("Poisoned")),
        "{stopped:?}"
    );
    let acks = lines.iter().filter_map(|line| {
        line.strip_prefix("ack ")?
            .strip_suffix('.')?
            .split_once(' ')
    });
    let acks: Vec<Ack> = acks
        .map(|(r, key)| Ack {
            revision: r.parse().unwrap(),
            key: key.to_owned(),
        })
        .collect();
    assert!(acks.len() > 1000, "{}", acks.len());
    assert!(
        lines.contains(&format!("keys {}", acks.len())),
        "what was acknowledged can be read, and nothing else"
    );
    assert_all_there(dir.path(), &acks);
    let store = open(dir.path()).unwrap();
    block_on(store.commit(Txn::new().put(key("after"), ""))).unwrap();
}

#[test]
fn a_closed_store_opens_again_at_once() {
    let dir = store_of(1, 1);
    let begun = Instant::now();
    for round in 0..50 {
        let store = SledStore::open(dir.path()).unwrap();
        block_on(store.commit(Txn::new().put(key("a"), round.to_string()))).unwrap();
    }
    assert!(begun.elapsed() < DEADLINE);
}

#[test]
fn a_compaction_that_was_cut_short_is_finished_when_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let revisions: Vec<u64> = (0..20)
        .map(|n| {
            block_on(store.commit(Txn::new().put(key("a"), n.to_string())))
                .unwrap()
                .revision
                .number()
        })
        .collect();
    block_on(store.commit(Txn::new().delete(key("a")).put(key("b"), ""))).unwrap();
    let last = block_on(store.status()).unwrap().current;
    drop(store);
    let changes = |db: &sled::Db| db.scan_prefix("E|").count();
    with_sled(dir.path(), |db| {
        assert_eq!(changes(db), revisions.len() + 2);
        // The compaction is recorded, but nothing is removed yet.
        db.insert(b"M|oldest", &last.number().to_be_bytes())
            .unwrap();
    });
    let store = open(dir.path()).unwrap();
    let status = block_on(store.status()).unwrap();
    assert_eq!(
        (
            status.oldest,
            status.current,
            status.keys,
            status.memory_bytes
        ),
        (last, last, 1, 1)
    );
    drop(store);
    with_sled(dir.path(), |db| assert_eq!(changes(db), 1));
}

fn damage(dir: &Path) -> Damage {
    match open(dir) {
        Err(OpenError::Corrupt { dir: at, damage }) => {
            assert_eq!(at, dir);
            damage
        }
        other => panic!("{other:?}"),
    }
}

/// Changes the database behind the store's back.
fn with_sled(dir: &Path, change: impl FnOnce(&sled::Db)) {
    let config = sled::Config::new()
        .path(dir)
        .segment_size(8 * 1024 * 1024)
        .flush_every_ms(None);
    let db = config.open().unwrap();
    change(&db);
    db.flush().unwrap();
    drop(db);
    // sled's threads hold its lock a moment longer.
    File::open(dir.join("db")).unwrap().lock().unwrap();
}

fn copy_of(dir: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("blobs")).unwrap();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

fn flip(file: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}
