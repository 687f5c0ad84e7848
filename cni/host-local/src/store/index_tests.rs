use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;

struct IndexFixture {
    dir: tempfile::TempDir,
    store: Store,
}

impl IndexFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("net"), Options::default()).unwrap();
        let store = store.with_index_dir(&dir.path().join("state/index"));
        Self { dir, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("net").join(name)
    }

    fn index_file(&self) -> PathBuf {
        index::state_path(&self.store.dir, &self.store.index_dir).unwrap()
    }

    fn add(&self, ip: IpAddr, id: &str) -> bool {
        let owner = LeaseOwner::new(id, "eth0");
        let mut locked = self.store.lock(Some(&owner)).unwrap();
        locked.reserve(ip, &owner).unwrap()
    }

    /// Does what a DEL does, and returns the number of released leases.
    fn del(&self, id: &str) -> usize {
        let owner = LeaseOwner::new(id, "eth0");
        let mut locked = self.store.lock(Some(&owner)).unwrap();
        if !locked.holds(OwnerMatch::Exact) {
            locked.make_sure().unwrap();
        }
        locked.release(OwnerMatch::Exact).unwrap()
    }

    fn is_believed(&self) -> bool {
        let locked = self.store.lock(None).unwrap();
        matches!(locked.source, LeaseSource::Index(_))
    }

    /// Returns true if the index is valid; panics if a valid index differs from the directory.
    fn compare(&self) -> bool {
        let _guard = self.store.guard().unwrap();
        let fd = self.store.fd.as_fd();
        let mut index = Index::of(fd, &self.store.dir, &self.store.index_dir).unwrap();
        let Some(known) = index.load(fd) else {
            return false;
        };
        // `scan` would not do: it removes leases that it takes for dead.
        let leases = self.leases();
        let found = leases
            .iter()
            .map(|(ip, content)| (*ip, hash(content)))
            .collect();
        assert_eq!(known.iter().collect::<BTreeSet<_>>(), found);
        true
    }

    fn leases(&self) -> Vec<(IpAddr, String)> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let leases = entries.filter_map(|entry| {
            let name = name(entry).unwrap();
            let content = fs::read_to_string(self.path(&name)).ok()?;
            Some((name.parse().ok()?, content))
        });
        leases.collect()
    }
}

/// A small generator with the same numbers in each run.
struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn ip(&mut self) -> IpAddr {
        let host = u8::try_from(self.below(40)).unwrap();
        [10, 1, 2, host].into()
    }
}

fn rounds() -> u64 {
    if std::env::var_os("PODPLANE_SOAK").is_some() {
        100_000
    } else {
        1_000
    }
}

/// Changes the directory as the reference or an operator would, immediately before the next
/// operation.
fn change_behind_the_back(world: &IndexFixture, random: &mut TestRandom) {
    let (ip, other) = (random.ip().to_string(), random.ip().to_string());
    let path = world.path(&ip);
    match random.below(5) {
        0 | 1 => {
            let file = fs::File::create_new(&path);
            _ = file.and_then(|mut file| io::Write::write_all(&mut file, b"theirs\r\neth0"));
        }
        2 => _ = fs::remove_file(&path),
        3 => _ = fs::rename(&path, world.path(&other)),
        // One file is replaced by another: the number of entries stays.
        _ => {
            if fs::remove_file(&path).is_ok() {
                _ = fs::write(world.path(&other), "theirs\r\neth1");
            }
        }
    }
}

#[test]
fn a_trusted_index_agrees_with_the_directory() {
    let world = IndexFixture::new();
    let mut random = TestRandom(42);
    let (mut believed, mut refused) = (0_u64, 0_u64);
    for round in 0..rounds() {
        match random.below(4) {
            0 => _ = world.add(random.ip(), &format!("c{}", round % 30)),
            1 => _ = world.del(&format!("c{}", random.below(30))),
            _ => {
                let before = world.leases().into_iter().collect::<BTreeSet<_>>();
                change_behind_the_back(&world, &mut random);
                let after = world.leases().into_iter().collect::<BTreeSet<_>>();
                let is_believed = world.compare();
                assert!(before == after || !is_believed, "round {round}");
                refused += u64::from(!is_believed);
                continue;
            }
        }
        believed += u64::from(world.compare());
    }
    println!("believed {believed} times, refused {refused} times");
    assert!(believed > rounds() / 5 && refused > rounds() / 10);
}

