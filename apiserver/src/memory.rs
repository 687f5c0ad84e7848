//! Returns unused memory to the system.

#![expect(
    unsafe_code,
    reason = "glibc keeps what was freed between what is in use, and has one function that gives it back"
)]

/// Returns the allocator's free memory to the system. It scans all freed memory, and does little if
/// called again soon: call it now and then, from a thread that may block.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the argument is a number of bytes to keep, and the function is safe to call from any
    // thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
