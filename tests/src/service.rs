//! One service alone, without a cluster around it.

use std::{
    path::Path,
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{eventually, programs::podplane};

/// A running service; killed when it is dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    address: String,
}

impl Service {
    /// Starts `podplane NAME` with these arguments, listening at `listen`, and waits until it has
    /// published its address. Its log goes to `dir`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(name: &str, listen: &str, dir: &Path, args: &[&str]) -> Result<Self> {
        let file = dir.join(format!("{name}.address"));
        let _ = std::fs::remove_file(&file);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join(format!("{name}.log")))?;
        let mut command = podplane([name, "--listen", listen, "--address-file"]);
        let command = command.arg(&file).args(args);
        let child = command.stdout(Stdio::null()).stderr(log).spawn()?;
        let mut service = Self {
            child,
            address: String::new(),
        };
        let what = format!("{name} tells its address");
        let read = || async { std::fs::read_to_string(&file).ok() };
        let address = eventually(&what, read, Option::is_some).await;
        let address = address.context("an address")?;
        address.trim().clone_into(&mut service.address);
        Ok(service)
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it cannot be sent.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Stops it with SIGSTOP, and waits until none of its threads runs: the kernel stops them after
    /// it has accepted the signal.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let pid = Pid::from_child(&self.child);
        let change = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let stopped = waitid(WaitId::Pid(pid), change)?.is_some_and(|status| status.stopped());
        ensure!(stopped, "process {pid} has ended");
        Ok(())
    }

    /// Resumes it with SIGCONT.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until it ends by itself; returns true if it succeeded.
    ///
    /// # Panics
    ///
    /// If it goes on.
    pub async fn ended(mut self) -> bool {
        let ended = || std::future::ready(self.child.try_wait().ok().flatten());
        let exit = eventually("the service ends", ended, Option::is_some).await;
        exit.is_some_and(|exit| exit.success())
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
