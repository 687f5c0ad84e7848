//! Waiting for a directory's lock.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, major, minor},
    io::Errno,
};

/// Why the lock is not held.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It was taken for all the time that the caller wanted to wait.
    #[error("{} has been locked for {waited:?}{}; ipam.lockTimeout ends the wait", path.display(), by_whom(*.holder))]
    Timeout {
        /// The lock file.
        path: PathBuf,
        /// How long.
        waited: Duration,
        /// The process that holds it, as far as it can be seen from here.
        holder: Option<u32>,
    },
    /// The lock or the directory cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn by_whom(pid: Option<u32>) -> String {
    let Some(pid) = pid else {
        return " by a process that cannot be seen from here".to_owned();
    };
    // A lock outlives the process that took it where a child has the file too.
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let name = name.as_deref().unwrap_or("which has ended");
    format!(" by process {pid} ({})", name.trim_end())
}

/// Locks, and waits as long as it takes, or not longer than `limit`.
pub(super) fn lock(file: &File, path: &Path, limit: Option<Duration>) -> Result<(), LockError> {
    let Some(limit) = limit else {
        return Ok(wait(file)?);
    };
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => {}
        outcome => return Ok(outcome.map_err(io::Error::from)?),
    }
    // A thread queues, so that those who wait with a limit get their turn as those without do. If it gets the lock when nobody
    // wants it any more, it gives it back.
    let (sender, receiver) = mpsc::sync_channel(0);
    let queued = file.try_clone()?;
    thread::Builder::new().spawn(move || {
        let outcome = wait(&queued);
        if sender.send(outcome).is_err() {
            _ = rustix::fs::flock(&queued, FlockOperation::Unlock);
        }
    })?;
    match receiver.recv_timeout(limit) {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(LockError::Timeout {
            path: path.to_owned(),
            waited: limit,
            holder: find_holder(file),
        }),
    }
}

fn wait(file: &File) -> io::Result<()> {
    let lock = || rustix::fs::flock(file, FlockOperation::LockExclusive);
    Ok(rustix::io::retry_on_intr(lock)?)
}

/// `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 fe:00:1591 0 EOF`, and with `->` after the number for who waits.
fn find_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (dev, inode) = (metadata.dev(), metadata.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(dev), minor(dev));
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok(),
            _ => None,
        }
    })
}