#[test]
fn concurrent_foreign_changes_do_not_corrupt_the_index() {
    let world = IndexFixture::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Takes the lock through a file of its own, as another process does.
            let theirs = Store::open(&world.path(""), Options::default()).unwrap();
            let mut random = TestRandom(7);
            while !stop.load(Ordering::Relaxed) {
                let guard = theirs.guard().unwrap();
                change_behind_the_back(&world, &mut random);
                drop(guard);
                thread::yield_now();
            }
        });
        let mut random = TestRandom(99);
        for round in 0..rounds() {
            let id = format!("c{}", round % 30);
            if random.below(2) == 0 {
                world.add(random.ip(), &id);
            } else {
                world.del(&id);
            }
            world.compare();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn own_changes_keep_the_index_trusted() {
    let world = IndexFixture::new();
    let ip = |host| IpAddr::from([10, 1, 2, host]);
    assert!(!world.is_believed());
    for host in 2..200 {
        assert!(world.add(ip(host), &format!("c{host}")));
        assert!(world.is_believed() && world.compare(), "{host}");
        assert!(!world.add(ip(host), "another"));
    }
    for host in (2..200).step_by(3) {
        assert_eq!(world.del(&format!("c{host}")), 1);
        assert!(world.is_believed() && world.compare(), "{host}");
    }
    assert_eq!(
        world.del("c2"),
        0,
        "a DEL that finds nothing reads the directory"
    );
    assert!(world.is_believed() && world.compare());
}

#[test]
fn an_edited_lease_belongs_to_its_new_owner() {
    let world = IndexFixture::new();
    let ip = IpAddr::from([10, 1, 2, 3]);
    assert!(world.add(ip, "a"));
    fs::write(world.path("10.1.2.3"), "b\r\neth0").unwrap();
    assert!(
        world.is_believed(),
        "an edit in place is what it does not see"
    );
    assert_eq!(world.del("a"), 0);
    assert!(!world.add(ip, "c"));
    assert_eq!(world.del("b"), 1);
    assert!(world.add(ip, "c"));
}

#[test]
fn detects_and_repairs_a_wrong_index() {
    let world = IndexFixture::new();
    let ip = IpAddr::from([10, 1, 2, 3]);
    assert!(world.add(ip, "a"));
    // Another mtime could hide a change only if it were the one in the header.
    let mark = fs::metadata(world.path("")).unwrap().modified().unwrap();
    fs::write(world.path("10.1.2.4"), "b\r\neth0").unwrap();
    fs::File::open(world.path(""))
        .unwrap()
        .set_modified(mark)
        .unwrap();
    assert!(!world.is_believed(), "ctime cannot be set");
    // The index claims that a taken address is free.
    let guard = world.store.guard().unwrap();
    let fd = world.store.fd.as_fd();
    let mut index = Index::of(fd, &world.store.dir, &world.store.index_dir).unwrap();
    index.save(fd, &Records::default(), None).unwrap();
    drop(guard);
    assert!(world.is_believed());
    assert!(!world.add(ip, "c"));
    assert!(world.compare(), "it was mended");
    assert_eq!((world.del("a"), world.del("b")), (1, 1));
}

#[test]
fn ignores_a_damaged_or_foreign_writable_index() {
    let world = IndexFixture::new();
    let ip = |host| IpAddr::from([10, 1, 2, host]);
    assert!(world.add(ip(3), "a"));
    let file = world.index_file();
    let good = fs::read(&file).unwrap();
    for length in [0, 1, 50, good.len() - 1] {
        fs::write(&file, &good[..length]).unwrap();
        assert!(!world.is_believed(), "{length} bytes");
        assert!(world.compare(), "it is written anew");
    }
    for at in [0, 20, 60, 99] {
        let mut bad = fs::read(&file).unwrap();
        bad[at] ^= 1;
        fs::write(&file, &bad).unwrap();
        assert!(!world.is_believed(), "byte {at}");
    }
    assert!(world.is_believed());
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&file, 0o620);
    assert!(!world.is_believed());
    assert!(!world.compare());
    fs::remove_file(&file).unwrap();
    let index_dir = world.store.index_dir.clone();
    mode(&index_dir, 0o770);
    assert!(world.add(ip(4), "b") && !file.exists());
    mode(&index_dir, 0o700);
    assert!(world.add(ip(5), "c") && file.exists());
    fs::rename(&file, world.dir.path().join("elsewhere")).unwrap();
    symlink(world.dir.path().join("elsewhere"), &file).unwrap();
    assert!(!world.is_believed());
    assert_eq!(world.del("a"), 1);
}

