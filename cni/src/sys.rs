//! The one place with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "unshare(2) can take file descriptors from under the caller, and code between fork and exec must be async-signal-safe"
)]

use std::{os::unix::process::CommandExt as _, process::Command};

use rustix::{process::Signal, thread::UnshareFlags};

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
