//! The directory of leases: the reference's files, byte for byte.
//!
//! There is one file for each address, named by it, with `<container id>\r\n<interface>`;
//! `last_reserved_ip.<set>` for the round robin; and `lock`, which readers and writers hold by
//! flock(2). A killed reference can leave an empty lease that holds its address for ever. Here a
//! lease gets its name when it is complete, and an empty one is not a lease.

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use podplane_cni::types::parse_ip;
use podplane_host::fs::{self, File};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};

use super::{
    boot,
    index::{self, Index},
    lease::{Lease, LeaseOwner, OwnerMatch, hash},
    lock::{self, LockError},
    path_error::{go_path_error, go_text, mkdir_all},
    records::Records,
    scan::{self, TEMPORARY, read_small, scan},
};

pub(super) const LEASE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Options of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The longest wait for the lock; for ever if `None`.
    pub lock_timeout: Option<Duration>,
    /// Leases of earlier boots have no owner and are deleted.
    pub boot_id: bool,
}

/// The directory of a network's leases.
#[derive(Debug)]
pub struct Store {
    pub(super) dir: PathBuf,
    pub(super) fd: OwnedFd,
    lock: File,
    options: Options,
    index_dir: PathBuf,
}

impl Store {
    /// Opens the directory. Makes it and its lock file if they are missing.
    ///
    /// # Errors
    /// With the reference's texts.
    pub fn open(dir: &Path, options: Options) -> io::Result<Self> {
        let open_dir = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(dir, flags, Mode::empty())
        };
        let fd = match open_dir() {
            Err(Errno::NOENT | Errno::NOTDIR) => {
                mkdir_all(dir)?;
                open_dir()
            }
            opened => opened,
        };
        let fd = fd.map_err(|error| go_path_error("open", dir, error))?;
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&fd, "lock", flags, Mode::from_raw_mode(0o750))
            .and_then(|lock| match rustix::fs::fstat(&lock)? {
                stat if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    Err(Errno::ISDIR)
                }
                _ => Ok(lock),
            })
            .map_err(|error| {
                let error = io::Error::from(error);
                io::Error::new(error.kind(), go_text(&error))
            })?;
        Ok(Self {
            dir: dir.to_owned(),
            fd,
            lock: lock.into(),
            options,
            index_dir: index::DIR.into(),
        })
    }

    /// The store with its index in another directory.
    #[cfg(test)]
    pub(super) fn with_index_dir(self, index_dir: &Path) -> Self {
        let index_dir = index_dir.to_owned();
        Self { index_dir, ..self }
    }

    /// Waits for the lock, and determines the taken addresses and the owner's.
    pub(super) fn lock<'a>(
        &'a self,
        owner: Option<&'a LeaseOwner>,
    ) -> Result<LockedStore<'a>, LockError> {
        let guard = self.guard()?;
        let mut index = Index::of(self.fd.as_fd(), &self.dir, &self.index_dir);
        let known = index.as_mut().and_then(|index| index.load(self.fd.as_fd()));
        let mut locked = LockedStore {
            store: self,
            owner,
            index,
            records: Records::default(),
            source: LeaseSource::Index(Vec::new()),
            held: Vec::new(),
            cursor: None,
            _guard: guard,
        };
        match known {
            Some(records) => locked.believe(records),
            None => locked.scan()?,
        }
        Ok(locked)
    }

    pub(super) fn guard(&self) -> Result<LockGuard<'_>, LockError> {
        lock::lock(
            &self.lock,
            &self.dir.join("lock"),
            self.options.lock_timeout,
        )?;
        let guard = LockGuard(&self.lock);
        if self.options.boot_id {
            boot::forget_earlier(self.fd.as_fd(), &self.dir, &self.index_dir)
                .map_err(|error| go_path_error("open", &self.dir, error))?;
        }
        Ok(guard)
    }

    /// Reads every lease, sorted in the order in which the reference walks them.
    fn read_all(&self) -> io::Result<Vec<(String, Lease)>> {
        let want =
            |name: &str, ip, content: &str| Some((name.to_owned(), Lease::parse(ip, content)));
        let found =
            scan(self.fd.as_fd(), want).map_err(|error| go_path_error("open", &self.dir, error))?;
        let mut leases = found.wanted;
        leases.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(leases)
    }

    /// Deletes the leases for which `keep` returns false, under the lock, and returns them.
    ///
    /// # Errors
    /// If the lock or the directory cannot be used. If leases could not be deleted, the first such
    /// error, after the others were deleted.
    pub fn retain(&self, mut keep: impl FnMut(&Lease) -> bool) -> Result<Vec<Lease>, LockError> {
        let _guard = self.guard()?;
        let mut removed = Vec::new();
        let mut outcome = Ok(());
        for (name, lease) in self.read_all()? {
            if keep(&lease) {
                continue;
            }
            match self.unlink(&name) {
                Ok(()) => removed.push(lease),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        Ok(outcome.map(|()| removed)?)
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(go_path_error("remove", &self.dir.join(name), error)),
        }
    }

    /// Writes a lease. Its name appears in one step, with its content; an existing file is an
    /// error.
    fn write_lease(&self, name: &str, content: &str) -> io::Result<()> {
        let failed = |operation, error| go_path_error(operation, &self.dir.join(name), error);
        let unnamed = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, c".", unnamed, LEASE_MODE) {
            // The file system has no unnamed files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(failed("open", error)),
            Ok(file) => {
                write_all(&file, content).map_err(|error| failed("write", error))?;
                match rustix::fs::linkat(&file, c"", &self.fd, name, AtFlags::EMPTY_PATH) {
                    // The caller lacks the capability for this.
                    Err(Errno::NOENT | Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => {}
                    linked => return linked.map_err(|error| failed("open", error)),
                }
            }
        }
        let write = || -> rustix::io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.fd, TEMPORARY, flags, LEASE_MODE)?;
            write_all(&file, content)?;
            let (dir, replace_none) = (&self.fd, RenameFlags::NOREPLACE);
            match rustix::fs::renameat_with(dir, TEMPORARY, dir, name, replace_none) {
                // The file system or the kernel cannot do it in one step.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::linkat(dir, TEMPORARY, dir, name, AtFlags::empty())?;
                    rustix::fs::unlinkat(dir, TEMPORARY, AtFlags::empty())
                }
                renamed => renamed,
            }
        };
        write().map_err(|error| {
            _ = rustix::fs::unlinkat(&self.fd, TEMPORARY, AtFlags::empty());
            failed("open", error)
        })
    }
}

