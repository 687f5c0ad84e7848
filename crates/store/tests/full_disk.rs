//! The sled engine on a disk that is full, small or read-only.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

#[path = "support/store.rs"]
mod support;

use std::{
    env,
    ffi::CStr,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use podplane_store::{SledStore, Store, StoreError, Txn};
use podplane_test_requirements::root;
use rustix::{
    fs::{FallocateFlags, fallocate},
    mount::MountFlags,
};
use tempfile::TempDir;

use support::{CHILD_DIR, block_on, child, key, open};

#[test]
fn a_full_disk_refuses_commits_until_there_is_space() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let dir = disk.dir.path().join("store");
    let store = open(&dir).unwrap();
    let value = |n: usize| Txn::new().put(key(&format!("{n}")), vec![7; 4096]);
    for n in 0..50 {
        block_on(store.commit(value(n))).unwrap();
    }
    let ballast = disk.dir.path().join("ballast");
    disk.fill(&ballast);
    let refused = block_on(store.commit(value(50))).unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace { .. }), "{refused}");
    assert!(refused.to_string().starts_with(&format!(
        "no space left for the store in {}: ",
        dir.display()
    )));
    assert_eq!(block_on(store.status()).unwrap().keys, 50);

    // The same holds for a process that starts on a full disk.
    drop(store);
    let store = open(&dir).unwrap();
    assert!(matches!(
        block_on(store.commit(value(50))),
        Err(StoreError::NoSpace { .. })
    ));
    drop(store);
    fs::remove_file(&ballast).unwrap();
    let store = open(&dir).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 50);
    block_on(store.commit(value(50))).unwrap();
    disk.fill(&ballast);
    assert!(matches!(
        block_on(store.commit(value(51))),
        Err(StoreError::NoSpace { .. })
    ));
    fs::remove_file(&ballast).unwrap();
    block_on(store.commit(value(51))).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 52);
}

/// Objects can be deleted on a full disk, both by a server that was already running and by one that
/// was started since.
#[test]
fn on_a_full_disk_the_store_opens_and_accepts_commits_that_reclaim() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let dir = disk.dir.path().join("store");
    let at = |n: usize| key(&format!("{n:03}"));
    let store = open(&dir).unwrap();
    for n in 0..200 {
        block_on(store.commit(Txn::new().put(at(n), vec![7; 20_000]))).unwrap();
    }
    let ballast = disk.dir.path().join("ballast");
    let remove = |store: &SledStore, n: usize| {
        // As an object is deleted: marked first, then removed.
        let marked = Txn {
            lifetime: None,
            reclaims: true,
            ..Txn::new().put(at(n), vec![8; 20_000])
        };
        block_on(store.commit(marked)).unwrap();
        let removed = Txn {
            lifetime: None,
            reclaims: true,
            ..Txn::new().delete(at(n))
        };
        block_on(store.commit(removed)).unwrap();
    };
    let compact = |store: &SledStore| {
        let current = block_on(store.status()).unwrap().current;
        block_on(store.compact(current)).unwrap();
        block_on(store.maintain()).unwrap();
    };
    disk.fill(&ballast);
    for n in 0..20 {
        remove(&store, n);
    }
    let create = || block_on(store.commit(Txn::new().put(key("new"), "")));
    assert!(matches!(create(), Err(StoreError::NoSpace { .. })));
    compact(&store);
    drop(store);
    fs::remove_file(&ballast).unwrap();
    // With free space, the reserve is made again.
    drop(open(&dir).unwrap());
    assert!(dir.join("reserve").exists());
    disk.fill(&ballast);
    let store = open(&dir).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 180);
    for n in 20..40 {
        remove(&store, n);
    }
    compact(&store);
    drop(store);
    let store = open(&dir).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 160);
    fs::remove_file(&ballast).unwrap();
    block_on(store.commit(Txn::new().put(key("new"), ""))).unwrap();
    block_on(store.maintain()).unwrap();
    assert!(dir.join("reserve").exists());
}

