//! The only module with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "fork(2) leaves a child that must be careful, and unshare(2) can take file descriptors from under the caller"
)]

use std::os::fd::OwnedFd;

use rustix::{
    process::{Pid, PidfdFlags},
    thread::UnshareFlags,
};

/// Moves the calling thread, and no other, into a new network namespace.
pub(crate) fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, after which descriptors opened by other
    // threads are not what this thread believes them to be. CLONE_NEWNET alone changes no
    // descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Runs `f`, which may only make system calls, in a child process that may outlive this one.
/// Returns a descriptor that can be polled for the child's end.
///
/// The child closes its standard streams, so that a reader of this process's output is not kept
/// waiting.
pub(crate) fn in_background(f: impl FnOnce()) -> rustix::io::Result<OwnedFd> {
    // SAFETY: the child is a copy of the calling thread only. It must not take a lock that another
    // thread may have held, so it neither allocates nor prints. It closes three descriptors, which
    // this process uses as its standard streams only, runs `f`, and ends without unwinding or
    // running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for fd in 0..3 {
            // SAFETY: as above; the child does not use them any more.
            unsafe { rustix::io::close(fd) };
        }
        f();
        // SAFETY: ends the process immediately; no handler or destructor runs.
        unsafe { libc::_exit(0) }
    }
    match Pid::from_raw(child) {
        Some(child) => rustix::process::pidfd_open(child, PidfdFlags::empty()),
        None => Err(rustix::io::Errno::AGAIN),
    }
}
