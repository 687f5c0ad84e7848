//! The one place with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "fork(2) leaves a child that must be careful, unshare(2) can take file descriptors from under the caller, and code between fork and exec must be async-signal-safe"
)]

use std::{
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::Command,
};

use rustix::{
    process::{Pid, PidfdFlags, Signal},
    thread::UnshareFlags,
};

/// Has the program killed when the thread that starts it ends, which must therefore wait for it. So a plugin that hangs goes with the
/// process that ran it, however that ends.
pub(crate) fn die_with_this_thread(command: &mut Command) {
    let ask = || {
        Ok(rustix::process::set_parent_process_death_signal(Some(
            Signal::KILL,
        ))?)
    };
    // SAFETY: the closure makes one system call, prctl(2), and touches no memory that another thread could hold a lock on.
    unsafe { command.pre_exec(ask) };
}

/// Moves the calling thread, and no other, into a new network namespace.
pub(crate) fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, after which descriptors opened by other threads
    // are not what this thread believes them to be. CLONE_NEWNET alone changes no descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Runs `f`, which may make system calls and nothing else, in a child process that outlives this one if need be. Returns what can be polled for its
/// end. The child lets go of standard input and output, so that whoever reads from this process is not kept waiting.
pub(crate) fn in_background(f: impl FnOnce()) -> rustix::io::Result<OwnedFd> {
    // SAFETY: the child is a copy of the calling thread only. It must not take a lock that another thread may have held, so it neither allocates nor
    // prints: it closes three descriptors, which nothing of this process but its standard streams uses, runs `f`, and ends without unwinding or
    // running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for fd in 0..3 {
            // SAFETY: as above; in the child nobody uses them any more.
            unsafe { rustix::io::close(fd) };
        }
        f();
        // SAFETY: ends the process, with nothing run on the way.
        unsafe { libc::_exit(0) }
    }
    match Pid::from_raw(child) {
        Some(child) => rustix::process::pidfd_open(child, PidfdFlags::empty()),
        None => Err(rustix::io::Errno::AGAIN),
    }
}
