//! Memory that nobody uses any more, given back to the system.

#![expect(
    unsafe_code,
    reason = "glibc keeps what was freed between what is in use, and has one function that gives it back"
)]

/// Gives back what the allocator keeps for later. It looks through all that was freed, and does
/// little where that was given back before: to be called now and then, where blocking is allowed.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number of bytes to keep, and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
