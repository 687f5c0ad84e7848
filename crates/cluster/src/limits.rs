//! Limits of the shell (`ulimit`), which end processes without a message of their own.

use std::{
    io,
    process::ExitStatus,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::process::{Resource, Signal, getrlimit};

/// Makes writes beyond the limit of file sizes fail with EFBIG, which is reported like other
/// errors; by default a signal ends the process. Programs that this one executes have the default
/// again.
pub fn report_file_size() -> io::Result<()> {
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::<AtomicBool>::default()).map(drop)
}

/// Describes the end of a process: its status and, after a failure, the limits of processes here,
/// since one of them may be the reason.
pub fn described(status: ExitStatus) -> String {
    match limits() {
        Some(limits) if !status.success() => format!("{status}; processes here have {limits}"),
        _ => status.to_string(),
    }
}

/// The limits in force on the sizes of files and of memory, with the shells' names for them.
pub fn limits() -> Option<String> {
    let limit = |resource, what: &str, flag: &str| {
        let bytes = getrlimit(resource).current?;
        Some(format!(
            "{what} limited to {} KiB (ulimit -{flag})",
            bytes / 1024
        ))
    };
    let limits = [
        limit(Resource::Fsize, "files", "f"),
        limit(Resource::As, "memory", "v"),
        limit(Resource::Data, "data segments", "d"),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}
