//! A process of a cluster, and signals to it.

use std::{fs, os::fd::OwnedFd};

use podplane_proto::cluster::ServiceStatus;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{Cluster, ClusterError, Result, eventually};

/// A process of a cluster that runs now. Once it has ended, it stays ended: its successor is
/// another [`Process`].
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    /// A pidfd, which refers to this process even if its pid has been reused.
    handle: OwnedFd,
}

impl Process {
    pub(crate) async fn find(cluster: &Cluster, name: &str) -> Result<Self> {
        let pid = pid(cluster, name).await?;
        let gone = || ClusterError::NoProcess {
            name: name.into(),
            running: Vec::new(),
        };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let handle =
            pidfd_open(number.ok_or_else(gone)?, PidfdFlags::empty()).map_err(|error| {
                ClusterError::io(format!("find process {pid}, {name}"))(error.into())
            })?;
        // The supervisor still reports this pid, so it was not reused before the pidfd was opened.
        if self::pid(cluster, name).await? != pid {
            return Err(gone());
        }
        Ok(Self {
            name: name.into(),
            pid,
            handle,
        })
    }

    /// The name: `scheduler`, `kubelet-node-0`, …
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let step = || format!("send {signal:?} to process {}, {}", self.pid, self.name);
        // The kernel accepts signals for an ended process until the supervisor has waited for it.
        if self.has_ended()? {
            return Err(ClusterError::io(step())(rustix::io::Errno::SRCH.into()));
        }
        pidfd_send_signal(&self.handle, signal)
            .map_err(|error| ClusterError::io(step())(error.into()))
    }

    /// Kills the process and waits until it is gone. The supervisor restarts it.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it has ended already.
    pub async fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.ended().await
    }

    /// Stops the process with SIGSTOP, until [`Process::resume`], and waits until none of its
    /// threads runs: the kernel stops them after it has accepted the signal.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it has ended, and [`ClusterError::TimedOut`] if it goes on.
    pub async fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let what = format!("the stop of process {}, {}", self.pid, self.name);
        let threads = || async { self.threads_are_stopped() };
        let stopped = eventually(&what, threads, |seen| !matches!(seen, Ok(false)));
        stopped.await?.map(drop)
    }

    /// Resumes the process with SIGCONT.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if it has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until the process has ended, for at most [`DEADLINE`](crate::DEADLINE).
    ///
    /// # Errors
    ///
    /// [`ClusterError::TimedOut`] if it still runs.
    pub async fn ended(&self) -> Result<()> {
        let what = format!("the end of process {}, {}", self.pid, self.name);
        let has_ended = eventually(
            &what,
            || async { self.has_ended() },
            |seen| !matches!(seen, Ok(false)),
        );
        has_ended.await?.map(drop)
    }

    fn threads_are_stopped(&self) -> Result<bool> {
        let step = || format!("list the threads of process {}, {}", self.pid, self.name);
        let threads = procfs::process::Process::new(self.pid.cast_signed())
            .and_then(|process| process.tasks())
            .map_err(|error| ClusterError::io(step())(std::io::Error::other(error)))?;
        // A thread that cannot be read has ended meanwhile.
        let mut threads = threads.flatten().filter_map(|thread| thread.stat().ok());
        Ok(threads.all(|thread| thread.state == 'T'))
    }

    /// Returns true if the process has ended: then its pidfd is readable.
    fn has_ended(&self) -> Result<bool> {
        let mut polled = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&Timespec::default()));
        ready.map(|ready| ready > 0).map_err(|error| {
            ClusterError::io(format!("look at process {}, {}", self.pid, self.name))(error.into())
        })
    }
}

async fn pid(cluster: &Cluster, name: &str) -> Result<u32> {
    let services = cluster.status().await?.services;
    let pid = services
        .iter()
        .find(|service| service.name == name)
        .and_then(|service| service.pid);
    let running = |service: ServiceStatus| service.pid.map(|_| service.name);
    pid.ok_or_else(|| ClusterError::NoProcess {
        name: name.into(),
        running: services.into_iter().filter_map(running).collect(),
    })
}

/// Lists the pids and command lines of live processes that mention `text`, without the caller's
/// own.
///
/// # Errors
///
/// [`ClusterError::Io`] if /proc cannot be read.
pub fn processes_of(text: &str) -> Result<Vec<(u32, String)>> {
    let entries = fs::read_dir("/proc").map_err(ClusterError::io("read /proc"))?;
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let command = |number: u32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (number != std::process::id() && line.contains(text)).then_some((number, line))
    };
    Ok(numbers.filter_map(command).collect())
}