/// Each round fills the disk again, kills and restarts the server, and deletes something.
#[test]
fn the_store_opens_although_the_disk_is_refilled_after_each_deletion() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let dir = disk.dir.path().join("store");
    let at = |n: usize| key(&format!("{n:03}"));
    let store = open(&dir).unwrap();
    for n in 0..40 {
        block_on(store.commit(Txn::new().put(at(n), vec![7; 20_000]))).unwrap();
    }
    drop(store);
    let mut deleted = 0;
    for round in 0..6 {
        disk.fill(&disk.dir.path().join(format!("ballast-{round}")));
        let mut child = child(Command::new(env::current_exe().unwrap()), "deleter", &dir)
            .env("STORE_TEST_FROM", deleted.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines().map_while(Result::ok);
        for _ in 0..3 {
            let found = lines.find(|line| line.contains("deleted "));
            assert!(
                found.is_some(),
                "round {round}: the child opens and deletes"
            );
            disk.fill(&disk.dir.path().join(format!("more-{round}-{deleted}")));
            deleted += 1;
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let store = open(&dir).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 40 - deleted);
    for file in fs::read_dir(disk.dir.path()).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
    block_on(store.maintain()).unwrap();
    // The reserve has its full size again.
    assert_eq!(fs::metadata(dir.join("reserve")).unwrap().len(), 14 << 20);
    block_on(store.commit(Txn::new().put(key("new"), ""))).unwrap();
}

/// Deletes one object for each line that it reads.
#[test]
#[ignore = "not a test: another test runs it as a child process and kills it"]
fn deleter() {
    let Some(dir) = env::var_os(CHILD_DIR) else {
        return;
    };
    let store = open(Path::new(&dir)).unwrap();
    let from: usize = env::var("STORE_TEST_FROM").unwrap().parse().unwrap();
    for n in from.. {
        let removed = Txn {
            lifetime: None,
            reclaims: true,
            ..Txn::new().delete(key(&format!("{n:03}")))
        };
        block_on(store.commit(removed)).unwrap();
        println!("deleted {n}");
        io::stdin().read_line(&mut String::new()).unwrap();
    }
}

/// The space that a compaction writes cannot be computed from what it removes: it stops where space
/// ends.
#[test]
fn compacting_large_values_leaves_room_on_a_small_disk() {
    let Some(disk) = SmallDisk::of(c"size=320m") else {
        return;
    };
    let dir = disk.dir.path().join("store");
    let store = open(&dir).unwrap();
    for n in 0..90 {
        let at = key(&format!("{}", n % 5));
        block_on(store.commit(Txn::new().put(at, vec![7; 1_500_000]))).unwrap();
    }
    let ballast = disk.dir.path().join("ballast");
    disk.fill_but(&ballast, 40 * 1024 * 1024);
    let current = block_on(store.status()).unwrap().current;
    block_on(store.compact(current)).unwrap();
    block_on(store.maintain()).unwrap();
    assert!(disk.free() > 0);
    assert_eq!(block_on(store.status()).unwrap().keys, 5);
    drop(store);
    assert_eq!(block_on(open(&dir).unwrap().status()).unwrap().keys, 5);
}

#[test]
fn a_read_only_disk_is_named_and_nothing_is_lost() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let dir = disk.dir.path().join("store");
    let store = open(&dir).unwrap();
    block_on(store.commit(Txn::new().put(key("a"), "1"))).unwrap();
    drop(store);
    disk.remount(MountFlags::RDONLY);
    let refused = open(&dir).unwrap_err();
    let expected = format!(
        "failed to open the lock file for the store in {}; its file system is mounted read-only: mount it for writing",
        dir.display()
    );
    assert_eq!(refused.to_string(), expected);
    disk.remount(MountFlags::empty());
    let store = open(&dir).unwrap();
    assert_eq!(block_on(store.status()).unwrap().keys, 1);
}

/// A small file system.
struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// `None` if the tester excluded tests that need root.
    fn mount() -> Option<Self> {
        Self::of(c"size=96m")
    }

    fn of(size: &CStr) -> Option<Self> {
        if !root() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), size).unwrap();
        Some(Self { dir })
    }

    fn remount(&self, flags: MountFlags) {
        rustix::mount::mount_remount(self.dir.path(), flags, c"").unwrap();
    }

    fn fill(&self, ballast: &Path) {
        let mut file = File::create(ballast).unwrap();
        while file.write_all(&[7; 65536]).is_ok() {}
        assert_eq!(self.free(), 0);
    }

    fn fill_but(&self, ballast: &Path, free: u64) {
        let file = File::create(ballast).unwrap();
        let bytes = self.free() - free;
        fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.dir.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}