pub(super) fn write_all(file: &OwnedFd, content: &str) -> rustix::io::Result<()> {
    let mut rest = content.as_bytes();
    while !rest.is_empty() {
        let n = rustix::io::retry_on_intr(|| rustix::io::write(file, rest))?;
        rest = rest.get(n..).unwrap_or_default();
    }
    Ok(())
}

/// Releases the lock when dropped. Closing the file would too, but a store may be used again.
#[derive(Debug)]
pub(super) struct LockGuard<'a>(&'a File);

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// The source of the knowledge of a [`LockedStore`].
#[derive(Debug)]
enum LeaseSource {
    /// The index, with the slots of it that were changed since.
    Index(Vec<usize>),
    /// The directory; `is_plain` if the records are complete.
    Scan { is_plain: bool },
}

/// A lease of the [`LockedStore`]'s owner.
#[derive(Debug, Clone)]
struct OwnedLease {
    name: String,
    ip: IpAddr,
    how: OwnerMatch,
}

/// The state of the directory while the lock is held. Each file was opened at most once.
#[derive(Debug)]
pub(super) struct LockedStore<'a> {
    store: &'a Store,
    owner: Option<&'a LeaseOwner>,
    index: Option<Index>,
    records: Records,
    source: LeaseSource,
    held: Vec<OwnedLease>,
    /// The cursor that was read last, kept open to be written: its set, file and length.
    cursor: Option<(usize, OwnedFd, usize)>,
    _guard: LockGuard<'a>,
}

impl Drop for LockedStore<'_> {
    fn drop(&mut self) {
        let changed = match &self.source {
            LeaseSource::Index(changed) if changed.is_empty() => return,
            LeaseSource::Index(changed) => Some(changed.as_slice()),
            LeaseSource::Scan { is_plain: true } => None,
            LeaseSource::Scan { is_plain: false } => return,
        };
        if let Some(index) = &mut self.index {
            // Without an index the next call reads the directory.
            _ = index.save(self.store.fd.as_fd(), &self.records, changed);
        }
    }
}

