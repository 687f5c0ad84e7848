//! The lock of a directory, with a time limit.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use podplane_host::{
    fs::{self, File},
    task,
};
use rustix::{
    fs::{FlockOperation, major, minor},
    io::Errno,
};

/// The reason why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process held the lock for the whole time limit.
    #[error("{} has been locked for {waited:?}{}; ipam.lockTimeout ends the wait", path.display(), by_whom(*.holder))]
    Timeout {
        /// The lock file.
        path: PathBuf,
        /// The time limit.
        waited: Duration,
        /// The process that holds the lock, if it is visible from here.
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
    // A lock outlives the process that took it if a child has the file too.
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    let name = name.as_deref().unwrap_or("which has ended");
    format!(" by process {pid} ({})", name.trim_end())
}

/// Takes the lock; waits for at most `limit`, or for ever without one.
pub(super) fn lock(file: &File, path: &Path, limit: Option<Duration>) -> Result<(), LockError> {
    let Some(limit) = limit else {
        return Ok(wait(file)?);
    };
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => {}
        outcome => return Ok(outcome.map_err(io::Error::from)?),
    }
    // A thread queues, so that callers with a limit get their turn like those without. If it gets
    // the lock after the caller has given up, it releases the lock.
    let (sender, receiver) = mpsc::sync_channel(0);
    let queued = file.try_clone()?;
    task::thread("lock", move || {
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

/// Finds the process that holds the lock in `/proc/locks`.
///
/// A line is `1: FLOCK  ADVISORY  WRITE 1234 fe:00:1591 0 EOF`; for a waiting process, `->` follows
/// the number.
fn find_holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let (dev, inode) = (metadata.dev(), metadata.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(dev), minor(dev));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == place => pid.parse().ok(),
            _ => None,
        }
    })
}
