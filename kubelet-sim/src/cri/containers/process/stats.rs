//! The resources that the processes of a container use, as the kernel reports them for each.

use std::{ffi::OsStr, io, iter::Sum, path::PathBuf};

use podplane_host::fs;
use procfs::process::{Process, all_processes};

use super::ContainerProcess;

/// The resources that a container uses. CPU time of processes that have ended counts once their
/// parent has waited for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// CPU time, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// Memory that is not swapped out, in bytes; shared pages count for each process.
    pub resident_bytes: u64,
    /// Page faults without a read from disk.
    pub minor_faults: u64,
    /// Page faults with a read from disk.
    pub major_faults: u64,
    /// The number of processes.
    pub processes: u64,
    /// The files written over the image, in bytes.
    pub written_bytes: u64,
    /// The number of files written over the image.
    pub written_files: u64,
}

impl ContainerProcess {
    /// The resources that it and all other processes of its container use.
    ///
    /// # Errors
    ///
    /// The operating system's; the container may have ended.
    pub fn usage(&self) -> io::Result<ProcessUsage> {
        let namespace = |process: &Process| {
            let namespaces = process.namespaces().ok()?;
            namespaces
                .0
                .get(OsStr::new("pid"))
                .map(|own| own.identifier)
        };
        let first = Process::new(self.pid).map_err(io::Error::other)?;
        let own = namespace(&first).ok_or(io::ErrorKind::NotFound)?;
        let ticks = procfs::ticks_per_second();
        let page = procfs::page_size();
        let mut usage = ProcessUsage::default();
        for process in all_processes().map_err(io::Error::other)? {
            let of_container = process
                .ok()
                .filter(|process| namespace(process) == Some(own));
            // Some end while they are counted.
            let Some(stat) = of_container.and_then(|process| process.stat().ok()) else {
                continue;
            };
            let children = u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
            let spent = stat.utime + stat.stime + children;
            usage.cpu_nanoseconds += spent * (1_000_000_000 / ticks);
            usage.resident_bytes += stat.rss * page;
            usage.minor_faults += stat.minflt;
            usage.major_faults += stat.majflt;
            usage.processes += 1;
        }
        // The root is a union whose numbers are those of the part that is written.
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        if fs::exists(&root)
            && let Ok(written) = rustix::fs::statvfs(&root)
        {
            usage.written_bytes = (written.f_blocks - written.f_bfree) * written.f_frsize;
            usage.written_files = written.f_files - written.f_ffree;
        }
        Ok(usage)
    }
}

impl Sum for ProcessUsage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages.fold(Self::default(), |sum, usage| Self {
            cpu_nanoseconds: sum.cpu_nanoseconds + usage.cpu_nanoseconds,
            resident_bytes: sum.resident_bytes + usage.resident_bytes,
            minor_faults: sum.minor_faults + usage.minor_faults,
            major_faults: sum.major_faults + usage.major_faults,
            processes: sum.processes + usage.processes,
            written_bytes: sum.written_bytes + usage.written_bytes,
            written_files: sum.written_files + usage.written_files,
        })
    }
}
