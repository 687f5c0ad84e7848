//! Processes that outlive the services which started them: what a plugin has started, after the
//! runtime that ran it was killed.

use std::os::unix::fs::MetadataExt as _;

use podplane_host::fs::{self, File};
use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process};

/// Kills all other processes that have this file open, as every process of a cluster has the file
/// of its [members](crate::data_dir::DataDir::members).
pub(crate) fn kill(members: &File) {
    let Ok(members) = members.metadata() else {
        return;
    };
    let file = (members.dev(), members.ino());
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let processes = procfs::process::all_processes().into_iter().flatten();
    for process in processes.flatten() {
        if process.pid() == own || !has_open(&process, file) {
            continue;
        }
        let program = process.stat().map(|stat| stat.comm).unwrap_or_default();
        tracing::warn!(
            pid = process.pid(),
            program,
            "killing a process that the services have left behind"
        );
        if let Some(pid) = Pid::from_raw(process.pid()) {
            // It may be gone by now.
            _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns true if the process has the file of this device and inode open.
fn has_open(process: &Process, file: (u64, u64)) -> bool {
    let opened = process.fd().into_iter().flatten().flatten();
    let mut paths = opened.map(|open| format!("/proc/{}/fd/{}", process.pid(), open.fd));
    paths.any(|path| fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == file))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::io::FdFlags;

    use super::*;

    #[test]
    fn kills_who_has_the_file_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::create(dir.path().join("members")).unwrap();
        let start = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("1000").stdin(Stdio::null()).spawn().unwrap()
        };
        let mut stranger = start();
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let mut member = start();
        kill(&file);
        member.wait().unwrap();
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
