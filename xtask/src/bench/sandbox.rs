//! The namespaces in which measurements run.

use std::{
    env,
    process::{Child, Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::mount::{MountFlags, mount};

/// Runs this command again in new network, mount and PID namespaces. When it ends, all processes
/// that it started end, and the temporary directory is removed; also after Ctrl-C.
pub(super) fn enter() -> Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("failed to prepare for Ctrl-C")?;
    }
    let dir = tempfile::Builder::new()
        .prefix("podplane-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare
        .arg(env::current_exe().context("failed to find this program")?)
        .args(env::args_os().skip(1))
        .arg("--inside")
        .arg(dir.path());
    let child = unshare
        .spawn()
        .context("failed to start unshare (package util-linux)")?;
    let status = wait(child, &interrupted)?;
    dir.close()
        .context("failed to remove the temporary directory")?;
    if interrupted.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if !status.success() {
        bail!("the measurement ended with {status}");
    }
    Ok(())
}

fn wait(mut child: Child, interrupted: &AtomicBool) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child
            .try_wait()
            .context("failed to wait for the measurement")?
        {
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) {
            // Its children are killed with it: --kill-child, and they are in its process namespace.
            child.kill().context("failed to stop the measurement")?;
            return child.wait().context("failed to wait for the measurement");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Mounts an empty /run inside, for the names of network namespaces and for state that plugins keep
/// until the next boot.
pub(super) fn prepare() -> Result<()> {
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)
        .context("failed to mount a private /run")
}

/// Makes `/run/podplane` read-only, where our plugins keep their index.
pub(super) fn without_index() -> Result<ReadOnly> {
    std::fs::create_dir_all(INDEX).context("failed to create /run/podplane")?;
    mount("tmpfs", INDEX, "tmpfs", MountFlags::RDONLY, None)
        .context("failed to mount over /run/podplane")?;
    Ok(ReadOnly)
}

const INDEX: &str = "/run/podplane";

/// Makes the directory writable again when dropped.
#[derive(Debug)]
pub(super) struct ReadOnly;

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // If unmounting fails, the mount remains only in this process's mount namespace.
        _ = rustix::mount::unmount(INDEX, rustix::mount::UnmountFlags::DETACH);
    }
}
