//! The only module with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "clone(2) leaves a child that must be careful, and code between fork and exec must be async-signal-safe"
)]

mod spawn;

use std::{os::unix::process::CommandExt as _, process::Command};

use rustix::process::Signal;

pub(crate) use spawn::{SpawnParams, spawn};

/// Makes the kernel kill the program when the calling thread ends, which must therefore wait for
/// it. So a hanging plugin dies with the process that ran it, however that ends.
pub(crate) fn die_with_this_thread(command: &mut Command) {
    let ask = || {
        Ok(rustix::process::set_parent_process_death_signal(Some(
            Signal::KILL,
        ))?)
    };
    // SAFETY: the closure makes one system call, prctl(2), and touches no memory that another
    // thread could hold a lock on.
    unsafe { command.pre_exec(ask) };
}
