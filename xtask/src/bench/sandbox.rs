//! Namespaces of our own to measure in.

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

/// Runs this same command once more, inside: with its own network, mounts and process numbers. When it ends, all that it started
/// ends, and then the temporary directory goes; also after Ctrl-C.
pub(super) fn enter() -> Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("prepare for Ctrl-C")?;
    }
    let dir = tempfile::Builder::new()
        .prefix("podplane-bench-")
        .tempdir()
        .context("make a temporary directory")?;
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
        .arg(env::current_exe().context("find this program")?)
        .args(env::args_os().skip(1))
        .arg("--inside")
        .arg(dir.path());
    let child = unshare
        .spawn()
        .context("start unshare (package util-linux)")?;
    let status = wait(child, &interrupted)?;
    dir.close().context("remove the temporary directory")?;
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
        if let Some(status) = child.try_wait().context("wait for the measurement")? {
            return Ok(status);
        }
        if interrupted.load(Ordering::Relaxed) {
            // Its children are killed with it: --kill-child, and they are in its process namespace.
            child.kill().context("end the measurement")?;
            return child.wait().context("wait for the measurement");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Inside: an empty /run, for the names of network namespaces and for what plugins keep until the next boot.
pub(super) fn prepare() -> Result<()> {
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None).context("mount an own /run")
}

/// From here on nothing can be written under `/run/podplane`, where plugins of ours may keep what speeds them up.
pub(super) fn without_index() -> Result<ReadOnly> {
    std::fs::create_dir_all(INDEX).context("make /run/podplane")?;
    mount("tmpfs", INDEX, "tmpfs", MountFlags::RDONLY, None).context("mount over /run/podplane")?;
    Ok(ReadOnly)
}

const INDEX: &str = "/run/podplane";

/// Writable again when this goes.
#[derive(Debug)]
pub(super) struct ReadOnly;

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // If it stays, it stays for this process's mount namespace only.
        _ = rustix::mount::unmount(INDEX, rustix::mount::UnmountFlags::DETACH);
    }
}
