use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Opens a store without an index.
fn open(dir: &Path) -> Store {
    let store = Store::open(dir, Options::default()).unwrap();
    store.with_index_dir(Path::new("/dev/null/none"))
}

#[test]
fn writes_the_files_of_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("a/net"));
    let mut locked = store.lock(None).unwrap();
    let owner = LeaseOwner::new("c1", "eth0");
    assert!(locked.reserve(ip("10.1.2.3"), &owner).unwrap());
    assert!(locked.reserve(ip("fd00::2"), &owner).unwrap());
    locked.set_cursor(0, ip("10.1.2.100")).unwrap();
    locked.set_cursor(0, ip("10.1.2.3")).unwrap();
    drop(locked);
    let net = dir.path().join("a/net");
    let read = |name: &str| fs::read_to_string(net.join(name)).unwrap();
    assert_eq!(read("10.1.2.3"), "c1\r\neth0");
    assert_eq!(read("fd00::2"), "c1\r\neth0");
    assert_eq!(read("last_reserved_ip.0"), "10.1.2.3");
    let mode = |name: &str| fs::metadata(net.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode("10.1.2.3"), mode("last_reserved_ip.0"), mode("lock")),
        (0o600, 0o600, 0o750)
    );
    assert_eq!(fs::read_dir(&net).unwrap().count(), 4);
}

#[test]
fn reclaims_partial_files_of_a_killed_process() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("10.1.2.3"), "").unwrap();
    fs::write(dir.path().join(".lease.tmp"), "c1\r\net").unwrap();
    fs::write(dir.path().join("10.1.2.5"), [0; 9]).unwrap();
    fs::create_dir(dir.path().join("10.1.2.4")).unwrap();
    let store = open(dir.path());
    let mut locked = store.lock(None).unwrap();
    assert!(!locked.is_taken(ip("10.1.2.3")) && !locked.is_taken(ip("10.1.2.5")));
    assert!(
        locked.is_taken(ip("10.1.2.4")),
        "a directory of that name takes the address"
    );
    assert!(!dir.path().join(".lease.tmp").exists());
    assert!(
        locked
            .reserve(ip("10.1.2.3"), &LeaseOwner::new("c2", "eth0"))
            .unwrap()
    );
    assert!(
        !locked
            .reserve(ip("10.1.2.3"), &LeaseOwner::new("c3", "eth0"))
            .unwrap()
    );
}

#[test]
fn leases_of_old_releases_have_no_interface() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("10.1.2.3"), " old\n").unwrap();
    fs::write(dir.path().join("10.1.2.2"), "new\r\neth0").unwrap();
    fs::write(dir.path().join("notes"), "new\r\neth0").unwrap();
    let leases = usage(dir.path()).unwrap();
    let names = |lease: &Lease| (lease.container_id.clone(), lease.ifname.clone());
    assert_eq!(names(&leases[0]), ("new".into(), Some("eth0".into())));
    assert_eq!(names(&leases[1]), ("old".into(), None));
    let removed = reclaim(dir.path(), |lease| lease.container_id == "new").unwrap();
    assert_eq!(removed, leases[1..]);
    assert_eq!(usage(dir.path()).unwrap(), leases[..1]);
}

#[test]
fn a_missing_directory_is_empty_and_stays_missing() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    assert_eq!(usage(&missing).unwrap(), []);
    assert_eq!(reclaim(&missing, |_| false).unwrap(), []);
    assert!(!missing.exists());
}

#[test]
fn errors_have_the_texts_of_go() {
    let error = Store::open(Path::new("/proc/nope/net"), Options::default())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with(": no such file or directory"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lock")).unwrap();
    assert_eq!(
        Store::open(dir.path(), Options::default())
            .unwrap_err()
            .to_string(),
        "is a directory"
    );
    let store_dir = tempfile::tempdir().unwrap();
    let store = open(store_dir.path());
    let cursor = store_dir.path().join("last_reserved_ip.0");
    fs::create_dir(&cursor).unwrap();
    let error = store
        .lock(None)
        .unwrap()
        .set_cursor(0, ip("10.1.2.3"))
        .unwrap_err()
        .to_string();
    assert_eq!(error, format!("open {}: is a directory", cursor.display()));
}
