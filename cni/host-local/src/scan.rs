//! Reading a directory of leases: it is listed once, and each file is opened once.

use std::{ffi::CStr, io, mem::MaybeUninit, net::IpAddr, panic::resume_unwind, thread};

use podplane_cni::types::parse_ip;
use podplane_host::task;
use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom},
    io::Errno,
};

use super::{lease::hash, records::Records};

/// The name of the temporary file for file systems that need one. Its writer holds the lock.
pub(super) const TEMPORARY: &CStr = c".lease.tmp";

/// The number of entries from which on a second thread pays off.
const MANY: usize = 2_000;

/// The content of a directory.
#[derive(Debug)]
pub(super) struct Scan<T> {
    /// The addresses that cannot be reserved.
    pub(super) records: Records,
    /// True if every address has a readable file of exactly that name. If false, `records` is
    /// incomplete.
    pub(super) is_plain: bool,
    /// The values that the caller made of leases.
    pub(super) wanted: Vec<T>,
}

impl<T> Default for Scan<T> {
    fn default() -> Self {
        Self {
            records: Records::default(),
            is_plain: true,
            wanted: Vec::new(),
        }
    }
}

/// Reads the whole directory, and removes leftovers of killed writers: a temporary file, and leases
/// without content. The caller holds the lock.
///
/// `want` gets the name, the address and the content of each lease; its values are collected.
pub(super) fn scan<T: Send>(
    dir: BorrowedFd<'_>,
    want: impl Fn(&str, IpAddr, &str) -> Option<T> + Sync,
) -> io::Result<Scan<T>> {
    let mut entries = Vec::new();
    list(dir, &mut |name, file_type| {
        if name == TEMPORARY {
            // Its writer is dead: a live one would hold the lock.
            return unlink(dir, name);
        }
        entries.extend(address(name).map(|(text, ip)| (Box::from(text), ip, file_type)));
        Ok(())
    })?;
    if entries.len() < MANY {
        return read_entries(dir, &entries, &want);
    }
    let (left, right) = entries.split_at(entries.len() / 2);
    let (whole, rest) = thread::scope(|scope| {
        let read_rest = || read_entries(dir, right, &want);
        let rest = task::scoped_thread(scope, read_rest);
        let whole = read_entries(dir, left, &want);
        let rest = match rest {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => read_entries(dir, right, &want), // No thread could be started.
        };
        (whole, rest)
    });
    let (mut whole, rest) = (whole?, rest?);
    whole.records.append(rest.records);
    whole.is_plain &= rest.is_plain;
    whole.wanted.extend(rest.wanted);
    Ok(whole)
}

type ScannedEntry = (Box<str>, IpAddr, FileType);

fn read_entries<T>(
    dir: BorrowedFd<'_>,
    entries: &[ScannedEntry],
    want: impl Fn(&str, IpAddr, &str) -> Option<T>,
) -> io::Result<Scan<T>> {
    let mut scan = Scan::default();
    for (name, ip, file_type) in entries {
        let content = match file_type {
            FileType::Directory => None,
            _ => read_small(dir, &**name).ok(),
        };
        let content = content.as_deref().map(str::trim);
        if content.is_some_and(is_half_written) {
            unlink(dir, &**name)?;
            continue;
        }
        // `::ffff:10.0.0.1` is a name for 10.0.0.1, but not the one that reserves it.
        let reserves = !name.contains(':') || **name == *ip.to_string();
        if reserves {
            scan.records.push(*ip, content.map_or(0, hash));
        }
        scan.is_plain &= reserves && content.is_some();
        let wanted = content.and_then(|content| want(name, *ip, content));
        scan.wanted.extend(wanted);
    }
    Ok(scan)
}

/// The addresses that have an entry. No file is opened.
pub(super) fn list_addresses(dir: BorrowedFd<'_>) -> io::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    list(dir, &mut |name, _| {
        addresses.extend(address(name).map(|(_, ip)| ip));
        Ok(())
    })?;
    Ok(addresses)
}

/// Deletes the leases for whose file names `is_dead` holds. A lease that cannot be examined stays.
pub(super) fn remove_leases(
    dir: BorrowedFd<'_>,
    is_dead: impl Fn(&CStr) -> io::Result<bool>,
) -> io::Result<()> {
    list(dir, &mut |name, _| {
        if address(name).is_some() && is_dead(name).unwrap_or(false) {
            unlink(dir, name)?;
        }
        Ok(())
    })
}

fn list(
    dir: BorrowedFd<'_>,
    entry: &mut dyn FnMut(&CStr, FileType) -> io::Result<()>,
) -> io::Result<()> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(found) = entries.next() {
        let found = found?;
        entry(found.file_name(), found.file_type())?;
    }
    Ok(())
}

fn address(name: &CStr) -> Option<(&str, IpAddr)> {
    let text = name.to_str().ok()?;
    Some((text, parse_ip(text).ok()?))
}

/// Returns true if a lease has no content: its writer was killed, or the machine lost power, before
/// the content was written (containernetworking/plugins#498). A file system may show lost content
/// as zeros.
fn is_half_written(content: &str) -> bool {
    content
        .trim_matches(|c: char| c == '\0' || c.is_whitespace())
        .is_empty()
}

fn unlink(dir: BorrowedFd<'_>, name: impl rustix::path::Arg) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads a file of a few bytes with as few system calls as possible: there may be 65,000 of them.
pub(super) fn read_small(
    dir: impl AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<String> {
    // Opening a FIFO of such a name must not block the plugin.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut buffer = [0; 512];
    let mut content = Vec::new();
    loop {
        let n = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer))?;
        content.extend_from_slice(&buffer[..n]);
        if n < buffer.len() {
            let lossy = |error: std::string::FromUtf8Error| {
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            };
            return Ok(String::from_utf8(content).unwrap_or_else(lossy));
        }
    }
}
