//! The only module with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "fork(2) leaves a child that must be careful, and unshare(2) and close_range(2) can take file descriptors from under the caller"
)]

use rustix::{io::Errno, process::Pid, thread::UnshareFlags};

/// Moves the calling thread into new namespaces of these kinds.
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, which leaves threads with different tables
    // of descriptors. It is removed here.
    unsafe { rustix::thread::unshare_unsafe(flags.difference(UnshareFlags::FILES)) }
}

/// Runs `child` in a child process, whose exit code is what it returns. Returns the child's id. The
/// process must have one thread.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> rustix::io::Result<Pid> {
    // SAFETY: the process has one thread, so that no lock is held by another one, and the child can
    // do what the parent could.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the process at once. Handlers and destructors are the parent's.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid.max(0)).ok_or(Errno::AGAIN),
    }
}

/// Lets no executed program inherit more than its standard streams.
pub(crate) fn close_on_exec() -> rustix::io::Result<()> {
    let (first, last) = (3, libc::c_uint::MAX);
    // SAFETY: the call takes numbers alone. It closes nothing before execve(2).
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSYS)),
    }
}
