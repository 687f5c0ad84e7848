//! Restoration of leases that are known from elsewhere, such as a runtime's records.

use std::{io, path::Path};

use rustix::fs::{AtFlags, CWD, OFlags};

use super::{
    lease::{Lease, LeaseOwner},
    lock::LockError,
    path_error::go_path_error,
    scan::{TEMPORARY, read_small},
    store::{LEASE_MODE, Options, Store, write_all},
};

/// Returns true if the lease's file in `dir` names the lease's owner. It is read without the lock:
/// no program changes the lease of a running container.
#[must_use]
pub fn is_whole(dir: &Path, lease: &Lease) -> bool {
    let content = read_small(CWD, dir.join(lease.ip.to_string()));
    content.is_ok_and(|content| is_of(lease, &content))
}

fn is_of(lease: &Lease, content: &str) -> bool {
    let owner = LeaseOwner::new(
        &lease.container_id,
        lease.ifname.as_deref().unwrap_or_default(),
    );
    owner.matches(content.trim()).is_some()
}

/// Writes the file of each lease that is missing from `dir` or has other content, under the lock,
/// and returns those leases.
///
/// The caller knows that they are in use. A file appears in one step with its content, as the
/// reference would have written it. The change to the directory also invalidates an index of it
/// (ADR 0006).
///
/// # Errors
/// If the lock or the directory cannot be used. If leases could not be written, the first such
/// error, after the others were written.
pub fn restore(dir: &Path, options: Options, leases: &[Lease]) -> Result<Vec<Lease>, LockError> {
    let store = Store::open(dir, options)?;
    let _guard = store.guard()?;
    let mut restored = Vec::new();
    let mut outcome = Ok(());
    for lease in leases.iter().filter(|lease| !is_whole(dir, lease)) {
        match store.replace_lease(lease) {
            Ok(()) => restored.push(lease.clone()),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    Ok(outcome.map(|()| restored)?)
}

impl Store {
    /// Writes a lease, replacing a file of that name. The caller holds the lock.
    fn replace_lease(&self, lease: &Lease) -> io::Result<()> {
        let name = lease.ip.to_string();
        let ifname = lease.ifname.as_deref().unwrap_or_default();
        let content = LeaseOwner::new(&lease.container_id, ifname).content;
        let write = || -> rustix::io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.fd, TEMPORARY, flags, LEASE_MODE)?;
            write_all(&file, &content)?;
            rustix::fs::renameat(&self.fd, TEMPORARY, &self.fd, &name)
        };
        write().map_err(|error| {
            _ = rustix::fs::unlinkat(&self.fd, TEMPORARY, AtFlags::empty());
            go_path_error("rename", &self.dir.join(&name), error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn lease(last: u8, id: &str) -> Lease {
        Lease {
            ip: [10, 1, 2, last].into(),
            container_id: id.into(),
            ifname: Some("eth0".into()),
        }
    }

    #[test]
    fn restores_only_missing_or_damaged_leases() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| fs::write(dir.path().join(name), content).unwrap();
        write("10.1.2.2", b"whole\r\neth0");
        write("10.1.2.3", b"");
        write("10.1.2.4", &[0; 70]);
        write("10.1.2.5", b"another\r\neth0");
        write("10.1.2.7", b"old");
        write("10.1.2.9", b"somebody\r\neth0");
        let known = [
            lease(2, "whole"),
            lease(3, "truncated"),
            lease(4, "zeros"),
            lease(5, "foreign"),
            lease(6, "deleted"),
            lease(7, "old"),
        ];
        let restored = restore(dir.path(), Options::default(), &known).unwrap();
        assert_eq!(restored, known[1..5]);
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        for (last, id) in [
            (3, "truncated"),
            (4, "zeros"),
            (5, "foreign"),
            (6, "deleted"),
        ] {
            assert_eq!(read(&format!("10.1.2.{last}")), format!("{id}\r\neth0"));
        }
        assert_eq!(read("10.1.2.7"), "old", "an old release wrote no interface");
        assert_eq!(read("10.1.2.9"), "somebody\r\neth0");
        assert_eq!(restore(dir.path(), Options::default(), &known).unwrap(), []);
    }

    #[test]
    fn an_index_does_not_hide_a_restored_lease() {
        let dir = tempfile::tempdir().unwrap();
        let indexes = tempfile::tempdir().unwrap();
        let open = || {
            let store = Store::open(dir.path(), Options::default()).unwrap();
            store.with_index_dir(&indexes.path().join("index"))
        };
        let (a, b) = (lease(2, "a"), lease(3, "b"));
        for lease in [&a, &b] {
            let owner = LeaseOwner::new(&lease.container_id, "eth0");
            assert!(
                open()
                    .lock(None)
                    .unwrap()
                    .reserve(lease.ip, &owner)
                    .unwrap()
            );
        }
        let store = open();
        drop(store.lock(None).unwrap()); // Saves the index.
        fs::remove_file(dir.path().join("10.1.2.2")).unwrap();
        fs::write(dir.path().join("10.1.2.3"), "").unwrap();
        let known = [a, b];
        let restored = restore(dir.path(), Options::default(), &known).unwrap();
        assert_eq!(restored, known);
        let mut locked = store.lock(None).unwrap();
        for lease in known {
            assert!(locked.is_taken(lease.ip));
            assert_eq!(locked.read(lease.ip), Some(lease));
        }
    }
}
