//! The directory of leases: the reference's files, byte for byte.
//!
//! One file per address, named by it, with `<container id>\r\n<interface>`; `last_reserved_ip.<set>` for
//! the round robin; `lock`, which whoever looks or writes holds by flock(2). Where the reference can be
//! killed half-way and leave an empty lease that holds its address for ever, a lease here is written under
//! another name first, and an empty one is taken for what it is: no lease.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::types::parse_ip;

/// The one temporary file: whoever writes it holds the lock. The reference skips its name, as it is no
/// address, but deletes it with the leases of its container, as it looks at contents only.
const TEMPORARY: &str = ".lease.tmp";

/// An address that is taken, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// Id of the container.
    pub container_id: String,
    /// Name of the interface inside; old releases of the reference did not write it.
    pub ifname: Option<String>,
}

impl Lease {
    /// Whether the lease is exactly that of this container's interface.
    #[must_use]
    pub fn is_of(&self, container_id: &str, ifname: &str) -> bool {
        self.container_id == container_id && self.ifname.as_deref() == Some(ifname)
    }

    /// Whether the lease names this container and no interface, as old releases wrote it.
    #[must_use]
    pub fn is_legacy_of(&self, container_id: &str) -> bool {
        self.container_id == container_id && self.ifname.is_none()
    }
}

/// A network's directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    lock: File,
}

impl Store {
    /// Opens the directory, and makes it and its lock file as needed.
    ///
    /// # Errors
    /// With the reference's texts.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir).map_err(|error| go_path_error("mkdir", dir, &error))?;
        let lock = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::CREATE.bits().cast_signed())
            .mode(0o750)
            .open(dir.join("lock"))
            .and_then(|lock| {
                if lock.metadata()?.is_dir() {
                    Err(Errno::ISDIR.into())
                } else {
                    Ok(lock)
                }
            })
            .map_err(|error| io::Error::new(error.kind(), go_text(&error)))?;
        Ok(Self {
            dir: dir.to_owned(),
            lock,
        })
    }

    /// Waits for the lock and reads the directory.
    ///
    /// # Errors
    /// When the lock or the directory cannot be used.
    pub fn lock(&self) -> io::Result<Locked<'_>> {
        while let Err(error) = rustix::fs::flock(&self.lock, FlockOperation::LockExclusive) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        // From here on the guard unlocks.
        let mut locked = Locked {
            store: self,
            taken: HashSet::new(),
            leases: Vec::new(),
        };
        locked
            .scan()
            .map_err(|error| go_path_error("open", &self.dir, &error))?;
        Ok(locked)
    }
}

/// The directory as it is while the lock is held. Each file was opened once, to be read.
#[derive(Debug)]
pub struct Locked<'a> {
    store: &'a Store,
    /// Addresses that have a file, or whatever else there is of that name.
    taken: HashSet<IpAddr>,
    /// Files by name, in lexical order, as the reference walks them.
    leases: Vec<(String, Lease)>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing unlocks too; this is for a store that is used again.
        _ = rustix::fs::flock(&self.store.lock, FlockOperation::Unlock);
    }
}

