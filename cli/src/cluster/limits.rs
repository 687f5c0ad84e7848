//! Limits of the shell (`ulimit`), which end processes without a word unless somebody says it for
//! them.

use std::{
    io,
    process::ExitStatus,
    sync::{Arc, atomic::AtomicBool},
};

use rustix::process::{Resource, Signal, getrlimit};

/// Has writes beyond the limit of file sizes fail with EFBIG, which is then reported as other
/// errors are, where by default a signal ends the process. Programs that this one executes have the
/// default again.
pub(crate) fn report_file_size() -> io::Result<()> {
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::<AtomicBool>::default()).map(drop)
}

/// How a process ended: its status, and where it failed the limits that processes have here, since
/// one of them may have been the reason.
pub(crate) fn described(status: ExitStatus) -> String {
    match limits() {
        Some(limits) if !status.success() => format!("{status}; processes here have {limits}"),
        _ => status.to_string(),
    }
}

/// The limits in force on the size of files and of memory, with the names that shells have for
/// them.
pub(crate) fn limits() -> Option<String> {
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
