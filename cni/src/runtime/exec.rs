//! One execution of a plugin program: pipes, deadline, and what its exit means.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use backon::{BlockingRetryable as _, ConstantBuilder};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};

use super::PluginError;
use crate::{
    sys, trace,
    types::{CniError, json},
};

/// As much as is kept of what a plugin prints; what comes after is read and dropped.
const KEPT: usize = 1 << 20;
/// Reads before the clock is looked at again, so that a plugin that never stops printing is still ended in time.
const READS: usize = 256;

/// What a plugin that succeeded printed.
#[derive(Debug)]
pub struct Output {
    /// The result, or nothing.
    pub stdout: Vec<u8>,
    /// Its log.
    pub stderr: Vec<u8>,
}

/// Finds the program of a plugin: the first directory with a regular file of that name.
///
/// # Errors
/// [`PluginError::NotFound`] and [`PluginError::InvalidName`].
pub fn find_plugin(name: &str, dirs: &[PathBuf]) -> Result<PathBuf, PluginError> {
    if name.is_empty() || name.contains('/') {
        return Err(PluginError::InvalidName(name.to_owned()));
    }
    let mut candidates = dirs.iter().map(|dir| dir.join(name));
    let found = candidates.find(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file()));
    found.ok_or_else(|| PluginError::NotFound {
        name: name.to_owned(),
        path: dirs.to_owned(),
    })
}