impl Locked<'_> {
    fn scan(&mut self) -> io::Result<()> {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&self.store.dir, directory, Mode::empty())?;
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name == TEMPORARY {
                // Its writer is dead, or it would have the lock.
                rustix::fs::unlinkat(&fd, TEMPORARY, AtFlags::empty())?;
            }
            let Ok(ip) = parse_ip(name) else {
                continue;
            };
            let content = match entry.file_type() {
                FileType::Directory => None,
                _ => read_small(&fd, name).ok(),
            };
            let content = content.as_deref().map(str::trim);
            if content == Some("") {
                // Its writer was killed between creating and writing it (containernetworking/plugins#498).
                rustix::fs::unlinkat(&fd, name, AtFlags::empty())?;
                continue;
            }
            // `::ffff:10.0.0.1` is a name for 10.0.0.1, but not the one that reserves it.
            if name == ip.to_string() {
                self.taken.insert(ip);
            }
            if let Some(content) = content {
                let (container_id, ifname) = match content.split_once("\r\n") {
                    Some((id, ifname)) => (id, Some(ifname.to_owned())),
                    None => (content, None),
                };
                let container_id = container_id.to_owned();
                self.leases.push((
                    name.to_owned(),
                    Lease {
                        ip,
                        container_id,
                        ifname,
                    },
                ));
            }
        }
        self.leases.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(())
    }

    /// The leases, in lexical order of their files.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().map(|(_, lease)| lease)
    }

    /// Whether the address cannot be reserved.
    #[must_use]
    pub fn is_taken(&self, ip: IpAddr) -> bool {
        self.taken.contains(&ip)
    }

    /// How many addresses are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Writes a lease. The address appears in one step, with its owner.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] when it is taken; nothing is left behind on failure.
    pub fn reserve(&mut self, ip: IpAddr, container_id: &str, ifname: &str) -> io::Result<()> {
        let (temporary, path) = (
            self.store.dir.join(TEMPORARY),
            self.store.dir.join(ip.to_string()),
        );
        if self.is_taken(ip) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            io::Write::write_all(&mut file, format!("{container_id}\r\n{ifname}").as_bytes())?;
            publish(&temporary, &path)
        };
        write().map_err(|error| {
            _ = fs::remove_file(&temporary);
            go_path_error("open", &path, &error)
        })?;
        self.taken.insert(ip);
        Ok(())
    }

    /// Takes back an address that was [reserved](Self::reserve) under this lock.
    ///
    /// # Errors
    /// What unlink(2) says.
    pub fn unreserve(&mut self, ip: IpAddr) -> io::Result<()> {
        self.taken.remove(&ip);
        remove(&self.store.dir.join(ip.to_string()))
    }

    /// Deletes the leases that `keep` does not want, and returns them.
    ///
    /// # Errors
    /// The first failure; the other leases were dealt with.
    pub fn retain(&mut self, mut keep: impl FnMut(&Lease) -> bool) -> io::Result<Vec<Lease>> {
        let mut removed = Vec::new();
        let mut outcome = Ok(());
        for (name, lease) in std::mem::take(&mut self.leases) {
            if keep(&lease) {
                self.leases.push((name, lease));
                continue;
            }
            match remove(&self.store.dir.join(&name)) {
                Ok(()) => {
                    self.taken.remove(&lease.ip);
                    removed.push(lease);
                }
                Err(error) => {
                    self.leases.push((name, lease));
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome.map(|()| removed)
    }

    /// The address last given out of a range set. What cannot be read is none: allocation begins anew.
    #[must_use]
    pub fn cursor(&self, set: usize) -> Option<IpAddr> {
        parse_ip(&fs::read_to_string(self.cursor_path(set)).ok()?).ok()
    }

    /// Notes the address last given out of a range set.
    ///
    /// # Errors
    /// With the reference's texts.
    pub fn set_cursor(&mut self, set: usize, ip: IpAddr) -> io::Result<()> {
        let path = self.cursor_path(set);
        let write = || {
            // Without O_TRUNC: ext4 writes a truncated file out when it is closed, which costs more than
            // all the rest, and a kill in between would leave it empty.
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            let text = ip.to_string();
            std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0)?;
            file.set_len(text.len().try_into().unwrap_or(u64::MAX))
        };
        write().map_err(|error| go_path_error("open", &path, &error))
    }

    fn cursor_path(&self, set: usize) -> PathBuf {
        self.store.dir.join(format!("last_reserved_ip.{set}"))
    }
}

/// Gives a finished file its name, unless there is one of that name.
fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, temporary, cwd, path, RenameFlags::NOREPLACE) {
        // A file system that cannot do it in one step, or a kernel.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(cwd, temporary, cwd, path, AtFlags::empty())?;
            fs::remove_file(temporary)
        }
        other => Ok(other?),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads a file of a few bytes with as few system calls as can be: there may be 65,000 of them.
fn read_small(dir: impl rustix::fd::AsFd, name: &str) -> io::Result<String> {
    let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; 1024];
    let mut content = Vec::new();
    loop {
        let n = rustix::io::read(&file, &mut buffer)?;
        content.extend_from_slice(&buffer[..n]);
        if n < buffer.len() {
            return Ok(String::from_utf8_lossy(&content).into_owned());
        }
    }
}

/// The leases of a directory; one that is missing has none. Nothing is made.
///
/// # Errors
/// When the lock or the directory cannot be used.
pub fn usage(dir: &Path) -> io::Result<Vec<Lease>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    Ok(Store::open(dir)?.lock()?.leases().cloned().collect())
}

/// Deletes the leases that `keep` does not want, under the lock, and returns them.
///
/// # Errors
/// As [`usage`]; and the first lease that could not be deleted, after the others were.
pub fn reclaim(dir: &Path, keep: impl FnMut(&Lease) -> bool) -> io::Result<Vec<Lease>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    Store::open(dir)?.lock()?.retain(keep)
}

/// An error in Go's words: `open /a/b: no such file or directory`.
pub(super) fn go_path_error(operation: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("{operation} {}: {}", path.display(), go_text(error)),
    )
}

/// The C library's text as Go has it: in lower case, without the number.
fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
