//! The one place with `unsafe`: system calls that rustix cannot offer as safe functions.
#![expect(
    unsafe_code,
    reason = "unshare(2) can take file descriptors from under the caller; only CLONE_NEWNET is passed here"
)]

use rustix::thread::UnshareFlags;

/// Moves the calling thread, and no other, into a new network namespace.
pub(crate) fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, after which descriptors opened by other threads
    // are not what this thread believes them to be. CLONE_NEWNET alone changes no descriptor table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
}