#[test]
fn removes_indexes_of_deleted_directories() {
    let world = IndexFixture::new();
    let state = &world.store.index_dir;
    assert!(world.add([10, 1, 2, 3].into(), "a"));
    let gone = index::state_path(Path::new("/does/not/100%/exist"), state).unwrap();
    fs::write(&gone, "").unwrap();
    fs::remove_file(world.index_file()).unwrap();
    assert!(world.add([10, 1, 2, 4].into(), "b"));
    assert!(world.index_file().exists() && !gone.exists());
}

#[test]
fn reads_a_large_directory_completely() {
    let world = IndexFixture::new();
    for n in 0..5_000_u32 {
        let ip = IpAddr::from((0x0a01_0000 + n).to_be_bytes());
        fs::write(world.path(&ip.to_string()), format!("c{n}\r\neth0")).unwrap();
    }
    for empty in ["10.1.0.0", "10.1.19.135"] {
        fs::write(world.path(empty), "").unwrap();
    }
    for owner in ["c1", "c2500", "c4998"] {
        fs::remove_file(world.index_file()).unwrap_or_default();
        assert_eq!(world.del(owner), 1, "{owner}");
        assert!(world.compare());
    }
    assert_eq!(world.leases().len(), 4_995);
}

#[test]
fn compares_names_once_until_the_directory_changes() {
    let world = IndexFixture::new();
    let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
    let was_compared = || {
        let mut locked = world.store.lock(None).unwrap();
        let was_compared = locked.index.as_ref().unwrap().is_compared();
        assert!(!locked.make_sure_of_names().unwrap());
        was_compared
    };
    assert!(world.add(ip(2), "a"));
    assert_eq!([(); 3].map(|()| was_compared()), [false, true, true]);
    assert!(world.is_believed());
    // A change of ours, and one by hand.
    assert!(world.add(ip(3), "b"));
    assert_eq!([(); 2].map(|()| was_compared()), [false, true]);
    fs::remove_file(world.path("10.0.0.3")).unwrap();
    assert!(!world.is_believed());
    assert_eq!([(); 2].map(|()| was_compared()), [false, true]);
    // A change by hand while the names are compared.
    assert!(world.add(ip(3), "b"));
    let locked = world.store.lock(None).unwrap();
    fs::write(world.path("10.0.0.4"), "c\r\neth0").unwrap();
    locked.index.as_ref().unwrap().note_compared().unwrap();
    drop(locked);
    assert!(!world.is_believed());
    assert!(!world.add(ip(4), "d"));
}

#[test]
fn forgets_the_state_below_a_directory_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (index, clusters) = (dir.path().join("index"), dir.path().join("clusters"));
    std::fs::create_dir_all(&index).unwrap();
    std::fs::create_dir_all(clusters.join("one/kept")).unwrap();
    let state = |dir: &str| index::state_path(&clusters.join(dir), &index).unwrap();
    let boot = |dir: &str| {
        let mut path = state(dir);
        path.as_mut_os_string().push(index::BOOT_SUFFIX);
        path
    };
    let gone = [state("one/gone"), boot("one/gone")];
    let stays = [state("one/kept"), state("one-more/gone"), state("two/gone")];
    for file in gone.iter().chain(&stays) {
        std::fs::write(file, "").unwrap();
    }
    index::forget_in(&index, &clusters.join("one")).unwrap();
    assert!(gone.iter().all(|file| !file.exists()));
    assert!(stays.iter().all(|file| file.exists()), "of others");
    index::forget_in(&dir.path().join("none"), &clusters).unwrap();
}