impl LockedStore<'_> {
    /// Takes the records from the index. The owner's leases are confirmed by reading their files.
    fn believe(&mut self, records: Records) {
        if let Some(owner) = self.owner {
            let hashes = owner.hashes();
            for (ip, _) in records.iter().filter(|(_, hash)| hashes.contains(hash)) {
                let name = ip.to_string();
                let content = read_small(&self.store.fd, name.as_str()).unwrap_or_default();
                if let Some(how) = owner.matches(content.trim()) {
                    self.held.push(OwnedLease { name, ip, how });
                }
            }
            self.held.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.records = records;
    }

    /// Reads the whole directory.
    fn scan(&mut self) -> io::Result<()> {
        let owner = self.owner;
        let want = |name: &str, ip, content: &str| {
            let how = owner?.matches(content)?;
            let name = name.to_owned();
            Some(OwnedLease { name, ip, how })
        };
        let found = scan(self.store.fd.as_fd(), want)
            .map_err(|error| go_path_error("open", &self.store.dir, error))?;
        self.held = found.wanted;
        self.held.sort_by(|a, b| a.name.cmp(&b.name));
        self.records = found.records;
        self.source = LeaseSource::Scan {
            is_plain: found.is_plain,
        };
        Ok(())
    }

    /// Reads the directory if the index is the only source so far. Returns true if it did.
    pub(super) fn make_sure(&mut self) -> io::Result<bool> {
        let is_hearsay = matches!(self.source, LeaseSource::Index(_));
        if is_hearsay {
            self.scan()?;
        }
        Ok(is_hearsay)
    }

    /// Makes sure of the taken addresses. Returns true if the directory was read.
    ///
    /// Only the names in the directory are compared with the records; if they agree, no file is
    /// read. The comparison is skipped until something changes, since a caller that is refused an
    /// address asks again and again.
    pub(super) fn make_sure_of_names(&mut self) -> io::Result<bool> {
        let LeaseSource::Index(changed) = &self.source else {
            return Ok(false);
        };
        let index = self.index.as_ref().filter(|_| changed.is_empty());
        if index.is_some_and(Index::is_compared) {
            return Ok(false);
        }
        let names = scan::list_addresses(self.store.fd.as_fd())
            .map_err(|error| go_path_error("open", &self.store.dir, error))?;
        if names.len() == self.records.len() && names.iter().all(|ip| self.records.contains(*ip)) {
            // Without this note the next call compares again.
            _ = index.map(Index::note_compared);
            return Ok(false);
        }
        self.make_sure()
    }

    /// The addresses of the owner, in the reference's order.
    pub(super) fn held(&self) -> impl Iterator<Item = IpAddr> {
        self.held.iter().map(|held| held.ip)
    }

    /// Returns true if the owner has a lease of this form.
    pub(super) fn holds(&self, how: OwnerMatch) -> bool {
        self.held.iter().any(|held| held.how == how)
    }

    /// Returns true if the address cannot be reserved.
    pub(super) fn is_taken(&mut self, ip: IpAddr) -> bool {
        self.records.contains(ip)
    }

    /// The taken addresses in no order, each with a hash of its owner.
    pub(super) fn taken(&self) -> impl Iterator<Item = (IpAddr, u64)> {
        self.records.iter()
    }

    /// Reads the lease of an address.
    pub(super) fn read(&self, ip: IpAddr) -> Option<Lease> {
        let content = read_small(&self.store.fd, ip.to_string().as_str()).ok()?;
        Some(Lease::parse(ip, content.trim()))
    }

    /// Writes a lease. Returns true if the address was free. The file appears in one step, with its
    /// owner; nothing is left behind on failure.
    pub(super) fn reserve(&mut self, ip: IpAddr, owner: &LeaseOwner) -> io::Result<bool> {
        match self.store.write_lease(&ip.to_string(), &owner.content) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Either the index was wrong, and reading the directory has corrected it, or
                // another program writes without the lock.
                if !self.make_sure()? && !self.records.contains(ip) {
                    self.records.push(ip, 0);
                    self.source = LeaseSource::Scan { is_plain: false };
                }
                Ok(false)
            }
            Err(error) => Err(error),
            Ok(()) => {
                if let LeaseSource::Index(changed) = &mut self.source {
                    changed.push(self.records.len());
                }
                self.records.push(ip, hash(&owner.content));
                Ok(true)
            }
        }
    }

    /// Releases an address that was [reserved](Self::reserve) under this lock.
    pub(super) fn unreserve(&mut self, ip: IpAddr) -> io::Result<()> {
        self.remove(&ip.to_string(), ip)
    }

    /// Deletes the owner's leases of one form, and returns their number.
    pub(super) fn release(&mut self, how: OwnerMatch) -> io::Result<usize> {
        let (released, rest): (Vec<_>, _) = self.held.drain(..).partition(|held| held.how == how);
        self.held = rest;
        let mut outcome = Ok(());
        for OwnedLease { name, ip, .. } in &released {
            outcome = outcome.and(self.remove(name, *ip));
        }
        outcome.map(|()| released.len())
    }

    fn remove(&mut self, name: &str, ip: IpAddr) -> io::Result<()> {
        self.store.unlink(name)?;
        // Only a file named exactly by the address reserves it.
        let slot = if name == ip.to_string() {
            self.records.remove(ip)
        } else {
            None
        };
        if let LeaseSource::Index(changed) = &mut self.source {
            changed.extend(slot);
        }
        Ok(())
    }

    /// The address last given out of a range set. `None` if it cannot be read: then allocation
    /// starts from the beginning.
    pub(super) fn cursor(&mut self, set: usize) -> Option<IpAddr> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let name = cursor_name(set);
        let file = rustix::fs::openat(&self.store.fd, &name, flags, Mode::empty()).ok()?;
        let mut buffer = [0; 64];
        let n = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer)).ok()?;
        self.cursor = Some((set, file, n));
        parse_ip(std::str::from_utf8(&buffer[..n]).ok()?).ok()
    }

    /// Records the address last given out of a range set.
    ///
    /// # Errors
    /// With the reference's texts.
    pub(super) fn set_cursor(&mut self, set: usize, ip: IpAddr) -> io::Result<()> {
        let name = cursor_name(set);
        let failed =
            |operation, error| go_path_error(operation, &self.store.dir.join(&name), error);
        let (file, length) = match self.cursor.take() {
            Some((of, file, length)) if of == set => (file, Some(length)),
            _ => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&self.store.fd, &name, flags, LEASE_MODE)
                    .map_err(|error| failed("open", error))?;
                (file, None)
            }
        };
        // Without O_TRUNC: ext4 writes a truncated file to the disk when it is closed, which costs
        // more than all the rest, and a kill in between would leave it empty.
        let text = ip.to_string();
        let mut written =
            rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, text.as_bytes(), 0));
        if length != Some(text.len()) {
            written = written.and_then(|n| rustix::fs::ftruncate(&file, n as u64).map(|()| n));
        }
        written.map(drop).map_err(|error| failed("write", error))
    }
}

fn cursor_name(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

/// The leases of a directory. A missing directory has none, and is not made.
///
/// # Errors
/// If the lock or the directory cannot be used.
pub fn usage(dir: &Path) -> io::Result<Vec<Lease>> {
    if !fs::is_dir(dir) {
        return Ok(Vec::new());
    }
    let store = Store::open(dir, Options::default())?;
    let _guard = store.guard().map_err(io::Error::other)?;
    let leases = store.read_all()?;
    Ok(leases.into_iter().map(|(_, lease)| lease).collect())
}

/// Deletes the leases for which `keep` returns false, under the lock, and returns them.
///
/// # Errors
/// As [`usage`]. If leases could not be deleted, the first such error, after the others were
/// deleted.
pub fn reclaim(dir: &Path, keep: impl FnMut(&Lease) -> bool) -> io::Result<Vec<Lease>> {
    if !fs::is_dir(dir) {
        return Ok(Vec::new());
    }
    let store = Store::open(dir, Options::default())?;
    store.retain(keep).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod index_tests;