/// Runs a plugin with `stdin` and with `env` on top of this process's environment, in the network
/// namespace of the calling thread.
///
/// With a `timeout` the plugin leads a process group of its own, and the whole group is killed after it.
///
/// # Errors
/// [`PluginError`].
pub fn execute(
    program: &Path,
    stdin: &[u8],
    env: &[(&'static str, OsString)],
    timeout: Option<Duration>,
) -> Result<Output, PluginError> {
    Running::start(program, stdin, env, timeout)?.finish(&mut Vec::new())
}

/// A plugin that runs. It is killed when the thread that started it ends, and must be [finished](Self::finish) by it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Running<'a> {
    program: PathBuf,
    child: Child,
    talk: Conversation<'a>,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
}

impl<'a> Running<'a> {
    /// Starts a plugin as [`execute`] does.
    ///
    /// # Errors
    /// [`PluginError::Run`].
    pub(crate) fn start(
        program: &Path,
        stdin: &'a [u8],
        env: &[(&'static str, OsString)],
        timeout: Option<Duration>,
    ) -> Result<Self, PluginError> {
        let mut command = Command::new(program);
        command.envs(env.iter().map(|(key, value)| (OsStr::new(*key), value)));
        Self::start_command(command, stdin, timeout, KEPT)
    }

    /// Starts any command as [`execute`] starts a plugin. Of each of its outputs `kept` bytes are
    /// kept.
    ///
    /// # Errors
    /// [`PluginError::Run`].
    pub(crate) fn start_command(
        mut command: Command,
        stdin: &'a [u8],
        timeout: Option<Duration>,
        kept: usize,
    ) -> Result<Self, PluginError> {
        let program = PathBuf::from(command.get_program());
        let failed = |source: io::Error| PluginError::Run {
            path: program.clone(),
            source,
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if timeout.is_some() {
            // What is to be killed as a whole is a group. Without a timeout (a plugin that runs its IPAM
            // plugin) the child stays in the group that the caller's own runtime would kill.
            command.process_group(0);
        }
        sys::die_with_this_thread(&mut command);
        let mut child = spawn(&mut command).map_err(failed)?;
        match Conversation::new(&mut child, stdin) {
            Ok(mut talk) => {
                talk.kept = kept;
                talk.feed();
                Ok(Self {
                    program,
                    child,
                    talk,
                    timeout,
                    deadline: timeout.map(|timeout| Instant::now() + timeout),
                })
            }
            Err(error) => {
                kill(&child, timeout);
                child.wait().map_err(failed)?;
                Err(failed(error))
            }
        }
    }

    /// Waits for its end. The lines in which a plugin of ours tells of its steps are put into `steps`.
    ///
    /// # Errors
    /// [`PluginError`].
    pub(crate) fn finish(self, steps: &mut Vec<u8>) -> Result<Output, PluginError> {
        let Self {
            program,
            mut child,
            mut talk,
            timeout,
            deadline,
        } = self;
        let failed = |source: io::Error| PluginError::Run {
            path: program.clone(),
            source,
        };
        let ended = talk.run_until(deadline);
        if !matches!(ended, Ok(Ended::Exited)) {
            kill(&child, timeout);
        }
        let status = child.wait().map_err(failed)?;
        let Conversation {
            stdout, mut stderr, ..
        } = talk;
        *steps = trace::split(&mut stderr);
        match ended.map_err(failed)? {
            Ended::TimedOut => Err(PluginError::TimedOut {
                path: program,
                after: timeout.unwrap_or_default(),
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
            }),
            Ended::Exited if status.success() => Ok(Output { stdout, stderr }),
            Ended::Exited => Err(failure(status, &stdout, &stderr)),
        }
    }
}

/// Kills a plugin that is not reaped yet, so that its id cannot belong to anyone else; errors mean that all have ended.
fn kill(child: &Child, timeout: Option<Duration>) {
    let pid = Pid::from_child(child);
    _ = match timeout {
        Some(_) => rustix::process::kill_process_group(pid, Signal::KILL),
        None => rustix::process::kill_process(pid, Signal::KILL),
    };
}

/// Starts the program. One that is being written (`ETXTBSY`: an upgrade in place) is tried again, as
/// libcni does: up to 6 attempts, a second apart.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let attempts = ConstantBuilder::new()
        .with_delay(Duration::from_secs(1))
        .with_max_times(5);
    let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ExecutableFileBusy;
    (|| command.spawn()).retry(attempts).when(is_busy).call()
}

fn failure(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> PluginError {
    if stdout.is_empty() {
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(9)) => "signal: killed".to_owned(),
            (None, Some(signal)) => format!("signal: {signal}"),
            (None, None) => status.to_string(),
        };
        return PluginError::Silent {
            status,
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        };
    }
    let parsed = json::parse_folded(stdout).and_then(serde_json::from_value::<CniError>);
    match parsed {
        Ok(error) => PluginError::Refused {
            error,
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        },
        Err(error) => PluginError::Unreadable {
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            reason: json::go_error(&error),
        },
    }
}

/// Why a [`Conversation`] is over.
pub(crate) enum Ended {
    Exited,
    TimedOut,
}

/// The pipes of a running plugin. One thread serves them all, so that neither a full pipe nor a
/// grandchild that keeps one open can block it.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    process: rustix::fd::OwnedFd,
    stdin: Option<(ChildStdin, &'a [u8])>,
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
    kept: usize,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(child: &mut Child, input: &'a [u8]) -> io::Result<Self> {
        let process = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let fds = [
            stdin.as_ref().map(AsFd::as_fd),
            out.as_ref().map(AsFd::as_fd),
            err.as_ref().map(AsFd::as_fd),
        ];
        for fd in fds.into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let stdin = stdin.map(|pipe| (pipe, input));
        Ok(Self {
            process,
            stdin,
            out,
            err,
            kept: KEPT,
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }

    /// Feeds and drains the pipes until the process has ended, whoever else may still hold them.
    pub(crate) fn run_until(&mut self, deadline: Option<Instant>) -> io::Result<Ended> {
        loop {
            self.feed();
            drain(&mut self.out, &mut self.stdout, self.kept)?;
            drain(&mut self.err, &mut self.stderr, self.kept)?;
            match self.wait(deadline)? {
                Some(Ended::Exited) => {
                    drain(&mut self.out, &mut self.stdout, self.kept)?;
                    drain(&mut self.err, &mut self.stderr, self.kept)?;
                    return Ok(Ended::Exited);
                }
                Some(Ended::TimedOut) => return Ok(Ended::TimedOut),
                None => {}
            }
        }
    }

    /// Waits until something can be done: `None`, or that the process has ended or the time is up.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<Option<Ended>> {
        let mut fds = vec![PollFd::new(&self.process, PollFlags::IN)];
        fds.extend(
            self.stdin
                .as_ref()
                .map(|(pipe, _)| PollFd::new(pipe, PollFlags::OUT)),
        );
        fds.extend(
            self.out
                .as_ref()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        fds.extend(
            self.err
                .as_ref()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A time too long for the kernel's clock is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => Ok(Some(Ended::TimedOut)),
            Ok(_) if !fds[0].revents().is_empty() => Ok(Some(Ended::Exited)),
            Ok(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                Ok(Some(Ended::TimedOut))
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn feed(&mut self) {
        while let Some((pipe, left)) = &mut self.stdin {
            match rustix::io::write(&*pipe, left) {
                Ok(n) => *left = &left[n..],
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                // A plugin that does not read its input (VERSION, or one that fails early) is no error.
                Err(_) => *left = &[],
            }
            if left.is_empty() {
                self.stdin = None;
            }
        }
    }
}

/// Reads what is there, within bounds; the pipe is closed at its end.
fn drain<P: AsFd>(pipe: &mut Option<P>, into: &mut Vec<u8>, kept: usize) -> io::Result<()> {
    let mut buffer = [0; 4096];
    for _ in 0..READS {
        let Some(open) = pipe else { break };
        match rustix::io::read(borrow(open), &mut buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => into.extend_from_slice(&buffer[..n.min(kept - into.len())]),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn borrow<P: AsFd>(pipe: &P) -> BorrowedFd<'_> {
    pipe.as_fd()
}
