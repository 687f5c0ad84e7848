//! Power cuts under load, on a real file system whose disk loses unflushed writes; then the machine
//! boots.
//!
//! `PODPLANE_SOAK=1` runs 25 rounds at each size. Each test runs in a process of its own with
//! mounts of its own, so that nothing of it is left afterwards.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "output of a failed test")]
#![expect(clippy::disallowed_methods, reason = "a test")]

mod disk;
mod load;
#[path = "../support/mod.rs"]
mod support;

use std::{
    env,
    io::{self, Read as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use podplane_store::{MAX_VALUE_BYTES, SledStore};
use podplane_test_requirements::{require, root};

use crate::{
    disk::{MountedDisk, UnsyncedWrites},
    load::{AcknowledgedCommits, Load, verify},
    support::{RewriteStage, current},
};

const CHILD: &str = "STORE_TEST_POWER_CUT_CHILD";

#[test]
fn values_of_1_kib_survive() {
    alone("values_of_1_kib_survive", || survive(1024));
}

#[test]
fn values_of_10_kib_survive() {
    alone("values_of_10_kib_survive", || survive(10 * 1024));
}

/// The largest size that is not split.
#[test]
fn values_of_64_kib_survive() {
    alone("values_of_64_kib_survive", || survive(64 * 1024));
}

/// Split into the most records possible.
#[test]
fn values_of_the_largest_size_survive() {
    alone("values_of_the_largest_size_survive", || {
        survive(MAX_VALUE_BYTES)
    });
}

fn rounds() -> usize {
    if env::var_os("PODPLANE_SOAK").is_some() {
        25
    } else {
        4
    }
}

fn survive(value_bytes: usize) {
    let runtime = runtime();
    let mut random = seeded();
    let mut machine = MountedDisk::new();
    let mut acknowledged = AcknowledgedCommits::default();
    for round in 1..=rounds() {
        let commits = random.u64(0..load::most_commits(value_bytes));
        let then = Duration::from_micros(random.u64(0..5_000));
        let unsynced = *random
            .choice(&[UnsyncedWrites::Lost, UnsyncedWrites::Torn])
            .unwrap();
        let (image, acknowledged_commits) = runtime.block_on(async {
            let dir = machine.root().join("store");
            let (store, found) = verify(&dir, &acknowledged, value_bytes).await;
            let mut load = Load::begin(store, &found, value_bytes);
            load.reach(commits, then).await;
            // The acknowledgements are read first: the power is cut later.
            let acknowledged_commits = load.acknowledged();
            let image = machine.cut_power(unsynced, &mut random);
            load.end().await;
            (image, acknowledged_commits)
        });
        println!(
            "round {round}: {} acknowledged, {unsynced:?}",
            acknowledged_commits.commits()
        );
        acknowledged = acknowledged_commits;
        machine = MountedDisk::boot(image);
    }
    let dir = machine.root().join("store");
    drop(runtime.block_on(verify(&dir, &acknowledged, value_bytes)));
}

/// Cuts the power while the store moves into a new database, after it did, and after the old one
/// was removed. The disk is sometimes a little ahead of the observed step.
#[test]
fn a_power_cut_at_each_step_of_a_rewrite_loses_nothing() {
    alone(
        "a_power_cut_at_each_step_of_a_rewrite_loses_nothing",
        || {
            const VALUE_BYTES: usize = 64 * 1024;
            let runtime = runtime();
            let mut random = seeded();
            let mut machine = MountedDisk::new();
            let mut acknowledged = AcknowledgedCommits::default();
            for round in 0..rounds().max(6) {
                let moment = [
                    RewriteStage::Copying,
                    RewriteStage::Switched,
                    RewriteStage::Cleaned,
                ][round % 3];
                let unsynced = [UnsyncedWrites::Torn, UnsyncedWrites::Lost][round / 3 % 2];
                let (image, acknowledged_commits) = runtime.block_on(async {
                    let dir = machine.root().join("store");
                    let (store, found) = verify(&dir, &acknowledged, VALUE_BYTES).await;
                    let before = current(&dir);
                    let mut load = Load::begin(store, &found, VALUE_BYTES);
                    let mut commits = 0;
                    while !moment.is_reached(&dir, before) {
                        commits += 1;
                        assert!(commits < 20_000, "no rewrite: {moment:?}");
                        load.reach(commits, Duration::ZERO).await;
                    }
                    let then = Duration::from_millis(random.u64(0..60));
                    load.reach(commits, then).await;
                    let acknowledged_commits = load.acknowledged();
                    let image = machine.cut_power(unsynced, &mut random);
                    load.end().await;
                    (image, acknowledged_commits)
                });
                let commits = acknowledged_commits.commits();
                println!("round {round}: {moment:?}, {unsynced:?}, {commits} acknowledged");
                acknowledged = acknowledged_commits;
                machine = MountedDisk::boot(image);
            }
            let dir = machine.root().join("store");
            drop(runtime.block_on(verify(&dir, &acknowledged, VALUE_BYTES)));
        },
    );
}

/// Also cuts the power while the store is being opened.
#[test]
fn a_power_cut_while_opening_leaves_a_store_that_opens() {
    alone(
        "a_power_cut_while_opening_leaves_a_store_that_opens",
        || {
            let runtime = runtime();
            let mut random = seeded();
            let mut machine = MountedDisk::new();
            let mut acknowledged = AcknowledgedCommits::default();
            for round in 1..=rounds() {
                let dir = machine.root().join("store");
                let opening = {
                    let dir = dir.clone();
                    thread::spawn(move || SledStore::open(dir).unwrap())
                };
                thread::sleep(Duration::from_micros(random.u64(0..120_000)));
                let image = machine.cut_power(UnsyncedWrites::Torn, &mut random);
                println!("round {round}: opened {}", opening.is_finished());
                drop(opening.join().unwrap());
                machine = MountedDisk::boot(image);
                let dir = machine.root().join("store");
                acknowledged = runtime.block_on(async {
                    let (store, found) = verify(&dir, &acknowledged, 1024).await;
                    let mut load = Load::begin(store, &found, 1024);
                    load.reach(20, Duration::ZERO).await;
                    let load_ended = load.acknowledged();
                    load.end().await;
                    // The store is closed: commits in progress have been acknowledged or are found.
                    verify(&dir, &load_ended, 1024).await.1
                });
            }
        },
    );
}

/// Checks the simulated disk: plain sled acknowledges commits that a power cut loses.
#[test]
fn plain_sled_loses_what_its_flush_acknowledged() {
    alone("plain_sled_loses_what_its_flush_acknowledged", || {
        let mut random = seeded();
        let survived = (0..rounds()).filter(|round| {
            let machine = MountedDisk::new();
            let db = sled::Config::new()
                .path(machine.root().join("store"))
                .flush_every_ms(None)
                .open()
                .unwrap();
            let acknowledged = 200u64;
            for n in 0..acknowledged {
                db.insert(n.to_be_bytes(), vec![7; 1024]).unwrap();
                db.flush().unwrap();
            }
            let image = machine.cut_power(UnsyncedWrites::Lost, &mut random);
            drop(db);
            drop(machine);
            let machine = MountedDisk::boot(image);
            let dir = machine.root().join("store");
            let found = std::panic::catch_unwind(|| items(&dir))
                .unwrap_or(Err(sled::Error::ReportableBug("panicked".into())));
            println!("round {round}: {acknowledged} acknowledged, found {found:?}");
            found.is_ok_and(|found| found == acknowledged)
        });
        let survived = survived.count();
        assert!(survived < rounds(), "this disk forgets nothing");
    });
}

fn items(dir: &Path) -> sled::Result<u64> {
    let db = sled::Config::new().path(dir).open()?;
    let mut found = 0;
    for item in db.iter() {
        item?;
        found += 1;
    }
    Ok(found)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Prints its seed, so that a failure can be reproduced, apart from the timing of threads.
fn seeded() -> fastrand::Rng {
    let seed =
        env::var("PODPLANE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("PODPLANE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Runs the body in a process with mounts of its own, which the kernel removes with the process,
/// and loop devices with their mounts.
fn alone(test: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        // Ends the child if its parent goes: the parent holds the other end of this pipe.
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            std::process::abort();
        });
        return body();
    }
    let has_fuse = Path::new("/dev/fuse").exists();
    if !root() || !require("fuse", has_fuse, "modprobe fuse loop") {
        return;
    }
    // Made by the parent, so that it is removed even if the child is killed.
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .env("TMPDIR", place.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare, of util-linux");
    let stdin = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
